//! A generation: a plan and the living things built from it.
//!
//! A listening address through all generations.
//!
//! Plans count their listeners anew, and an address may stand elsewhere in the next one. So whoever serves its connections
//! holds a door, and every generation knows which of its listeners a door leads to. Where an address is no longer listened
//! on, those who came through its door are served to their end by the last generation that knew it.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use http::StatusCode;

use super::fallback::DegradeGroup;
use super::location::{Location, LocationBreaker};
use super::stale_cache::StaleCache;
use crate::clock::Clock;
use crate::config::plan::{Http2, Plan, SizeTemplate};
use crate::limits::Zones;
use crate::message::{ClientConnection, RequestRecord, Target};
use crate::route::RouteTable;
use crate::spool::BufferPool;
use crate::telemetry::traces::Tracer;
use crate::telemetry::{AccessLog, COUNTERS, about};
use crate::tls;
use crate::tls::TlsContexts;
use crate::upstream::Upstream;

/// What requests are judged by and sent to.
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
    pub guards: Vec<Arc<LocationBreaker>>,
    /// Locations that are degraded together, in the plan's order.
    pub groups: Vec<Arc<DegradeGroup>>,
    /// The last good answers.
    pub kept: Arc<StaleCache>,
    /// Of all that is buffered.
    pub bounds: Arc<BufferPool>,
    pub(super) sites: RouteTable<Location>,
    access: Option<AccessLog>,
    tracer: Option<Tracer>,
    /// By number of the door.
    doors: Box<[Option<usize>]>,
    /// What operators have changed since it was built.
    pub amendment: LiveChanges,
}

/// Numbers of zones that operators have changed.
#[derive(Debug, Clone)]
pub struct LiveChanges {
    /// The plan as the file has it.
    pub file: Arc<Plan>,
    /// By zone, as they were given.
    pub numbers: BTreeMap<Box<str>, serde_json::Map<String, serde_json::Value>>,
}

/// What a generation is built from, besides its plan.
#[derive(Debug)]
pub struct GenerationParts {
    /// Where requests and connections are counted.
    pub zones: Zones,
    /// In the plan's order.
    pub upstreams: Vec<Arc<Upstream>>,
    /// What TLS needs.
    pub tls: TlsContexts,
    /// Where lines about requests go.
    pub access: Option<AccessLog>,
    /// Which listener each door leads to, by number of the door.
    pub doors: Box<[Option<usize>]>,
}

impl Generation {
    /// Puts the rooms together. What the generation before has learned is kept where it still holds.
    #[must_use]
    pub fn build(plan: Arc<Plan>, parts: GenerationParts, before: Option<&Self>) -> Self {
        let GenerationParts {
            zones,
            upstreams,
            tls,
            access,
            doors,
        } = parts;
        let groups: Vec<_> = plan
            .degrade_groups
            .iter()
            .map(|group| DegradeGroup::inherit(group, before))
            .collect();
        let kept = match before {
            None => Arc::new(StaleCache::new(plan.stale_size)),
            Some(before) => before.kept.heir(plan.stale_size),
        };
        let bounds = match before {
            None => BufferPool::new(plan.buffers),
            Some(before) => {
                before.bounds.set(plan.buffers);
                Arc::clone(&before.bounds)
            }
        };
        let old_guards = before.map_or(&[][..], |before| &before.guards);
        let (mut guards, mut numbers) = (Vec::new(), 0..);
        let sites = RouteTable::build(&plan, |site| {
            let guard = LocationBreaker::build(&plan, site, old_guards);
            let mut site = Location::build(&plan, site, &zones, &upstreams, &groups, &kept, guard);
            site.number = numbers.next().unwrap_or_default();
            guards.extend(site.guard.clone());
            site
        });
        Self {
            amendment: LiveChanges {
                file: Arc::clone(&plan),
                numbers: BTreeMap::new(),
            },
            tracer: plan.tracing.as_ref().and_then(Tracer::new),
            plan,
            zones,
            upstreams,
            tls,
            guards,
            groups,
            kept,
            bounds,
            sites,
            access,
            doors,
        }
    }

    /// The same with other numbers: everything that lives goes on living.
    #[must_use]
    pub fn amended(&self, plan: Plan, amendment: LiveChanges) -> Self {
        let before = Some((&*self.plan, &self.zones));
        let parts = GenerationParts {
            zones: Zones::build_after(&plan, &self.zones.stores, before),
            upstreams: self.upstreams.clone(),
            tls: self.tls.clone(),
            access: self.access.clone(),
            doors: self.doors.clone(),
        };
        Self {
            amendment,
            ..Self::build(Arc::new(plan), parts, Some(self))
        }
    }

    /// Which listener of the plan the door of this number leads to.
    #[must_use]
    #[inline]
    pub fn listener(&self, door: usize) -> Option<usize> {
        *self.doors.get(door)?
    }

    /// What a client is met with on this listener that asks for this name, or for none.
    #[must_use]
    pub fn secured(
        &self,
        listener: usize,
        name: Option<&str>,
    ) -> Option<(Arc<tls::TlsAcceptor>, Http2)> {
        let server = self.named(listener, name)?;
        Some((self.tls.server(server)?, self.plan.http2(listener, server)))
    }

