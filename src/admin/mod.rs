//! Looking in from outside, and changing what runs: health, metrics, the API and a page, on a listener of its own.
//!
//! Never on the request path: it runs beside the event loops, reads their counters and moves their switches. What it
//! changes is not written to the file, which stays what it is.
//!
//! Who may look, and who may change something.
//!
//! From this machine anybody may look. Everything else needs the token: to look from elsewhere, and to change anything
//! from anywhere. A browser on this machine reaches loopback for whichever page is open in it, so a page's name for us
//! has to be a local one, and what changes something must not come from a page of another origin.
//!
//! The page at `/`: a few files that are part of the binary, and nothing from anywhere else.
//!
//! They hold no secret, so anybody who reaches the listener may have them. All they show they ask the API for, and that
//! decides who may see and change what.

mod connections;
mod endpoints;
mod keys;
mod metrics;
mod requests;
mod status;
mod upstreams;
mod zones;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::connections::{AdminConnections, AdminPermit, TimeoutIo};
use self::endpoints::{ApiCall, ApiError, ApiResponse, Route};
use crate::clock::Clock;
use crate::config::Secret;
use crate::proxy::Generation;
use crate::telemetry::{self, LogWriter, RateLimitedLog};

pub use self::metrics::all as metrics;
pub use self::status::{ReloadHandle, ReloadRequest};
pub use crate::api::{ReloadFailure, ReloadReport};

/// What the admin listener shows and changes.
#[derive(Debug, Clone)]
pub struct Admin {
    generation: Arc<ArcSwap<Generation>>,
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
        generation: Arc<ArcSwap<Generation>>,
        writer: LogWriter,
        clock: Clock,
        reloads: Arc<ReloadHandle>,
    ) -> Self {
        Self {
            generation,
            ready: Arc::new(AtomicBool::new(false)),
            writer,
            reloads,
            clock,
            connections: AdminConnections::default(),
            closed: Arc::default(),
            wrong_tokens: Arc::default(),
            listeners: Arc::new(Semaphore::new(requests::LISTENERS)),
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
                        tokio::spawn(telemetry::isolated(Box::pin(connection), move |panic| {
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
        if let Some(file) = find(request.uri().path()) {
            return file.reply(request.method());
        }
        let generation = self.generation.load_full();
        let route = Route::find(request.uri().path());
        let method = request.method().clone();
        let changes = |route: &Route| route.is_changed_by(&method);
        let wish = match route.as_ref().is_some_and(changes) {
            true => Privilege::Change,
            false => Privilege::Look,
        };
        admit(wish, request.headers(), remote, token(&generation))
            .inspect_err(|problem| self.note_stranger(problem, remote, &request))?;
        let route = route.ok_or_else(|| {
            ApiError::missing("there is nothing here; /api/openapi.json tells what there is")
        })?;
        if !route.methods().contains(&method) {
            return Err(ApiError::method(route.methods()));
        }
        if wish == Privilege::Change
            && !request.body().is_end_stream()
            && !endpoints::is_json(request.headers())
        {
            return Err(ApiError::bad(
                "the body has to be JSON, and say so: Content-Type: application/json",
            ));
        }
        let query = request.uri().query().map(str::to_owned);
        let body = match method {
            Method::GET | Method::HEAD => Vec::new(),
            _ => endpoints::read(request).await?,
        };
        let call = ApiCall {
            route,
            method,
            query,
            body,
        };
        self.answer(&generation, &call).await
    }

    /// Somebody tries tokens, or has an old one.
    fn note_stranger(&self, problem: &ApiError, remote: IpAddr, request: &Request<Incoming>) {
        if problem.is_unauthorized()
            && request.headers().contains_key(header::AUTHORIZATION)
            && let Some(times) = self.wrong_tokens.note(self.clock.now())
        {
            tracing::warn!(client = %remote, times, "admin: wrong token");
        }
    }
}

/// What those have to know who want to change something.
fn token(generation: &Generation) -> Option<&Secret> {
    generation.plan.admin.as_ref()?.token.as_ref()
}

/// How long a connection may be idle between two requests.
const IDLE: Duration = Duration::from_secs(30);

/// In bytes.
const LARGEST_HEAD: usize = 64 * 1024;

/// What somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Privilege {
    Change,
    Look,
}

/// Lets a caller in, or says what is missing; `token` is what there is to know.
fn admit(
    wish: Privilege,
    headers: &HeaderMap,
    remote: IpAddr,
    token: Option<&Secret>,
) -> Result<(), ApiError> {
    let known = match (headers.get(header::AUTHORIZATION), token) {
        (Some(shown), Some(token)) => {
            if !is_token(shown.as_bytes(), token) {
                return Err(ApiError::new(StatusCode::UNAUTHORIZED, "wrong token"));
            }
            true
        }
        _ => false,
    };
    let near = remote.to_canonical().is_loopback() && is_local_name(headers);
    match (wish, token) {
        (Privilege::Look, _) if known => Ok(()),
        (Privilege::Look, _) if near => not_embedded(headers),
        (Privilege::Change, Some(_)) if known => same_origin(headers),
        (_, Some(_)) => Err(ApiError::new(
            StatusCode::UNAUTHORIZED,
            "a token is needed: Authorization: Bearer ...",
        )),
        (Privilege::Change, None) => Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "nothing can be changed here because no token is configured: set `admin.token`",
        )),
        (Privilege::Look, None) => Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "only from this machine, by its address or as localhost, because no token is configured: set `admin.token`",
        )),
    }
}

