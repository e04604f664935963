//! One server of an upstream: where it is, what the plan says of it, and how it is.
//!
//! Shared by all event loops, so what changes here is counted with relaxed atomics; its standing with the
//! balancer, which has to be consistent, lives in `balance`.
//!
//! May a backend be asked? One word on each backend answers, whoever has a say in it.
//!
//! An operator, a health check, a circuit breaker and the resolver each have a bar of their own, and none has to know
//! of the others: a backend is asked when no bar is up. Balancers do not look at the word for every pick. Who is not
//! asked stands aside, and whoever moves a bar leaves a notice that the balancer finds before its next pick.
//!
//! What a server was asked and how it answered.
//!
//! The server's and not its plan's: when a reload changes an upstream, the backends of a server that stays go on counting
//! in the same place.
//!
//! Whether an address is still one of its name's: what is kept of one that is not is of no use.
//!
//! A backend and every connection to it share one. The connections lie with the event loops, out of anybody's reach, and
//! see by it that they are to be closed.
//!
//! How many checks in a row it takes to believe them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;

use super::breaker::Breaker;
use super::health::Health;
use super::pool;
use super::queue::RequestQueue;
use crate::config::plan::{self, HealthCheck, InitialHealth};
use crate::telemetry::{Histogram, HistogramSnapshot};
use crate::tls;
use crate::upstream::balance::peers::BackendSnapshot;

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
    tls: Arc<[Arc<tls::TlsConnector>]>,
    condition: Availability,
    /// Where its upstream's balancer hears of changes, where that has to choose.
    notices: Option<Arc<ChangeList>>,
    /// Requests in progress; its balancer reads it too.
    pub(super) active: Arc<AtomicU32>,
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
            tls: Arc::clone(tls),
            condition,
            notices: notices.clone(),
            active: Arc::default(),
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
    pub(super) fn tls(&self, proxy_pass: &plan::ProxyPass) -> Option<&Arc<tls::TlsConnector>> {
        self.tls.get(proxy_pass.tls?)
    }

    /// The way to meet it that stands in this place of the plan.
    pub(super) fn tls_at(&self, place: usize) -> Option<&Arc<tls::TlsConnector>> {
        self.tls.get(place)
    }

    /// Whose a connection is that was made for this `proxy_pass`: only who would meet this backend in the same way
    /// may use it.
    pub(super) fn owner(&self, proxy_pass: &plan::ProxyPass) -> usize {
        self.index * (self.tls.len() + 1) + proxy_pass.tls.map_or(0, |tls| tls + 1)
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
        if self.is_full() {
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
        // It was full and has room again.
        if before == self.0.server.max_conns {
            self.0.tell();
        }
    }
}

/// A reason not to ask a backend. Several may hold at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum UnavailableReason {
    /// Its circuit breaker is open.
    Breaker = 1,
    /// An operator said so: `down` in the file.
    Down = 2,
    /// An operator lets it finish what it has.
    Drained = 16,
    /// It is leaving: its name no longer has its address.
    Draining = 4,
    /// Its health check failed.
    Unhealthy = 8,
}

/// The bars that are up.
#[derive(Debug, Default)]
pub(super) struct Availability(AtomicU8);

/// Backends of an upstream of which a balancer has to think again, until it does.
#[derive(Debug, Default)]
pub(super) struct ChangeList {
    // Spares the balancer the lock: mostly there is nothing to hear.
    any: AtomicBool,
    list: Mutex<Vec<usize>>,
    /// Who waits for a change.
    queue: Option<Arc<RequestQueue>>,
}

impl Availability {
    /// Whether no bar is up.
    pub(super) fn is_clear(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Whether this bar is up.
    pub(super) fn has(&self, bar: UnavailableReason) -> bool {
        self.0.load(Ordering::Relaxed) & bar as u8 != 0
    }

    /// Puts a bar up or takes it down; whether that changed if the backend may be asked.
    pub(super) fn set(&self, bar: UnavailableReason, up: bool) -> bool {
        let bit = bar as u8;
        let (before, after) = if up {
            let before = self.0.fetch_or(bit, Ordering::Relaxed);
            (before, before | bit)
        } else {
            let before = self.0.fetch_and(!bit, Ordering::Relaxed);
            (before, before & !bit)
        };
        (before == 0) != (after == 0)
    }
}

impl ChangeList {
    pub(super) fn new(queue: Option<Arc<RequestQueue>>) -> Self {
        Self {
            queue,
            ..Self::default()
        }
    }

    /// Something has changed about a backend.
    pub(super) fn post(&self, index: usize) {
        self.list.lock().push(index);
        self.any.store(true, Ordering::Release);
        if let Some(queue) = &self.queue {
            queue.call();
        }
    }

    /// Hands over every notice since the last time.
    pub(super) fn take(&self, mut each: impl FnMut(usize)) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        // First this: what is added after it is told now or the next time.
        self.any.store(false, Ordering::Release);
        self.list.lock().drain(..).for_each(&mut each);
    }
}

/// The counters of a server.
#[derive(Debug)]
pub struct BackendCounters {
    opened: AtomicU64,
    reused: AtomicU64,
    answers: [AtomicU64; STATUSES],
    latency: Histogram,
    /// How often it has failed since its last good answer.
    failures: AtomicU32,
}

impl BackendCounters {
    /// Connections made so far.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Requests so far that went over a kept connection.
    pub fn reused(&self) -> u64 {
        self.reused.load(Ordering::Relaxed)
    }

