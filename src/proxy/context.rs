//! One request, from its headers to the last byte of its response.
//!
//! What a request holds — its slot in a `limit_conn`, the line it gets in the access log, the counters — is settled in the
//! log phase, once, in whatever way the request ends. A request whose future is dropped on the way, because its client hung
//! up, is logged as nginx's 499. The context has all that the log phase needs, and so needs neither its location nor its
//! generation.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode, header};

use crate::clock::Clock;
use crate::config::plan::ClientSettings;
use crate::limits::Permit;
use crate::message::{
    Ambiguity, IncomingBody, Prebuilt, PrebuiltResponse, RequestBody, RequestRecord, ResponseBody,
    ResponseEnd, ResponseGuard, Tunnel, UploadProgress, drain, headers,
};
use crate::spool::BufferPool;
use crate::telemetry::traces::Tracer;
use crate::telemetry::{AccessLog, COUNTERS, about};
use crate::upstream::{CompleteBody, ResponseTimer, UpgradedConnection, UpstreamBody};

/// A response on its way to the client.
pub(super) type Response = http::Response<ResponseBody<UpstreamBody>>;

/// What requests use of their generation until their last byte has left.
#[derive(Debug)]
pub struct RequestResources {
    pub(super) access_log: Option<AccessLog>,
    pub(super) tracer: Option<Tracer>,
    /// The bounds of what is buffered.
    pub(super) buffers: Arc<BufferPool>,
}

impl RequestResources {
    /// Logs a request that is over.
    fn log(&self, record: &mut RequestRecord, clock: &Clock) {
        COUNTERS.finish_request(record.status);
        // Without either the end of a request needs no time.
        if self.access_log.is_none() && self.tracer.is_none() {
            return;
        }
        let now = clock.now();
        record.ended = Some(now);
        if let Some(access_log) = &self.access_log {
            access_log.write(record);
        }
        if let Some(tracer) = &self.tracer {
            tracer.finish(record, now);
        }
    }
}

/// The upstream's end of a tunnel, until its 101 is on the way to the client.
#[derive(Debug)]
pub(super) struct PendingUpgrade {
    pub(super) upstream: Box<UpgradedConnection>,
    pub(super) idle_timeout: Duration,
    pub(super) send_timeout: Duration,
}

/// One request, and what it holds.
#[derive(Debug)]
pub(super) struct RequestContext {
    pub(super) record: RequestRecord,
    pub(super) permit: Permit,
    /// How far the upload has come, once its body is read.
    pub(super) progress: Option<Arc<UploadProgress>>,
    pub(super) timer: Option<ResponseTimer>,
    pub(super) upgrade: Option<PendingUpgrade>,
    /// The request's body once more, where a fallback may send it to another upstream.
    pub(super) spare_body: Option<RequestBody>,
    /// The upstream's own limit for the speed of its response, in bytes a second; 0 for none.
    pub(super) upstream_rate: Option<u64>,
    /// Whether the path is a forwarding location's but for the slash at its end.
    pub(super) lacks_slash: bool,
    pub(super) clock: Clock,
    resources: Arc<RequestResources>,
    logged: bool,
}

impl RequestContext {
    /// The context of a new request. Boxed once, here: it moves into the response's body and from there to the connection.
    #[inline]
    pub(super) fn new(
        record: RequestRecord,
        resources: Arc<RequestResources>,
        clock: Clock,
    ) -> Box<Self> {
        Box::new(Self {
            record,
            permit: Permit::default(),
            progress: None,
            timer: None,
            upgrade: None,
            spare_body: None,
            upstream_rate: None,
            lacks_slash: false,
            clock,
            resources,
            logged: false,
        })
    }

    /// The bounds of what is buffered.
    pub(super) fn buffers(&self) -> &Arc<BufferPool> {
        &self.resources.buffers
    }

    /// What makes the request's framing ambiguous, if anything does.
    pub(super) fn ambiguity(&self) -> Option<Ambiguity> {
        let record = &self.record;
        record.connection.ambiguity.of_request(record.number)
    }

    /// Whether the upstream's response headers may stay raw: nothing reads them or adds to them. `raw`: whether the
    /// location's own settings leave them alone.
    pub(super) fn allows_raw_headers(&self, raw: bool) -> bool {
        let adds = self.permit.allowed_headers.is_some();
        !adds && raw && allows_raw_headers(&self.record)
    }

    /// The body of a response that is complete.
    pub(super) fn complete_body(&self, whole: CompleteBody) -> ResponseBody<UpstreamBody> {
        let CompleteBody { bytes, raw_headers } = whole;
        match raw_headers {
            Some(raw_headers) => {
                let length = bytes.len();
                let prebuilt = Prebuilt::Owned(PrebuiltResponse::new(raw_headers, bytes));
                self.record.connection.state.prebuilt.put(prebuilt);
                ResponseBody::prebuilt(length)
            }
            None => ResponseBody::whole(bytes),
        }
    }

