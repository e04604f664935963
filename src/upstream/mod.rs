//! An answer from somebody else.
//!
//! [`Upstream::send`] picks a backend, takes a kept connection or makes one, sends, waits for the head, judges, and
//! perhaps tries the next one. Everything about speaking HTTP to a backend stands behind this seam.
//!
//! The client is our own. hyper's runs every connection in a task of its own and talks to it through channels, which
//! costs a gateway a quarter of its instructions; here a connection belongs to the request that uses it.
//!
//! In one thing we are kinder than nginx: a kept connection that the backend closed just as a request went out is no
//! failure of the backend. The request, if it may be sent again, goes to the same one over a new connection;
//! nginx would count a failure and, with `max_fails` at its default, leave a healthy server alone for 10 s.
//!
//! Servers that are not asked for a while: what their breakers say becomes a bar on them, and when nobody is left, the
//! client is told when to come back.
//!
//! How many retries an upstream is worth, and how long to wait before all its servers are asked again.
//!
//! A retry is a request more for servers that already fail. Where every request is tried twice, an overload doubles
//! itself; so `retry_budget` allows retries for a share of the requests of the last ten seconds, and a few each second
//! whatever came, so that little traffic can be retried too. The numbers are Finagle's and linkerd's.

mod attempt;
mod backend;
mod balance;
mod body_stream;
pub mod breaker;
mod connection;
mod dns;
mod error;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod health;
mod http1;
mod http2;
mod pool;
mod proxy_protocol;
mod queue;
mod request;
mod resolve;
mod response;
mod send;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use http::{Method, Request, Response};
use parking_lot::Mutex;

use self::attempt::{AttemptResponse, RetryDecision, ask, report};
use self::backend::{ChangeList, GroupSettings};
use self::balance::peers::FailResult;
use self::balance::{Balancer, Pick};
use self::breaker::{Breaker, BreakerOpen, BreakerState, CallOutcome, CallPermit, ForcedState};
use self::queue::RequestQueue;
use self::resolve::ResolvedNames;
use self::send::{AttemptError, ConnectionKind, LastResult, RetryCause, RetryState};
use crate::clock::{Clock, Millis};
use crate::config::plan::{self, Backoff};
use crate::message::{Attempt, RequestBody, RequestRecord};
use crate::tls;

pub use self::backend::{Backend, BackendAddress, BackendCounters, UnavailableReason};
pub use self::error::{Error, InvalidResponse, QueueError, Stage};
pub use self::health::check_health;
pub use self::queue::QueueStats;
pub use self::request::{Upgrade, restore_upgrade, stream_request, write_request};
pub use self::resolve::{LookupResult, NameLookup, NameStatus};
pub use self::response::{
    BodyError, BodyObserver, CompleteBody, ResponseTimer, UpgradedConnection, UpstreamBody,
};
pub use self::send::is_idempotent;

/// A group of backends that stand for each other. Shared by all event loops.
#[derive(Debug)]
pub struct Upstream {
    name: Arc<str>,
    balance: Balancer,
    queue: Option<Arc<RequestQueue>>,
    budget: Option<Box<RetryBudget>>,
    names: Option<Box<ResolvedNames>>,
    tries: AtomicU32,
    /// When the first of those whose breaker is open is let back.
    wakes: AtomicU64,
}

/// A request to send to a backend.
#[derive(Debug)]
pub struct OutgoingRequest {
    /// Its method.
    pub method: Method,
    /// How it begins.
    pub head: OutgoingHead,
    /// Its body.
    pub upload: RequestBody,
    /// What the client would rather speak, where the head says so.
    pub upgrade: Option<Upgrade>,
    /// How the answer's fields are wanted.
    pub form: RequestHeadForm,
}

/// A form that the fields of an answer can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestHeadForm {
    /// As a map.
    Fields,
    /// Written out, where they can be passed on as they came and the body has come with them; else as a map.
    Lines,
}

