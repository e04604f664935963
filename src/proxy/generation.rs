//! A generation: a plan and what runs by it.
//!
//! Plans number their listeners anew, and an address may stand elsewhere in the next plan. So the connections of an address
//! hold a [`ListenerHandle`], and every generation knows which of its listeners a handle stands for. Where an address is no
//! longer listened on, its connections are served to their end by the last generation that knew it.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use http::request::Parts;
use http::{StatusCode, Version};

use super::content::Content;
use super::context::{RequestContext, RequestResources};
use super::error::ProxyError;
use super::filter::{CompileContext, DegradeGroup};
use super::location::{Location, LocationBreaker};
use super::stale_cache::StaleCache;
use crate::clock::Clock;
use crate::config::plan::{Listener, Plan, VerifyClient};
use crate::limits::Zones;
use crate::message::{self, CertificateStatus, ClientConnection, RequestRecord, Target, TlsInfo};
use crate::route::RouteTable;
use crate::spool::BufferPool;
use crate::store::SharedStore;
use crate::telemetry::traces::Tracer;
use crate::telemetry::{AccessLog, about};
use crate::tls::{self, TlsContexts};
use crate::upstream::Upstream;

/// A plan, and all that runs by it.
#[derive(Debug)]
pub struct Generation {
    /// What it was built from.
    pub plan: Arc<Plan>,
    /// Where requests and connections are counted.
    pub zones: Zones,
    /// In the plan's order.
    pub upstreams: Vec<Arc<Upstream>>,
    /// What TLS needs.
    pub tls: TlsContexts,
    /// The breakers of locations.
    pub breakers: Vec<Arc<LocationBreaker>>,
    /// Locations that are degraded together, in the plan's order.
    pub groups: Vec<Arc<DegradeGroup>>,
    /// The last good responses.
    pub stale_cache: Arc<StaleCache>,
    /// The bounds of all that is buffered.
    pub buffers: Arc<BufferPool>,
    pub(super) routes: RouteTable<Location>,
    resources: Arc<RequestResources>,
    /// By number of the listener handle.
    listener_indices: Box<[Option<usize>]>,
    /// What operators have changed since it was built.
    pub live_changes: LiveChanges,
}

/// The settings of zones that operators have changed.
#[derive(Debug, Clone)]
pub struct LiveChanges {
    /// The plan as the file has it.
    pub file: Arc<Plan>,
    /// The changed settings by zone, as they were given.
    pub settings_by_zone: BTreeMap<Box<str>, serde_json::Map<String, serde_json::Value>>,
}

/// What a generation is built from, besides its plan.
#[derive(Debug)]
pub struct GenerationParts {
    /// The stores of its zones, in the plan's order.
    pub stores: Vec<Arc<SharedStore>>,
    /// In the plan's order.
    pub upstreams: Vec<Arc<Upstream>>,
    /// What TLS needs.
    pub tls: TlsContexts,
    /// Where lines about requests go.
    pub access_log: Option<AccessLog>,
}

impl Generation {
    /// Compiles the locations. What the generation before has learned is kept where it still holds. `listener_indices` has the
    /// plan's listener of each handle, by the handle's number.
    #[must_use]
    pub fn build(
        plan: Arc<Plan>,
        parts: GenerationParts,
        listener_indices: Box<[Option<usize>]>,
        before: Option<&Self>,
    ) -> Self {
        let old_zones = before.map(|before| (&*before.plan, &before.zones));
        let zones = Zones::build_after(&plan, &parts.stores, old_zones);
        let old_groups = before.map(|before| (&*before.plan, &*before.groups));
        let groups = plan.degrade_groups.iter();
        let groups: Vec<_> = groups
            .map(|group| DegradeGroup::inherit(group, old_groups))
            .collect();
        let stale_cache = match before {
            None => Arc::new(StaleCache::new(plan.stale_size)),
            Some(before) if before.stale_cache.max_bytes == plan.stale_size => {
                Arc::clone(&before.stale_cache)
            }
            Some(before) => Arc::new(before.stale_cache.resized(plan.stale_size)),
        };
        // One for all generations, within what the newest plan allows.
        let buffers = match before {
            None => BufferPool::new(plan.buffers),
            Some(before) => Arc::clone(&before.buffers),
        };
        buffers.set(plan.buffers);
        let resources = Arc::new(RequestResources {
            access_log: parts.access_log,
            tracer: plan.tracing.as_ref().and_then(Tracer::new),
            buffers: Arc::clone(&buffers),
        });
        let context = CompileContext {
            plan: &plan,
            zones: &zones,
            groups: &groups,
            upstreams: &parts.upstreams,
            stale_cache: &stale_cache,
            resources: &resources,
        };
        let old_breakers = before.map_or(&[][..], |before| &before.breakers);
        let (mut breakers, mut numbers) = (Vec::new(), 0..);
        let routes = RouteTable::build(&plan, |conf| {
            let breaker = LocationBreaker::compile(&plan, conf, old_breakers);
            breakers.extend(breaker.clone());
            let number = numbers.next().unwrap_or_default();
            Location::compile(conf, number, breaker, context)
        });
        Self {
            live_changes: LiveChanges {
                file: Arc::clone(&plan),
                settings_by_zone: BTreeMap::new(),
            },
            plan,
            zones,
            upstreams: parts.upstreams,
            tls: parts.tls,
            breakers,
            groups,
            stale_cache,
            buffers,
            routes,
            resources,
            listener_indices,
        }
    }

