//! Where responses come from: an upstream (`proxy_pass`), the configuration (`return`), or nowhere (404).
//!
//! With request buffering a body is read before the upstream is asked, so that a slow client holds no upstream connection.
//! A body that is there in one piece stays that piece. A longer one is copied to memory and beyond that to a file. Where
//! neither has room, what was read is sent on and the rest streams behind it.
//!
//! A request that becomes a tunnel stays one request: limited once when it came, in its slot of a `limit_conn` for as long as
//! the tunnel lasts, and one line in the access log when that is over.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::response::Parts;
use http::{StatusCode, Version, header};
use http_body::{Body as _, Frame};

use super::context::{PendingUpgrade, RequestContext, Response};
use super::error::{self, ALLOWED, NO_RESPONSE, Outcome, ProxyError, respond};
use super::stale_cache::{CacheWriter, StaleRules};
use crate::clock::{Clock, Millis, MinRate};
use crate::config::plan::{
    self, ClientSettings, HttpVersion, LocationConf, RequestBuffering, ReturnBody,
};
use crate::message::headers::MaxForwards;
use crate::message::{
    IncomingBody, LocalReply, RequestBody, RequestRecord, ResponseBody, grpc, headers, variables,
};
use crate::spool::{BufferPool, ResponseBuffer, SpoolWriter};
use crate::telemetry::{COUNTERS, RateLimitedLog, SlowPart};
use crate::upstream::breaker::{Breaker, BreakerOpen, CallOutcome, CallPermit, CallTicket};
use crate::upstream::{Error, OutgoingRequest, Upstream, UpstreamBody};
use crate::{message, upstream};

/// Where the responses of a location come from.
#[derive(Debug)]
pub(super) enum Content {
    NotFound,
    ProxyPass(Box<ProxyPass>),
    Return(plan::Return),
}

impl Content {
    /// The response to a request that has passed all filters.
    pub(super) async fn respond(
        &self,
        cx: &mut RequestContext,
        unread: &mut Option<IncomingBody>,
        clock: &Clock,
    ) -> Outcome {
        let pass = match self {
            Self::NotFound => return Err(ProxyError::NotFound),
            Self::ProxyPass(pass) => pass,
            Self::Return(fixed) => return respond_return(fixed, &mut cx.record),
        };
        if let Some(response) = last_hop(&cx.record)? {
            return Ok(response);
        }
        let mut read = None;
        if unread.is_some() && pass.buffering().is_some() {
            pass.check_before_body(clock)?;
            // Boxed: most requests have no body.
            read = Some(Box::pin(pass.read_body(cx, unread)).await?);
        }
        let permit = match &pass.options.breaker {
            None => None,
            Some(breaker) => Some(breaker.admit(clock.now())?),
        };
        // Before the body is touched: the fallback may want it.
        pass.check_available(clock)?;
        let mut body = match read {
            Some(read) => read,
            None => pass.request_body(cx, unread),
        };
        let permit = permit.map(|permit| permit.timed(clock, &mut body));
        if pass.options.keeps_upstream_headers {
            cx.record.upstream_headers = Some(Box::default());
        }
        let raw_headers = cx.allows_raw_headers(pass.options.raw_headers);
        let ticket = permit.as_ref().map(|permit| permit.ticket);
        let outcome = pass.send(cx, body, raw_headers, ticket).await;
        if let Some(permit) = permit {
            report(permit, &outcome, clock.now());
        }
        outcome
    }
}

/// `proxy_pass` of a location, or of its fallback.
#[derive(Debug)]
pub(super) struct ProxyPass {
    pub(super) conf: Arc<plan::ProxyPass>,
    pub(super) upstream: Arc<Upstream>,
    /// The settings for request bodies.
    client: ClientSettings,
    options: PassOptions,
}

