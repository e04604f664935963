//! The road itself: one request from its head to its last byte.

mod connection;
mod content;
mod context;
mod error;
mod explain;
mod fallback;
mod filter;
mod generation;
mod location;
mod stale_cache;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body::Body as _;

use self::context::RequestContext;
use self::error::ProxyError;
use self::location::Location;
use self::stale_cache::CacheWriter;
use crate::clock::{Clock, Deadline};
use crate::config::plan::{Content, DegradeMode, HttpVersion, ProxyPass};
use crate::message::{
    ClientConnection, CloseConnection, IncomingBody, RequestBody, RequestRecord, ResponseBody,
    Target, grpc, headers,
};
use crate::spool::ResponseBuffer;
use crate::telemetry::RateLimitedLog;
use crate::upstream::breaker::{CallPermit, CallTicket};
use crate::upstream::{OutgoingHead, OutgoingRequest, RequestHeadForm, Upstream, UpstreamBody};
use crate::{message, upstream};

pub use self::connection::ConnectionHandler;
pub use self::explain::Explanation;
pub use self::fallback::{DegradeGroup, taken};
pub use self::generation::{Generation, GenerationParts, ListenerHandle, LiveChanges};
pub use self::location::LocationBreaker;
pub use self::stale_cache::{StaleCache, skipped};

/// Takes requests of one listener down the road.
#[derive(Debug, Clone)]
pub struct Proxy {
    door: Arc<ListenerHandle>,
    clock: Clock,
}

/// The site a request was sent on by.
#[derive(Clone, Copy)]
struct Own<'s> {
    site: &'s Location,
    /// What its breaker let the request through as.
    ticket: Option<CallTicket>,
}

impl Proxy {
    /// For those who come in by this door.
    #[must_use]
    pub fn new(door: Arc<ListenerHandle>, clock: Clock) -> Self {
        Self { door, clock }
    }

    /// The way in.
    #[must_use]
    pub fn door(&self) -> &ListenerHandle {
        &self.door
    }

    /// Takes one request down the whole road and comes back with a response, or with the wish to
    /// close without one.
    pub async fn handle(
        &self,
        peer: Arc<ClientConnection>,
        request: Request<IncomingBody>,
    ) -> Result<Response<ResponseBody<UpstreamBody>>, CloseConnection> {
        let (head, incoming) = request.into_parts();
        let (mut visit, misfit) = self.begin(peer, head);
        let live = visit.live();
        let server = visit.exchange.server;
        if let Some(rule) = &live.plan.servers[server].real_ip {
            visit.exchange.identify(rule);
        }
        // A target that does not parse has no path, and so gets the server's own settings.
        let site = live
            .sites
            .find(server, visit.exchange.target.path(&visit.exchange.head));
        if let Some(rule) = &site.plan.real_ip {
            visit.exchange.identify(rule);
        }
        let mut unread = Some(incoming).filter(|incoming| !incoming.is_end_stream());
        let doubt = visit.doubt().map(ProxyError::Doubtful);
        let objection = doubt
            .or_else(|| misfit.map(ProxyError::BadTarget))
            .or_else(|| location::objection(&live, visit.listener, &visit.exchange));
        let mut answered = match objection {
            Some(failure) => Err(failure),
            None if live.adds_slash(&visit.exchange) => Ok(location::slash_added(&visit.exchange)),
            None => match grpc::due(&visit.exchange, visit.exchange.started) {
                None => self.pass(&mut visit, site, &mut unread).await,
                // Boxed: few requests have one, and all would keep the room for it.
                Some(due) => within(due, Box::pin(self.pass(&mut visit, site, &mut unread))).await,
            },
        };
        if let Some(fallback) = &site.fallback {
            let falling = self.fall_back(&mut visit, site, fallback, answered, &mut unread);
            // Boxed, like all that few requests need.
            answered = Box::pin(falling).await;
        }
        let response = match answered {
            Ok(response) => response,
            Err(failure) => {
                visit.exchange.status = Some(failure.status());
                failure.answer(&visit.exchange, site, &live)?
            }
        };
        let drained = unread.is_none_or(|incoming| visit.discard(incoming));
        Ok(send_off(response, visit, site, &live, drained))
    }

    /// Logs what came on a connection, was no request and got this status.
    pub fn log_unparsed(&self, peer: &Arc<ClientConnection>, status: StatusCode) {
        let (live, listener) = self.door.enter();
        live.log_unparsed(listener, peer, status, &self.clock);
    }

