//! One server of an upstream: its address, its settings and its state.
//!
//! All event loops share a backend, so its counters are atomics. Its standing with the balancer has to be consistent and
//! lives in `balance`.
//!
//! An operator, a health check, a circuit breaker and the resolver each have a bit in one word: a backend is available
//! while none is set. Balancers do not read the word for every pick; a change adds the backend to a [`ChangeList`] that
//! the balancer reads before the next pick.

#[cfg(test)]
#[path = "tests/backend.rs"]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;

use super::breaker::Breaker;
use super::wait_list::WaitList;
use crate::config::plan::{self, HealthCheck, InitialHealth};
use crate::telemetry::{Histogram, HistogramSnapshot};
use crate::tls;

/// A server that requests can be sent to.
#[derive(Debug)]
pub struct Backend {
    /// Its place among the backends of its upstream.
    pub(super) index: usize,
    /// The place of its server in the plan.
    pub(super) listed: usize,
    /// Its address.
    pub address: BackendAddress,
    /// As `$upstream_addr` shows it: `ip:port` or `unix:/path`.
    pub name: Arc<str>,
    /// Its settings; where their `address` is a name, this backend is one address of that name.
    pub server: plan::UpstreamServer,
    /// The state of its health checks, where it has any.
    pub health: Option<Box<Health>>,
    /// Its circuit breaker, where it has one.
    pub breaker: Option<Arc<Breaker>>,
    /// What it was sent and how it responded.
    pub counters: Arc<BackendCounters>,
    pub(super) keepalive: KeepaliveSettings,
    /// Shared with its connections.
    pub(super) retired: RetiredFlag,
    pub(super) tls: Arc<[Arc<tls::TlsConnector>]>,
    /// The [reasons](UnavailableReason) that hold.
    unavailable: AtomicU8,
    /// Where its balancer learns of changes, where that has to choose.
    changes: Option<Arc<ChangeList>>,
    /// Requests in progress; its balancer reads it too.
    pub(super) active: Arc<AtomicU32>,
}

/// What all backends of an upstream have in common.
#[derive(Debug)]
pub(super) struct GroupSettings {
    pub(super) upstream: plan::Upstream,
    pub(super) keepalive: KeepaliveSettings,
    pub(super) tls: Arc<[Arc<tls::TlsConnector>]>,
    /// Where the balancer learns of changes, where it has to choose.
    pub(super) changes: Option<Arc<ChangeList>>,
}

/// What an upstream says about keeping connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeepaliveSettings {
    /// The upstream's number, unique in this process.
    pub(super) upstream: u64,
    /// Idle connections that each event loop keeps.
    pub(super) most: usize,
    /// How long an idle connection is kept.
    pub(super) timeout: Duration,
    /// How many requests a connection carries.
    pub(super) requests: u64,
}

/// The address of a backend.
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

/// A reason to send a backend no requests. Several may hold at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum UnavailableReason {
    /// Its circuit breaker is open.
    Breaker = 1,
    /// An operator or the configuration took it down.
    Down = 2,
    /// Its name no longer has its address.
    Draining = 4,
    /// Its health check failed.
    Unhealthy = 8,
    /// An operator lets it finish the requests it has.
    Drained = 16,
}

/// What a balancer has to know of a backend's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BackendSnapshot {
    pub(super) unavailable: bool,
    /// It has as many requests as `max_conns` allows.
    pub(super) full: bool,
}