/// What a location adds to its own `proxy_pass`, and not to that of its fallback.
#[derive(Debug, Default)]
pub(super) struct PassOptions {
    pub(super) breaker: Option<Arc<Breaker>>,
    /// Which responses are kept.
    pub(super) stale: Option<Arc<StaleRules>>,
    /// Whether a fallback may send the request to another upstream.
    pub(super) has_fallback_upstream: bool,
    /// Whether variables ask for the upstream's response headers.
    pub(super) keeps_upstream_headers: bool,
    /// Whether nothing at the location reads or changes the headers of responses.
    pub(super) raw_headers: bool,
}

impl ProxyPass {
    /// `None` where the upstream is not there.
    pub(super) fn compile(
        proxy_pass: &Arc<plan::ProxyPass>,
        conf: &LocationConf,
        upstreams: &[Arc<Upstream>],
        options: PassOptions,
    ) -> Option<Self> {
        Some(Self {
            conf: Arc::clone(proxy_pass),
            upstream: upstreams.get(proxy_pass.upstream).cloned()?,
            client: conf.client,
            options,
        })
    }

    /// The response where another upstream has failed to give one. The outer error: the body could not be read.
    pub(super) async fn respond_as_fallback(
        &self,
        cx: &mut RequestContext,
        unread: &mut Option<IncomingBody>,
    ) -> Result<Outcome, ProxyError> {
        let body = match cx.spare_body.take() {
            Some(body) => body,
            None => self.read_body(cx, unread).await?,
        };
        Ok(self.send(cx, body, false, None).await)
    }

    /// How request bodies are buffered; `None` where they stream.
    // Over HTTP/2 a request may go on for as long as its response does.
    fn buffering(&self) -> Option<&RequestBuffering> {
        let buffering = self.conf.buffering.request.as_ref();
        buffering.filter(|_| self.conf.version == HttpVersion::One)
    }

    /// Whether a request could be sent on at all, as far as that is known before its body: no client uploads in vain.
    fn check_before_body(&self, clock: &Clock) -> Result<(), ProxyError> {
        if let Some(breaker) = &self.options.breaker {
            let now = clock.now();
            if breaker.open_until().is_some_and(|until| now < until) {
                let retry_after = breaker.wait(now).unwrap_or_default();
                return Err(BreakerOpen { retry_after }.into());
            }
        }
        self.check_available(clock)
    }

    /// Whether the upstream has a server to send to, where there is another upstream to use if it has none.
    fn check_available(&self, clock: &Clock) -> Result<(), ProxyError> {
        if self.options.has_fallback_upstream
            && let Some(retry_after) = self.upstream.unavailable(clock.now())
        {
            return Err(Error::Unavailable { retry_after }.into());
        }
        Ok(())
    }

    /// The request's body as it is sent on.
    fn request_body(
        &self,
        cx: &mut RequestContext,
        unread: &mut Option<IncomingBody>,
    ) -> RequestBody {
        let body = unread.take().map_or_else(RequestBody::none, |incoming| {
            // A call may go on for as long as both sides like, and send little. Only where calls are what
            // is expected: any client can claim to make one.
            let head = &cx.record.head;
            let is_call = self.conf.version == HttpVersion::Two
                && head.version == Version::HTTP_2
                && grpc::is_call(head);
            let client = &self.client;
            let min_rate = MinRate(if is_call {
                0
            } else {
                client.client_body_min_rate
            });
            let (max, timeout) = (client.max_body_size(), client.client_body_timeout);
            RequestBody::new(incoming, max, timeout, min_rate)
        });
        cx.progress = body.progress();
        body
    }

    /// The request's body, complete where it is buffered.
    async fn read_body(
        &self,
        cx: &mut RequestContext,
        unread: &mut Option<IncomingBody>,
    ) -> Result<RequestBody, ProxyError> {
        let body = self.request_body(cx, unread);
        let body = match self.buffering() {
            Some(plan) => read(body, plan, cx.buffers()).await.inspect_err(count)?,
            None => body,
        };
        if self.options.has_fallback_upstream {
            cx.spare_body = body.again();
        }
        Ok(body)
    }