    /// A request enters; with what is wrong with its target, if something is.
    // Apart, and not in a future: a head is large, and goes from here to where it stays.
    fn begin(
        &self,
        peer: Arc<ClientConnection>,
        head: Parts,
    ) -> (Box<RequestContext>, Option<message::Error>) {
        // One generation for the whole request, whatever a reload does meanwhile.
        let (live, listener) = self.door.enter();
        let (target, misfit) = match Target::parse(&head) {
            Ok(target) => (target, None),
            Err(misfit) => (Target::default(), Some(misfit)),
        };
        let server = live.sites.server(listener, target.host(&head));
        let plan = Arc::clone(&live.plan);
        let mut exchange = RequestRecord::begin(plan, server, peer, head, target, self.clock.now());
        live.trace(&mut exchange);
        let visit = RequestContext::begin(exchange, live, listener, self.clock.clone());
        (visit, misfit)
    }

    /// Limits, then access, then the answer: nginx's order of phases, except that limits also hold
    /// where the answer is a `return`.
    async fn pass(
        &self,
        visit: &mut RequestContext,
        site: &Location,
        unread: &mut Option<IncomingBody>,
    ) -> Result<Response<ResponseBody<UpstreamBody>>, ProxyError> {
        site.apply_timeouts(&visit.exchange.peer);
        if let Some(incoming) = unread {
            let announced = incoming.size_hint().lower();
            if site
                .plan
                .client
                .client_max_body_size
                .is_some_and(|limit| announced > limit)
            {
                return Err(ProxyError::TooLarge);
            }
            ProxyError::of_coding(headers::coding(&visit.exchange.head.headers))?;
        }
        if matches!(visit.exchange.head.method, Method::CONNECT | Method::TRACE) {
            return Err(ProxyError::Method);
        }
        if site.mode() == DegradeMode::On {
            return Err(ProxyError::Degraded);
        }
        // Waits here when a rule says wait.
        let (now, exchange) = (visit.exchange.started, &mut visit.exchange);
        let mut permit = site.limits.admit(exchange, now, &self.clock).await?;
        visit.bills = std::mem::take(&mut permit.bills);
        visit.permit = Some(permit);
        if !site.admits(visit.exchange.client()) {
            return Err(ProxyError::Forbidden);
        }
        match (&site.plan.action, &site.upstream) {
            (Content::Forward(forward), Some(upstream)) => {
                if let Some(answer) = location::last_hop(&visit.exchange)? {
                    return Ok(answer);
                }
                let mut taken_in = None;
                if unread.is_some() && content::buffers(forward).is_some() {
                    content::may_be_sent(site, upstream, &self.clock)?;
                    // Boxed: most requests have no body.
                    let taking = Box::pin(content::take_in(visit, site, forward, unread));
                    taken_in = Some(taking.await?);
                }
                let pass = match &site.guard {
                    None => None,
                    Some(guard) => Some(guard.breaker.admit(self.clock.now())?),
                };
                // Before the body is touched: somebody else may want it.
                content::is_available(site, upstream, &self.clock)?;
                let mut upload = taken_in.unwrap_or_else(|| site.upload(visit, forward, unread));
                let pass = pass.map(|pass| pass.watch(&self.clock, &mut upload));
                if visit.keeps_upstream_headers(site) {
                    visit.exchange.upstream_headers = Some(Box::default());
                }
                let form = visit.form_of_answer(site);
                let own = Own {
                    site,
                    ticket: pass.as_ref().map(CallPermit::ticket),
                };
                let answered = self
                    .forward(visit, forward, upstream, upload, form, Some(own))
                    .await;
                if let Some(pass) = pass {
                    location::report(pass, &answered, self.clock.now());
                }
                answered
            }
            (Content::Return(answer), _) => location::returned(answer, &mut visit.exchange),
            (Content::Forward(_) | Content::NotFound, _) => Err(ProxyError::NotFound),
        }
    }