    /// How many requests ended with which status, those without any left out. A failed one has the status its
    /// failure stands for.
    pub fn answers(&self) -> impl Iterator<Item = (u16, u64)> {
        (FIRST_STATUS..)
            .zip(&self.answers)
            .map(|(status, count)| (status, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
    }

    /// How long they took, until the head of the answer or until they failed.
    pub fn latency(&self) -> HistogramSnapshot {
        self.latency.read()
    }

    /// How often it has failed since its last good answer, whether or not it is left alone for that.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    pub(super) fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_reused(&self) {
        self.reused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_answer(&self, status: StatusCode, taken: Duration) {
        // A status over 599 is none that HTTP defines; it is passed on, and not counted.
        let counter = self
            .answers
            .get(usize::from(status.as_u16() - FIRST_STATUS));
        if let Some(counter) = counter {
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
            answers: [const { AtomicU64::new(0) }; STATUSES],
            latency: Histogram::new(),
            failures: AtomicU32::new(0),
        }
    }
}

const FIRST_STATUS: u16 = 100;
const STATUSES: usize = 500;

/// The time in which a backend belongs to its upstream.
// None for those that never leave: nothing is shared for them, and nothing looked up.
#[derive(Debug, Clone, Default)]
pub(super) struct RetiredFlag(Option<Arc<AtomicBool>>);

impl RetiredFlag {
    /// One that may end.
    pub(super) fn limited() -> Self {
        Self(Some(Arc::default()))
    }

    /// Whether it is over.
    pub(super) fn is_over(&self) -> bool {
        let over = self.0.as_ref();
        over.is_some_and(|over| over.load(Ordering::Relaxed))
    }

    /// Ends it, or lets it go on after all.
    pub(super) fn set_over(&self, over: bool) {
        if let Some(flag) = &self.0 {
            flag.store(over, Ordering::Relaxed);
        }
    }
}

/// What was found lately.
#[derive(Debug)]
pub(super) struct CheckStreak {
    rise: u32,
    fall: u32,
    key_status: HealthStatus,
    /// Checks in a row that speak against it.
    against: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HealthStatus {
    Healthy,
    Unhealthy,
    /// Not checked yet, and not believed until it was.
    Unknown,
}

/// What a check has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HealthChange {
    Fall,
    Rise,
}

impl CheckStreak {
    pub(super) fn new(check: &HealthCheck) -> Self {
        Self {
            rise: check.rise,
            fall: check.fall,
            key_status: match check.initial {
                InitialHealth::Down => HealthStatus::Unknown,
                InitialHealth::Up => HealthStatus::Healthy,
            },
            against: 0,
        }
    }

    /// The same standing, by other numbers.
    pub(super) fn under(&self, check: &HealthCheck) -> Self {
        Self {
            key_status: self.key_status,
            ..Self::new(check)
        }
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.key_status == HealthStatus::Healthy
    }

    /// Takes in the outcome of a check.
    pub(super) fn note(&mut self, passed: bool) -> Option<HealthChange> {
        let needed = match (self.key_status, passed) {
            (HealthStatus::Healthy, true) | (HealthStatus::Unhealthy, false) => {
                self.against = 0;
                return None;
            }
            (HealthStatus::Healthy, false) => self.fall,
            (HealthStatus::Unhealthy, true) => self.rise,
            // The first decides.
            (HealthStatus::Unknown, _) => 1,
        };
        self.against += 1;
        if self.against < needed {
            return None;
        }
        self.against = 0;
        self.key_status = match passed {
            true => HealthStatus::Healthy,
            false => HealthStatus::Unhealthy,
        };
        Some(match passed {
            true => HealthChange::Rise,
            false => HealthChange::Fall,
        })
    }
}

#[cfg(test)]
mod condition_tests {

    use super::*;

    #[test]
    fn only_the_first_bar_up_and_the_last_one_down_make_a_difference() {
        let condition = Availability::default();
        assert!(condition.set(UnavailableReason::Unhealthy, true));
        assert!(!condition.set(UnavailableReason::Breaker, true));
        assert!(!condition.set(UnavailableReason::Unhealthy, true));
        assert!(!condition.set(UnavailableReason::Unhealthy, false));
        assert!(
            condition.has(UnavailableReason::Breaker)
                && !condition.has(UnavailableReason::Unhealthy)
        );
        assert!(!condition.is_clear());
        assert!(condition.set(UnavailableReason::Breaker, false));
        assert!(condition.is_clear());
    }

    #[test]
    fn a_notice_is_handed_over_once() {
        let notices = ChangeList::default();
        notices.post(3);
        notices.post(5);
        let mut heard = Vec::new();
        notices.take(|index| heard.push(index));
        notices.take(|index| heard.push(index));
        assert_eq!(heard, [3, 5]);
    }
}

#[cfg(test)]
mod tally_tests {

    use super::*;

    fn tally(key_status: HealthStatus) -> CheckStreak {
        CheckStreak {
            rise: 2,
            fall: 3,
            key_status,
            against: 0,
        }
    }

    /// What each of these checks changes.
    fn changes(mut tally: CheckStreak, checks: &str) -> String {
        checks
            .chars()
            .map(|check| match tally.note(check == '+') {
                None => '.',
                Some(HealthChange::Rise) => '^',
                Some(HealthChange::Fall) => 'v',
            })
            .collect()
    }

    #[test]
    fn it_takes_some_in_a_row() {
        let healthy = || tally(HealthStatus::Healthy);
        assert_eq!(changes(healthy(), "+--+--+---"), ".........v");
        assert_eq!(changes(healthy(), "---+-+++--"), "..v...^...");
        assert_eq!(changes(healthy(), "-----++"), "..v...^");
    }

    #[test]
    fn the_first_decides_about_the_unknown() {
        assert_eq!(changes(tally(HealthStatus::Unknown), "+---"), "^..v");
        assert_eq!(changes(tally(HealthStatus::Unknown), "-++"), "v.^");
    }
}
