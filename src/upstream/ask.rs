//! One try at one backend: a connection, the request, the head of an answer, and what is remembered of it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use http::{Response, StatusCode};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::backend::Backend;
use super::connect::Connection;
use super::error::{Error, Stage};
use super::retry::Errand;
use super::sending::Watch;
use super::{framing, interim, pool};
use crate::clock::{Clock, Deadline, Millis};
use crate::config::plan::Forward;
use crate::message::{Attempt, Exchange};

/// The head of an answer, and what its body comes from.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) response: Response<Incoming>,
    pub(super) connection: Connection,
    pub(super) watch: Option<Arc<Watch>>,
    pub(super) started: Millis,
}

/// A try without an answer.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: Error,
    pub(super) over: Over,
}

/// What kind of connection a request went over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// One made for it.
    Fresh,
    /// One that had carried others before.
    Kept,
}

impl Failed {
    /// Whether it says nothing about the backend: it may close a connection that it has no request on, and ours
    /// was under way then.
    pub(super) fn is_stale(&self) -> bool {
        self.over == Over::Kept && matches!(self.error, Error::Broken(_))
    }
}

/// Asks a backend, over a kept connection if `over` allows it.
pub(super) async fn ask(
    backend: &Backend,
    over: Over,
    errand: &mut Errand<'_>,
    exchange: &mut Exchange,
    forward: &Forward,
    clock: &Clock,
) -> Result<Answer, Failed> {
    let started = clock.now();
    exchange.attempts.push(Attempt {
        address: Arc::clone(&backend.name),
        status: None,
        connect: None,
        header: None,
        response: None,
    });
    let mut tried = attempt(backend, over, errand, exchange, forward, clock).await;
    let taken = clock.now().since(started);
    let (status, header) = match &mut tried {
        Ok(answer) => {
            answer.started = started;
            (Some(answer.response.status()), Some(taken))
        }
        Err(failed) => {
            report(&failed.error, &backend.name, exchange);
            (stands_for(&failed.error), None)
        }
    };
    if let Some(status) = status {
        backend.count_answer(status);
    }
    if let Some(attempt) = exchange.attempts.last_mut() {
        attempt.status = status;
        attempt.header = header;
        // Of an answer that is passed on, its last byte gives a later one.
        attempt.response = Some(taken);
    }
    tried
}

/// Writes a failure to the log, with what is known of the request it befell.
pub(super) fn report(error: &Error, upstream: &str, exchange: &Exchange) {
    let client = exchange.peer.text();
    let server = &*exchange.server().name;
    let (method, uri) = (&exchange.head.method, &exchange.head.uri);
    let request = format_args!("{method} {uri} {:?}", exchange.head.version);
    if let Error::Client(_) = error {
        let cause = error.client_fault().map(tracing::field::display);
        tracing::info!(client, server, %request, upstream, cause, "{error}");
    } else {
        tracing::error!(client, server, %request, upstream, "{error}");
    }
}

async fn attempt(
    backend: &Backend,
    over: Over,
    errand: &mut Errand<'_>,
    exchange: &mut Exchange,
    forward: &Forward,
    clock: &Clock,
) -> Result<Answer, Failed> {
    let started = clock.now();
    loop {
        let (mut connection, over) = connection(backend, over, errand, forward, clock)
            .await
            .map_err(|error| Failed {
                error,
                over: Over::Fresh,
            })?;
        if let Some(attempt) = exchange.attempts.last_mut() {
            attempt.connect = Some(match over {
                Over::Fresh => clock.now().since(started),
                Over::Kept => Duration::ZERO,
            });
        }
        let mut request = errand.load(over == Over::Kept);
        interim::pass_on(&mut request, exchange);
        let watch = request.body().watch();
        let answer = connection.send(request, forward.send_timeout);
        let error = match head(answer, watch.as_deref(), forward.read_timeout).await {
            Ok(Ok(response)) => match checked(response) {
                Ok(response) => {
                    return Ok(Answer {
                        response,
                        connection,
                        watch,
                        started,
                    });
                }
                Err(error) => error,
            },
            Ok(Err(mut failure)) => match failure.take_message() {
                Some(request) => {
                    errand.unload(request);
                    // Nothing was sent: as if this one had never been kept.
                    if over == Over::Kept {
                        continue;
                    }
                    Error::before_head(failure.into_error())
                }
                None if connection.has_stalled() => Error::Timeout(Stage::Send),
                None => Error::before_head(failure.into_error()),
            },
            Err(error) => error,
        };
        return Err(Failed { error, over });
    }
}

/// A connection to ask over.
async fn connection(
    backend: &Backend,
    over: Over,
    errand: &Errand<'_>,
    forward: &Forward,
    clock: &Clock,
) -> Result<(Connection, Over), Error> {
    while over == Over::Kept
        && let Some(connection) = pool::take(backend, clock.now())
    {
        // What cannot be sent twice must not go into a connection that was just closed: give the event loop the
        // chance to notice. Others find out by trying, which is cheaper.
        if !errand.is_repeatable() {
            tokio::task::yield_now().await;
            if !connection.is_ready() {
                continue;
            }
        }
        backend.count_reused();
        return Ok((connection, Over::Kept));
    }
    let connection = Connection::open(backend, forward.connect_timeout).await?;
    Ok((connection, Over::Fresh))
}

/// Waits for an answer's head: `timeout` in all, as nginx does, however it drips; counted from the end of the
/// request's body, whose own pauses have limits of their own.
async fn head<T>(
    answer: impl Future<Output = T>,
    watch: Option<&Watch>,
    timeout: Duration,
) -> Result<T, Error> {
    let mut answer = pin!(answer);
    let mut deadline = Deadline::default();
    poll_fn(|context| {
        if let Poll::Ready(answer) = answer.as_mut().poll(context) {
            return Poll::Ready(Ok(answer));
        }
        deadline.start(timeout);
        loop {
            ready!(deadline.poll_passed(context));
            let now = Instant::now();
            let ended = watch.map(|watch| watch.ended().unwrap_or(now));
            match ended.and_then(|ended| ended.checked_add(timeout)) {
                Some(due) if due > now => deadline.set(due),
                _ => return Poll::Ready(Err(Error::Timeout(Stage::Head))),
            }
        }
    })
    .await
}

fn checked(response: Response<Incoming>) -> Result<Response<Incoming>, Error> {
    let (head, body) = response.into_parts();
    framing::check(&head).map_err(Error::InvalidHeader)?;
    Ok(Response::from_parts(head, body))
}

/// The status that a failure is shown as, as in nginx; none for what the client did.
fn stands_for(error: &Error) -> Option<StatusCode> {
    match error {
        Error::Client(_) => None,
        Error::Timeout(_) => Some(StatusCode::GATEWAY_TIMEOUT),
        Error::Broken(_)
        | Error::Connect(_)
        | Error::InvalidHeader(_)
        | Error::NoLiveBackend
        | Error::Resolve { .. }
        | Error::Truncated(_) => Some(StatusCode::BAD_GATEWAY),
    }
}