fn is_token(shown: &[u8], token: &Secret) -> bool {
    let Some((scheme, shown)) = shown.split_at_checked("Bearer ".len()) else {
        return false;
    };
    // Hashed, so that not even the length can be told from how long it takes.
    let [shown, token] = [shown, token.expose().as_bytes()].map(|secret| digest(&SHA256, secret));
    scheme.eq_ignore_ascii_case(b"Bearer ")
        && verify_slices_are_equal(shown.as_ref(), token.as_ref()).is_ok()
}

/// Whether the name we are called by is one that no stranger's DNS can point here.
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

/// A page of another origin may lead here, but has no business in asking by itself: it could not read the answer, and
/// would hold one of the few seats of those who listen.
fn not_embedded(headers: &HeaderMap) -> Result<(), ApiError> {
    let says = |name, value: &[u8]| {
        let said = headers.get(name);
        said.is_some_and(|said| said.as_bytes() == value)
    };
    let foreign = says(SEC_FETCH_SITE, b"cross-site") || says(SEC_FETCH_SITE, b"same-site");
    match foreign && !says(SEC_FETCH_MODE, b"navigate") {
        false => Ok(()),
        true => Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "a page of another origin may not look here",
        )),
    }
}

/// What a browser says of the page that asks: ours, or no page at all.
fn same_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let elsewhere = |why: &str| Err(ApiError::new(StatusCode::FORBIDDEN, why));
    if let Some(conf) = headers.get(SEC_FETCH_SITE)
        && !matches!(conf.as_bytes(), b"none" | b"same-origin")
    {
        return elsewhere("a page of another origin may not change anything here");
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let origin = origin.as_bytes();
    let host = headers.get(header::HOST).map(|host| host.as_bytes());
    let ours = [&b"http://"[..], b"https://"].into_iter().any(|scheme| {
        let authority = origin.strip_prefix(scheme);
        authority.is_some_and(|it| host.is_some_and(|host| it.eq_ignore_ascii_case(host)))
    });
    match ours {
        true => Ok(()),
        false => elsewhere("a page of another origin may not change anything here"),
    }
}

const SEC_FETCH_MODE: &str = "sec-fetch-mode";
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// One of its files.
#[derive(Debug)]
struct Asset {
    /// The page itself has none.
    name: &'static str,
    content_type: &'static str,
    text: &'static str,
}