    /// Sends a request on and reads the response's headers. `ticket`: what the breaker let the request through as.
    async fn send(
        &self,
        cx: &mut RequestContext,
        body: RequestBody,
        raw_headers: bool,
        ticket: Option<CallTicket>,
    ) -> Outcome {
        let (conf, record) = (&self.conf, &mut cx.record);
        record.proxy_pass = Some(Arc::clone(conf));
        let request = OutgoingRequest::new(record, conf, body, raw_headers);
        let request = request.ok_or(ProxyError::NotForHttp2)?;
        let response = self.upstream.send(record, conf, request, &cx.clock).await?;
        let (mut head, mut body) = response.into_parts();
        // The upstream's version does not matter to this client.
        head.version = Version::HTTP_11;
        if let Some(switched) = body.take_upgraded() {
            let upgrade = PendingUpgrade {
                upstream: switched,
                idle_timeout: conf.settings.proxy_read_timeout,
                send_timeout: conf.settings.proxy_send_timeout,
            };
            return Ok(switch_protocols(cx, head, upgrade));
        }
        if let Some(kept) = &mut cx.record.upstream_headers {
            head.headers.clone_into(kept);
        }
        let controls = headers::clean_response(&mut head.headers);
        if controls.redirect {
            warn_of_redirect(&cx.record, &cx.clock);
        }
        cx.upstream_rate = controls.limit_rate;
        let stale = self.options.stale.as_deref();
        let writer = stale.and_then(|stale| cache_writer(stale, cx, &head));
        // After it is kept: another request may be redirected elsewhere.
        headers::rewrite_redirects(&mut head.headers, &cx.record, conf);
        let body = match body.into_complete() {
            Ok(whole) => {
                if let Some(writer) = writer {
                    writer.keep(&whole.bytes);
                }
                cx.complete_body(whole)
            }
            Err(body) => self.stream(body, cx, controls.buffering, writer, ticket),
        };
        Ok(Response::from_parts(head, body))
    }

    /// The body of a response that is not complete yet; `buffering` is the upstream's wish.
    fn stream(
        &self,
        mut body: UpstreamBody,
        cx: &mut RequestContext,
        buffering: Option<bool>,
        writer: Option<CacheWriter>,
        ticket: Option<CallTicket>,
    ) -> ResponseBody<UpstreamBody> {
        if let Some(recording) = writer.and_then(CacheWriter::record) {
            body.observe(Box::new(recording));
        }
        if let (Some(breaker), Some(ticket)) = (&self.options.breaker, ticket) {
            body.report_to(breaker, ticket);
        }
        cx.timer = Some(body.timer());
        let plan = &self.conf.buffering.response;
        // Over HTTP/2 the speed at which one side reads is what the other sends at.
        if self.conf.version == HttpVersion::One && buffering.unwrap_or(plan.on) {
            let buffer = ResponseBuffer::new(plan, cx.buffers());
            body = body.buffered(buffer, &cx.record.connection);
        }
        ResponseBody::upstream(body)
    }
}

/// What to keep this response with, if it may be kept.
fn cache_writer(stale: &StaleRules, cx: &RequestContext, head: &Parts) -> Option<CacheWriter> {
    // A response that is never served again is not kept, and one that depends on a request's body is for that request.
    if grpc::is_call(&cx.record.head) || cx.progress.is_some() {
        return None;
    }
    stale.cache_writer(&cx.record, head, &cx.clock)
}

/// Tells the breaker how a request went that it let through.
fn report(permit: CallPermit<'_>, outcome: &Outcome, now: Millis) {
    let outcome = match outcome {
        Ok(response) => permit.outcome(response.status(), response.headers(), now),
        Err(ProxyError::Upstream(error)) => CallOutcome::of(error),
        Err(_) => CallOutcome::Cancelled,
    };
    permit.report(outcome, now);
}

/// The 101 for the client; the upstream's end of the tunnel waits in the context.
fn switch_protocols(cx: &mut RequestContext, mut head: Parts, upgrade: PendingUpgrade) -> Response {
    let protocol = head.headers.get(header::UPGRADE).cloned();
    headers::clean_response(&mut head.headers);
    if let Some(protocol) = protocol {
        upstream::restore_upgrade(&mut head.headers, protocol);
    }
    cx.timer = Some(upgrade.upstream.timer());
    cx.upgrade = Some(upgrade);
    Response::from_parts(head, ResponseBody::whole(Bytes::new()))
}

