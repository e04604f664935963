//! The plan: the configuration after every name is resolved and every rule checked; and which parts of a plan a reload keeps.
//!
//! Only `config` makes plans, and only of valid files, so a plan has no unknown zone or a rate of nothing. Its
//! parts refer to each other by index.

use std::fmt;
use std::time::Duration;

use crate::algorithm::{AlgorithmParams, ParamValues};

pub use super::compile::{LocationPath, PathRule, ServerName};
pub use super::decode::units::{CallShare, SocketAddress, UpstreamAddress};
pub use super::decode::value::HttpVersion;
pub use super::directive::client::{
    AccessRules, ClientMatch, ConnectionLimits, ProxyProtocolVersion, RealIp, RealIpHeader,
};
pub use super::directive::content::{
    DegradeGroup, DegradeMode, FallbackTriggers, Return, ReturnBody, Stale,
};
pub use super::directive::health::{
    Breaker, CheckKind, HealthCheck, HttpCheck, InitialHealth, Recovery,
};
pub use super::directive::limits::{
    ConnQueue, ConnRule, CostSource, HeaderForm, HeaderScope, LimitHeaders, LogLevel, ReqRule,
};
pub use super::directive::location::{Content, Fallback, LocationConf};
pub use super::directive::proxy_pass::{
    MaxTries, NextUpstream, ProxyPass, Redirect, Replacement, SetHeader,
};
pub use super::directive::refusal::{
    BodyFormat, RefusalAction, RefusalBodies, RefusalBody, TypedText,
};
pub use super::directive::server::{Listener, Location, Server};
pub use super::directive::settings::{
    BufferBounds, Buffering, ClientSettings, LimitRate, LimitSettings, ProxySettings,
    RequestBuffering, ResponseBuffering, SizeTemplate,
};
pub use super::directive::store::{Login, OnOutage, Store, StoreMode, StoreTls, StoreTopology};
pub use super::directive::tls::{
    Certificate, Cipher, Tls, TlsFile, TlsVersion, UpstreamTls, VerifyClient,
};
pub use super::directive::upstream::{
    Backoff, Balance, QueueOrder, Resolver, RetryBudget, Upstream, UpstreamQueue, UpstreamServer,
};
pub use super::directive::zones::{
    ConnZone, OnAmbiguousKey, OnEmptyKey, Override, OverrideKey, OverrideLimits, ReqZone,
};
pub use super::maps::{Geo, Map, MapLookup, MapValues};
pub use super::process::{AccessLog, Admin, Log, LogFormat, LogPath, TraceContext, Tracing};
pub use super::template::{
    LimitVariable, Part, ProxyTlv, Template, TlsVariable, TraceVariable, Variable,
};

/// Everything that runs.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How many event loops.
    pub workers: usize,
    /// How long requests in progress may continue after a stop is requested.
    pub shutdown_timeout: Duration,
    /// Where log lines go.
    pub log: Log,
    /// The admin listener.
    pub admin: Option<Admin>,
    /// Traces of requests.
    pub tracing: Option<Tracing>,
    /// How many client connections may be open.
    pub caps: ConnectionLimits,
    /// `maps`: [`Variable::Map`] is an index into this.
    pub maps: Vec<Map>,
    /// `stores`: [`ReqZone::store`] is an index into this.
    pub stores: Vec<Store>,
    /// `limit_req_zones`: [`ReqRule::zone`] is an index into this.
    pub req_zones: Vec<ReqZone>,
    /// `limit_conn_zones`: [`ConnRule::zone`] is an index into this.
    pub conn_zones: Vec<ConnZone>,
    /// `upstreams`, and one more for every `proxy_pass` that names an address; [`ProxyPass::upstream`] is an index.
    pub upstreams: Vec<Upstream>,
    /// `degrade_groups`: [`LocationConf::degrade_group`] is an index into this.
    pub degrade_groups: Vec<DegradeGroup>,
    /// `stale_size`, in bytes.
    pub stale_size: usize,
    /// `buffers`
    pub buffers: BufferBounds,
    /// Directories for temporary files that the configuration names.
    pub temp_paths: Vec<TlsFile>,
    /// TLS settings towards servers behind `https://`; [`ProxyPass::tls`] is an index.
    pub upstream_tls: Vec<UpstreamTls>,
    /// What to listen on, each address once.
    pub listeners: Vec<Listener>,
    /// `servers`: [`Listener::servers`] are indices into this.
    pub servers: Vec<Server>,
    /// The configuration it was made from, as JSON without secrets.
    pub source: Box<str>,
}

/// All locations of these servers, the one for requests without a location last of each.
pub(super) fn location_confs(servers: &[Server]) -> impl Iterator<Item = &LocationConf> {
    servers.iter().flat_map(|server| {
        let locations = server.locations.iter().map(|location| &location.conf);
        locations.chain([&server.fallback])
    })
}

