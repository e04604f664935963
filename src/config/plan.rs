//! What runs: the configuration after every name is resolved and every rule checked.
//!
//! A plan can only be made by `config::compile`, which refuses what does not fit, so the rooms
//! above never meet an unknown zone or a rate of nothing. They refer to each other by index.
//!
//! An old plan and a new one: what of the living things made from the old one can live on.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::directive::upstream;
use super::secret::Secret;
use crate::algorithm::{AlgorithmParams, ParamValues};

pub use super::compile::{LocationPath, PathRule, ServerName};
pub use super::maps::{Geo, Map, MapLookup, MapValues};
pub use super::process::{TraceContext, Tracing};
pub use super::template::{
    LimitVariable, Part, ProxyTlv, Template, TlsVariable, TraceVariable, Variable,
};
pub use crate::config::directive::client::{
    ConnectionLimits, ProxyProtocolVersion, RealIp, RealIpHeader,
};
pub use crate::config::directive::content::{
    DegradeGroup, DegradeMode, Fallback, FallbackTriggers, Stale,
};
pub use crate::config::directive::health::{
    Breaker, CallShare, CheckKind, HealthCheck, HttpCheck, InitialHealth, Recovery,
};
pub use crate::config::directive::limits::{
    ConnQueue, ConnRule, ConnZone, HeaderForm, HeaderScope, LimitHeaders, LogLevel, OnAmbiguousKey,
    OnEmptyKey, Override, OverrideKey, OverrideLimits, ReqRule, ReqZone,
};
pub use crate::config::directive::location::{
    AccessRules, ClientMatch, Content, HttpVersion, LocationConf, MaxTries, NextUpstream,
    ProxyPass, Return, ReturnBody, SetHeader,
};
pub use crate::config::directive::proxy_pass::{Redirect, Replacement};
pub use crate::config::directive::refusal::{
    BodyFormat, RefusalAction, RefusalBodies, RefusalBody, TypedText,
};
pub use crate::config::directive::settings::{
    BufferBounds, Buffering, ClientSettings, LimitRate, LimitSettings, ProxySettings,
    RequestBuffering, ResponseBuffering, SizeTemplate,
};
pub use crate::config::directive::store::{
    Login, OnOutage, Store, StoreMode, StoreTls, StoreTopology,
};
pub use crate::config::directive::tls::{
    Certificate, Cipher, Tls, TlsFile, TlsVersion, UpstreamTls, VerifyClient,
};
pub use crate::config::directive::upstream::{
    Backoff, Balance, QueueOrder, Resolver, RetryBudget, Upstream, UpstreamAddress, UpstreamQueue,
    UpstreamServer,
};
pub use crate::config::directive::zones::CostSource;

/// Everything that runs.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How many event loops.
    pub workers: usize,
    /// How long requests in flight may go on after a stop was asked for.
    pub shutdown_timeout: Duration,
    /// Where log lines go.
    pub log: Log,
    /// The listener for those who look in from outside.
    pub admin: Option<Admin>,
    /// Who is told of requests, span by span.
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
    /// How servers behind `https://` are met; [`ProxyPass::tls`] is an index.
    pub upstream_tls: Vec<UpstreamTls>,
    /// What to listen on, each address once.
    pub listeners: Vec<Listener>,
    /// `servers`: [`Listener::servers`] are indices into this.
    pub servers: Vec<Server>,
    /// What it was made from, as JSON, secrets left out.
    pub source: Box<str>,
}

impl Plan {
    /// Whether HTTP/2 is spoken on a listener with clients of one of its servers. The listener's default server has its
    /// say, too, because what is spoken is settled before anybody asks for a server by its host.
    #[must_use]
    pub fn http2(&self, listener: usize, server: usize) -> bool {
        let listener = &self.listeners[listener];
        let both = [listener.default_server, server].map(|index| self.servers[index].http2);
        listener.http2.unwrap_or(both == [true, true])
    }

