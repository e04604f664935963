//! HTTP/2 as a client speaks it: many requests at once over few connections.
//!
//! h2 does the speaking. Each connection is driven by a task of its own, because it belongs to no request; what a
//! request does is otherwise the same as over HTTP/1, and so are its timeouts, its retries and what is held against
//! a backend.

mod call;
mod drive;
mod io;
mod once;
mod pool;
mod receiving;
mod sending;
mod terms;

pub(super) use once::once;
#[cfg(test)]
pub(super) use pool::connections;
pub(super) use receiving::StreamReader;

use self::call::call;
use super::ask::AttemptResponse;
use super::backend::Backend;
use super::error::Error;
use super::failed::{AttemptError, ConnectionKind};
use super::retry::RetryState;
use crate::clock::{Clock, Millis};
use crate::config::plan::ProxyPass;
use crate::message::RequestRecord;

/// Asks a backend, and once more over another connection where it has said that it did nothing about it.
pub(super) async fn attempt(
    backend: &Backend,
    errand: &mut RetryState<'_>,
    exchange: &mut RequestRecord,
    forward: &ProxyPass,
    clock: &Clock,
    now: Millis,
) -> Result<AttemptResponse, AttemptError> {
    let mut refused = false;
    loop {
        let (ride, over) = pool::join(backend, forward)
            .await
            .map_err(|error| AttemptError::new(error, ConnectionKind::Fresh, true))?;
        over.note(exchange, clock, now);
        let unanswered = match call(ride, errand, exchange, forward, now).await {
            Ok(answer) => return Ok(answer),
            Err(unanswered) => unanswered,
        };
        if let Some(cargo) = unanswered.unsent {
            errand.unload(cargo);
            if !std::mem::replace(&mut refused, true) {
                continue;
            }
        }
        return Err(AttemptError::new(unanswered.error, over, unanswered.silent));
    }
}

/// What befell a request whose answer has not begun.
fn broken(error: h2::Error) -> Error {
    match error.is_io() {
        true => Error::Broken(into_io(error)),
        false => Error::Rejected(error),
    }
}

/// What befell an answer that has begun.
fn truncated(error: h2::Error) -> Error {
    Error::Truncated(into_io(error))
}

fn into_io(error: h2::Error) -> std::io::Error {
    match error.is_io() {
        true => error
            .into_io()
            .unwrap_or_else(|| std::io::ErrorKind::UnexpectedEof.into()),
        false => std::io::Error::other(error),
    }
}
