//! One try at one backend: a connection, the request, the head of an answer, and what is remembered of it.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Method, StatusCode};

use super::backend::Backend;
use super::breaker::Ticket;
use super::error::{Error, Invalid, Stage};
use super::failed::{Failed, Over, Unanswered};
use super::http1::{Head, HeadReader, Sending};
use super::http2::{self, Receiving};
use super::interim::Relay;
use super::retry::Errand;
use super::wire::Wire;
use super::{Form, connect, introduction, pool};
use crate::clock::{Clock, Millis};
use crate::config::plan::{Forward, HttpVersion, SendProxy};
use crate::message::headers::Upgrade;
use crate::message::{Attempt, Exchange};
use crate::telemetry::{Warning, about, panics};

/// The head of an answer, and what its body comes from.
#[derive(Debug)]
pub(super) struct Answer {
    /// Boxed: it passes through many hands, and is large.
    pub(super) head: Box<Head>,
    pub(super) carrier: Carrier,
    pub(super) started: Millis,
    /// When its head was there.
    pub(super) came: Millis,
    /// What the backend's breaker let it through as.
    pub(super) ticket: Option<Ticket>,
}

/// What an answer's body comes over.
#[derive(Debug)]
pub(super) enum Carrier {
    /// HTTP/2.
    Stream(Box<Receiving>),
    /// HTTP/1.
    Wire {
        wire: Box<Wire>,
        /// What is left to send of the request, which the answer overtook. Boxed: it seldom does.
        sending: Option<Box<Sending>>,
        /// Whether all that was sent has arrived, as far as anybody can tell.
        heard: bool,
    },
}

/// Asks a backend, over a kept connection if `over` allows it.
pub(super) async fn ask(
    backend: &Backend,
    over: Over,
    errand: &mut Errand<'_>,
    exchange: &mut Exchange,
    forward: &Forward,
    clock: &Clock,
    now: Millis,
) -> Result<Answer, Failed> {
    exchange.attempts.push(Attempt {
        address: Arc::clone(&backend.name),
        started: Some(now),
        status: None,
        connect: None,
        header: None,
        response: None,
    });
    let mut tried = {
        let mut attempting = pin!(attempt(
            backend, over, errand, exchange, forward, clock, now
        ));
        poll_fn(|context| panics::poll(attempting.as_mut(), context, Failed::of_panic)).await
    };
    let came = clock.now();
    let taken = came.since(now);
    let (status, header) = match &mut tried {
        Ok(answer) => {
            answer.came = came;
            (Some(answer.head.status), Some(taken))
        }
        Err(failed) => {
            failed.locate(exchange);
            (stands_for(&failed.error), None)
        }
    };
    if let Some(status) = status {
        backend.counts.count_answer(status, taken);
    }
    if let Some(attempt) = exchange.attempts.last_mut() {
        attempt.status = status;
        attempt.header = header;
        // Of an answer that is passed on, its last byte gives a later one.
        attempt.response = Some(taken);
    }
    tried
}

/// What follows from a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Consequence {
    /// The request fails.
    Fatal,
    /// The backend had closed a kept connection, as it may; the request goes to it over a new one.
    Reconnected,
    /// The request goes to another backend.
    Retried,
}

impl From<bool> for Consequence {
    /// Whether another backend is asked.
    fn from(moves_on: bool) -> Self {
        match moves_on {
            true => Self::Retried,
            false => Self::Fatal,
        }
    }
}

/// Writes a failure to the log, with what is known of the request it befell.
pub(super) fn report(error: &Error, upstream: &str, exchange: &Exchange, consequence: Consequence) {
    error.count();
    let line = |message| about(message, exchange, Some(upstream));
    if let Error::Unavailable { .. } = error {
        // Why was said when it began; everybody it befalls would say it again.
        tracing::debug!("{}", line(format_args!("{error}")));
    } else if let Some(cause) = error.client_fault() {
        tracing::info!("{}", line(format_args!("{error}: {cause}")));
    } else if let Error::TooLarge = error {
        tracing::info!("{}", line(format_args!("{error}")));
    } else {
        let line = line(format_args!("{error}"));
        match consequence {
            Consequence::Fatal => tracing::error!("{line}"),
            Consequence::Reconnected => tracing::info!("{line}"),
            Consequence::Retried => tracing::warn!("{line}"),
        }
    }
}