/// A request but for its body, in the form of the version the backend speaks. How long the body is, is added here.
#[derive(Debug)]
pub enum OutgoingHead {
    /// HTTP/1: the request line and the header fields as they go out, `Host` included, without the blank line.
    Lines(Vec<u8>),
    /// HTTP/2.
    Stream(Box<Request<()>>),
}

impl Upstream {
    /// Looks every name up and makes the group; a name with several addresses is several backends. `tls` are the
    /// plan's ways to meet them, and `old` the group of the same name before a reload: what is known of the servers in both
    /// goes on, but for their requests in progress and connections. Blocks, as nginx does when it starts.
    ///
    /// # Errors
    ///
    /// [`Error::Resolve`] for a name without an address that is not looked up again.
    pub fn build(
        plan: &plan::Upstream,
        tls: Arc<[Arc<tls::TlsConnector>]>,
        old: Option<&Self>,
    ) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut addresses = Vec::new();
        let mut looked_up = Vec::new();
        for listed in 0..plan.servers.len() {
            let (own, found) = resolve::at_start(plan, listed)?;
            addresses.extend(own.into_iter().map(|address| (listed, address)));
            looked_up.push(found);
        }
        let queue = plan
            .queue
            .as_ref()
            .map(|plan| Arc::new(RequestQueue::new(plan)));
        let changes = plan.servers.iter().any(|server| server.resolve.is_some());
        // One alone, for ever, has no balancer to tell.
        let only = addresses.first().filter(|_| addresses.len() == 1);
        let alone = !changes && only.is_some_and(|(listed, _)| !plan.servers[*listed].backup);
        let notices = (!alone || queue.is_some()).then(|| Arc::new(ChangeList::new(queue.clone())));
        let common = GroupSettings {
            upstream: plan.clone(),
            keep: pool::KeepaliveSettings::new(NEXT.fetch_add(1, Ordering::Relaxed), plan),
            tls,
            notices: notices.clone(),
        };
        let known = old.map(Self::backends).unwrap_or_default();
        let staying = known.iter().filter(|old| !old.is_leaving());
        let known: HashMap<_, _> = staying.map(|old| (&old.address, &**old)).collect();
        let backends: Vec<_> = addresses
            .into_iter()
            .enumerate()
            .map(|(index, (listed, address))| {
                let old = known.get(&address).copied();
                Arc::new(Backend::new(index, address, listed, &common, old))
            })
            .collect();
        Ok(Self {
            name: plan.name.as_ref().into(),
            tries: AtomicU32::new(usable(&backends)),
            balance: Balancer::new(plan, backends, notices),
            queue,
            budget: plan
                .retry_budget
                .map(|plan| Box::new(RetryBudget::new(plan))),
            names: changes.then(|| Box::new(ResolvedNames::new(common, looked_up))),
            // The first request looks whose breaker is open.
            wakes: AtomicU64::new(0),
        })
    }

    /// Sends a request to one backend after the other until there is an answer to pass on. Every try is added to
    /// [`RequestRecord::attempts`], and a failed one is logged.
    ///
    /// # Errors
    ///
    /// What went wrong with the last try.
    pub async fn send(
        &self,
        record: &mut RequestRecord,
        proxy_pass: &plan::ProxyPass,
        outgoing: OutgoingRequest,
        clock: &Clock,
    ) -> Result<Response<UpstreamBody>, Error> {
        let mut now = clock.now();
        let again = self.begin(now);
        let tries = self.tries.load(Ordering::Relaxed);
        let mut errand = RetryState::new(outgoing, &proxy_pass.next_upstream, tries, again, now);
        let mut round = self.balance.round(record);
        let mut last: Option<LastResult> = None;
        loop {
            self.wake(now);
            let picked = match &self.queue {
                None => Ok(self.balance.pick(&mut round, now)),
                // Boxed, so that those who do not wait do not carry it about.
                Some(queue) => Box::pin(queue.pick(&self.balance, &mut round, record, clock)).await,
            };
            let pick = match picked {
                Ok(Some(pick)) => pick,
                Ok(None) if Box::pin(self.rest(&mut errand, now)).await => {
                    round = self.balance.round(record);
                    now = clock.now();
                    continue;
                }
                nobody => return self.end(nobody.err(), last, proxy_pass, clock, record, now),
            };
            // Who was picked is not picked again in this round.
            let Ok(pass) = self.admit(&pick.lease, errand.upload(), clock, now) else {
                continue;
            };
            drop(last.take());
            let mut tried = self
                .ask(&pick, &mut errand, record, proxy_pass, clock, now)
                .await;
            let failure;
            (failure, now) = match &tried {
                Ok(answer) => (RetryCause::Status(answer.head.status), answer.came),
                Err(failed) => (RetryCause::of(&failed.error), clock.now()),
            };
            self.book(&pick.lease, pass, &mut tried, now);
            let moves_on = errand.may_move_on(failure, now) && self.may_retry(now);
            match tried {
                Ok(answer) if !moves_on => {
                    self.balance.succeeded(&pick);
                    return Ok(UpstreamBody::begin(answer, pick.lease, proxy_pass, clock));
                }
                Ok(answer) => {
                    self.pass_over(&pick, failure, now);
                    last = again.then(|| LastResult::answer(answer, &pick.lease));
                }
                Err(failed) => {
                    report(&failed.error, &pick.lease.name, record, moves_on.into());
                    if self.judge(&pick, &failed, now) || !moves_on {
                        return Err(failed.error);
                    }
                    last = again.then(|| LastResult::Error(failed.error));
                }
            }
            errand.move_on();
        }
    }

    /// Its name, or host and port where `proxy_pass` gave an address.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its backends as they are now, in the plan's order but for those that came later.
    #[must_use]
    pub fn backends(&self) -> Vec<Arc<Backend>> {
        self.balance.backends()
    }

    /// How its waiting line fares, where it has one.
    #[must_use]
    pub fn waits(&self) -> Option<QueueStats> {
        self.queue.as_ref().map(|queue| queue.waits())
    }

    /// How many retries its budget has denied, where it has one.
    #[must_use]
    pub fn denied_retries(&self) -> Option<u64> {
        self.budget.as_ref().map(|budget| budget.denied())
    }

    /// Asks one backend, and once more if a kept connection turned out to be stale.
    async fn ask(
        &self,
        pick: &Pick,
        errand: &mut RetryState<'_>,
        record: &mut RequestRecord,
        proxy_pass: &plan::ProxyPass,
        clock: &Clock,
        now: Millis,
    ) -> Result<AttemptResponse, AttemptError> {
        let backend = &pick.lease;
        let tried = ask(
            backend,
            ConnectionKind::Kept,
            errand,
            record,
            proxy_pass,
            clock,
            now,
        )
        .await;
        match tried {
            Err(failed) if failed.is_stale() => {
                let now = clock.now();
                if !errand.may_repeat(RetryCause::Error, now) {
                    return Err(failed);
                }
                let (name, reconnected) = (&backend.name, RetryDecision::Reconnected);
                report(&failed.error, name, record, reconnected);
                ask(
                    backend,
                    ConnectionKind::Fresh,
                    errand,
                    record,
                    proxy_pass,
                    clock,
                    now,
                )
                .await
            }
            tried => tried,
        }
    }

    /// Blames a backend for a try without an answer, unless that was somebody else's doing; whether it was.
    fn judge(&self, pick: &Pick, failed: &AttemptError, now: Millis) -> bool {
        let others = failed.error.is_requests_own() || failed.error.is_ours();
        if !others && !failed.is_stale() {
            self.blame(pick, now);
        }
        others
    }

    /// Another is asked instead of a backend that answered with this.
    fn pass_over(&self, pick: &Pick, failure: RetryCause, now: Millis) {
        match failure.is_fault() {
            true => self.blame(pick, now),
            false => self.balance.succeeded(pick),
        }
    }

    fn blame(&self, pick: &Pick, now: Millis) {
        pick.lease.counts.count_failure();
        if self.balance.failed(pick, now) == FailResult::Disable {
            let (upstream, server) = (&*self.name, &*pick.lease.name);
            tracing::warn!(upstream, server, "upstream server temporarily disabled");
        }
    }

    /// Nobody was asked; it counts as a try of the upstream as a whole.
    fn untried(&self, error: Error, record: &mut RequestRecord) -> Error {
        report(&error, &self.name, record, RetryDecision::Fatal);
        record.attempts.push(Attempt {
            address: Arc::clone(&self.name),
            started: None,
            status: error.attempt_status(),
            connect: None,
            header: None,
            response: Some(Duration::ZERO),
        });
        error
    }
}

