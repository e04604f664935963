//! One request's stay: everything that has to last until its answer's last byte has left.
//!
//! The place in a `limit_conn`, the line in the access log, the counters: they are settled here, once,
//! in whatever way the request ends. A request whose future is dropped on the way — the client hung up —
//! is settled too, as nginx's 499.

use std::sync::Arc;

use http::{StatusCode, header};

use super::content::PendingUpgrade;
use super::generation::Generation;
use super::location::Location;
use crate::clock::Clock;
use crate::limits::{DeferredCharge, Permit};
use crate::message::{
    Ambiguity, ClientConnection, IncomingBody, Prebuilt, PrebuiltResponse, RequestBody,
    RequestRecord, ResponseBody, ResponseEnd, ResponseGuard, UploadProgress, drain, headers,
};
use crate::spool::BufferPool;
use crate::telemetry::about;
use crate::upstream::{CompleteBody, RequestHeadForm, ResponseTimer, UpstreamBody};

/// A request on the road.
#[derive(Debug)]
pub(super) struct RequestContext {
    pub(super) exchange: RequestRecord,
    pub(super) permit: Option<Permit>,
    pub(super) bills: Vec<DeferredCharge>,
    pub(super) progress: Option<Arc<UploadProgress>>,
    pub(super) stopwatch: Option<ResponseTimer>,
    pub(super) agreed: Option<PendingUpgrade>,
    /// Its body once more, where somebody else may be asked.
    pub(super) spare_upload: Option<RequestBody>,
    /// How fast the backend wants its answer to leave, in bytes a second; 0 for any speed.
    pub(super) told_rate: Option<u64>,
    /// Where it came in, in the plan of its generation.
    pub(super) listener: usize,
    live: Arc<Generation>,
    clock: Clock,
    settled: bool,
}

impl RequestContext {
    /// A request enters. Boxed once, here: it moves from the road into the answer's body and from
    /// there to the connection.
    #[inline]
    pub(super) fn begin(
        exchange: RequestRecord,
        live: Arc<Generation>,
        listener: usize,
        clock: Clock,
    ) -> Box<Self> {
        Box::new(Self {
            exchange,
            permit: None,
            bills: Vec::new(),
            progress: None,
            stopwatch: None,
            agreed: None,
            spare_upload: None,
            told_rate: None,
            listener,
            live,
            clock,
            settled: false,
        })
    }

    /// The generation it lives in.
    pub(super) fn live(&self) -> Arc<Generation> {
        Arc::clone(&self.live)
    }

    /// The bounds of what is buffered.
    pub(super) fn bounds(&self) -> Arc<BufferPool> {
        Arc::clone(&self.live.bounds)
    }

    /// Whether somebody will ask for the fields of the upstream's answer.
    pub(super) fn keeps_upstream_headers(&self, site: &Location) -> bool {
        self.live.keeps_upstream_headers(site)
    }

    /// How the fields of an answer from upstream are wanted: as a map where somebody looks at them or adds to them.
    pub(super) fn form_of_answer(&self, site: &Location) -> RequestHeadForm {
        let permit = self.permit.as_ref();
        let adds = permit.is_some_and(|permit| permit.allowance.is_some());
        match !adds && self.live.takes_lines(&self.exchange, site) {
            true => RequestHeadForm::Lines,
            false => RequestHeadForm::Fields,
        }
    }

    /// The body of an answer that is all here.
    pub(super) fn whole(&self, whole: CompleteBody) -> ResponseBody<UpstreamBody> {
        let CompleteBody { bytes, lines } = whole;
        match lines {
            Some(lines) => {
                let length = bytes.len();
                let completion = Prebuilt::Own(PrebuiltResponse::new(lines, bytes));
                self.exchange.peer.line.ready.put(completion);
                ResponseBody::stocked(length)
            }
            None => ResponseBody::whole(bytes),
        }
    }

    /// What makes it impossible to believe this request.
    pub(super) fn doubt(&self) -> Option<Ambiguity> {
        let exchange = &self.exchange;
        exchange.peer.doubts.about(exchange.number)
    }

    /// Whether keep-alive ends with this request.
    pub(super) fn is_last(&self, site: &Location) -> bool {
        let client = &site.plan.client;
        client.keepalive_timeout.is_none()
            || self.exchange.number >= client.keepalive_requests
            || self.exchange.peer.line.closes_after_answer()
    }

    /// Throws away a body nobody wanted; false if the connection cannot be used after it.
    pub(super) fn discard(&self, incoming: IncomingBody) -> bool {
        let held_back = self.exchange.head.headers.contains_key(header::EXPECT);
        drain(&self.exchange.peer, incoming, held_back)
    }

    fn settle(&mut self, ending: ResponseEnd) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        let exchange = &mut self.exchange;
        if let Some(progress) = &self.progress {
            exchange.body_received = progress.received();
            if !progress.ended() {
                // The answer came before the request was whole; what is still on its way must not
                // turn into a reset that takes the answer with it.
                exchange.peer.line.linger_on_close();
            }
        }
        if let (Some(stopwatch), Some(attempt)) = (&self.stopwatch, exchange.attempts.last_mut()) {
            attempt.response = stopwatch.finished_after();
            if let Some(failure) = stopwatch.failure() {
                let upstream = Arc::clone(&attempt.address);
                let message = format_args!("{}", failure.message);
                let line = about(message, exchange, Some(&upstream));
                match failure.is_clients {
                    true => tracing::info!("{line}"),
                    false => tracing::error!("{line}"),
                }
            }
        }
        if exchange.status.is_none() && ending == ResponseEnd::Aborted {
            exchange.status = StatusCode::from_u16(CLIENT_CLOSED).ok();
        }
        if !self.bills.is_empty() {
            let now = self.clock.now();
            for bill in self.bills.drain(..) {
                bill.settle(exchange, now);
            }
        }
        self.live.conclude(exchange, &self.clock);
        self.permit = None;
    }
}

impl ResponseGuard for RequestContext {
    fn sent(&mut self, bytes: usize) {
        self.exchange.body_sent += bytes as u64;
    }

    fn received(&mut self, bytes: usize) {
        self.exchange.body_received += bytes as u64;
    }

    fn taken(&mut self) {
        // A place is given back before a small answer leaves rather than after: whoever has read it and asks
        // again, perhaps on another event loop, must not find its own place still taken.
        if self.exchange.body_sent <= LEAVES_AT_ONCE && !self.exchange.peer.line.unsent() {
            self.permit = None;
        }
    }

    fn peer(&self) -> &Arc<ClientConnection> {
        &self.exchange.peer
    }

    fn finish(mut self: Box<Self>, ending: ResponseEnd) {
        self.settle(ending);
    }
}

impl Drop for RequestContext {
    fn drop(&mut self) {
        self.settle(ResponseEnd::Aborted);
        headers::reuse(std::mem::take(&mut self.exchange.head.headers));
    }
}

/// Bytes that a socket with nothing in it takes in one go.
const LEAVES_AT_ONCE: u64 = 16 * 1024;

/// nginx's status for a client that left before it was answered.
const CLIENT_CLOSED: u16 = 499;