/// The file at this path.
fn find(path: &str) -> Option<&'static Asset> {
    let name = path.strip_prefix('/')?;
    FILES.iter().find(|file| file.name == name)
}

impl Asset {
    /// The file as a browser gets it.
    fn reply(&self, method: &Method) -> Result<ApiResponse, ApiError> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Err(ApiError::method(&[Method::GET, Method::HEAD]));
        }
        let mut reply = endpoints::typed(self.text, self.content_type);
        let fields = [
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::REFERRER_POLICY, "no-referrer"),
            (CROSS_ORIGIN_OPENER_POLICY, "same-origin"),
        ];
        for (name, value) in fields {
            let value = HeaderValue::from_static(value);
            reply.headers_mut().insert(name, value);
        }
        Ok(reply)
    }
}

/// Only what is ours is loaded, run or asked, and nobody puts us into a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const CROSS_ORIGIN_OPENER_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-opener-policy");

macro_rules! files {
    ($($name:literal: $content_type:literal, $path:literal;)*) => {
        &[$(Asset { name: $name, content_type: $content_type, text: include_str!(concat!("assets/", $path)) }),*]
    };
}

const FILES: &[Asset] = files! {
    "": "text/html; charset=utf-8", "index.html";
    "api.js": "text/javascript; charset=utf-8", "api.js";
    "ask.js": "text/javascript; charset=utf-8", "ask.js";
    "backends.js": "text/javascript; charset=utf-8", "backends.js";
    "charts.js": "text/javascript; charset=utf-8", "charts.js";
    "dom.js": "text/javascript; charset=utf-8", "dom.js";
    "explain.js": "text/javascript; charset=utf-8", "explain.js";
    "history.js": "text/javascript; charset=utf-8", "history.js";
    "icon.svg": "image/svg+xml", "icon.svg";
    "keys.js": "text/javascript; charset=utf-8", "keys.js";
    "main.js": "text/javascript; charset=utf-8", "main.js";
    "refusals.js": "text/javascript; charset=utf-8", "refusals.js";
    "stores.js": "text/javascript; charset=utf-8", "stores.js";
    "style.css": "text/css; charset=utf-8", "style.css";
    "zones.js": "text/javascript; charset=utf-8", "zones.js";
};

#[cfg(test)]
mod gate_tests {

