//! Whether a request is sent again: nginx's `proxy_next_upstream`, and `retry_budget`.
//!
//! A request that may have had an effect is never sent twice unless the configuration says so, and one whose body
//! streams through cannot be sent twice once it has begun to leave: no copy is kept.
//!
//! A retry is one more request for servers that already fail: if every request is tried twice, an overload doubles
//! itself. `retry_budget` allows retries for a share of the requests of the last ten seconds, and a few each second in
//! any case, so that little traffic can be retried too. The numbers are Finagle's and linkerd's.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{Method, Request, StatusCode};
use parking_lot::Mutex;

use super::error::{Error, Stage};
use super::http1::request::{PendingBody, RequestWriter};
use super::request::{OutgoingHead, OutgoingRequest};
use crate::clock::{Clock, Millis};
use crate::config::plan::{self, Backoff, MaxTries, NextUpstream, ProxyPass};
use crate::message::RequestRecord;
use crate::telemetry::CaughtPanic;

/// A request, for as long as it may have to be sent again.
#[derive(Debug)]
pub(super) struct RetryState<'p> {
    pub(super) request: OutgoingRequest,
    next: &'p NextUpstream,
    started: Millis,
    /// Attempts that are left.
    left: u32,
    /// How often all backends have failed and were tried again.
    pub(super) rounds: u32,
    // A backend was tried in this round.
    tried: bool,
    sent: bool,
    whole: bool,
}

/// Why an attempt is not the final one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryCause {
    /// No connection, or it broke.
    Error,
    /// The response is not valid.
    InvalidHeader,
    /// The response has this status.
    Status(StatusCode),
    /// The backend took too long.
    Timeout,
}

impl<'p> RetryState<'p> {
    /// A request that each of `servers` backends can be sent once, and again if `backoff` says so.
    pub(super) fn new(
        request: OutgoingRequest,
        next: &'p NextUpstream,
        servers: u32,
        backoff: bool,
        now: Millis,
    ) -> Self {
        Self {
            request,
            next,
            started: now,
            left: match next.tries {
                MaxTries::Each => servers,
                MaxTries::Most(most) if backoff => most,
                MaxTries::Most(most) => servers.min(most),
            },
            rounds: 0,
            tried: false,
            sent: false,
            whole: true,
        }
    }

    /// The request, ready to be written. Its head stays here to be sent again.
    pub(super) fn writer(&mut self) -> RequestWriter {
        let body = self.take_body();
        match &self.request.head {
            OutgoingHead::Http1 { head, chunked } => RequestWriter::new(head, *chunked, body),
            // Never: the same setting decides about the form of the head and about the connection.
            OutgoingHead::Http2(_) => RequestWriter::new(b"", false, body),
        }
    }

    /// The same for a backend that speaks HTTP/2.
    pub(super) fn stream(&mut self) -> (Request<()>, PendingBody) {
        let body = self.take_body();
        match &self.request.head {
            OutgoingHead::Http2(request) => (Request::clone(request), body),
            OutgoingHead::Http1 { .. } => (Request::default(), body),
        }
    }

    fn take_body(&mut self) -> PendingBody {
        let body = mem::replace(&mut self.request.body, PendingBody::none());
        self.whole = body.upload.is_none();
        self.sent = true;
        if !self.whole
            && self.is_harmless()
            && let Some(again) = body.again()
        {
            self.request.body = again;
            self.whole = true;
        }
        body
    }

    /// Takes back the body of a request of which nothing was sent.
    pub(super) fn put_back(&mut self, body: PendingBody) {
        self.request.body = body;
        self.sent = false;
        self.whole = true;
    }

    /// Goes on to the next backend.
    pub(super) fn move_on(&mut self) {
        self.left = self.left.saturating_sub(1);
        self.tried = true;
        self.sent = false;
    }

    /// Begins with all backends again.
    pub(super) fn begin_round(&mut self) {
        self.rounds += 1;
        self.tried = false;
    }

    /// Whether the next backend may be tried after this failure.
    pub(super) fn may_move_on(&self, cause: RetryCause, now: Millis) -> bool {
        self.left > 1 && self.may_repeat(cause, now)
    }

