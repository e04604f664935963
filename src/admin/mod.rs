//! The admin listener: health, metrics, the API and a page, on a socket of their own.
//!
//! It runs beside the event loops, never on the path of a request: it reads their counters and sets their switches. Changes
//! are not written to the configuration file.

mod access;
mod connections;
mod dashboard;
mod endpoints;
mod keys;
mod metrics;
mod reload;
mod requests;
mod response;
mod status;
mod upstreams;
mod zones;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Method, Request, StatusCode, header};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::access::Privilege;
use self::connections::{AdminConnections, AdminPermit, TimeoutIo};
use self::endpoints::{AdminState, ApiCall, Endpoint, JSON};
use self::response::{ApiError, ApiResponse};
use crate::clock::Clock;
use crate::proxy::Generation;
use crate::telemetry::{self, LogWriter, RateLimitedLog};

pub use self::metrics::all as metrics;
pub use self::reload::{ReloadHandle, ReloadRequest};
pub use crate::api::{ReloadFailure, ReloadReport};

/// The admin listener: what it shows and changes, and its connections.
#[derive(Debug, Clone)]
pub struct Admin {
    state: Arc<AdminState>,
    connections: AdminConnections,
    evictions: Arc<RateLimitedLog>,
    wrong_tokens: Arc<RateLimitedLog>,
}

/// All endpoints; each file declares its own.
static ENDPOINTS: LazyLock<Vec<Endpoint>> = LazyLock::new(|| {
    let document = Endpoint::raw("/api/openapi.json", "This description", |_| {
        Ok(response::with_type(OPENAPI.as_str(), JSON))
    });
    let document = document.response(200, "OK", JSON, |_| json!({ "type": "object" }));
    let files = [
        keys::endpoints(),
        metrics::endpoints(),
        requests::endpoints(),
        status::endpoints(),
        upstreams::endpoints(),
        zones::endpoints(),
        vec![document],
    ];
    files.into_iter().flatten().collect()
});

static OPENAPI: LazyLock<String> =
    LazyLock::new(|| format!("{:#}\n", endpoints::document(&ENDPOINTS)));

impl Admin {
    /// An admin listener that is not ready until [`Admin::set_ready`] says so. `clock` is the event loops'.
    #[must_use]
    pub fn new(
        generation: Arc<ArcSwap<Generation>>,
        writer: LogWriter,
        clock: Clock,
        reloads: Arc<ReloadHandle>,
    ) -> Self {
        Self {
            state: Arc::new(AdminState {
                generation,
                ready: AtomicBool::new(false),
                writer,
                reloads,
                clock,
                streams: Arc::new(Semaphore::new(requests::STREAMS_MAX)),
            }),
            connections: AdminConnections::default(),
            evictions: Arc::default(),
            wrong_tokens: Arc::default(),
        }
    }

    /// Requests reloads, and knows the results of those so far.
    #[must_use]
    pub fn reloads(&self) -> &ReloadHandle {
        &self.state.reloads
    }

    /// Sets whether `/readyz` tells load balancers to send traffic.
    pub fn set_ready(&self, ready: bool) {
        self.state.ready.store(ready, Ordering::Relaxed);
    }