    /// The same generation with changed settings of zones; all state is kept.
    #[must_use]
    pub fn amended(&self, plan: Plan, live_changes: LiveChanges) -> Self {
        let parts = GenerationParts {
            stores: self.zones.stores.clone(),
            upstreams: self.upstreams.clone(),
            tls: self.tls.clone(),
            access_log: self.resources.access_log.clone(),
        };
        let listener_indices = self.listener_indices.clone();
        Self {
            live_changes,
            ..Self::build(Arc::new(plan), parts, listener_indices, Some(self))
        }
    }

    /// The plan's listener of the handle with this number.
    #[must_use]
    #[inline]
    pub fn listener(&self, handle: usize) -> Option<usize> {
        *self.listener_indices.get(handle)?
    }

    /// The TLS settings for a client on this listener that asks for this name, or for none.
    #[must_use]
    pub fn tls_settings(
        &self,
        listener: usize,
        name: Option<&str>,
    ) -> Option<(Arc<tls::TlsAcceptor>, bool)> {
        let server = self.tls_server(listener, name)?;
        Some((self.tls.server(server)?, self.plan.http2(listener, server)))
    }

    /// The server for a name in a TLS handshake, or for none.
    pub(super) fn tls_server(&self, listener: usize, name: Option<&str>) -> Option<usize> {
        Some(match name {
            Some(name) => self.routes.server(listener, name.as_bytes()),
            None => self.plan.listeners.get(listener)?.default_server,
        })
    }

    /// A reference that is valid for as long as this generation or one of its requests lives.
    #[must_use]
    pub fn lifetime(&self) -> Weak<RequestResources> {
        Arc::downgrade(&self.resources)
    }

    /// The context of a request; with what is wrong with its target, if something is.
    // Not in a future: a head is large, and moves once, to where it stays.
    pub(super) fn begin(
        &self,
        listener: usize,
        client: Arc<ClientConnection>,
        head: Parts,
        clock: &Clock,
    ) -> (Box<RequestContext>, Option<message::Error>) {
        let (target, bad_target) = match Target::parse(&head) {
            Ok(target) => (target, None),
            Err(error) => (Target::default(), Some(error)),
        };
        let server = self.routes.server(listener, target.host(&head));
        let plan = Arc::clone(&self.plan);
        let mut record = RequestRecord::begin(plan, server, client, head, target, clock.now());
        if let Some(tracer) = &self.resources.tracer {
            record.trace = Some(tracer.begin(&record.head.headers));
        }
        let resources = Arc::clone(&self.resources);
        (
            RequestContext::new(record, resources, clock.clone()),
            bad_target,
        )
    }

    /// post_read and find_config: the client, as `real_ip` has it, and the location.
    pub(super) fn find_config(&self, cx: &mut RequestContext) -> &Location {
        let location = self.locate(&mut cx.record);
        cx.lacks_slash = self.lacks_slash(&cx.record);
        location
    }

    /// The location of a request, whose client is the one that `real_ip` names.
    pub(super) fn locate(&self, record: &mut RequestRecord) -> &Location {
        let server = record.server;
        if let Some(rule) = &self.plan.servers[server].real_ip {
            record.identify(rule);
        }
        // A target that does not parse has no path, and so gets the server's own settings.
        let path = record.target.path(&record.head);
        let location = self.routes.find(server, path);
        if let Some(rule) = &location.conf.real_ip {
            record.identify(rule);
        }
        location
    }

    /// Whether the path is that of a forwarding location but for the slash at its end.
    pub(super) fn lacks_slash(&self, record: &RequestRecord) -> bool {
        let path = record.target.path(&record.head);
        let location = self.routes.redirects_to_slash(record.server, path);
        location.is_some_and(|location| matches!(location.content, Content::ProxyPass(_)))
    }