impl Plan {
    /// Whether HTTP/2 is spoken on a listener with clients of one of its servers. The listener's default server has to allow
    /// it, too, because the protocol is settled before the host is known.
    #[must_use]
    pub fn http2(&self, listener: usize, server: usize) -> bool {
        let listener = &self.listeners[listener];
        let both = [listener.default_server, server].map(|index| self.servers[index].http2);
        listener.http2.unwrap_or(both == [true, true])
    }

    /// All locations of each server, the one for requests without a location last.
    pub fn location_confs(&self) -> impl Iterator<Item = &LocationConf> {
        location_confs(&self.servers)
    }

    /// The same, to be changed.
    pub fn sites_mut(&mut self) -> impl Iterator<Item = &mut LocationConf> {
        self.servers.iter_mut().flat_map(|server| {
            let locations = server.locations.iter_mut();
            let locations = locations.map(|location| &mut location.conf);
            locations.chain([&mut server.fallback])
        })
    }
}

/// Why the state of a zone is reset by a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneResetReason {
    /// It counts in another way.
    Algorithm,
    /// Its keys are others.
    Key,
    /// It counts in another store.
    Store,
    /// Its window is divided otherwise.
    Window,
}

impl fmt::Display for ZoneResetReason {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str(match self {
            Self::Algorithm => "its algorithm has changed",
            Self::Key => "its key has changed",
            Self::Store => "its store has changed",
            Self::Window => "its window has changed",
        })
    }
}

impl Plan {
    /// Whether a zone keeps the state of the one of its name in the plan before.
    ///
    /// # Errors
    /// Why its state is reset.
    pub fn inherits(
        &self,
        zone: &ReqZone,
        before: &Self,
        old: &ReqZone,
    ) -> Result<(), ZoneResetReason> {
        let store = |plan: &Self, zone: &ReqZone| {
            let store = zone.store.and_then(|store| plan.stores.get(store));
            store.map(|store| store.name.clone())
        };
        if !self.reads_alike(&zone.key, before, &old.key) || zone.ipv6_prefix != old.ipv6_prefix {
            return Err(ZoneResetReason::Key);
        }
        if zone.algorithm.name() != old.algorithm.name() {
            return Err(ZoneResetReason::Algorithm);
        }
        if store(self, zone) != store(before, old) {
            return Err(ZoneResetReason::Store);
        }
        match (blocks(&zone.algorithm), blocks(&old.algorithm)) {
            (None, None) => Ok(()),
            (new, old_blocks) if new == old_blocks && zone.overrides == old.overrides => Ok(()),
            _ => Err(ZoneResetReason::Window),
        }
    }

    /// Whether the keys of a zone are those of the one of its name in the plan before.
    #[must_use]
    pub fn inherits_places(&self, zone: &ConnZone, before: &Self, old: &ConnZone) -> bool {
        self.reads_alike(&zone.key, before, &old.key) && zone.ipv6_prefix == old.ipv6_prefix
    }

    /// Whether an upstream has not changed, but for the addresses of its names.
    #[must_use]
    pub fn keeps(&self, upstream: &Upstream, before: &Self, old: &Upstream) -> bool {
        let maps = || {
            let names = |plan: &Self| -> Vec<Box<str>> {
                plan.maps.iter().map(|map| map.name.clone()).collect()
            };
            names(self) == names(before)
        };
        upstream == old
            && self.upstream_tls == before.upstream_tls
            && (!upstream.uses_maps() || maps())
    }

    /// Whether two templates are the same, one of this plan and one of another.
    fn reads_alike(&self, own: &Template, other: &Self, theirs: &Template) -> bool {
        let map = |plan: &Self, index: usize| plan.maps.get(index).map(|map| map.name.clone());
        own.parts.len() == theirs.parts.len()
            && own.parts.iter().zip(&theirs.parts).all(|both| match both {
                (Part::Variable(Variable::Map(one)), Part::Variable(Variable::Map(two))) => {
                    map(self, *one) == map(other, *two)
                }
                (one, two) => one == two,
            })
    }
}

impl Upstream {
    /// Whether something in it refers to a map of its plan.
    fn uses_maps(&self) -> bool {
        let hashed = match &self.balance {
            Balance::ConsistentHash(key) | Balance::Hash(key) => Some(key),
            _ => None,
        };
        let fair = self.queue.as_ref().and_then(|queue| queue.fair.as_ref());
        [hashed, fair]
            .into_iter()
            .flatten()
            .any(|text| text.may_use(|_| false))
    }
}

/// The window and the block length of a window in blocks.
fn blocks(algorithm: &AlgorithmParams) -> Option<[Duration; 2]> {
    match algorithm.values() {
        ParamValues {
            window: Some(window),
            precision: Some(precision),
            ..
        } => Some([window, precision]),
        _ => None,
    }
}