    /// Sends a request on; the answer is kept and judged as its own site says, where it has one.
    async fn forward(
        &self,
        visit: &mut RequestContext,
        forward: &Arc<ProxyPass>,
        upstream: &Upstream,
        upload: RequestBody,
        form: RequestHeadForm,
        own: Option<Own<'_>>,
    ) -> Result<Response<ResponseBody<UpstreamBody>>, ProxyError> {
        let exchange = &mut visit.exchange;
        exchange.forward = Some(Arc::clone(forward));
        let upgrade = content::asked(exchange, forward, &upload);
        let head = match forward.version {
            HttpVersion::One => {
                let mut written = Vec::with_capacity(USUAL_HEAD);
                upstream::write_request(exchange, forward, upgrade.as_ref(), &mut written);
                OutgoingHead::Lines(written)
            }
            HttpVersion::Two => {
                let request = upstream::stream_request(exchange, forward);
                OutgoingHead::Stream(Box::new(request.ok_or(ProxyError::Unsayable)?))
            }
        };
        let outgoing = OutgoingRequest {
            method: exchange.head.method.clone(),
            head,
            upload,
            upgrade,
            form,
        };
        let response = upstream
            .send(exchange, forward, outgoing, &self.clock)
            .await?;
        let (mut head, mut download) = response.into_parts();
        // The backend's version says nothing about what this client understands.
        head.version = Version::HTTP_11;
        if let Some(far) = download.take_switched() {
            return Ok(content::agree(visit, head, far, forward));
        }
        if let Some(kept) = &mut visit.exchange.upstream_headers {
            head.headers.clone_into(kept);
        }
        let wishes = headers::clean_response(&mut head.headers);
        if wishes.redirect {
            warn_of_redirect(&visit.exchange, &self.clock);
        }
        visit.told_rate = wishes.limit_rate;
        let keeps = own.and_then(|own| own.site.fallback.as_deref());
        let keeper = keeps.and_then(|fallback| fallback.keeper(visit, &head, &self.clock));
        // After it is kept: another request may be led elsewhere.
        headers::rewrite_redirects(&mut head.headers, &visit.exchange, forward);
        let body = match download.into_whole() {
            Ok(whole) => {
                if let Some(keeper) = keeper {
                    keeper.keep(&whole.bytes);
                }
                visit.whole(whole)
            }
            Err(download) => {
                let buffering = wishes.buffering;
                streamed(download, visit, forward, buffering, keeper, own)
            }
        };
        Ok(Response::from_parts(head, body))
    }
}

/// The body of an answer of which more is to come; `buffering` is what the backend wants of it.
fn streamed(
    mut download: UpstreamBody,
    visit: &mut RequestContext,
    forward: &ProxyPass,
    buffering: Option<bool>,
    keeper: Option<CacheWriter>,
    own: Option<Own<'_>>,
) -> ResponseBody<UpstreamBody> {
    if let Some(recording) = keeper.and_then(CacheWriter::record) {
        download.tee(Box::new(recording));
    }
    if let Some(Own { site, ticket }) = own
        && let (Some(guard), Some(ticket)) = (&site.guard, ticket)
    {
        download.judged_by(&guard.breaker, ticket);
    }
    visit.stopwatch = Some(download.stopwatch());
    let plan = &forward.buffering.response;
    // Over HTTP/2 how fast one side reads is what the other goes by.
    if forward.version == HttpVersion::One && buffering.unwrap_or(plan.on) {
        let backlog = ResponseBuffer::new(plan, &visit.bounds());
        download = download.buffered(backlog, &visit.exchange.peer);
    }
    ResponseBody::download(download)
}

/// Lets an answer go, and with it all that lasts as long as it does. `drained`: nothing of the request is left unread.
fn send_off(
    mut response: Response<ResponseBody<UpstreamBody>>,
    mut visit: Box<RequestContext>,
    site: &Location,
    live: &Generation,
    drained: bool,
) -> Response<ResponseBody<UpstreamBody>> {
    let last = visit.is_last(site);
    if last {
        visit.exchange.peer.line.close_after_answer();
    }
    if visit.agreed.is_none() && (!drained || last) {
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(permit) = &mut visit.permit
        && let Some(allowance) = permit.allowance.take()
    {
        allowance.write(response.headers_mut());
    }
    visit.exchange.status = Some(response.status());
    if live.keeps_sent_headers(site) {
        visit.exchange.sent_headers = Some(Box::new(response.headers().clone()));
    }
    match visit.agreed.take() {
        Some(agreed) => content::hand_over(agreed, visit),
        None => {
            if let Some(throttle) = filter::throttle(site, &visit) {
                response.body_mut().set_throttle(throttle);
            }
            response.body_mut().set_tail(visit);
        }
    }
    response
}

/// Says once a minute that a backend wants something else to be served.
#[cold]
fn warn_of_redirect(exchange: &RequestRecord, clock: &Clock) {
    static WARNING: RateLimitedLog = RateLimitedLog::new();
    if let Some(times) = WARNING.note(clock.now()) {
        let server = &*exchange.server().name;
        let uri = &exchange.head.uri;
        tracing::warn!(
            server,
            %uri,
            times,
            "upstream sent X-Accel-Redirect, which is not followed and was passed on"
        );
    }
}

/// Waits no longer than the client of a call does.
async fn within<T>(
    mut due: Deadline,
    mut answering: Pin<Box<impl Future<Output = Result<T, ProxyError>>>>,
) -> Result<T, ProxyError> {
    poll_fn(|context| {
        if let Poll::Ready(answered) = answering.as_mut().poll(context) {
            return Poll::Ready(answered);
        }
        due.poll_passed(context).map(|()| Err(ProxyError::Deadline))
    })
    .await
}

/// What the head of a request from a browser comes to, in bytes.
const USUAL_HEAD: usize = 1024;
