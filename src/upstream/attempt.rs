//! One attempt at one backend: a connection, the request, the response headers, and what the log keeps of it.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use http::StatusCode;

use super::backend::Backend;
use super::breaker::CallTicket;
use super::connection::{self, UpstreamConnection};
use super::error::{Error, InvalidResponse, Stage};
use super::http1::request::RequestWriter;
use super::http1::{HeadReader, ResponseHead};
use super::http2::{self, StreamReader};
use super::pool;
use super::request::{InterimRelay, OutgoingRequest};
use super::retry::{AttemptContext, AttemptError, RetryState, SendError};
use crate::clock::Millis;
use crate::config::plan::{HttpVersion, ProxyPass, ProxyProtocolVersion};
use crate::message::{Attempt, RequestRecord};
use crate::telemetry::{self, RateLimitedLog, about};

/// The headers of a response, and the connection its body comes over.
#[derive(Debug)]
pub(super) struct AttemptResponse {
    /// Boxed: it is large, and moved often.
    pub(super) head: Box<ResponseHead>,
    pub(super) source: ResponseSource,
    pub(super) started: Millis,
    /// When its headers were complete.
    pub(super) received: Millis,
    /// What the backend's breaker admitted the request as.
    pub(super) ticket: Option<CallTicket>,
}

/// What the body of a response comes over.
#[derive(Debug)]
pub(super) enum ResponseSource {
    Http1 {
        connection: Box<UpstreamConnection>,
        /// The rest of the request, where the response came before it was sent. Boxed: that is seldom.
        writer: Option<Box<RequestWriter>>,
        /// Whether the backend has received all that was sent, as far as is known.
        arrived: bool,
    },
    Http2(Box<StreamReader>),
}

/// Sends a request to a backend, over a kept connection if `reuse` allows it.
pub(super) async fn attempt(
    backend: &Backend,
    reuse: bool,
    retry: &mut RetryState<'_>,
    cx: &mut AttemptContext<'_>,
) -> Result<AttemptResponse, AttemptError> {
    let (clock, now) = (cx.clock, cx.now);
    cx.record.attempts.push(Attempt {
        address: Arc::clone(&backend.name),
        started: Some(now),
        status: None,
        connect: None,
        header: None,
        response: None,
    });
    let mut result = {
        let mut sending = pin!(send(backend, reuse, retry, cx));
        poll_fn(|context| {
            telemetry::poll_catching_panic(sending.as_mut(), context, AttemptError::of_panic)
        })
        .await
    };
    let received = clock.now();
    let taken = received.since(now);
    let (status, header) = match &mut result {
        Ok(response) => {
            response.received = received;
            (Some(response.head.status), Some(taken))
        }
        Err(failed) => {
            failed.locate(cx.record);
            (failed.error.attempt_status(), None)
        }
    };
    if let Some(status) = status {
        backend.counters.count_response(status, taken);
    }
    if let Some(attempt) = cx.record.attempts.last_mut() {
        attempt.status = status;
        attempt.header = header;
        // If the response is passed on, the time of its last byte replaces this.
        attempt.response = Some(taken);
    }
    result
}

/// What follows from a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryDecision {
    /// The request fails.
    Fail,
    /// The backend had closed a kept connection, as it may: the request goes to it over a new one.
    Reconnect,
    /// The request goes to another backend.
    Retry,
}

impl From<bool> for RetryDecision {
    fn from(moves_on: bool) -> Self {
        match moves_on {
            true => Self::Retry,
            false => Self::Fail,
        }
    }
}

/// Logs a failed attempt.
pub(super) fn report(
    error: &Error,
    upstream: &str,
    record: &RequestRecord,
    decision: RetryDecision,
) {
    error.count();
    let line = |message| about(message, record, Some(upstream));
    if let Error::Unavailable { .. } = error {
        // The reason was logged when it began; each request would log it again.
        tracing::debug!("{}", line(format_args!("{error}")));
    } else if let Some(cause) = error.client_fault() {
        tracing::info!("{}", line(format_args!("{error}: {cause}")));
    } else if let Error::TooLarge = error {
        tracing::info!("{}", line(format_args!("{error}")));
    } else {
        let line = line(format_args!("{error}"));
        match decision {
            RetryDecision::Fail => tracing::error!("{line}"),
            RetryDecision::Reconnect => tracing::info!("{line}"),
            RetryDecision::Retry => tracing::warn!("{line}"),
        }
    }
}

async fn send(
    backend: &Backend,
    reuse: bool,
    retry: &mut RetryState<'_>,
    cx: &mut AttemptContext<'_>,
) -> Result<AttemptResponse, AttemptError> {
    let now = cx.now;
    if cx.proxy_pass.version == HttpVersion::Two {
        // Boxed, so that requests over HTTP/1 do not keep room for it.
        let (head, stream) = Box::pin(http2::send(backend, retry, cx)).await?;
        return Ok(AttemptResponse {
            head,
            source: ResponseSource::Http2(Box::new(stream)),
            started: now,
            received: now,
            ticket: None,
        });
    }
    loop {
        let (connection, reused) = connection(backend, reuse, retry, cx)
            .await
            .map_err(|error| AttemptError::new(error, false, true))?;
        cx.note_connect_time(reused);
        let failed = match exchange(connection, retry, cx).await {
            Ok(response) => return Ok(response),
            Err(failed) => failed,
        };
        if let Some(body) = failed.unsent {
            retry.put_back(body);
            // Nothing was sent: as if this connection had never been kept.
            if reused {
                continue;
            }
        }
        return Err(AttemptError::new(failed.error, reused, failed.silent));
    }
}