    /// Whether all backends may be tried again after this pause.
    pub(super) fn may_wait(&self, pause: Duration, now: Millis) -> bool {
        // Where none could be tried, none has failed.
        self.tried && self.left > 0 && self.whole && self.is_in_time(now.after(pause))
    }

    /// Whether the request may be sent once more after this failure.
    pub(super) fn may_repeat(&self, cause: RetryCause, now: Millis) -> bool {
        let next = self.next;
        let listed = match cause {
            RetryCause::Error => next.error,
            RetryCause::InvalidHeader => next.invalid_header,
            RetryCause::Status(status) => next.statuses.contains(&status),
            RetryCause::Timeout => next.timeout,
        };
        let harmless = !self.sent || self.is_harmless();
        listed && self.whole && harmless && self.is_in_time(now)
    }

    /// Whether it may be sent twice.
    fn is_harmless(&self) -> bool {
        is_idempotent(&self.request.method) || self.next.non_idempotent
    }

    fn is_in_time(&self, now: Millis) -> bool {
        let within = self.next.within;
        within.is_none_or(|within| now.since(self.started) < within)
    }

    /// Whether it could be sent again after it was sent.
    pub(super) fn is_repeatable(&self) -> bool {
        self.request.body.upload.is_repeatable() && self.is_harmless()
    }
}

impl RetryCause {
    pub(super) fn of(error: &Error) -> Self {
        match error {
            Error::InvalidHeader(_) => Self::InvalidHeader,
            Error::Timeout(_) => Self::Timeout,
            _ => Self::Error,
        }
    }

    /// Whether the backend failed: one that responds with 403 or 404 is well.
    pub(super) fn is_fault(self) -> bool {
        !matches!(
            self,
            Self::Status(StatusCode::FORBIDDEN | StatusCode::NOT_FOUND)
        )
    }
}

/// nginx's list: all methods but these may be sent twice.
pub fn is_idempotent(method: &Method) -> bool {
    *method != Method::POST && *method != Method::PATCH && method.as_str() != "LOCK"
}

/// An attempt without a response.
#[derive(Debug)]
pub(super) struct AttemptError {
    pub(super) error: Error,
    // It was sent over a kept connection.
    reused: bool,
    // Nothing of a response has arrived.
    silent: bool,
}

/// A request without a response.
#[derive(Debug)]
pub(super) struct SendError {
    pub(super) error: Error,
    /// Its body, if nothing of the request was sent.
    pub(super) unsent: Option<PendingBody>,
    /// Nothing of a response has arrived.
    pub(super) silent: bool,
}

/// What an attempt is made for.
#[derive(Debug)]
pub(super) struct AttemptContext<'a> {
    pub(super) record: &'a mut RequestRecord,
    pub(super) proxy_pass: &'a ProxyPass,
    pub(super) clock: &'a Clock,
    /// When it began.
    pub(super) now: Millis,
}

impl AttemptContext<'_> {
    /// Notes how long the attempt has waited for its connection.
    pub(super) fn note_connect_time(&mut self, reused: bool) {
        if let Some(attempt) = self.record.attempts.last_mut() {
            attempt.connect = Some(match reused {
                true => Duration::ZERO,
                false => self.clock.now().since(self.now),
            });
        }
    }
}

impl AttemptError {
    pub(super) fn new(error: Error, reused: bool, silent: bool) -> Self {
        Self {
            error,
            reused,
            silent,
        }
    }

    /// An attempt that panicked: its connection is closed, and nothing of a response is passed on.
    pub(super) fn of_panic<T>(panic: CaughtPanic) -> Result<T, Self> {
        let stage = Stage::Connect;
        Err(Self::new(Error::Panicked { panic, stage }, false, false))
    }

    /// Adds the stage of an attempt that panicked.
    pub(super) fn locate(&mut self, record: &RequestRecord) {
        let attempt = record.attempts.last();
        if let Error::Panicked { stage, .. } = &mut self.error
            && attempt.is_some_and(|attempt| attempt.connect.is_some())
        {
            *stage = Stage::Head;
        }
    }