    /// The server for a name in a TLS handshake, or for none.
    pub(super) fn named(&self, listener: usize, name: Option<&str>) -> Option<usize> {
        Some(match name {
            Some(name) => self.sites.server(listener, name.as_bytes()),
            None => self.plan.listeners.get(listener)?.default_server,
        })
    }

    /// Whether a location that forwards is this very path with a slash at its end.
    pub(super) fn adds_slash(&self, exchange: &RequestRecord) -> bool {
        let path = exchange.target.path(&exchange.head);
        let site = self.sites.redirects_to_slash(exchange.server, path);
        site.is_some_and(|site| site.upstream.is_some())
    }

    /// Whether the access log, or something at the site, wants to know the answer's header fields.
    pub(super) fn keeps_sent_headers(&self, site: &Location) -> bool {
        let access = self.access.as_ref();
        site.keeps_sent_headers || access.is_some_and(AccessLog::needs_sent_headers)
    }

    /// Whether one of them wants to know those of the upstream's answer.
    pub(super) fn keeps_upstream_headers(&self, site: &Location) -> bool {
        let access = self.access.as_ref();
        site.keeps_upstream_headers || access.is_some_and(AccessLog::needs_upstream_headers)
    }

    /// Whether the fields of the next answer can be written out: nobody looks at them, and nothing holds it back.
    pub(super) fn takes_lines(&self, exchange: &RequestRecord, site: &Location) -> bool {
        let line = &exchange.peer.line;
        // Until all of an earlier answer has left, this one is not the next.
        let next = line.ready.is_open() && !line.unsent();
        let unbounded = matches!(site.plan.bandwidth.rate, SizeTemplate::Fixed(0));
        let unseen = !self.keeps_sent_headers(site) && exchange.upstream_headers.is_none();
        next && unbounded && unseen && site.fallback.is_none()
    }

    /// Begins a request's part in a trace, where traces are told.
    pub(super) fn trace(&self, exchange: &mut RequestRecord) {
        if let Some(tracer) = &self.tracer {
            exchange.trace = Some(tracer.begin(&exchange.head.headers));
        }
    }

    /// Logs what came by this listener, was no request and got this status; nginx does so, too.
    pub(super) fn log_unparsed(
        &self,
        listener: usize,
        peer: &Arc<ClientConnection>,
        status: StatusCode,
        clock: &Clock,
    ) {
        let server = self.plan.listeners[listener].default_server;
        let (head, ()) = http::Request::new(()).into_parts();
        let (plan, peer, now) = (Arc::clone(&self.plan), Arc::clone(peer), clock.now());
        let mut exchange = RequestRecord::begin(plan, server, peer, head, Target::default(), now);
        exchange.unparsed = true;
        exchange.status = Some(status);
        exchange.ended = Some(now);
        if let Some(rule) = &self.plan.servers[server].real_ip {
            exchange.identify(rule);
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
        tracing::info!("{}", about(format_args!("{message}"), &exchange, None));
        if let Some(access) = &self.access {
            access.write(&exchange);
        }
    }

    /// Books a request that is over.
    pub(super) fn conclude(&self, exchange: &mut RequestRecord, clock: &Clock) {
        COUNTERS.answer(exchange.status);
        // Nobody else wants to know.
        if self.access.is_none() && self.tracer.is_none() {
            return;
        }
        let now = clock.now();
        exchange.ended = Some(now);
        if let Some(access) = &self.access {
            access.write(exchange);
        }
        if let Some(tracer) = &self.tracer {
            tracer.tell(exchange, now);
        }
    }
}

/// The way in by one address.
#[derive(Debug)]
pub struct ListenerHandle {
    number: usize,
    live: Arc<ArcSwap<Generation>>,
    last: OnceLock<Arc<Generation>>,
}

impl ListenerHandle {
    /// A door of this number. No two have the same while somebody may still come through either.
    #[must_use]
    pub fn new(number: usize, live: Arc<ArcSwap<Generation>>) -> Self {
        Self {
            number,
            live,
            last: OnceLock::new(),
        }
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// The generation that whoever comes in now is served by, and which of its listeners this is.
    #[must_use]
    #[inline]
    pub fn enter(&self) -> (Arc<Generation>, usize) {
        // `load_full`, not `load`: arc-swap's guards are few and meant to be short, and this one lives across awaits.
        let live = self.live.load_full();
        match live.listener(self.number) {
            Some(listener) => (live, listener),
            None => self.enter_closed(live),
        }
    }

    /// From now on `last` is what those are served by who came through it.
    pub fn close(&self, last: Arc<Generation>) {
        // Closed twice is closed.
        drop(self.last.set(last));
    }

    #[cold]
    fn enter_closed(&self, live: Arc<Generation>) -> (Arc<Generation>, usize) {
        let live = self.last.get().cloned().unwrap_or(live);
        let listener = live.listener(self.number).unwrap_or_default();
        (live, listener)
    }
}
