//! One server of an upstream: where it is, what the plan says of it, and how it is.
//!
//! Shared by all event loops, so what changes here is counted with relaxed atomics; its standing with the
//! balancer, which has to be consistent, lives in `balance`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::balance::BackendSnapshot;
use super::breaker::Breaker;
use super::condition::{Availability, ChangeList, UnavailableReason};
use super::counts::BackendCounters;
use super::health::Health;
use super::pool;
use super::tenure::RetiredFlag;
use crate::config::plan;
use crate::tls;

/// A server that can be asked.
#[derive(Debug)]
pub struct Backend {
    /// Its place among the backends of its upstream.
    pub(super) index: usize,
    /// The place of its server in the plan.
    pub(super) listed: usize,
    /// Where it is.
    pub address: BackendAddress,
    /// As `$upstream_addr` shows it: `ip:port` or `unix:/path`.
    pub name: Arc<str>,
    /// What the plan says of it; where its `address` is a name, this backend is one of that name's addresses.
    pub server: plan::UpstreamServer,
    /// How it is, where that is checked.
    pub health: Option<Box<Health>>,
    /// What leaves it alone when it fails, where that is asked for.
    pub breaker: Option<Arc<Breaker>>,
    /// What it was asked, and how it answered.
    pub counts: Arc<BackendCounters>,
    pub(super) keep: pool::KeepaliveSettings,
    /// For how long it belongs to its upstream.
    pub(super) tenure: RetiredFlag,
    /// Whether its balancer wants to know of every request that begins or ends.
    pub(super) is_told: bool,
    tls: Arc<[Arc<tls::TlsConnector>]>,
    condition: Availability,
    /// Where its upstream's balancer hears of changes, where that has to choose.
    notices: Option<Arc<ChangeList>>,
    active: AtomicU32,
}

/// What all backends of an upstream have in common.
#[derive(Debug)]
pub(super) struct GroupSettings {
    pub(super) upstream: plan::Upstream,
    pub(super) keep: pool::KeepaliveSettings,
    pub(super) tls: Arc<[Arc<tls::TlsConnector>]>,
    /// Where the balancer hears of changes, where it has to choose.
    pub(super) notices: Option<Arc<ChangeList>>,
}

/// Where a backend is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BackendAddress {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// A request in progress at a backend, over when dropped.
// Not `Clone`: two owners would end one request twice.
#[derive(Debug)]
pub(super) struct ActiveRequest(Arc<Backend>);

impl Backend {
    /// The backend at `index`: one address of the server that is `listed` so in the plan. What was found out about the
    /// same server before a reload, and what an operator wanted of it, goes on from `old`.
    pub(super) fn new(
        index: usize,
        address: BackendAddress,
        listed: usize,
        common: &GroupSettings,
        old: Option<&Self>,
    ) -> Self {
        let GroupSettings {
            upstream,
            keep,
            tls,
            notices,
        } = common;
        let server = &upstream.servers[listed];
        let name: Arc<str> = match &address {
            BackendAddress::Tcp(address) => address.to_string().into(),
            BackendAddress::Unix(path) => format!("unix:{}", path.display()).into(),
        };
        let known = old.and_then(|old| old.health.as_deref());
        let check = upstream.health_check.as_ref();
        let health = check.map(|check| Health::new(check, known));
        let known = old.and_then(|old| old.breaker.as_ref());
        let breaker = upstream.breaker.as_ref().map(|rules| {
            let known = known.filter(|known| known.plan() == rules);
            known.map_or_else(
                || Arc::new(Breaker::new(format!("{} {name}", upstream.name), rules)),
                Arc::clone,
            )
        });
        let condition = Availability::default();
        condition.set(UnavailableReason::Down, is_down(server, old));
        let drained = old.is_some_and(|old| old.is_barred_by(UnavailableReason::Drained));
        condition.set(UnavailableReason::Drained, drained);
        let open = |breaker: &Arc<Breaker>| breaker.open_until().is_some();
        condition.set(
            UnavailableReason::Breaker,
            breaker.as_ref().is_some_and(open),
        );
        let healthy = health.as_ref().is_none_or(Health::is_healthy);
        condition.set(UnavailableReason::Unhealthy, !healthy);
        if let Some(notices) = notices.as_ref().filter(|_| !condition.is_clear()) {
            notices.post(index);
        }
        Self {
            index,
            listed,
            tenure: match server.resolve {
                Some(_) => RetiredFlag::limited(),
                None => RetiredFlag::default(),
            },
            breaker,
            counts: old.map_or_else(Arc::default, |old| Arc::clone(&old.counts)),
            health: health.map(Box::new),
            name,
            address,
            server: server.clone(),
            keep: *keep,
            is_told: upstream.balance == plan::Balance::LeastConn,
            tls: Arc::clone(tls),
            condition,
            notices: notices.clone(),
            active: AtomicU32::new(0),
        }
    }