    /// Decides whether the connection goes on after this response, and tells the client if it does not. `unread` is the
    /// body that nothing has read.
    pub(super) fn keep_alive(
        &self,
        client: &ClientSettings,
        unread: Option<IncomingBody>,
        response: &mut Response,
    ) {
        let drained = unread.is_none_or(|unread| self.discard(unread));
        let last = client.keepalive_timeout.is_none()
            || self.record.number >= client.keepalive_requests
            || self.record.connection.state.closes_after_response.get();
        if last {
            self.record.connection.state.closes_after_response.set(true);
        }
        if self.upgrade.is_none() && (!drained || last) {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
    }

    /// Throws away a body that nothing has read; false if the connection cannot be used after it.
    fn discard(&self, unread: IncomingBody) -> bool {
        let held_back = self.record.head.headers.contains_key(header::EXPECT);
        drain(&self.record.connection, unread, held_back)
    }

    /// Records the response as the client gets it; its headers only where variables ask for them.
    pub(super) fn record_response(&mut self, response: &Response, keeps_headers: bool) {
        self.record.status = Some(response.status());
        if keeps_headers {
            self.record.sent_headers = Some(Box::new(response.headers().clone()));
        }
    }

    /// Sends the context along with its response: the log phase runs when the last byte has left, or when the tunnel that
    /// the response opens has ended.
    pub(super) fn attach_to(mut self: Box<Self>, mut response: Response) -> Response {
        match self.upgrade.take() {
            None => {
                let client = Arc::clone(&self.record.connection);
                response.body_mut().set_guard(self, client);
            }
            Some(upgrade) => self.open_tunnel(upgrade),
        }
        response
    }

    /// Hands the tunnel to the connection, which begins it when the 101 has left.
    fn open_tunnel(self: Box<Self>, upgrade: PendingUpgrade) {
        let client = Arc::clone(&self.record.connection);
        let grace = self.record.plan.shutdown_timeout;
        client.state.open_tunnel(Box::new(Tunnel {
            far: upgrade.upstream,
            idle_timeout: upgrade.idle_timeout,
            send_timeout: upgrade.send_timeout,
            // A little less: the end of a tunnel is sent and logged, the end of the process is not.
            grace: grace - (grace / 10).min(TUNNEL_MARGIN),
            guard: self,
        }));
    }

    /// The log phase.
    fn log(&mut self, ending: ResponseEnd) {
        if std::mem::replace(&mut self.logged, true) {
            return;
        }
        let record = &mut self.record;
        if let Some(progress) = &self.progress {
            record.body_received = progress.received.get();
            if !progress.ended.get() {
                // The response came before the request was complete; what is still on its way must not
                // turn into a reset that takes the response with it.
                record.connection.state.lingers.set(true);
            }
        }
        if let (Some(timer), Some(attempt)) = (&self.timer, record.attempts.last_mut()) {
            attempt.response = timer.finished_after();
            if let Some(failure) = timer.failure() {
                let upstream = Arc::clone(&attempt.address);
                let message = format_args!("{}", failure.message);
                let line = about(message, record, Some(&upstream));
                match failure.is_clients {
                    true => tracing::info!("{line}"),
                    false => tracing::error!("{line}"),
                }
            }
        }
        if record.status.is_none() && ending == ResponseEnd::Aborted {
            record.status = StatusCode::from_u16(CLIENT_CLOSED).ok();
        }
        if !self.permit.charges.is_empty() {
            let now = self.clock.now();
            for charge in self.permit.charges.drain(..) {
                charge.settle(record, now);
            }
        }
        self.resources.log(record, &self.clock);
    }
}

impl ResponseGuard for RequestContext {
    fn sent(&mut self, bytes: usize) {
        self.record.body_sent += bytes as u64;
    }

    fn received(&mut self, bytes: usize) {
        self.record.body_received += bytes as u64;
    }

    fn taken(&mut self) {
        // Slots are released before a small response leaves rather than after: a client that has read it and sends the next
        // request, perhaps on another event loop, must not find its own slot in use.
        if self.record.body_sent <= SOCKET_BUFFER && !self.record.connection.state.unsent.get() {
            self.permit.release();
        }
    }

    fn finish(mut self: Box<Self>, ending: ResponseEnd) {
        self.log(ending);
    }
}

impl Drop for RequestContext {
    fn drop(&mut self) {
        self.log(ResponseEnd::Aborted);
        headers::reuse(std::mem::take(&mut self.record.head.headers));
    }
}

/// Whether the headers of the next response can be written by us rather than by hyper, as far as the connection and
/// variables allow it.
pub(super) fn allows_raw_headers(record: &RequestRecord) -> bool {
    let state = &record.connection.state;
    // Until all of an earlier response has left, this one is not the next.
    state.prebuilt.is_open.get() && !state.unsent.get() && record.upstream_headers.is_none()
}

/// Bytes that an empty socket buffer takes at once.
const SOCKET_BUFFER: u64 = 16 * 1024;

/// How long before the end of the process a tunnel is closed.
const TUNNEL_MARGIN: Duration = Duration::from_millis(250);

/// nginx's status for a client that closed the connection before the response.
const CLIENT_CLOSED: u16 = 499;
