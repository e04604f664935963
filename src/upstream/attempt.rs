//! One try at one backend: a connection, the request, the head of an answer, and what is remembered of it.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Method, StatusCode};

use super::backend::Backend;
use super::connection::UpstreamConnection;
use super::error::{Error, InvalidResponse, Stage};
use super::http1::{HeadReader, ResponseHead};
use super::request::{InterimRelay, Upgrade};
use super::send::{AttemptError, ConnectionKind, RetryState, SendError};
use super::{RequestHeadForm, connection, http2, pool, proxy_protocol};
use crate::clock::{Clock, Millis};
use crate::config::plan::{HttpVersion, ProxyPass, ProxyProtocolVersion};
use crate::message::{Attempt, RequestRecord};
use crate::telemetry::{self, RateLimitedLog, about};
use crate::upstream::breaker::machine::CallTicket;
use crate::upstream::http1::request::RequestWriter;
use crate::upstream::http2::stream::StreamReader;

/// The head of an answer, and what its body comes from.
#[derive(Debug)]
pub(super) struct AttemptResponse {
    /// Boxed: it passes through many hands, and is large.
    pub(super) head: Box<ResponseHead>,
    pub(super) carrier: ResponseSource,
    pub(super) started: Millis,
    /// When its head was there.
    pub(super) came: Millis,
    /// What the backend's breaker let it through as.
    pub(super) ticket: Option<CallTicket>,
}

/// What an answer's body comes over.
#[derive(Debug)]
pub(super) enum ResponseSource {
    /// HTTP/2.
    Stream(Box<StreamReader>),
    /// HTTP/1.
    Wire {
        wire: Box<UpstreamConnection>,
        /// What is left to send of the request, which the answer overtook. Boxed: it seldom does.
        sending: Option<Box<RequestWriter>>,
        /// Whether all that was sent has arrived, as far as anybody can tell.
        heard: bool,
    },
}

/// Asks a backend, over a kept connection if `over` allows it.
pub(super) async fn ask(
    backend: &Backend,
    over: ConnectionKind,
    errand: &mut RetryState<'_>,
    record: &mut RequestRecord,
    proxy_pass: &ProxyPass,
    clock: &Clock,
    now: Millis,
) -> Result<AttemptResponse, AttemptError> {
    record.attempts.push(Attempt {
        address: Arc::clone(&backend.name),
        started: Some(now),
        status: None,
        connect: None,
        header: None,
        response: None,
    });
    let mut tried = {
        let mut attempting = pin!(attempt(
            backend, over, errand, record, proxy_pass, clock, now
        ));
        poll_fn(|context| {
            telemetry::poll_catching_panic(attempting.as_mut(), context, AttemptError::of_panic)
        })
        .await
    };
    let came = clock.now();
    let taken = came.since(now);
    let (status, header) = match &mut tried {
        Ok(answer) => {
            answer.came = came;
            (Some(answer.head.status), Some(taken))
        }
        Err(failed) => {
            failed.locate(record);
            (failed.error.attempt_status(), None)
        }
    };
    if let Some(status) = status {
        backend.counts.count_answer(status, taken);
    }
    if let Some(attempt) = record.attempts.last_mut() {
        attempt.status = status;
        attempt.header = header;
        // Of an answer that is passed on, its last byte gives a later one.
        attempt.response = Some(taken);
    }
    tried
}

/// What follows from a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryDecision {
    /// The request fails.
    Fatal,
    /// The backend had closed a kept connection, as it may; the request goes to it over a new one.
    Reconnected,
    /// The request goes to another backend.
    Retried,
}

impl From<bool> for RetryDecision {
    /// Whether another backend is asked.
    fn from(moves_on: bool) -> Self {
        match moves_on {
            true => Self::Retried,
            false => Self::Fatal,
        }
    }
}

/// Writes a failure to the log, with what is known of the request it befell.
pub(super) fn report(
    error: &Error,
    upstream: &str,
    record: &RequestRecord,
    consequence: RetryDecision,
) {
    error.count();
    let line = |message| about(message, record, Some(upstream));
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
            RetryDecision::Fatal => tracing::error!("{line}"),
            RetryDecision::Reconnected => tracing::info!("{line}"),
            RetryDecision::Retried => tracing::warn!("{line}"),
        }
    }
}