impl Backend {
    /// The backend at `index`: one address of the server at place `listed` of the plan. Its state before a reload is
    /// taken over from `old`.
    pub(super) fn new(
        index: usize,
        address: BackendAddress,
        listed: usize,
        settings: &GroupSettings,
        old: Option<&Self>,
    ) -> Self {
        let upstream = &settings.upstream;
        let server = &upstream.servers[listed];
        let name: Arc<str> = match &address {
            BackendAddress::Tcp(address) => address.to_string().into(),
            BackendAddress::Unix(path) => format!("unix:{}", path.display()).into(),
        };
        let known = old.and_then(|old| old.health.as_deref());
        let check = upstream.health_check.as_ref();
        let health = check.map(|check| Box::new(Health::new(check, known)));
        let known = old.and_then(|old| old.breaker.as_ref());
        let breaker = upstream.breaker.as_ref().map(|rules| {
            let known = known.filter(|known| known.plan == *rules);
            known.map_or_else(
                || Arc::new(Breaker::new(format!("{} {name}", upstream.name), rules)),
                Arc::clone,
            )
        });
        let open = breaker.as_ref().and_then(|breaker| breaker.open_until());
        // An operator's change holds until the configuration changes.
        let down = match old.filter(|old| old.server.down == server.down) {
            Some(old) => old.has(UnavailableReason::Down),
            None => server.down,
        };
        let drained = old.is_some_and(|old| old.has(UnavailableReason::Drained));
        let healthy = health.as_ref().is_none_or(|health| health.is_healthy());
        let backend = Self {
            index,
            listed,
            retired: RetiredFlag::new(server.resolve.is_some()),
            breaker,
            counters: old.map_or_else(Arc::default, |old| Arc::clone(&old.counters)),
            health,
            name,
            address,
            server: server.clone(),
            keepalive: settings.keepalive,
            tls: Arc::clone(&settings.tls),
            unavailable: AtomicU8::new(0),
            changes: settings.changes.clone(),
            active: Arc::default(),
        };
        for (reason, holds) in [
            (UnavailableReason::Down, down),
            (UnavailableReason::Drained, drained),
            (UnavailableReason::Breaker, open.is_some()),
            (UnavailableReason::Unhealthy, !healthy),
        ] {
            backend.set_unavailable(reason, holds);
        }
        backend
    }

    /// Requests in progress.
    pub fn active(&self) -> u32 {
        self.active.load(Ordering::Relaxed)
    }

    /// Whether it receives requests: no [`UnavailableReason`] holds.
    pub fn is_available(&self) -> bool {
        self.unavailable.load(Ordering::Relaxed) == 0
    }

    /// Whether this reason holds.
    pub fn has(&self, reason: UnavailableReason) -> bool {
        self.unavailable.load(Ordering::Relaxed) & reason as u8 != 0
    }

    /// Whether its name no longer has its address.
    pub(super) fn is_retired(&self) -> bool {
        self.has(UnavailableReason::Draining)
    }

    /// Whether another may take its place: it is retired and its last request is over.
    pub(super) fn is_replaceable(&self) -> bool {
        self.is_retired() && self.active() == 0
    }

    /// Its name no longer has its address, or has it again.
    pub(super) fn set_retired(&self, retired: bool) {
        if let Some(flag) = &self.retired.0 {
            flag.store(retired, Ordering::Relaxed);
        }
        self.set_unavailable(UnavailableReason::Draining, retired);
    }

    /// Sets or clears a reason. While any holds the backend receives no new requests; those in progress go on.
    pub fn set_unavailable(&self, reason: UnavailableReason, holds: bool) {
        let bit = reason as u8;
        let (before, after) = if holds {
            let before = self.unavailable.fetch_or(bit, Ordering::Relaxed);
            (before, before | bit)
        } else {
            let before = self.unavailable.fetch_and(!bit, Ordering::Relaxed);
            (before, before & !bit)
        };
        if (before == 0) != (after == 0) {
            self.notify_balancer();
        }
    }

    fn notify_balancer(&self) {
        if let Some(changes) = &self.changes {
            changes.add(self.index);
        }
    }

    /// The TLS settings of connections for this `proxy_pass`, if they are inside TLS.
    pub(super) fn tls(&self, proxy_pass: &plan::ProxyPass) -> Option<&Arc<tls::TlsConnector>> {
        self.tls.get(proxy_pass.tls?)
    }

    /// The number that connections for this `proxy_pass` are kept under: a connection is used again only for the same
    /// backend with the same TLS settings.
    pub(super) fn owner(&self, proxy_pass: &plan::ProxyPass) -> usize {
        self.index * (self.tls.len() + 1) + proxy_pass.tls.map_or(0, |tls| tls + 1)
    }