    /// Serves until `stop` is cancelled.
    pub async fn serve(&self, listener: &TcpListener, stop: &CancellationToken) {
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, remote)) => {
                    // One without a place is closed.
                    if let Some((permit, evicted)) = self.connections.admit(remote.ip()).await {
                        if evicted && let Some(times) = self.evictions.note(self.state.clock.now())
                        {
                            tracing::warn!(times, "admin: connections without a request made room");
                        }
                        let connection = self.clone().connection(stream, remote, permit);
                        tokio::spawn(telemetry::isolated(Box::pin(connection), move |panic| {
                            tracing::error!(%remote, "admin connection panicked: {panic}");
                        }));
                    }
                }
                // Most likely there are no descriptors left; the next try would fail at once.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    async fn connection(self, stream: TcpStream, remote: SocketAddr, permit: AdminPermit) {
        let connection = &permit.connection;
        let service = service_fn(|request| async {
            connection.begin();
            let response = self.call(request, remote.ip()).await;
            let response = response.unwrap_or_else(ApiResponse::from);
            Ok::<_, Infallible>(response.map(|body| connection.track(body)))
        });
        let stream = TimeoutIo::new(stream, Arc::clone(connection));
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_TIMEOUT)
            .max_buf_size(HEADERS_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let ended = tokio::select! {
            ended = served => ended,
            () = connection.evicted() => return,
        };
        // Clients often disconnect once they have what they need.
        if let Err(error) = ended {
            tracing::debug!(%remote, %error, "admin connection");
        }
    }

    async fn call(
        &self,
        request: Request<Incoming>,
        remote: IpAddr,
    ) -> Result<ApiResponse, ApiError> {
        let (path, method) = (request.uri().path(), request.method().clone());
        if let Some(asset) = dashboard::find(path) {
            return asset.respond(&method);
        }
        let generation = self.state.generation.load_full();
        let of_path = |endpoint: &'static Endpoint| Some((endpoint, endpoint.args(path)?));
        let mut endpoints: Vec<_> = ENDPOINTS.iter().filter_map(of_path).collect();
        let position = endpoints
            .iter()
            .position(|(endpoint, _)| endpoint.methods().contains(&method));
        let reads = matches!(method, Method::GET | Method::HEAD);
        let only_reads = |(endpoint, _): &(&Endpoint, _)| endpoint.privilege == Privilege::Read;
        let privilege = match position {
            Some(position) => endpoints[position].0.privilege,
            None if reads || endpoints.iter().all(only_reads) => Privilege::Read,
            None => Privilege::Change,
        };
        let token = generation.plan.admin.as_ref();
        let token = token.and_then(|admin| admin.token.as_ref());
        access::check(privilege, request.headers(), remote, token)
            .inspect_err(|error| self.log_wrong_token(error, remote, &request))?;
        if endpoints.is_empty() {
            return Err(ApiError::missing(
                "no such path; /api/openapi.json describes all paths",
            ));
        }
        let Some(position) = position else {
            let methods = endpoints
                .iter()
                .flat_map(|(endpoint, _)| endpoint.methods());
            let methods: Vec<_> = methods.map(Method::as_str).collect();
            return Err(ApiError::method(methods.join(", ")));
        };
        if privilege == Privilege::Change
            && !request.body().is_end_stream()
            && !endpoints::is_json(request.headers())
        {
            return Err(ApiError::bad(
                "the body has to be JSON, with Content-Type: application/json",
            ));
        }
        let (endpoint, path) = endpoints.swap_remove(position);
        let call = ApiCall {
            state: Arc::clone(&self.state),
            generation,
            now: self.state.clock.now(),
            path,
            query: request.uri().query().map(str::to_owned),
            body: match reads {
                true => Vec::new(),
                false => endpoints::read_body(request).await?,
            },
        };
        endpoint.call(&call).await
    }

    fn log_wrong_token(&self, error: &ApiError, remote: IpAddr, request: &Request<Incoming>) {
        if error.status == StatusCode::UNAUTHORIZED
            && request.headers().contains_key(header::AUTHORIZATION)
            && let Some(times) = self.wrong_tokens.note(self.state.clock.now())
        {
            tracing::warn!(client = %remote, times, "admin: wrong token");
        }
    }
}

/// How long a connection may be idle between two requests.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a request's line and headers.
const HEADERS_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn reference_openapi_is_what_the_endpoints_declare() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/openapi.json");
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            std::fs::write(path, OPENAPI.as_str()).unwrap();
        }
        assert!(
            std::fs::read_to_string(path).unwrap() == *OPENAPI,
            "conf/openapi.json is not what the code declares: `UPDATE_REFERENCE=1 cargo test --lib reference` writes it"
        );
    }

    #[test]
    fn every_parameter_of_a_path_is_described() {
        let document = endpoints::document(&ENDPOINTS);
        for (path, item) in document["paths"].as_object().unwrap() {
            let parameters = item["parameters"].as_array();
            let parameters = parameters.map_or(&[][..], Vec::as_slice);
            assert_eq!(parameters.len(), path.matches('{').count(), "{path}");
            let is_described = |it: &serde_json::Value| it["description"].is_string();
            assert!(parameters.iter().all(is_described), "{path}");
        }
    }
}
