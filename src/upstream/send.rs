//! Trying again: what `retry_budget` grants, and what is left to give where nobody else can be asked.
//!
//! May a request be sent again? nginx's `proxy_next_upstream`, as pure questions.
//!
//! A request that may have had an effect is never sent twice unless the user said so, and one whose body streams through
//! cannot be once it has begun to leave: nobody keeps a copy.
//!
//! A try that came to nothing: why, over what kind of connection, and whether it says anything about the backend.

use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};

use super::attempt::AttemptResponse;
use super::backend::{ActiveRequest, Backend};
use super::error::{Error, Stage};
use super::request::Upgrade;
use super::response::UpstreamBody;
use super::{OutgoingHead, OutgoingRequest, RequestHeadForm, RetryGrant, Upstream, request};
use crate::clock::{Clock, Millis};
use crate::config::plan::{self, MaxTries, NextUpstream};
use crate::message::{RequestBody, RequestRecord};
use crate::telemetry::CaughtPanic;
use crate::upstream;
use crate::upstream::http1::request::{PendingBody, RequestFraming, RequestWriter};

/// What the last try of a request gave, while it is looked for somebody else to ask.
#[derive(Debug)]
pub(super) enum LastResult {
    // Without its lease: it must not keep its own backend from being asked again.
    Answer(Box<AttemptResponse>, Arc<Backend>),
    Error(Error),
}

impl Upstream {
    /// A request begins; whether it may ask all backends again when all have failed.
    pub(super) fn begin(&self, now: Millis) -> bool {
        self.budget.as_ref().is_some_and(|budget| {
            budget.earn(now);
            budget.backoff().is_some()
        })
    }

    /// Whether there is enough left for one more try.
    pub(super) fn may_retry(&self, now: Millis) -> bool {
        let Some(budget) = &self.budget else {
            return true;
        };
        let spent = budget.spend(now);
        if spent == (RetryGrant::Denied { is_news: true }) {
            let upstream = &*self.name;
            tracing::warn!(upstream, "retry budget is spent, requests are tried once");
        }
        spent == RetryGrant::Granted
    }

    /// All backends have failed: waits before they are asked again, if they may be.
    pub(super) async fn rest(&self, errand: &mut RetryState<'_>, now: Millis) -> bool {
        let Some(backoff) = self.budget.as_ref().and_then(|budget| budget.backoff()) else {
            return false;
        };
        let rounds = errand.rounds();
        let pause = upstream::pause(backoff, rounds, RandomState::new().hash_one(rounds));
        // Whom checks and breakers keep away is not back in a moment.
        let may =
            errand.may_wait(pause, now) && matches!(self.why_nobody(now), Error::NoLiveBackend);
        if may {
            errand.go_round();
            tokio::time::sleep(pause).await;
        }
        may
    }

    /// Nobody else can be asked: the last word is what the last try gave; if there was none, `why` or what is known of it.
    pub(super) fn end(
        &self,
        why: Option<Error>,
        last: Option<LastResult>,
        proxy_pass: &plan::ProxyPass,
        clock: &Clock,
        record: &mut RequestRecord,
        now: Millis,
    ) -> Result<Response<UpstreamBody>, Error> {
        match last {
            Some(LastResult::Answer(answer, backend)) => {
                let lease = backend.resume();
                Ok(UpstreamBody::begin(*answer, lease, proxy_pass, clock))
            }
            Some(LastResult::Error(error)) => Err(error),
            None => {
                let why = why.unwrap_or_else(|| self.why_nobody(now));
                Err(self.untried(why, record))
            }
        }
    }
}

impl LastResult {
    pub(super) fn answer(answer: AttemptResponse, lease: &ActiveRequest) -> Self {
        Self::Answer(Box::new(answer), Arc::clone(lease))
    }
}

/// A request, for as long as it may have to be sent again.
#[derive(Debug)]
pub(super) struct RetryState<'p> {
    method: Method,
    head: EncodedHead,
    cargo: PendingBody,
    upgrade: Option<Upgrade>,
    form: RequestHeadForm,
    next: &'p NextUpstream,
    started: Millis,
    left: u32,
    rounds: u32,
    // Somebody was asked in this round.
    asked: bool,
    sent: bool,
    whole: bool,
}