    /// Whether it says nothing about the backend: a backend may close an idle connection while a request is on its way,
    /// or a shared one because of other requests.
    pub(super) fn is_stale(&self) -> bool {
        let idle = self.reused && matches!(self.error, Error::Broken(_));
        self.silent && (idle || matches!(self.error, Error::EnhanceYourCalm))
    }
}

/// The budget of one upstream.
#[derive(Debug)]
pub(super) struct RetryBudget {
    plan: plan::RetryBudget,
    window: Mutex<BudgetWindow>,
    denied: AtomicU64,
}

/// The requests of the last seconds.
#[derive(Debug, Default)]
struct BudgetWindow {
    slots: [BudgetSlot; SECONDS],
    /// The second in which it was last logged that the budget is spent.
    logged: Option<u64>,
}

#[derive(Debug, Default, Clone, Copy)]
struct BudgetSlot {
    second: u64,
    requests: u64,
    retries: u64,
}

/// Whether a request may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryGrant {
    Denied {
        /// And it is to be logged.
        is_news: bool,
    },
    Granted,
}

impl RetryBudget {
    pub(super) fn new(plan: plan::RetryBudget) -> Self {
        Self {
            plan,
            window: Mutex::default(),
            denied: AtomicU64::new(0),
        }
    }

    /// Counts a request; returns whether all servers are tried again after a backoff.
    pub(super) fn earn(&self, now: Millis) -> bool {
        self.window.lock().slot(now).requests += 1;
        self.plan.backoff.is_some()
    }

    /// Takes a retry out of the budget.
    pub(super) fn spend(&self, now: Millis) -> RetryGrant {
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
        let logged = window.logged;
        let is_news = logged.is_none_or(|logged| second >= logged + SECONDS as u64);
        if is_news {
            window.logged = Some(second);
        }
        RetryGrant::Denied { is_news }
    }

    pub(super) fn denied(&self) -> u64 {
        self.denied.load(Ordering::Relaxed)
    }