    /// What holds at each location of each server, and where there is none.
    pub fn location_confs(&self) -> impl Iterator<Item = &LocationConf> {
        self.servers.iter().flat_map(|server| {
            let locations = server.locations.iter().map(|location| &location.conf);
            locations.chain([&server.fallback])
        })
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

/// Where log lines go.
#[derive(Debug, Clone)]
pub struct Log {
    /// The least severe level that is written.
    pub level: tracing::Level,
    /// The error log's file, which USR1 opens again; `None` for standard error, written `-`.
    pub error: Option<PathBuf>,
    /// `None` for `access: off`.
    pub access: Option<AccessLog>,
}

/// The access log.
#[derive(Debug, Clone)]
pub struct AccessLog {
    /// Where its lines go.
    pub path: LogPath,
    /// What a line looks like.
    pub format: LogFormat,
}

/// Where a log goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogPath {
    /// Appended to a file, which USR1 opens again.
    File(PathBuf),
    /// Standard output, written `-`.
    Stdout,
}

/// What an access-log line looks like.
#[derive(Debug, Clone)]
pub enum LogFormat {
    /// nginx's `combined`.
    Combined,
    /// One JSON object a line.
    Json,
    /// The user's own text of variables.
    Text(Template),
}

/// The admin listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// Where it listens.
    pub listen: SocketAddr,
    /// What a caller has to show where one is needed.
    pub token: Option<Secret>,
}

/// One address to listen on, and the servers behind it.
#[derive(Debug, Clone)]
pub struct Listener {
    /// Where.
    pub address: SocketAddress,
    /// Whether clients speak TLS here.
    pub tls: bool,
    /// Whether every connection begins with a PROXY header.
    pub proxy_protocol: bool,
    /// Whether HTTP/2 is spoken here, where that was said of the address itself.
    pub http2: Option<bool>,
    /// Those that name this address, in the file's order.
    pub servers: Vec<usize>,
    /// The one for a host nobody claims: the server marked `default_server`, else one without a name, else the first.
    pub default_server: usize,
}

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SocketAddress {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl fmt::Display for SocketAddress {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(text),
            Self::Unix(path) => write!(text, "unix:{}", path.display()),
        }
    }
}

/// A virtual server.
#[derive(Debug, Clone)]
pub struct Server {
    /// What `$server_name` gives: the first name, or nothing.
    pub name: Box<str>,
    /// Hosts it answers for.
    pub names: Vec<ServerName>,
    /// Connection-level settings, in force from the moment the server is known (the listener's default server before).
    pub client: ClientSettings,
    /// `client_header_timeout`
    pub header_timeout: Duration,
    /// What clients that come over TLS are met with; there for every server of a listener that speaks it.
    pub tls: Option<Tls>,
    /// `real_ip`
    pub real_ip: Option<RealIp>,
    /// Largest request head, `large_client_header_buffers` multiplied out.
    pub max_head: usize,
    /// `http2`
    pub http2: bool,
    /// `http2_max_concurrent_streams`
    pub max_streams: u32,
    /// `http2_max_resets`
    pub max_resets: u32,
    /// Its locations in the file's order.
    pub locations: Vec<Location>,
    /// What holds where no location matches: the server's own settings.
    pub fallback: LocationConf,
}

/// A path and what holds there.
#[derive(Debug, Clone)]
pub struct Location {
    /// Which paths.
    pub path: LocationPath,
    /// What holds there.
    pub conf: LocationConf,
}

/// Why a zone cannot go on from where it is.
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
    /// Whether a zone of this plan can go on from where the one of its name is in the plan before.
    ///
    /// # Errors
    /// Why it has to start afresh.
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

    /// Whether the places of a zone of this plan are told apart as in the one of its name in the plan before.
    #[must_use]
    pub fn inherits_places(&self, zone: &ConnZone, before: &Self, old: &ConnZone) -> bool {
        self.reads_alike(&zone.key, before, &old.key) && zone.ipv6_prefix == old.ipv6_prefix
    }

    /// Whether nothing has changed about an upstream but perhaps what its names stand for.
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

    /// Whether two texts are made of the same, one here and one in another plan.
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
    /// Whether something in it is found by its place among the maps of its plan.
    fn uses_maps(&self) -> bool {
        use upstream::Balance;
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

/// What a window in blocks is divided into.
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