    /// Requests in progress.
    pub fn active(&self) -> u32 {
        self.active.load(Ordering::Relaxed)
    }

    /// Whether it may be asked, as far as anybody has said: no [`UnavailableReason`] is up.
    pub fn may_be_asked(&self) -> bool {
        self.condition.is_clear()
    }

    /// Whether this bar is up.
    pub fn is_barred_by(&self, bar: UnavailableReason) -> bool {
        self.condition.has(bar)
    }

    /// Whether its name no longer has its address.
    pub(super) fn is_leaving(&self) -> bool {
        self.is_barred_by(UnavailableReason::Draining)
    }

    /// Whether it has left: it has nothing to do any more, either.
    pub(super) fn is_gone(&self) -> bool {
        self.is_leaving() && self.active() == 0
    }

    /// Its name no longer has its address, or has it again.
    pub(super) fn set_leaving(&self, leaving: bool) {
        self.tenure.set_over(leaving);
        self.set(UnavailableReason::Draining, leaving);
    }

    /// Puts a bar up: it gets no new request until this and every other is down again. Those it has go on.
    pub fn bar(&self, bar: UnavailableReason) {
        self.set(bar, true);
    }

    /// Takes a bar down.
    pub fn unbar(&self, bar: UnavailableReason) {
        self.set(bar, false);
    }

    fn set(&self, bar: UnavailableReason, up: bool) {
        if self.condition.set(bar, up) {
            self.tell();
        }
    }

    fn tell(&self) {
        if let Some(notices) = &self.notices {
            notices.post(self.index);
        }
    }

    /// How it is met for this `proxy_pass`, if that is inside TLS.
    pub(super) fn tls(&self, forward: &plan::ProxyPass) -> Option<&Arc<tls::TlsConnector>> {
        self.tls.get(forward.tls?)
    }

    /// The way to meet it that stands in this place of the plan.
    pub(super) fn tls_at(&self, place: usize) -> Option<&Arc<tls::TlsConnector>> {
        self.tls.get(place)
    }

    /// Whose a connection is that was made for this `proxy_pass`: only who would meet this backend in the same way
    /// may use it.
    pub(super) fn owner(&self, forward: &plan::ProxyPass) -> usize {
        self.index * (self.tls.len() + 1) + forward.tls.map_or(0, |tls| tls + 1)
    }

    /// Whether it has as much to do as `max_conns` allows.
    pub(super) fn is_full(&self) -> bool {
        self.server.max_conns > 0 && self.active() >= self.server.max_conns
    }

    /// What its balancer has to know of it.
    pub(super) fn presence(&self) -> BackendSnapshot {
        BackendSnapshot {
            barred: !self.may_be_asked(),
            full: self.is_full(),
            active: self.active(),
        }
    }

    /// Begins a request.
    pub(super) fn lease(self: &Arc<Self>) -> ActiveRequest {
        self.active.fetch_add(1, Ordering::Relaxed);
        ActiveRequest(Arc::clone(self))
    }

    /// Goes on with a request that was thought to be over, whoever has come since.
    pub(super) fn resume(self: &Arc<Self>) -> ActiveRequest {
        let lease = self.lease();
        if self.is_told || self.is_full() {
            self.tell();
        }
        lease
    }

    /// Begins a request, unless it has as many as it may have.
    pub(super) fn lease_within_limit(self: &Arc<Self>) -> Option<ActiveRequest> {
        let before = self.active.fetch_add(1, Ordering::Relaxed);
        // Counted first: two loops that come at once are both in the number.
        let lease = ActiveRequest(Arc::clone(self));
        let limit = self.server.max_conns;
        (limit == 0 || before < limit).then_some(lease)
    }
}

/// An operator's word holds until the file says something else than it did.
fn is_down(server: &plan::UpstreamServer, old: Option<&Backend>) -> bool {
    match old.filter(|old| old.server.down == server.down) {
        Some(old) => old.is_barred_by(UnavailableReason::Down),
        None => server.down,
    }
}

impl std::ops::Deref for ActiveRequest {
    type Target = Arc<Backend>;

    fn deref(&self) -> &Arc<Backend> {
        &self.0
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let before = self.0.active.fetch_sub(1, Ordering::Relaxed);
        // It was full and has room again, or its load counts.
        if self.0.is_told || before == self.0.server.max_conns {
            self.0.tell();
        }
    }
}
