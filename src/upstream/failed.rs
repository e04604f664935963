//! A try that came to nothing: why, over what kind of connection, and whether it says anything about the backend.

use std::time::Duration;

use super::error::{Error, Stage};
use super::http1::PendingBody;
use crate::clock::{Clock, Millis};
use crate::message::RequestRecord;
use crate::telemetry::panics::CaughtPanic;

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
    pub(super) fn note(self, exchange: &mut RequestRecord, clock: &Clock, now: Millis) {
        if let Some(attempt) = exchange.attempts.last_mut() {
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
    pub(super) fn locate(&mut self, exchange: &RequestRecord) {
        let attempt = exchange.attempts.last();
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