    /// How long to wait before all servers are tried again, where they are.
    pub(super) fn pause(&self, rounds: u32) -> Option<Duration> {
        let backoff = self.plan.backoff?;
        Some(pause(backoff, rounds, fastrand::u64(..)))
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

/// A random part of a time that doubles with every round. Random, so that requests that failed together do not come
/// back together.
fn pause(backoff: Backoff, round: u32, random: u64) -> Duration {
    let most = backoff.base.saturating_mul(1 << round.min(16));
    let micros = u64::try_from(most.min(backoff.max).as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(random % micros.saturating_add(1))
}

fn second(now: Millis) -> u64 {
    now.0 / 1000
}

/// The length of the window.
const SECONDS: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::tests::{next_upstream, outgoing};

    fn state(next: &NextUpstream, method: Method, servers: u32) -> RetryState<'_> {
        RetryState::new(outgoing(method), next, servers, false, Millis(1_000))
    }

    #[test]
    fn a_get_moves_on_while_servers_are_left() {
        let next = next_upstream();
        let mut retry = state(&next, Method::GET, 2);
        drop(retry.writer());
        assert!(retry.may_move_on(RetryCause::Error, Millis(1_000)));
        retry.move_on();
        drop(retry.writer());
        assert!(!retry.may_move_on(RetryCause::Error, Millis(1_000)));
    }

    #[test]
    fn a_request_that_may_have_had_an_effect_is_not_sent_twice() {
        let next = next_upstream();
        for method in ["POST", "PATCH", "LOCK"] {
            let mut retry = state(&next, method.parse().unwrap(), 2);
            assert!(
                retry.may_move_on(RetryCause::Error, Millis(1_000)),
                "{method} unsent"
            );
            let writer = retry.writer();
            assert!(
                !retry.may_move_on(RetryCause::Error, Millis(1_000)),
                "{method} sent"
            );
            retry.put_back(writer.into_unsent().unwrap());
            assert!(
                retry.may_move_on(RetryCause::Error, Millis(1_000)),
                "{method} handed back"
            );
        }
    }

    #[test]
    fn non_idempotent_lets_a_post_be_sent_twice() {
        let mut next = next_upstream();
        next.non_idempotent = true;
        let mut retry = state(&next, Method::POST, 2);
        drop(retry.writer());
        assert!(retry.may_move_on(RetryCause::Timeout, Millis(1_000)));
    }

    /// Such a request need not check whether a kept connection was just closed, which takes time.
    #[test]
    fn a_request_that_may_be_sent_twice_is_known_beforehand() {
        let (mut lax, strict) = (next_upstream(), next_upstream());
        lax.non_idempotent = true;
        assert!(state(&strict, Method::GET, 1).is_repeatable());
        assert!(state(&lax, Method::GET, 1).is_repeatable());
        assert!(!state(&strict, Method::POST, 1).is_repeatable());
        assert!(state(&lax, Method::POST, 1).is_repeatable());
    }

    #[test]
    fn only_listed_failures_move_on() {
        let mut next = next_upstream();
        next.statuses = vec![StatusCode::SERVICE_UNAVAILABLE];
        let mut retry = state(&next, Method::GET, 2);
        drop(retry.writer());
        let listed = RetryCause::Status(StatusCode::SERVICE_UNAVAILABLE);
        let unlisted = RetryCause::Status(StatusCode::BAD_GATEWAY);
        assert!(retry.may_move_on(listed, Millis(1_000)));
        assert!(!retry.may_move_on(unlisted, Millis(1_000)));
        assert!(!retry.may_move_on(RetryCause::InvalidHeader, Millis(1_000)));
    }

    #[test]
    fn tries_and_time_are_bounded() {
        let mut next = next_upstream();
        next.tries = MaxTries::Most(1);
        assert!(!state(&next, Method::GET, 5).may_move_on(RetryCause::Error, Millis(1_000)));
        next.tries = MaxTries::Most(9);
        next.within = Some(Duration::from_millis(500));
        let retry = state(&next, Method::GET, 5);
        assert!(retry.may_move_on(RetryCause::Error, Millis(1_499)));
        assert!(!retry.may_move_on(RetryCause::Error, Millis(1_500)));
    }

    #[test]
    fn more_tries_than_servers_are_for_those_who_may_begin_round_again() {
        let mut next = next_upstream();
        next.tries = MaxTries::Most(3);
        next.within = Some(Duration::from_millis(500));
        assert!(!state(&next, Method::GET, 1).may_move_on(RetryCause::Error, Millis(1_000)));
        let mut retry = RetryState::new(outgoing(Method::GET), &next, 1, true, Millis(1_000));
        for _ in 0..2 {
            assert!(!retry.may_wait(Duration::ZERO, Millis(1_000)), "unasked");
            assert!(retry.may_move_on(RetryCause::Error, Millis(1_000)));
            retry.move_on();
            assert!(retry.may_wait(Duration::from_millis(99), Millis(1_400)));
            assert!(!retry.may_wait(Duration::from_millis(100), Millis(1_400)));
            retry.begin_round();
        }
        assert!(!retry.may_move_on(RetryCause::Error, Millis(1_000)));
    }
}

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
    fn a_few_are_granted_in_any_case() {
        let budget = budget(20, 3);
        assert_eq!(granted(&budget, 50_000, 100), 30);
        assert_eq!(granted(&budget, 59_999, 100), 0);
        assert_eq!(granted(&budget, 60_000, 100), 30);
    }

    #[test]
    fn old_requests_do_not_count() {
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
    fn a_spent_budget_is_logged_once_in_a_while() {
        let budget = budget(1, 0);
        let spend = |now| budget.spend(Millis(now));
        assert_eq!(spend(1_000), RetryGrant::Denied { is_news: true });
        assert_eq!(spend(10_999), RetryGrant::Denied { is_news: false });
        assert_eq!(spend(11_000), RetryGrant::Denied { is_news: true });
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_are_random() {
        let backoff = Backoff {
            base: Duration::from_millis(25),
            max: Duration::from_millis(150),
        };
        let longest = |round| {
            let all = (0..2_000_000).step_by(7);
            all.map(|random| pause(backoff, round, random)).max()
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