    /// Whether it has as many requests as `max_conns` allows.
    pub(super) fn is_full(&self) -> bool {
        self.server.max_conns > 0 && self.active() >= self.server.max_conns
    }

    pub(super) fn snapshot(&self) -> BackendSnapshot {
        BackendSnapshot {
            unavailable: !self.is_available(),
            full: self.is_full(),
        }
    }

    /// Begins a request.
    pub(super) fn start_request(self: &Arc<Self>) -> ActiveRequest {
        self.active.fetch_add(1, Ordering::Relaxed);
        ActiveRequest(Arc::clone(self))
    }

    /// Goes on with a request that was over, even if the backend is full by now.
    pub(super) fn resume_request(self: &Arc<Self>) -> ActiveRequest {
        let active = self.start_request();
        if self.is_full() {
            self.notify_balancer();
        }
        active
    }

    /// Begins a request, unless the backend is full.
    pub(super) fn try_start_request(self: &Arc<Self>) -> Option<ActiveRequest> {
        let before = self.active.fetch_add(1, Ordering::Relaxed);
        // Counted first: two loops that come at once are both in the number.
        let active = ActiveRequest(Arc::clone(self));
        let limit = self.server.max_conns;
        (limit == 0 || before < limit).then_some(active)
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
        // It was full and has room again.
        if before == self.0.server.max_conns {
            self.0.notify_balancer();
        }
    }
}

/// The backends whose state has changed since their balancer last looked.
#[derive(Debug, Default)]
pub(super) struct ChangeList {
    // Spares the balancer the lock: mostly the list is empty.
    any: AtomicBool,
    list: Mutex<Vec<usize>>,
    /// Requests that wait for a change.
    waiting: Option<Arc<WaitList>>,
}

impl ChangeList {
    pub(super) fn new(waiting: Option<Arc<WaitList>>) -> Self {
        Self {
            waiting,
            ..Self::default()
        }
    }

    pub(super) fn add(&self, index: usize) {
        self.list.lock().push(index);
        self.any.store(true, Ordering::Release);
        if let Some(waiting) = &self.waiting {
            waiting.wake_next();
        }
    }

    /// Hands over all changes since the last time.
    pub(super) fn take(&self, mut each: impl FnMut(usize)) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        // First this: a change that is added after it is seen now or the next time.
        self.any.store(false, Ordering::Release);
        self.list.lock().drain(..).for_each(&mut each);
    }
}

/// The counters of a server. They outlive a reload.
#[derive(Debug)]
pub struct BackendCounters {
    pub(super) opened: AtomicU64,
    pub(super) reused: AtomicU64,
    /// Failures since the last good response.
    pub(super) failures: AtomicU32,
    statuses: [AtomicU64; STATUSES],
    latency: Histogram,
}

impl BackendCounters {
    /// Connections opened.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Requests sent over a kept connection.
    pub fn reused(&self) -> u64 {
        self.reused.load(Ordering::Relaxed)
    }