/// How many may be asked for one request.
fn usable(backends: &[Arc<Backend>]) -> u32 {
    let usable = backends
        .iter()
        .filter(|backend| !backend.server.down && !backend.is_leaving());
    u32::try_from(usable.count()).unwrap_or(u32::MAX)
}

impl Upstream {
    /// Why nobody is asked and for how long, if health checks and breakers are the reason.
    #[must_use]
    pub fn unavailable(&self, now: Millis) -> Option<Duration> {
        self.wake(now);
        self.spared(now, |backend| {
            backend.is_barred_by(UnavailableReason::Breaker)
        })
    }

    /// Has the breaker of a server do what an operator wants, or lets it judge again; whether there is such a server.
    pub fn force(&self, server: &str, forced: Option<ForcedState>) -> bool {
        let backends = self.backends();
        let mut backends = backends.iter().filter(|backend| *backend.name == *server);
        let Some((backend, breaker)) =
            backends.find_map(|backend| Some((backend, backend.breaker.as_deref()?)))
        else {
            return false;
        };
        breaker.force(forced);
        match breaker.open_until() {
            Some(until) => self.spare(backend, until),
            None => backend.unbar(UnavailableReason::Breaker),
        }
        true
    }

    /// Lets those be asked again whose breaker has been open for long enough.
    fn wake(&self, now: Millis) {
        if now.0 < self.wakes.load(Ordering::Relaxed) {
            return;
        }
        // First this: a breaker that opens meanwhile is seen now, or brings the time forward after this.
        self.wakes.store(u64::MAX, Ordering::Relaxed);
        for backend in &self.backends() {
            match backend.breaker.as_deref().map(|breaker| breaker.wake(now)) {
                Some(Some(until)) => self.spare(backend, until),
                Some(None) => backend.unbar(UnavailableReason::Breaker),
                None => {}
            }
        }
    }