async fn attempt(
    backend: &Backend,
    over: ConnectionKind,
    errand: &mut RetryState<'_>,
    record: &mut RequestRecord,
    proxy_pass: &ProxyPass,
    clock: &Clock,
    now: Millis,
) -> Result<AttemptResponse, AttemptError> {
    if proxy_pass.version == HttpVersion::Two {
        // Boxed, so that those who do not need it do not carry it about.
        return Box::pin(http2::attempt(
            backend, errand, record, proxy_pass, clock, now,
        ))
        .await;
    }
    loop {
        let (wire, over) = connection(backend, over, errand, record, proxy_pass, now)
            .await
            .map_err(|error| AttemptError::new(error, ConnectionKind::Fresh, true))?;
        over.note(record, clock, now);
        let unanswered = match call(wire, errand, record, proxy_pass, now).await {
            Ok(answer) => return Ok(answer),
            Err(unanswered) => unanswered,
        };
        if let Some(cargo) = unanswered.unsent {
            errand.unload(cargo);
            // Nothing was sent: as if this one had never been kept.
            if over == ConnectionKind::Kept {
                continue;
            }
        }
        return Err(AttemptError::new(unanswered.error, over, unanswered.silent));
    }
}

/// Sends a request over a connection and waits for the head of its answer.
pub(super) async fn call(
    mut wire: Box<UpstreamConnection>,
    errand: &mut RetryState<'_>,
    record: &RequestRecord,
    proxy_pass: &ProxyPass,
    now: Millis,
) -> Result<AttemptResponse, SendError> {
    wire.requests += 1;
    let mut sending = errand.load();
    let mut call = HeadExchange {
        wire: &mut wire,
        sending: &mut sending,
        relay: InterimRelay::new(record),
        method: errand.method(),
        upgrade: errand.upgrade(),
        form: errand.form(),
        proxy_pass,
        heads: HeadReader::default(),
    };
    let called = poll_fn(|context| call.poll_head(context)).await;
    let silent = !call.heads.has_heard();
    if call.heads.has_skipped() {
        warn_of_skipped(record, now);
    }
    match called {
        Ok(head) => Ok(AttemptResponse {
            head,
            carrier: ResponseSource::Wire {
                wire,
                heard: !sending.is_over() || sending.has_arrived(),
                sending: (!sending.is_over()).then(|| Box::new(sending)),
            },
            started: now,
            came: now,
            ticket: None,
        }),
        Err(error) => Err(SendError {
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
fn warn_of_skipped(record: &RequestRecord, now: Millis) {
    static WARNING: RateLimitedLog = RateLimitedLog::new();
    if let Some(times) = WARNING.note(now) {
        let upstream = record.attempts.last().map(|attempt| &*attempt.address);
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
    over: ConnectionKind,
    errand: &RetryState<'_>,
    record: &RequestRecord,
    proxy_pass: &ProxyPass,
    now: Millis,
) -> Result<(Box<UpstreamConnection>, ConnectionKind), Error> {
    if proxy_pass.proxy_protocol != ProxyProtocolVersion::Off {
        let first = proxy_protocol::proxy_header_for(record, proxy_pass.proxy_protocol);
        let opening = connection::open_with(backend, proxy_pass, &first);
        return Ok((Box::pin(opening).await?, ConnectionKind::Fresh));
    }
    let owner = backend.owner(proxy_pass);
    while over == ConnectionKind::Kept
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
        return Ok((wire, ConnectionKind::Kept));
    }
    let wire = connection::open(backend, proxy_pass).await?;
    Ok((wire, ConnectionKind::Fresh))
}

/// A request on its way and an answer not come yet.
struct HeadExchange<'c> {
    wire: &'c mut UpstreamConnection,
    sending: &'c mut RequestWriter,
    relay: InterimRelay<'c>,
    method: &'c Method,
    upgrade: Option<&'c Upgrade>,
    form: RequestHeadForm,
    proxy_pass: &'c ProxyPass,
    heads: HeadReader,
}

impl HeadExchange<'_> {
    /// Sends the request and waits for the answer's head, both at once: a backend may answer before it has heard
    /// all.
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<Box<ResponseHead>, Error>> {
        let timeout = self.proxy_pass.settings.proxy_send_timeout;
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
    fn head(&mut self) -> Result<Option<Box<ResponseHead>>, InvalidResponse> {
        // While it is still being sent, there is more to an answer than its bytes.
        let form = match self.sending.is_over() {
            true => self.form,
            false => RequestHeadForm::Fields,
        };
        let (read, most) = (
            &mut self.wire.read,
            self.proxy_pass.settings.proxy_max_headers,
        );
        loop {
            let next = self.heads.next(read, self.method, form, most);
            let Ok(Some(head)) = &next else { return next };
            if head.status == StatusCode::SWITCHING_PROTOCOLS {
                let met = self
                    .upgrade
                    .is_some_and(|asked| asked.is_met_by(&head.headers));
                if !met || !self.sending.is_over() {
                    return Err(InvalidResponse::Upgrade);
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
        self.wire
            .patience
            .start(self.proxy_pass.settings.proxy_read_timeout);
        self.wire.patience.poll_passed(context)
    }
}