/// How it begins, complete.
#[derive(Debug)]
enum EncodedHead {
    Lines(Vec<u8>, RequestFraming),
    Stream(Box<Request<()>>),
}

/// Why a backend's try is not the last word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryCause {
    /// No connection, or it broke.
    Error,
    /// What came was not an answer.
    InvalidHeader,
    /// An answer nobody likes.
    Status(StatusCode),
    /// It took too long.
    Timeout,
}

impl<'p> RetryState<'p> {
    /// A request that each of `servers` backends can be asked once, and again if `again` is granted.
    pub(super) fn new(
        outgoing: OutgoingRequest,
        next: &'p NextUpstream,
        servers: u32,
        again: bool,
        now: Millis,
    ) -> Self {
        let (method, upload) = (&outgoing.method, &outgoing.upload);
        let head = match outgoing.head {
            OutgoingHead::Lines(mut lines) => {
                let coding = request::declare(method, upload, &mut lines);
                lines.extend_from_slice(b"\r\n");
                EncodedHead::Lines(lines, coding)
            }
            OutgoingHead::Stream(mut request) => {
                request::announce(method, upload, request.headers_mut());
                EncodedHead::Stream(request)
            }
        };
        Self {
            method: outgoing.method,
            head,
            cargo: PendingBody::new(outgoing.upload),
            upgrade: outgoing.upgrade,
            form: outgoing.form,
            next,
            started: now,
            left: match next.tries {
                MaxTries::Each => servers,
                MaxTries::Most(most) if again => most,
                MaxTries::Most(most) => servers.min(most),
            },
            rounds: 0,
            asked: false,
            sent: false,
            whole: true,
        }
    }

    /// The request, ready to be written. Its head stays here to be sent again.
    pub(super) fn load(&mut self) -> RequestWriter {
        let cargo = self.take_cargo();
        match &self.head {
            EncodedHead::Lines(lines, coding) => RequestWriter::new(lines, *coding, cargo),
            // Never: the same setting says how a head is made and over what it is sent.
            EncodedHead::Stream(_) => RequestWriter::new(b"", RequestFraming::Plain, cargo),
        }
    }

    /// The same for a backend that speaks HTTP/2.
    pub(super) fn load_stream(&mut self) -> (Request<()>, PendingBody) {
        let cargo = self.take_cargo();
        match &self.head {
            EncodedHead::Stream(request) => (Request::clone(request), cargo),
            EncodedHead::Lines(..) => (Request::default(), cargo),
        }
    }

    fn take_cargo(&mut self) -> PendingBody {
        let cargo = mem::replace(&mut self.cargo, PendingBody::none());
        self.whole = cargo.is_none();
        self.sent = true;
        if !self.whole
            && self.is_harmless()
            && let Some(again) = cargo.again()
        {
            self.cargo = again;
            self.whole = true;
        }
        cargo
    }

    /// Takes a request's body back of which nothing was sent.
    pub(super) fn unload(&mut self, cargo: PendingBody) {
        self.cargo = cargo;
        self.sent = false;
        self.whole = true;
    }

    /// The next backend's turn.
    pub(super) fn move_on(&mut self) {
        self.left = self.left.saturating_sub(1);
        self.asked = true;
        self.sent = false;
    }

    /// All backends' turn again.
    pub(super) fn go_round(&mut self) {
        self.rounds += 1;
        self.asked = false;
    }

    /// How often that was.
    pub(super) fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Whether the next backend may be asked after this failure.
    pub(super) fn may_move_on(&self, failure: RetryCause, now: Millis) -> bool {
        self.left > 1 && self.may_repeat(failure, now)
    }

    /// Whether all backends may be asked again after this pause.
    pub(super) fn may_wait(&self, pause: Duration, now: Millis) -> bool {
        // Where nobody could be asked, nobody has failed.
        self.asked && self.left > 0 && self.whole && self.is_in_time(now.after(pause))
    }

