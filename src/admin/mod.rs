//! Looking in from outside: health, metrics and the state of zones, on a listener of its own.
//!
//! Read-only, and never on the request path: it runs beside the event loops and reads their counters.

mod api;
mod metrics;
mod reload;
mod store;
mod upstreams;
mod zones;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use self::reload::{Ask, Refused, Reloaded, Reloads};
use crate::proxy::Live;
use crate::telemetry::Writer;

/// What the admin listener shows.
#[derive(Debug, Clone)]
pub struct Admin {
    live: Arc<ArcSwap<Live>>,
    ready: Arc<AtomicBool>,
    writer: Writer,
    reloads: Arc<Reloads>,
}

impl Admin {
    /// Shows this; not ready until [`Admin::set_ready`] says so.
    #[must_use]
    pub fn new(live: Arc<ArcSwap<Live>>, writer: Writer, reloads: Arc<Reloads>) -> Self {
        Self {
            live,
            ready: Arc::new(AtomicBool::new(false)),
            writer,
            reloads,
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

    /// Serves until told to stop.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, remote)) => {
                    tokio::spawn(self.clone().connection(TokioIo::new(stream), remote));
                }
                // Out of descriptors, most likely; the next try would fail at once.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    async fn connection(self, io: TokioIo<tokio::net::TcpStream>, remote: SocketAddr) {
        let service = service_fn(|request| {
            let response = self.answer(&request, remote.ip());
            async move { Ok::<_, Infallible>(response) }
        });
        // Whoever breaks off here has seen what they wanted.
        if let Err(error) = http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(io, service)
            .await
        {
            tracing::debug!(%remote, %error, "admin connection");
        }
    }

    fn answer(&self, request: &Request<Incoming>, remote: IpAddr) -> Response<Full<Bytes>> {
        let live = self.live.load();
        if !may_look(
            request.headers(),
            remote,
            live.plan
                .admin
                .as_ref()
                .and_then(|admin| admin.token.as_deref()),
        ) {
            return text(
                StatusCode::UNAUTHORIZED,
                "a token is needed: Authorization: Bearer ...\n",
            );
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
        }
        match request.uri().path() {
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" if self.ready.load(Ordering::Relaxed) => text(StatusCode::OK, "ready\n"),
            "/readyz" => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            "/metrics" => typed(
                metrics::page(&live, &self.writer, &self.reloads),
                "text/plain; version=0.0.4; charset=utf-8",
            ),
            "/api/store" => typed(store::list(&live), "application/json"),
            "/api/upstreams" => typed(upstreams::list(&live), "application/json"),
            "/api/zones" => typed(api::list(&live), "application/json"),
            _ => text(
                StatusCode::NOT_FOUND,
                "not found; there are /healthz, /readyz, /metrics, /api/store, /api/upstreams and /api/zones\n",
            ),
        }
    }
}

/// From this machine anybody may look, unless a browser was led here under a foreign name; from elsewhere
/// only those who know the token.
fn may_look(headers: &HeaderMap, remote: IpAddr, token: Option<&str>) -> bool {
    let shown = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "));
    if let (Some(shown), Some(token)) = (shown, token)
        && same(shown.as_bytes(), token.as_bytes())
    {
        return true;
    }
    remote.to_canonical().is_loopback() && is_local_name(headers)
}

fn is_local_name(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else {
        return true;
    };
    let Ok(authority) = http::uri::Authority::try_from(host.as_bytes()) else {
        return false;
    };
    let name = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Compares without telling by its duration where the difference is.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len()
        && one
            .iter()
            .zip(other)
            .fold(0, |difference, (a, b)| difference | (a ^ b))
            == 0
}

fn text(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    let mut response = typed(body.to_owned(), "text/plain; charset=utf-8");
    *response.status_mut() = status;
    response
}

fn typed(body: String, content_type: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static(content_type),
    );
    headers.insert(
        header::CACHE_CONTROL,
        header::HeaderValue::from_static("no-store"),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        header::HeaderValue::from_static("nosniff"),
    );
    response
}