async fn attempt(
    backend: &Backend,
    over: Over,
    errand: &mut Errand<'_>,
    exchange: &mut Exchange,
    forward: &Forward,
    clock: &Clock,
    now: Millis,
) -> Result<Answer, Failed> {
    if forward.version == HttpVersion::Two {
        // Boxed, so that those who do not need it do not carry it about.
        return Box::pin(http2::attempt(
            backend, errand, exchange, forward, clock, now,
        ))
        .await;
    }
    loop {
        let (wire, over) = connection(backend, over, errand, exchange, forward, now)
            .await
            .map_err(|error| Failed::new(error, Over::Fresh, true))?;
        over.note(exchange, clock, now);
        let unanswered = match call(wire, errand, exchange, forward, now).await {
            Ok(answer) => return Ok(answer),
            Err(unanswered) => unanswered,
        };
        if let Some(cargo) = unanswered.unsent {
            errand.unload(cargo);
            // Nothing was sent: as if this one had never been kept.
            if over == Over::Kept {
                continue;
            }
        }
        return Err(Failed::new(unanswered.error, over, unanswered.silent));
    }
}

/// Sends a request over a connection and waits for the head of its answer.
pub(super) async fn call(
    mut wire: Box<Wire>,
    errand: &mut Errand<'_>,
    exchange: &Exchange,
    forward: &Forward,
    now: Millis,
) -> Result<Answer, Unanswered> {
    wire.requests += 1;
    let mut sending = errand.load();
    let mut call = Call {
        wire: &mut wire,
        sending: &mut sending,
        relay: Relay::new(exchange),
        method: errand.method(),
        upgrade: errand.upgrade(),
        form: errand.form(),
        forward,
        heads: HeadReader::default(),
    };
    let called = poll_fn(|context| call.poll_head(context)).await;
    let silent = !call.heads.has_heard();
    if call.heads.has_skipped() {
        warn_of_skipped(exchange, now);
    }
    match called {
        Ok(head) => Ok(Answer {
            head,
            carrier: Carrier::Wire {
                wire,
                heard: !sending.is_over() || sending.has_arrived(),
                sending: (!sending.is_over()).then(|| Box::new(sending)),
            },
            started: now,
            came: now,
            ticket: None,
        }),
        Err(error) => Err(Unanswered {
            unsent: match error {
                Error::Broken(_) => sending.into_unsent(),
                _ => None,
            },
            error,
            silent,
        }),
    }
}

/// Says once a minute that lines of a head were skipped.
#[cold]
fn warn_of_skipped(exchange: &Exchange, now: Millis) {
    static WARNING: Warning = Warning::new();
    if let Some(times) = WARNING.note(now) {
        let upstream = exchange.attempts.last().map(|attempt| &*attempt.address);
        tracing::warn!(
            upstream,
            times,
            "upstream sent header lines without a colon, they were skipped"
        );
    }
}

/// A connection to ask over.
async fn connection(
    backend: &Backend,
    over: Over,
    errand: &Errand<'_>,
    exchange: &Exchange,
    forward: &Forward,
    now: Millis,
) -> Result<(Box<Wire>, Over), Error> {
    if forward.proxy_protocol != SendProxy::Off {
        let first = introduction::of(exchange, forward.proxy_protocol);
        let opening = connect::open_with(backend, forward, &first);
        return Ok((Box::pin(opening).await?, Over::Fresh));
    }
    let owner = backend.owner(forward);
    while over == Over::Kept
        && let Some(mut wire) = pool::take(backend, owner, now)
    {
        // What cannot be sent twice must not go into a connection that was just closed: give the event loop the
        // chance to notice. Others find out by trying, which is cheaper.
        if !errand.is_repeatable() {
            tokio::task::yield_now().await;
            if !wire.is_quiet() {
                continue;
            }
        }
        backend.counts.count_reused();
        return Ok((wire, Over::Kept));
    }
    let wire = connect::open(backend, forward).await?;
    Ok((wire, Over::Fresh))
}