    /// Whether it may be sent once more after this failure.
    pub(super) fn may_repeat(&self, failure: RetryCause, now: Millis) -> bool {
        let next = self.next;
        let listed = match failure {
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
        is_idempotent(&self.method) || self.next.non_idempotent
    }

    fn is_in_time(&self, now: Millis) -> bool {
        self.next
            .within
            .is_none_or(|within| now.since(self.started) < within)
    }

    /// Whether it could be sent again after it was sent.
    pub(super) fn is_repeatable(&self) -> bool {
        self.cargo.is_repeatable() && self.is_harmless()
    }

    /// Its body, as far as it has not left.
    pub(super) fn upload(&mut self) -> &mut RequestBody {
        self.cargo.upload()
    }

    /// What the client would rather speak.
    pub(super) fn upgrade(&self) -> Option<&Upgrade> {
        self.upgrade.as_ref()
    }

    /// How the answer's fields are wanted.
    pub(super) fn form(&self) -> RequestHeadForm {
        self.form
    }

    /// What is asked.
    pub(super) fn method(&self) -> &Method {
        &self.method
    }
}

impl RetryCause {
    /// What an error counts as.
    pub(super) fn of(error: &Error) -> Self {
        match error {
            Error::InvalidHeader(_) => Self::InvalidHeader,
            Error::Timeout(_) => Self::Timeout,
            Error::Broken(_)
            | Error::Calmed
            | Error::Client(_)
            | Error::Connect(_)
            | Error::Crowded { .. }
            | Error::Handshake { .. }
            | Error::NoLiveBackend
            | Error::Panicked { .. }
            | Error::Rejected(_)
            | Error::Resolve { .. }
            | Error::TooLarge
            | Error::Truncated(_)
            | Error::Unavailable { .. } => Self::Error,
        }
    }

    /// Whether it speaks against the backend: one that answers 403 or 404 is well.
    pub(super) fn is_fault(self) -> bool {
        !matches!(
            self,
            Self::Status(StatusCode::FORBIDDEN | StatusCode::NOT_FOUND)
        )
    }
}

/// nginx's list: everything but these may be sent twice.
pub fn is_idempotent(method: &Method) -> bool {
    *method != Method::POST && *method != Method::PATCH && method.as_str() != "LOCK"
}

/// A try without an answer.
#[derive(Debug)]
pub(super) struct AttemptError {
    pub(super) error: Error,
    over: ConnectionKind,
    // Nothing of an answer was seen.
    silent: bool,
}

/// A request without an answer.
#[derive(Debug)]
pub(super) struct SendError {
    pub(super) error: Error,
    /// Its body, if nothing of the request was sent.
    pub(super) unsent: Option<PendingBody>,
    /// Nothing of an answer was seen.
    pub(super) silent: bool,
}

/// What kind of connection a request went over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    /// One made for it.
    Fresh,
    /// One that had carried others before.
    Kept,
}

impl ConnectionKind {
    /// Notes how long the present attempt, begun at `now`, has waited for its connection.
    pub(super) fn note(self, record: &mut RequestRecord, clock: &Clock, now: Millis) {
        if let Some(attempt) = record.attempts.last_mut() {
            attempt.connect = Some(match self {
                Self::Fresh => clock.now().since(now),
                Self::Kept => Duration::ZERO,
            });
        }
    }
}

impl AttemptError {
    pub(super) fn new(error: Error, over: ConnectionKind, silent: bool) -> Self {
        Self {
            error,
            over,
            silent,
        }
    }

    /// One that ended by a panic: a connection it used is closed, and nothing of an answer is passed on.
    pub(super) fn of_panic<T>(panic: CaughtPanic) -> Result<T, Self> {
        let stage = Stage::Connect;
        Err(Self::new(
            Error::Panicked { panic, stage },
            ConnectionKind::Fresh,
            false,
        ))
    }

    /// Adds how far the attempt had come, where it could not say so itself.
    pub(super) fn locate(&mut self, record: &RequestRecord) {
        let attempt = record.attempts.last();
        if let Error::Panicked { stage, .. } = &mut self.error
            && attempt.is_some_and(|attempt| attempt.connect.is_some())
        {
            *stage = Stage::Head;
        }
    }

    /// Whether it says nothing about the backend: it may close a connection that it has no request on, and ours
    /// was under way then; or one that others made it close.
    pub(super) fn is_stale(&self) -> bool {
        let idle = self.over == ConnectionKind::Kept && matches!(self.error, Error::Broken(_));
        self.silent && (idle || matches!(self.error, Error::Calmed))
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::upstream::tests::{next_upstream, outgoing};

    fn errand(next: &NextUpstream, method: Method, servers: u32) -> RetryState<'_> {
        RetryState::new(outgoing(method), next, servers, false, Millis(1_000))
    }