    /// The error in the request's framing, its target or its connection, before any setting of its location: also nginx's
    /// 421, 495, 496 and 497.
    pub(super) fn objection(
        &self,
        listener: usize,
        cx: &RequestContext,
        bad_target: Option<message::Error>,
    ) -> Option<ProxyError> {
        if let Some(ambiguity) = cx.ambiguity() {
            return Some(ProxyError::Ambiguous(ambiguity));
        }
        if let Some(error) = bad_target {
            return Some(ProxyError::BadTarget(error));
        }
        let record = &cx.record;
        if record.head.version == Version::HTTP_2 && !self.speaks_http2(listener, record.server) {
            return Some(ProxyError::Http2Off);
        }
        let listeners = &self.plan.listeners;
        let is_tls = listeners.get(listener).is_some_and(|listener| listener.tls);
        match (is_tls, record.connection.tls()) {
            (true, None) => Some(ProxyError::PlainToTls),
            (_, Some(tls)) => self.certificate_objection(listener, record, tls),
            (_, None) => None,
        }
    }

    /// Whether HTTP/2 reaches a server over a connection of this listener. Connections on which it was begun before a reload
    /// turned it off for the whole listener are served to their end.
    fn speaks_http2(&self, listener: usize, server: usize) -> bool {
        let plan = &self.plan;
        let Some(Listener { default_server, .. }) = plan.listeners.get(listener) else {
            return true;
        };
        plan.http2(listener, server) || !plan.http2(listener, *default_server)
    }

    fn certificate_objection(
        &self,
        listener: usize,
        record: &RequestRecord,
        tls: &TlsInfo,
    ) -> Option<ProxyError> {
        let verify = record.server().tls.as_ref()?.verify_client;
        if verify == VerifyClient::Off {
            return None;
        }
        // A client that was not asked for a certificate by the server it named must not reach another one that asks.
        if self.tls_server(listener, tls.server_name.as_deref()) != Some(record.server) {
            return Some(ProxyError::Misdirected);
        }
        match (verify, tls.certificate_status()) {
            (_, Some(CertificateStatus::Good)) => None,
            (VerifyClient::OptionalNoCa, Some(CertificateStatus::Unknown(_))) => None,
            (_, Some(CertificateStatus::Unknown(reason))) => {
                Some(ProxyError::BadCertificate((*reason).into()))
            }
            (_, Some(CertificateStatus::Bad(reason))) => {
                Some(ProxyError::BadCertificate(reason.clone()))
            }
            (VerifyClient::On, None) => Some(ProxyError::NoCertificate),
            (_, None) => None,
        }
    }

    /// Logs what a connection of this listener sent that was no request and got this status, as nginx does.
    pub(super) fn log_unparsed(
        &self,
        listener: usize,
        client: &Arc<ClientConnection>,
        status: StatusCode,
        clock: &Clock,
    ) {
        let server = self.plan.listeners[listener].default_server;
        let (head, ()) = http::Request::new(()).into_parts();
        let (plan, client, now) = (Arc::clone(&self.plan), Arc::clone(client), clock.now());
        let mut record = RequestRecord::begin(plan, server, client, head, Target::default(), now);
        record.unparsed = true;
        record.status = Some(status);
        record.ended = Some(now);
        if let Some(rule) = &self.plan.servers[server].real_ip {
            record.identify(rule);
        }
        let message = match status {
            StatusCode::REQUEST_TIMEOUT => {
                "client timed out (110: Connection timed out) while reading client request headers"
            }
            StatusCode::URI_TOO_LONG => {
                "client sent too long URI while reading client request line"
            }
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                "client sent too large request while reading client request headers"
            }
            StatusCode::HTTP_VERSION_NOT_SUPPORTED => {
                "client sent invalid version while reading client request line"
            }
            _ => "client sent invalid request while reading client request headers",
        };
        tracing::info!("{}", about(format_args!("{message}"), &record, None));
        if let Some(access_log) = &self.resources.access_log {
            access_log.write(&record);
        }
    }
}

/// A listening address through all generations.
#[derive(Debug)]
pub struct ListenerHandle {
    /// Its number.
    pub number: usize,
    live: Arc<ArcSwap<Generation>>,
    last: OnceLock<Arc<Generation>>,
}

impl ListenerHandle {
    /// A handle with this number. No two have the same number while connections of either may still come.
    #[must_use]
    pub fn new(number: usize, live: Arc<ArcSwap<Generation>>) -> Self {
        Self {
            number,
            live,
            last: OnceLock::new(),
        }
    }

    /// The generation that serves what comes now, and the index of this listener in its plan.
    #[must_use]
    #[inline]
    pub fn current(&self) -> (Arc<Generation>, usize) {
        // `load_full`, not `load`: arc-swap's guards are few and meant to be short, and this one lives across awaits.
        let live = self.live.load_full();
        match live.listener(self.number) {
            Some(listener) => (live, listener),
            None => self.last_generation(live),
        }
    }

    /// From now on `last` serves the connections of this address.
    pub fn close(&self, last: Arc<Generation>) {
        // Closed twice is closed.
        drop(self.last.set(last));
    }

    #[cold]
    fn last_generation(&self, live: Arc<Generation>) -> (Arc<Generation>, usize) {
        let live = self.last.get().cloned().unwrap_or(live);
        let listener = live.listener(self.number).unwrap_or_default();
        (live, listener)
    }
}