/// A request on its way and an answer not come yet.
struct Call<'c> {
    wire: &'c mut Wire,
    sending: &'c mut Sending,
    relay: Relay<'c>,
    method: &'c Method,
    upgrade: Option<&'c Upgrade>,
    form: Form,
    forward: &'c Forward,
    heads: HeadReader,
}

impl Call<'_> {
    /// Sends the request and waits for the answer's head, both at once: a backend may answer before it has heard
    /// all.
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<Box<Head>, Error>> {
        let timeout = self.forward.send_timeout;
        if let Poll::Ready(sent) = self.sending.poll(self.wire, timeout, context) {
            sent?;
        }
        // Interim answers without end would keep reading busy and never let it wait.
        if self.relay.is_used() && self.poll_overdue(context).is_ready() {
            return Poll::Ready(Err(Error::Timeout(Stage::Head)));
        }
        loop {
            if !self.wire.read.is_empty() {
                match self.head() {
                    Ok(Some(head)) => {
                        self.wire.patience.clear();
                        return Poll::Ready(Ok(head));
                    }
                    Ok(None) => {}
                    Err(invalid) => return Poll::Ready(Err(Error::InvalidHeader(invalid))),
                }
            }
            match self.wire.poll_read(context).map_err(Error::Broken)? {
                Poll::Ready(0) => {
                    let end = io::ErrorKind::UnexpectedEof;
                    return Poll::Ready(Err(Error::Broken(end.into())));
                }
                Poll::Ready(_) => {}
                Poll::Pending => break,
            }
        }
        ready!(self.poll_overdue(context));
        Poll::Ready(Err(Error::Timeout(Stage::Head)))
    }

    /// The answer's head, if all of it has been read.
    fn head(&mut self) -> Result<Option<Box<Head>>, Invalid> {
        // While it is still being sent, there is more to an answer than its bytes.
        let form = match self.sending.is_over() {
            true => self.form,
            false => Form::Fields,
        };
        let (read, most) = (&mut self.wire.read, self.forward.max_headers);
        loop {
            let next = self.heads.next(read, self.method, form, most);
            let Ok(Some(head)) = &next else { return next };
            if head.status == StatusCode::SWITCHING_PROTOCOLS {
                let met = self
                    .upgrade
                    .is_some_and(|asked| asked.is_met_by(&head.headers));
                if !met || !self.sending.is_over() {
                    return Err(Invalid::Upgrade);
                }
                return next;
            }
            if !head.status.is_informational() {
                return next;
            }
            self.relay.pass(head.status, &head.headers);
        }
    }

    /// Ready when the head has been awaited for too long: `read_timeout` in all, as in nginx, however it drips;
    /// counted from the end of the request, whose own pauses have limits of their own.
    fn poll_overdue(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.sending.is_over() {
            return Poll::Pending;
        }
        self.wire.patience.start(self.forward.read_timeout);
        self.wire.patience.poll_passed(context)
    }
}

/// The status that a failure is shown as, as in nginx; none for what the client did.
pub(super) fn stands_for(error: &Error) -> Option<StatusCode> {
    match error {
        Error::Client(_) | Error::TooLarge => None,
        Error::Crowded { .. } => Some(StatusCode::SERVICE_UNAVAILABLE),
        Error::Timeout(_) => Some(StatusCode::GATEWAY_TIMEOUT),
        Error::Unavailable { .. } => Some(StatusCode::SERVICE_UNAVAILABLE),
        Error::Broken(_)
        | Error::Calmed
        | Error::Connect(_)
        | Error::Handshake { .. }
        | Error::InvalidHeader(_)
        | Error::NoLiveBackend
        | Error::Panicked { .. }
        | Error::Rejected(_)
        | Error::Resolve { .. }
        | Error::Truncated(_) => Some(StatusCode::BAD_GATEWAY),
    }
}