    /// Leave to ask a backend; `None` where nobody has to be asked for it.
    fn admit<'b>(
        &self,
        backend: &'b Backend,
        upload: &mut RequestBody,
        clock: &'b Clock,
        now: Millis,
    ) -> Result<Option<CallPermit<'b>>, BreakerOpen> {
        let Some(breaker) = &backend.breaker else {
            return Ok(None);
        };
        let admitted = breaker.admit(now).inspect_err(|_| {
            // It opened when nobody was there to bar it.
            if let Some(until) = breaker.open_until() {
                self.spare(backend, until);
            }
        });
        admitted.map(|pass| Some(pass.watch(clock, upload)))
    }

    /// Tells a backend's breaker what came of a try.
    fn book(
        &self,
        backend: &Backend,
        pass: Option<CallPermit<'_>>,
        tried: &mut Result<AttemptResponse, AttemptError>,
        now: Millis,
    ) {
        let Some(pass) = pass else { return };
        let breaker = pass.breaker();
        let outcome = match tried {
            Ok(answer) => {
                answer.ticket = Some(pass.ticket());
                pass.outcome(answer.head.status, &answer.head.headers, answer.came)
            }
            Err(failed) if failed.is_stale() => CallOutcome::Cancelled,
            Err(failed) => CallOutcome::of(&failed.error),
        };
        pass.report(outcome, now);
        if let Some(until) = breaker.open_until() {
            self.spare(backend, until);
        }
    }

    /// What to say when nobody could be asked.
    fn why_nobody(&self, now: Millis) -> Error {
        // Half-open, with enough on their way to see.
        let is_open = |breaker: &Breaker| breaker.state() != BreakerState::Closed;
        let spared = self.spared(now, |backend| {
            backend.breaker.as_deref().is_some_and(is_open)
        });
        match spared {
            Some(retry_after) => Error::Unavailable { retry_after },
            None => Error::NoLiveBackend,
        }
    }

    /// How long until the first of them may be asked, if it is for their health or their breaker that none is.
    fn spared(&self, now: Millis, is_open: impl Fn(&Backend) -> bool) -> Option<Duration> {
        let mut soonest = None;
        for backend in &self.backends() {
            let left = [
                UnavailableReason::Down,
                UnavailableReason::Drained,
                UnavailableReason::Draining,
            ];
            if left.into_iter().any(|bar| backend.is_barred_by(bar)) {
                continue;
            }
            let health = backend.health.as_ref();
            let wait = if let Some(health) = health.filter(|health| !health.is_healthy()) {
                health.interval()
            } else if is_open(backend) {
                let breaker = backend.breaker.as_ref();
                let wait = breaker.and_then(|breaker| breaker.wait(now));
                wait.unwrap_or_default()
            } else {
                return None;
            };
            soonest = Some(soonest.map_or(wait, |soonest: Duration| soonest.min(wait)));
        }
        soonest
    }

    fn spare(&self, backend: &Backend, until: Millis) {
        backend.bar(UnavailableReason::Breaker);
        self.wakes.fetch_min(until.0, Ordering::Relaxed);
    }
}