    use super::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let fields = fields.iter();
        fields
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn status(
        wish: Privilege,
        fields: &[(&'static str, &str)],
        from: &str,
        token: Option<&str>,
    ) -> Option<u16> {
        let token = token.map(Secret::new);
        let admitted = admit(
            wish,
            &headers(fields),
            from.parse().unwrap(),
            token.as_ref(),
        );
        let reply: ApiResponse = admitted.err()?.into();
        Some(reply.status().as_u16())
    }

    const NEAR: &str = "127.0.0.1";
    const FAR: &str = "192.0.2.1";
    const RIGHT: (&str, &str) = ("authorization", "Bearer secret");

    #[test]
    fn a_page_of_another_origin_may_lead_here_and_not_ask() {
        let asked = |conf: &str, mode: &str| {
            let fields = [
                ("host", "localhost:9900"),
                ("sec-fetch-site", conf),
                ("sec-fetch-mode", mode),
            ];
            status(Privilege::Look, &fields, NEAR, None)
        };
        assert_eq!(asked("cross-site", "no-cors"), Some(403));
        assert_eq!(asked("same-site", "cors"), Some(403));
        assert_eq!(asked("cross-site", "navigate"), None);
        assert_eq!(asked("same-origin", "cors"), None);
        assert_eq!(asked("none", "navigate"), None);
    }

    #[test]
    fn looking_is_free_on_this_machine_and_takes_a_token_elsewhere() {
        let token = Some("secret");
        for host in ["localhost:9900", "127.0.0.1", "[::1]:9900"] {
            let host = [("host", host)];
            assert_eq!(status(Privilege::Look, &host, NEAR, token), None);
            assert_eq!(
                status(Privilege::Look, &host, "::ffff:127.0.0.1", None),
                None
            );
            assert_eq!(status(Privilege::Look, &host, FAR, token), Some(401));
            assert_eq!(status(Privilege::Look, &host, FAR, None), Some(403));
        }
        let rebound = [("host", "evil.example:9900")];
        assert_eq!(status(Privilege::Look, &rebound, NEAR, token), Some(401));
        assert_eq!(status(Privilege::Look, &rebound, NEAR, None), Some(403));
        assert_eq!(
            status(Privilege::Look, &[RIGHT, rebound[0]], FAR, token),
            None
        );
    }

    #[test]
    fn changing_takes_a_token_everywhere() {
        let change = |fields: &[_], token| status(Privilege::Change, fields, NEAR, token);
        assert_eq!(change(&[], Some("secret")), Some(401));
        assert_eq!(change(&[RIGHT], Some("secret")), None);
        assert_eq!(change(&[RIGHT], None), Some(403));
        assert_eq!(change(&[RIGHT], Some("other")), Some(401));
    }

    #[test]
    fn a_wrong_token_is_refused_even_where_none_is_needed() {
        for wrong in [
            "Bearer secre",
            "Bearer secret ",
            "Basic secret",
            "secret",
            "",
        ] {
            let wrong = [("authorization", wrong)];
            assert_eq!(
                status(Privilege::Look, &wrong, NEAR, Some("secret")),
                Some(401)
            );
            assert_eq!(status(Privilege::Look, &wrong, NEAR, None), None);
        }
        let lower = [("authorization", "bearer secret")];
        assert_eq!(status(Privilege::Look, &lower, FAR, Some("secret")), None);
    }

    #[test]
    fn a_page_of_another_origin_changes_nothing() {
        let change = |fields: &[(&'static str, &str)]| {
            let mut all = vec![RIGHT, ("host", "localhost:9900")];
            all.extend(fields);
            status(Privilege::Change, &all, NEAR, Some("secret"))
        };
        assert_eq!(change(&[("origin", "http://localhost:9900")]), None);
        assert_eq!(change(&[("sec-fetch-site", "same-origin")]), None);
        for origin in ["http://evil.example", "null", "http://localhost:80", ""] {
            assert_eq!(change(&[("origin", origin)]), Some(403), "{origin}");
        }
        for conf in ["cross-site", "same-site", ""] {
            assert_eq!(change(&[("sec-fetch-site", conf)]), Some(403), "{conf}");
        }
    }
}

#[cfg(test)]
mod dashboard_tests {

    use super::*;

    #[test]
    fn every_file_that_is_named_is_there_and_the_other_way_round() {
        for file in FILES {
            let named = file.text.split(['"', '\'']).filter(|text| {
                text.ends_with(".js") || text.ends_with(".css") || text.ends_with(".svg")
            });
            for name in named {
                let path = format!("/{}", name.trim_start_matches("./"));
                assert!(find(&path).is_some(), "{} names {name}", file.name);
            }
        }
        for file in FILES.iter().filter(|file| !file.name.is_empty()) {
            let named = |other: &Asset| other.text.contains(file.name);
            assert!(FILES.iter().any(named), "nobody names {}", file.name);
        }
    }

    #[test]
    fn nothing_comes_from_elsewhere_and_nothing_stands_in_the_page_that_could_run() {
        for file in FILES {
            let outside = file.text.matches("://").count();
            let allowed = [
                "http://www.w3.org/2000/svg",
                "http://localhost/",
                "`http://${",
                "\"://\"",
            ];
            let known: usize = allowed
                .iter()
                .map(|text| file.text.matches(text).count())
                .sum();
            assert_eq!(outside, known, "{}", file.name);
            assert!(!file.text.contains("innerHTML"), "{}", file.name);
        }
        let page = find("/").unwrap().text;
        assert!(!page.contains("style=") && !page.contains(" onclick"));
    }
}