/// The response of a `return`.
pub(super) fn respond_return(fixed: &plan::Return, record: &mut RequestRecord) -> Outcome {
    let Ok(status) = StatusCode::from_u16(fixed.status) else {
        return Err(ProxyError::NotFound);
    };
    if fixed.status == NO_RESPONSE {
        return Err(ProxyError::NoResponse);
    }
    // Its text may name the status.
    record.status = Some(status);
    let record = &*record;
    let page = LocalReply::new(status);
    let page = match &fixed.body {
        ReturnBody::Location(template) => {
            let mut url = Vec::new();
            variables::render(template, record, &mut url);
            page.with_location(&url)
        }
        ReturnBody::Page => page,
        ReturnBody::Text { text, content_type } => {
            page.with_text(error::render(text, record), content_type)
        }
    };
    Ok(respond(page, record))
}

/// The response to a request that may be forwarded no further.
fn last_hop(record: &RequestRecord) -> Result<Option<Response>, ProxyError> {
    match headers::max_forwards(&record.head) {
        MaxForwards::Any | MaxForwards::Left(1..) => Ok(None),
        MaxForwards::Left(0) => {
            let reply = LocalReply::new(StatusCode::OK).with_header(header::ALLOW, ALLOWED);
            Ok(Some(respond(reply.with_text("", "text/plain"), record)))
        }
        MaxForwards::Malformed => Err(ProxyError::MaxForwards),
    }
}

/// Warns once a minute that an upstream has sent `X-Accel-Redirect`.
#[cold]
fn warn_of_redirect(record: &RequestRecord, clock: &Clock) {
    static WARNING: RateLimitedLog = RateLimitedLog::new();
    if let Some(times) = WARNING.note(clock.now()) {
        let server = &*record.server().name;
        let uri = &record.head.uri;
        tracing::warn!(
            server,
            %uri,
            times,
            "upstream sent X-Accel-Redirect, which is not followed and was passed on"
        );
    }
}

fn count(error: &message::RequestBodyError) {
    if let message::RequestBodyError::Slow = error {
        COUNTERS.slow_client(SlowPart::Body);
    }
}

async fn read(
    mut body: RequestBody,
    plan: &RequestBuffering,
    bounds: &Arc<BufferPool>,
) -> Result<RequestBody, message::RequestBodyError> {
    let Some(first) = next(&mut body, None).await? else {
        return Ok(body.into_piece(Bytes::new()));
    };
    if body.is_end_stream() {
        return Ok(body.into_piece(first));
    }
    // The end of a chunked body shows only when more of it is read.
    let Some(second) = next(&mut body, None).await? else {
        return Ok(body.into_piece(first));
    };
    let mut writer = SpoolWriter::new(plan, bounds);
    writer.push(first);
    writer.push(second);
    while !body.is_end_stream() && poll_fn(|context| writer.poll_room(context)).await {
        match next(&mut body, Some(&mut writer)).await? {
            Some(data) => writer.push(data),
            None => break,
        }
    }
    poll_fn(|context| writer.poll_written(context)).await;
    Ok(body.into_stored(Box::new(writer.finish())))
}

/// The next piece; `None` at the end. Trailers are dropped, as nginx does: what has a length has no trailers.
async fn next(
    body: &mut RequestBody,
    mut writer: Option<&mut SpoolWriter>,
) -> Result<Option<Bytes>, message::RequestBodyError> {
    loop {
        let frame = poll_fn(|context| {
            // What has been written is let go of, however long the client takes.
            if let Some(writer) = &mut writer {
                let _written = writer.poll_written(context);
            }
            Pin::new(&mut *body).poll_frame(context)
        });
        match frame.await.transpose()?.map(Frame::into_data) {
            None => return Ok(None),
            Some(Ok(data)) if !data.is_empty() => return Ok(Some(data)),
            Some(_) => {}
        }
    }
}
