//! The life of a request, in nginx's phases.
//!
//! `Proxy::handle` is the one page to read: begin, post_read and find_config (`generation`), preaccess and access
//! (`filter`), content (`content`, `fallback`), the response (filters again, on the way back) and log (`context`). An error
//! of any phase becomes a response in one place (`error`). `connection` serves the connections that requests come by.

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

use http::{Request, StatusCode};
use http_body::Body as _;

use self::context::{RequestContext, Response};
use self::error::{Outcome, ProxyError};
use self::filter::Flow;
use self::location::Location;
use crate::clock::{Clock, Deadline};
use crate::message::{ClientConnection, CloseConnection, IncomingBody, grpc};

pub use self::connection::ConnectionHandler;
pub use self::context::RequestResources;
pub use self::explain::Explanation;
pub use self::fallback::fallback_counts;
pub use self::filter::DegradeGroup;
pub use self::generation::{Generation, GenerationParts, ListenerHandle, LiveChanges};
pub use self::location::LocationBreaker;
pub use self::stale_cache::{CacheEntry, CachedResponse, StaleCache, skipped};

/// Handles the requests of one listener.
#[derive(Debug, Clone)]
struct Proxy {
    listener: Arc<ListenerHandle>,
    clock: Clock,
}

impl Proxy {
    /// Takes one request through all phases. The log phase runs when the last byte of the response has left.
    async fn handle(
        &self,
        client: Arc<ClientConnection>,
        request: Request<IncomingBody>,
    ) -> Result<Response, CloseConnection> {
        let (head, incoming) = request.into_parts();
        // One generation for the whole request, whatever a reload does meanwhile.
        let (generation, listener) = self.listener.current();
        let (mut cx, bad_target) = generation.begin(listener, client, head, &self.clock);
        let location = generation.find_config(&mut cx);
        let mut body = Some(incoming).filter(|incoming| !incoming.is_end_stream());
        let mut outcome = match generation.objection(listener, &cx, bad_target) {
            Some(error) => Err(error),
            None => match grpc::due(&cx.record, cx.record.started) {
                None => run(location, &mut cx, &mut body, &self.clock).await,
                Some(due) => {
                    // Boxed: few requests have a deadline, and all would keep the room for it.
                    let running = Box::pin(run(location, &mut cx, &mut body, &self.clock));
                    within(due, running).await
                }
            },
        };
        if location.fallback.is_some() {
            // Boxed for the same reason.
            outcome = Box::pin(location.fall_back(&mut cx, outcome, &mut body)).await;
        }
        let mut response = match outcome {
            Ok(response) => response,
            Err(error) => error.into_response(&mut cx, &location.replies)?,
        };
        cx.keep_alive(&location.conf.client, body, &mut response);
        let filters = &location.filters;
        filters.response_headers(&mut cx, response.headers_mut());
        cx.record_response(&response, location.keeps_sent_headers);
        filters.response_body(&mut cx, response.body_mut());
        Ok(cx.attach_to(response))
    }

    /// Logs what a connection sent that was no request and got this status.
    fn log_unparsed(&self, client: &Arc<ClientConnection>, status: StatusCode) {
        let (generation, listener) = self.listener.current();
        generation.log_unparsed(listener, client, status, &self.clock);
    }
}

/// Preaccess, access and content.
async fn run(
    location: &Location,
    cx: &mut RequestContext,
    body: &mut Option<IncomingBody>,
    clock: &Clock,
) -> Outcome {
    let mut flow = location.check(cx, body.as_ref());
    if let Flow::Continue = flow {
        // Waits here where a limit delays the request.
        flow = location.filters.request(cx).await;
    }
    match flow {
        Flow::Continue => location.content.respond(cx, body, clock).await,
        Flow::Fail(error) => Err(error),
        Flow::Respond(response) => Ok(*response),
    }
}

/// Waits no longer than the client of a gRPC call does.
async fn within<T>(
    mut due: Deadline,
    mut running: Pin<Box<impl Future<Output = Result<T, ProxyError>>>>,
) -> Result<T, ProxyError> {
    poll_fn(|context| {
        if let Poll::Ready(outcome) = running.as_mut().poll(context) {
            return Poll::Ready(outcome);
        }
        due.poll_passed(context).map(|()| Err(ProxyError::Deadline))
    })
    .await
}