/// The budget of one upstream.
#[derive(Debug)]
struct RetryBudget {
    plan: plan::RetryBudget,
    window: Mutex<BudgetWindow>,
    denied: AtomicU64,
}

/// What came in each of the last seconds.
#[derive(Debug, Default)]
struct BudgetWindow {
    slots: [BudgetSlot; SECONDS],
    /// The second in which it was last said that there is nothing left.
    told: Option<u64>,
}

#[derive(Debug, Default, Clone, Copy)]
struct BudgetSlot {
    second: u64,
    requests: u64,
    retries: u64,
}

/// Whether a request may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RetryGrant {
    /// It may not.
    Denied {
        /// And nobody was told yet.
        is_news: bool,
    },
    /// It may.
    Granted,
}

impl RetryBudget {
    fn new(plan: plan::RetryBudget) -> Self {
        Self {
            plan,
            window: Mutex::default(),
            denied: AtomicU64::new(0),
        }
    }

    /// A request has come.
    fn earn(&self, now: Millis) {
        self.window.lock().slot(now).requests += 1;
    }

    /// A request is to be sent again.
    fn spend(&self, now: Millis) -> RetryGrant {
        let mut window = self.window.lock();
        let (requests, retries) = window.sums(now);
        let share = requests * u64::from(self.plan.percent) / 100;
        let least = u64::from(self.plan.least) * SECONDS as u64;
        if retries < share + least {
            window.slot(now).retries += 1;
            return RetryGrant::Granted;
        }
        self.denied.fetch_add(1, Ordering::Relaxed);
        let second = second(now);
        let is_news = window
            .told
            .is_none_or(|told| second >= told + SECONDS as u64);
        if is_news {
            window.told = Some(second);
        }
        RetryGrant::Denied { is_news }
    }

    /// How often there was nothing left.
    fn denied(&self) -> u64 {
        self.denied.load(Ordering::Relaxed)
    }

    /// How all servers are asked again, where they are.
    fn backoff(&self) -> Option<Backoff> {
        self.plan.backoff
    }
}

impl BudgetWindow {
    fn slot(&mut self, now: Millis) -> &mut BudgetSlot {
        let second = second(now);
        let slot = &mut self.slots[usize::try_from(second).unwrap_or_default() % SECONDS];
        if slot.second != second {
            *slot = BudgetSlot {
                second,
                ..BudgetSlot::default()
            };
        }
        slot
    }

