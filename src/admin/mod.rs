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
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use self::calls::Call;
use self::gate::Wish;
use self::patient::Patient;
pub use self::reload::{Ask, Refused, Reloaded, Reloads};
use self::reply::{Problem, Reply};
use self::route::Route;
use crate::clock::Clock;
use crate::config::Secret;
use crate::proxy::Live;
use crate::telemetry::{Warning, Writer};

/// What the admin listener shows and changes.
#[derive(Debug, Clone)]
pub struct Admin {
    live: Arc<ArcSwap<Live>>,
    ready: Arc<AtomicBool>,
    writer: Writer,
    reloads: Arc<Reloads>,
    clock: Clock,
    seats: Seats,
    wrong_tokens: Arc<Warning>,
    listeners: Arc<Semaphore>,
}

/// Places for connections.
#[derive(Debug, Clone)]
struct Seats {
    all: Arc<Semaphore>,
    /// Of all places, those for callers from elsewhere: they cannot keep those on this machine out.
    afar: Arc<Semaphore>,
}

impl Admin {
    /// Shows this; not ready until [`Admin::set_ready`] says so. `clock` is the event loops'.
    #[must_use]
    pub fn new(
        live: Arc<ArcSwap<Live>>,
        writer: Writer,
        clock: Clock,
        reloads: Arc<Reloads>,
    ) -> Self {
        Self {
            live,
            ready: Arc::new(AtomicBool::new(false)),
            writer,
            reloads,
            clock,
            seats: Seats {
                all: Arc::new(Semaphore::new(MOST_CONNECTIONS)),
                afar: Arc::new(Semaphore::new(MOST_CONNECTIONS / 2)),
            },
            wrong_tokens: Arc::default(),
            listeners: Arc::new(Semaphore::new(refusals::LISTENERS)),
        }
    }

    /// What is known of the generations so far.
    #[must_use]
    pub fn reloads(&self) -> &Reloads {
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
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, remote)) => {
                    // Who finds no place is closed at once.
                    if let Some(seat) = self.seats.take(remote.ip()) {
                        tokio::spawn(self.clone().connection(stream, remote, seat));
                    }
                }
                // Out of descriptors, most likely; the next try would fail at once.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    async fn connection(self, stream: TcpStream, remote: SocketAddr, _seat: Seat) {
        let service = service_fn(|request| async {
            let reply = self.call(request, remote.ip()).await;
            Ok::<_, Infallible>(reply.unwrap_or_else(Reply::from))
        });
        // Whoever breaks off here has seen what they wanted.
        if let Err(error) = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(LARGEST_HEAD)
            .serve_connection(TokioIo::new(Patient::new(stream)), service)
            .await
        {
            tracing::debug!(%remote, %error, "admin connection");
        }
    }

    /// What becomes of one call.
    async fn call(&self, request: Request<Incoming>, remote: IpAddr) -> Result<Reply, Problem> {
        if let Some(file) = dashboard::find(request.uri().path()) {
            return file.reply(request.method());
        }
        let live = self.live.load_full();
        let route = Route::find(request.uri().path());
        let method = request.method().clone();
        let changes = |route: &Route| route.is_changed_by(&method);
        let wish = match route.as_ref().is_some_and(changes) {
            true => Wish::Change,
            false => Wish::Look,
        };
        gate::admit(wish, request.headers(), remote, token(&live))
            .inspect_err(|problem| self.note_stranger(problem, remote, &request))?;
        let route = route.ok_or_else(|| {
            Problem::missing("there is nothing here; /api/openapi.json tells what there is")
        })?;
        if !route.methods().contains(&method) {
            return Err(Problem::method(route.methods()));
        }
        if wish == Wish::Change
            && !request.body().is_end_stream()
            && !body::is_json(request.headers())
        {
            return Err(Problem::bad(
                "the body has to be JSON, and say so: Content-Type: application/json",
            ));
        }
        let query = request.uri().query().map(str::to_owned);
        let body = match method {
            Method::GET | Method::HEAD => Vec::new(),
            _ => body::read(request).await?,
        };
        let call = Call {
            route,
            method,
            query,
            body,
        };
        self.answer(&live, &call).await
    }

    /// Somebody tries tokens, or has an old one.
    fn note_stranger(&self, problem: &Problem, remote: IpAddr, request: &Request<Incoming>) {
        if problem.is_unauthorized()
            && request.headers().contains_key(http::header::AUTHORIZATION)
            && let Some(times) = self.wrong_tokens.note(self.clock.now())
        {
            tracing::warn!(client = %remote, times, "admin: wrong token");
        }
    }
}

/// What those have to know who want to change something.
fn token(live: &Live) -> Option<&Secret> {
    live.plan.admin.as_ref()?.token.as_ref()
}

/// A place for a connection.
type Seat = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

impl Seats {
    fn take(&self, remote: IpAddr) -> Option<Seat> {
        let free = |seats: &Arc<Semaphore>| Arc::clone(seats).try_acquire_owned().ok();
        let afar = match remote.to_canonical().is_loopback() {
            true => None,
            false => Some(free(&self.afar)?),
        };
        Some((free(&self.all)?, afar))
    }
}

/// Nobody needs more to look in.
const MOST_CONNECTIONS: usize = 128;

/// How long the head of a request may take, and how long a connection may be idle.
const HEAD: Duration = Duration::from_secs(30);

/// In bytes.
const LARGEST_HEAD: usize = 64 * 1024;
