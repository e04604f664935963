//! Looking in from outside, and changing what runs: health, metrics, the API and a page, on a listener of its own.
//!
//! Never on the request path: it runs beside the event loops, reads their counters and moves their switches. What it
//! changes is not written to the file, which stays what it is.

mod amend;
mod api;
mod body;
mod breakers;
mod calls;
mod conditions;
mod connections;
mod dashboard;
mod explain;
mod gate;
mod keys;
mod marks;
mod metrics;
mod patient;
mod refusals;
mod reload;
mod reply;
mod route;
mod running;
mod status;
mod store;
mod upstreams;
mod zones;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Method, Request};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::calls::ApiCall;
use self::connections::{AdminConnections, AdminPermit};
use self::gate::Privilege;
use self::patient::TimeoutIo;
pub use self::reload::{ReloadFailure, ReloadHandle, ReloadReport, ReloadRequest};
use self::reply::{ApiError, ApiResponse};
use self::route::Route;
use crate::clock::Clock;
use crate::config::Secret;
use crate::proxy::Generation;
use crate::telemetry::{LogWriter, RateLimitedLog, panics};

/// What the admin listener shows and changes.
#[derive(Debug, Clone)]
pub struct Admin {
    live: Arc<ArcSwap<Generation>>,
    ready: Arc<AtomicBool>,
    writer: LogWriter,
    reloads: Arc<ReloadHandle>,
    clock: Clock,
    connections: AdminConnections,
    closed: Arc<RateLimitedLog>,
    wrong_tokens: Arc<RateLimitedLog>,
    listeners: Arc<Semaphore>,
}

impl Admin {
    /// Shows this; not ready until [`Admin::set_ready`] says so. `clock` is the event loops'.
    #[must_use]
    pub fn new(
        live: Arc<ArcSwap<Generation>>,
        writer: LogWriter,
        clock: Clock,
        reloads: Arc<ReloadHandle>,
    ) -> Self {
        Self {
            live,
            ready: Arc::new(AtomicBool::new(false)),
            writer,
            reloads,
            clock,
            connections: AdminConnections::default(),
            closed: Arc::default(),
            wrong_tokens: Arc::default(),
            listeners: Arc::new(Semaphore::new(refusals::LISTENERS)),
        }
    }

    /// What is known of the generations so far.
    #[must_use]
    pub fn reloads(&self) -> &ReloadHandle {
        &self.reloads
    }

    /// Whether traffic should be sent here.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Serves until told to stop.
    pub async fn serve(&self, listener: &TcpListener, stop: &CancellationToken) {
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, remote)) => {
                    // One that finds no place is closed.
                    if let Some((admitted, made_room)) = self.connections.admit(remote.ip()).await {
                        if made_room && let Some(times) = self.closed.note(self.clock.now()) {
                            tracing::warn!(times, "admin: connections without a request made room");
                        }
                        let connection = self.clone().connection(stream, remote, admitted);
                        tokio::spawn(panics::isolated(Box::pin(connection), move |panic| {
                            tracing::error!(%remote, "admin connection panicked: {panic}");
                        }));
                    }
                }
                // Out of descriptors, most likely; the next try would fail at once.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    async fn connection(self, stream: TcpStream, remote: SocketAddr, admitted: AdminPermit) {
        let connection = admitted.connection();
        let service = service_fn(|request| async {
            connection.begin();
            let reply = self.call(request, remote.ip()).await;
            let reply = reply.unwrap_or_else(ApiResponse::from);
            Ok::<_, Infallible>(reply.map(|body| connection.answered_by(body)))
        });
        let stream = TimeoutIo::new(stream, Arc::clone(connection));
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .max_buf_size(LARGEST_HEAD)
            .serve_connection(TokioIo::new(stream), service);
        let ended = tokio::select! {
            ended = served => ended,
            () = connection.leaves() => return,
        };
        // Whoever breaks off here has seen what they wanted.
        if let Err(error) = ended {
            tracing::debug!(%remote, %error, "admin connection");
        }
    }

    /// What becomes of one call.
    async fn call(
        &self,
        request: Request<Incoming>,
        remote: IpAddr,
    ) -> Result<ApiResponse, ApiError> {
        if let Some(file) = dashboard::find(request.uri().path()) {
            return file.reply(request.method());
        }
        let live = self.live.load_full();
        let route = Route::find(request.uri().path());
        let method = request.method().clone();
        let changes = |route: &Route| route.is_changed_by(&method);
        let wish = match route.as_ref().is_some_and(changes) {
            true => Privilege::Change,
            false => Privilege::Look,
        };
        gate::admit(wish, request.headers(), remote, token(&live))
            .inspect_err(|problem| self.note_stranger(problem, remote, &request))?;
        let route = route.ok_or_else(|| {
            ApiError::missing("there is nothing here; /api/openapi.json tells what there is")
        })?;
        if !route.methods().contains(&method) {
            return Err(ApiError::method(route.methods()));
        }
        if wish == Privilege::Change
            && !request.body().is_end_stream()
            && !body::is_json(request.headers())
        {
            return Err(ApiError::bad(
                "the body has to be JSON, and say so: Content-Type: application/json",
            ));
        }
        let query = request.uri().query().map(str::to_owned);
        let body = match method {
            Method::GET | Method::HEAD => Vec::new(),
            _ => body::read(request).await?,
        };
        let call = ApiCall {
            route,
            method,
            query,
            body,
        };
        self.answer(&live, &call).await
    }

    /// Somebody tries tokens, or has an old one.
    fn note_stranger(&self, problem: &ApiError, remote: IpAddr, request: &Request<Incoming>) {
        if problem.is_unauthorized()
            && request.headers().contains_key(http::header::AUTHORIZATION)
            && let Some(times) = self.wrong_tokens.note(self.clock.now())
        {
            tracing::warn!(client = %remote, times, "admin: wrong token");
        }
    }
}

/// What those have to know who want to change something.
fn token(live: &Generation) -> Option<&Secret> {
    live.plan.admin.as_ref()?.token.as_ref()
}

/// How long a connection may be idle between two requests.
const IDLE: Duration = Duration::from_secs(30);

/// In bytes.
const LARGEST_HEAD: usize = 64 * 1024;