    #[test]
    fn a_get_moves_on_while_servers_are_left() {
        let next = next_upstream();
        let mut errand = errand(&next, Method::GET, 2);
        drop(errand.load());
        assert!(errand.may_move_on(RetryCause::Error, Millis(1_000)));
        errand.move_on();
        drop(errand.load());
        assert!(!errand.may_move_on(RetryCause::Error, Millis(1_000)));
    }

    #[test]
    fn what_may_have_had_an_effect_is_not_sent_twice() {
        let next = next_upstream();
        for method in ["POST", "PATCH", "LOCK"] {
            let mut errand = errand(&next, method.parse().unwrap(), 2);
            assert!(
                errand.may_move_on(RetryCause::Error, Millis(1_000)),
                "{method} unsent"
            );
            let sending = errand.load();
            assert!(
                !errand.may_move_on(RetryCause::Error, Millis(1_000)),
                "{method} sent"
            );
            errand.unload(sending.into_unsent().unwrap());
            assert!(
                errand.may_move_on(RetryCause::Error, Millis(1_000)),
                "{method} handed back"
            );
        }
    }

    #[test]
    fn non_idempotent_lets_a_post_be_sent_twice() {
        let mut next = next_upstream();
        next.non_idempotent = true;
        let mut errand = errand(&next, Method::POST, 2);
        drop(errand.load());
        assert!(errand.may_move_on(RetryCause::Timeout, Millis(1_000)));
    }

    /// What cannot be sent twice is kept out of connections that may just have been closed, which takes time.
    #[test]
    fn what_may_be_sent_twice_is_told_apart_beforehand() {
        let (mut lax, strict) = (next_upstream(), next_upstream());
        lax.non_idempotent = true;
        assert!(errand(&strict, Method::GET, 1).is_repeatable());
        assert!(errand(&lax, Method::GET, 1).is_repeatable());
        assert!(!errand(&strict, Method::POST, 1).is_repeatable());
        assert!(errand(&lax, Method::POST, 1).is_repeatable());
    }

    #[test]
    fn only_what_is_listed_moves_on() {
        let mut next = next_upstream();
        next.statuses = vec![StatusCode::SERVICE_UNAVAILABLE];
        let mut errand = errand(&next, Method::GET, 2);
        drop(errand.load());
        let listed = RetryCause::Status(StatusCode::SERVICE_UNAVAILABLE);
        let unlisted = RetryCause::Status(StatusCode::BAD_GATEWAY);
        assert!(errand.may_move_on(listed, Millis(1_000)));
        assert!(!errand.may_move_on(unlisted, Millis(1_000)));
        assert!(!errand.may_move_on(RetryCause::InvalidHeader, Millis(1_000)));
    }

    #[test]
    fn tries_and_time_are_bounded() {
        let mut next = next_upstream();
        next.tries = MaxTries::Most(1);
        assert!(!errand(&next, Method::GET, 5).may_move_on(RetryCause::Error, Millis(1_000)));
        next.tries = MaxTries::Most(9);
        next.within = Some(Duration::from_millis(500));
        let errand = errand(&next, Method::GET, 5);
        assert!(errand.may_move_on(RetryCause::Error, Millis(1_499)));
        assert!(!errand.may_move_on(RetryCause::Error, Millis(1_500)));
    }

    #[test]
    fn more_tries_than_servers_are_for_those_who_may_go_round_again() {
        let mut next = next_upstream();
        next.tries = MaxTries::Most(3);
        next.within = Some(Duration::from_millis(500));
        assert!(!errand(&next, Method::GET, 1).may_move_on(RetryCause::Error, Millis(1_000)));
        let mut errand = RetryState::new(outgoing(Method::GET), &next, 1, true, Millis(1_000));
        for _ in 0..2 {
            assert!(!errand.may_wait(Duration::ZERO, Millis(1_000)), "unasked");
            assert!(errand.may_move_on(RetryCause::Error, Millis(1_000)));
            errand.move_on();
            assert!(errand.may_wait(Duration::from_millis(99), Millis(1_400)));
            assert!(!errand.may_wait(Duration::from_millis(100), Millis(1_400)));
            errand.go_round();
        }
        assert!(!errand.may_move_on(RetryCause::Error, Millis(1_000)));
    }
}