/// Sends a request over a connection and reads the response headers.
pub(super) async fn exchange(
    mut connection: Box<UpstreamConnection>,
    retry: &mut RetryState<'_>,
    cx: &AttemptContext<'_>,
) -> Result<AttemptResponse, SendError> {
    connection.requests += 1;
    let mut writer = retry.writer();
    let mut exchange = HeadExchange {
        connection: &mut connection,
        writer: &mut writer,
        relay: InterimRelay::new(cx.record),
        request: &retry.request,
        proxy_pass: cx.proxy_pass,
        heads: HeadReader::default(),
    };
    let result = poll_fn(|context| exchange.poll_head(context)).await;
    let silent = !exchange.heads.has_data;
    if exchange.heads.has_skipped {
        warn_of_skipped(cx.record, cx.now);
    }
    match result {
        Ok(head) => Ok(AttemptResponse {
            head,
            source: ResponseSource::Http1 {
                connection,
                arrived: !writer.is_over() || writer.has_arrived(),
                writer: (!writer.is_over()).then(|| Box::new(writer)),
            },
            started: cx.now,
            received: cx.now,
            ticket: None,
        }),
        Err(error) => Err(SendError {
            unsent: match error {
                Error::Broken(_) => writer.into_unsent(),
                _ => None,
            },
            error,
            silent,
        }),
    }
}

/// Warns once a minute of header lines that were skipped.
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

/// A connection for a request, and whether it is a kept one.
async fn connection(
    backend: &Backend,
    reuse: bool,
    retry: &RetryState<'_>,
    cx: &AttemptContext<'_>,
) -> Result<(Box<UpstreamConnection>, bool), Error> {
    let (proxy_pass, now) = (cx.proxy_pass, cx.now);
    let owner = backend.owner(proxy_pass);
    let fresh = |socket| UpstreamConnection::new(socket, owner, backend.retired.clone());
    if proxy_pass.proxy_protocol != ProxyProtocolVersion::Off {
        let header = connection::proxy_header(cx.record, proxy_pass.proxy_protocol);
        let opening = connection::socket_with(backend, proxy_pass, &header);
        return Ok((fresh(Box::pin(opening).await?), false));
    }
    while reuse && let Some(mut kept) = pool::take(backend, owner, now) {
        // A request that cannot be sent twice must not go into a connection that was just closed: the event loop gets
        // the chance to notice. Others find out by trying, which is cheaper.
        if !retry.is_repeatable() {
            tokio::task::yield_now().await;
            if !kept.socket.is_quiet() {
                continue;
            }
        }
        backend.counters.reused.fetch_add(1, Ordering::Relaxed);
        return Ok((kept, true));
    }
    let socket = connection::socket(backend, proxy_pass).await?;
    Ok((fresh(socket), false))
}

/// A request on its way and a response whose headers have not arrived.
struct HeadExchange<'c> {
    connection: &'c mut UpstreamConnection,
    writer: &'c mut RequestWriter,
    relay: InterimRelay<'c>,
    request: &'c OutgoingRequest,
    proxy_pass: &'c ProxyPass,
    heads: HeadReader,
}

impl HeadExchange<'_> {
    /// Sends the request and reads the response headers, both at once: a backend may respond before it has the whole
    /// request.
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<Box<ResponseHead>, Error>> {
        let timeout = self.proxy_pass.settings.proxy_send_timeout;
        if let Poll::Ready(sent) = self.writer.poll(self.connection, timeout, context) {
            sent?;
        }
        // Interim responses without end would keep the reader busy and never let it wait.
        if self.relay.seen && self.poll_timeout(context).is_ready() {
            return Poll::Ready(Err(Error::Timeout(Stage::Head)));
        }
        loop {
            if !self.connection.read.is_empty() {
                match self.head() {
                    Ok(Some(head)) => {
                        self.connection.read_timeout.clear();
                        return Poll::Ready(Ok(head));
                    }
                    Ok(None) => {}
                    Err(invalid) => return Poll::Ready(Err(Error::InvalidHeader(invalid))),
                }
            }
            match self.connection.poll_read(context).map_err(Error::Broken)? {
                Poll::Ready(0) => {
                    let end = io::ErrorKind::UnexpectedEof;
                    return Poll::Ready(Err(Error::Broken(end.into())));
                }
                Poll::Ready(_) => {}
                Poll::Pending => break,
            }
        }
        ready!(self.poll_timeout(context));
        Poll::Ready(Err(Error::Timeout(Stage::Head)))
    }

    /// The response headers, if all of them have been read.
    fn head(&mut self) -> Result<Option<Box<ResponseHead>>, InvalidResponse> {
        // Until the request is sent, there is more to do for a response than to pass its bytes on.
        let raw_headers = self.request.raw_headers && self.writer.is_over();
        let method = &self.request.method;
        let most = self.proxy_pass.settings.proxy_max_headers;
        loop {
            let read = &mut self.connection.read;
            let next = self.heads.next(read, method, raw_headers, most);
            let Ok(Some(head)) = &next else { return next };
            if head.status == StatusCode::SWITCHING_PROTOCOLS {
                let upgrade = self.request.upgrade.as_ref();
                let met = upgrade.is_some_and(|upgrade| upgrade.is_met_by(&head.headers));
                if !met || !self.writer.is_over() {
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

    /// Ready when `proxy_read_timeout` has passed since the end of the request. As in nginx it holds for the headers as
    /// a whole, however slowly they drip in.
    fn poll_timeout(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.writer.is_over() {
            return Poll::Pending;
        }
        let timeout = self.proxy_pass.settings.proxy_read_timeout;
        self.connection.read_timeout.start(timeout);
        self.connection.read_timeout.poll_passed(context)
    }
}