    /// Responses by status, without those that never occurred. A failed request has the status that its error stands
    /// for.
    pub fn statuses(&self) -> impl Iterator<Item = (u16, u64)> {
        (FIRST_STATUS..)
            .zip(&self.statuses)
            .map(|(status, count)| (status, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
    }

    /// The times until the response headers arrived or the request failed.
    pub fn latency(&self) -> HistogramSnapshot {
        self.latency.snapshot()
    }

    /// Failures since the last good response, whether or not the server is disabled for them.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    pub(super) fn count_response(&self, status: StatusCode, taken: Duration) {
        // HTTP defines no status above 599; such a response is passed on and not counted.
        let index = usize::from(status.as_u16() - FIRST_STATUS);
        if let Some(counter) = self.statuses.get(index) {
            counter.fetch_add(1, Ordering::Relaxed);
            self.latency.observe(taken);
            if self.failures() > 0 && !status.is_server_error() {
                self.failures.store(0, Ordering::Relaxed);
            }
        }
    }
}

impl Default for BackendCounters {
    fn default() -> Self {
        Self {
            opened: AtomicU64::new(0),
            reused: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            statuses: [const { AtomicU64::new(0) }; STATUSES],
            latency: Histogram::new(),
        }
    }
}

const FIRST_STATUS: u16 = 100;
const STATUSES: usize = 500;

/// Whether an address no longer belongs to its name. A backend shares it with its connections: they lie with the event
/// loops, and see by it that they are to be closed.
// None for addresses that never change: nothing is shared for them, and nothing is read.
#[derive(Debug, Clone, Default)]
pub(super) struct RetiredFlag(Option<Arc<AtomicBool>>);

impl RetiredFlag {
    pub(super) fn new(may_retire: bool) -> Self {
        Self(may_retire.then(Arc::default))
    }

    pub(super) fn is_set(&self) -> bool {
        let flag = self.0.as_ref();
        flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }
}

/// The state of a server's health checks.
#[derive(Debug)]
pub struct Health {
    pub(super) check: HealthCheck,
    streak: Mutex<CheckStreak>,
    healthy: AtomicBool,
    passed: AtomicU64,
    failed: AtomicU64,
}

/// The latest results of a server's checks.
#[derive(Debug, Clone, Copy)]
struct CheckStreak {
    status: HealthStatus,
    /// Checks in a row that contradict the status.
    against: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HealthStatus {
    Healthy,
    Unhealthy,
    /// Not checked yet; counts as unhealthy.
    Unknown,
}

/// A change of status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HealthChange {
    Fall,
    Rise,
}

impl Health {
    /// The state of a server that was never checked, or that of `old`, which had other checks.
    pub(super) fn new(check: &HealthCheck, old: Option<&Self>) -> Self {
        let status = match old.map(|old| old.streak.lock().status) {
            Some(status) => status,
            None if check.initial == InitialHealth::Down => HealthStatus::Unknown,
            None => HealthStatus::Healthy,
        };
        let count = |of: fn(&Self) -> u64| AtomicU64::new(old.map_or(0, of));
        Self {
            check: check.clone(),
            healthy: AtomicBool::new(status == HealthStatus::Healthy),
            streak: Mutex::new(CheckStreak { status, against: 0 }),
            passed: count(Self::passed),
            failed: count(Self::failed),
        }
    }

    /// Whether the server counts as healthy.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// Checks that passed.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// Checks that failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// How long to wait until the next check, with jitter.
    #[must_use]
    pub fn pause(&self) -> Duration {
        let spread = self.check.interval * self.check.jitter.0 / 1000;
        let early = self.check.interval.saturating_sub(spread);
        early + (2 * spread).mul_f64(fastrand::f64())
    }

    /// Takes in the result of a check.
    pub(super) fn record(&self, passed: bool) -> Option<HealthChange> {
        let counter = if passed { &self.passed } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        let mut streak = self.streak.lock();
        let change = streak.record(passed, &self.check)?;
        self.healthy.store(passed, Ordering::Relaxed);
        Some(change)
    }
}

impl CheckStreak {
    fn record(&mut self, passed: bool, check: &HealthCheck) -> Option<HealthChange> {
        let needed = match (self.status, passed) {
            (HealthStatus::Healthy, true) | (HealthStatus::Unhealthy, false) => {
                self.against = 0;
                return None;
            }
            (HealthStatus::Healthy, false) => check.fall,
            (HealthStatus::Unhealthy, true) => check.rise,
            // The first check decides.
            (HealthStatus::Unknown, _) => 1,
        };
        self.against += 1;
        if self.against < needed {
            return None;
        }
        self.against = 0;
        let (status, change) = match passed {
            true => (HealthStatus::Healthy, HealthChange::Rise),
            false => (HealthStatus::Unhealthy, HealthChange::Fall),
        };
        self.status = status;
        Some(change)
    }
}