    fn sums(&self, now: Millis) -> (u64, u64) {
        let now = second(now);
        self.slots
            .iter()
            .filter(|slot| slot.second + SECONDS as u64 > now)
            .fold((0, 0), |(requests, retries), slot| {
                (requests + slot.requests, retries + slot.retries)
            })
    }
}

/// How long to wait before the servers are asked for the `round`th time again: a part of what doubles with every
/// round, as `lot` falls. All of it at random, so that those who failed together do not come back together.
fn pause(backoff: Backoff, round: u32, lot: u64) -> Duration {
    let most = backoff.base.saturating_mul(1 << round.min(16));
    let micros = u64::try_from(most.min(backoff.max).as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(lot % micros.saturating_add(1))
}

fn second(now: Millis) -> u64 {
    now.0 / 1000
}

/// How long is looked back.
const SECONDS: usize = 10;

#[cfg(test)]
mod budget_tests {

    use super::*;

    fn budget(percent: u32, least: u32) -> RetryBudget {
        RetryBudget::new(plan::RetryBudget {
            percent,
            least,
            backoff: None,
        })
    }

    /// How many retries are granted at this moment, of so many.
    fn granted(budget: &RetryBudget, now: u64, of: usize) -> usize {
        (0..of)
            .filter(|_| budget.spend(Millis(now)) == RetryGrant::Granted)
            .count()
    }

    #[test]
    fn retries_are_a_share_of_the_requests() {
        let budget = budget(20, 0);
        for request in 0..1000 {
            budget.earn(Millis(5_000 + request));
        }
        assert_eq!(granted(&budget, 6_000, 1000), 200);
        assert_eq!(budget.denied(), 800);
    }

    #[test]
    fn a_few_are_granted_whatever_came() {
        let budget = budget(20, 3);
        assert_eq!(granted(&budget, 50_000, 100), 30);
        assert_eq!(granted(&budget, 59_999, 100), 0);
        assert_eq!(granted(&budget, 60_000, 100), 30);
    }

    #[test]
    fn what_came_long_ago_does_not_count() {
        let budget = budget(50, 0);
        for _ in 0..10 {
            budget.earn(Millis(1_000));
        }
        assert_eq!(granted(&budget, 10_999, 2), 2);
        assert_eq!(granted(&budget, 11_000, 2), 0);
        budget.earn(Millis(11_000));
        budget.earn(Millis(11_000));
        assert_eq!(
            granted(&budget, 11_000, 2),
            0,
            "two are spent, one is earned"
        );
        assert_eq!(granted(&budget, 20_999, 2), 1);
    }

    #[test]
    fn that_nothing_is_left_is_news_once_in_a_while() {
        let budget = budget(1, 0);
        let spend = |now| budget.spend(Millis(now));
        assert_eq!(spend(1_000), RetryGrant::Denied { is_news: true });
        assert_eq!(spend(10_999), RetryGrant::Denied { is_news: false });
        assert_eq!(spend(11_000), RetryGrant::Denied { is_news: true });
    }

    #[test]
    fn pauses_double_up_to_the_most_and_are_drawn_by_lot() {
        let backoff = Backoff {
            base: Duration::from_millis(25),
            max: Duration::from_millis(150),
        };
        let longest = |round| {
            let all = (0..2_000_000).step_by(7);
            all.map(|lot| pause(backoff, round, lot)).max()
        };
        for (round, millis) in [(0, 25), (1, 50), (2, 100), (3, 150), (40, 150)] {
            let longest = longest(round).unwrap();
            assert!(longest <= Duration::from_millis(millis));
            assert!(longest > Duration::from_millis(millis) * 99 / 100);
        }
        assert_eq!(pause(backoff, 0, 0), Duration::ZERO);
        assert_eq!(pause(backoff, 0, 10_000), Duration::from_millis(10));
    }
}
