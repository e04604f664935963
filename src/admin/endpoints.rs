//! The endpoints of the admin listener: which one a path names, which methods it has, how a request's body is read, and
//! the responses: JSON, text, a stream of events, or an error with its reason.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::{Admin, keys, metrics, requests, status, upstreams, zones};
use crate::api::{self, ErrorBody};
use crate::proxy::Generation;
use crate::text::percent_decode;

/// What somebody who was let in wants.
#[derive(Debug)]
pub(super) struct ApiCall {
    pub(super) route: Route,
    pub(super) method: Method,
    pub(super) query: Option<String>,
    pub(super) body: Vec<u8>,
}

impl Admin {
    /// Answers a call.
    pub(super) async fn answer(
        &self,
        generation: &Arc<Generation>,
        call: &ApiCall,
    ) -> Result<ApiResponse, ApiError> {
        match call.route.is_changed_by(&call.method) {
            true => self.change(generation, call).await,
            false => self.look(generation, call),
        }
    }

    fn look(&self, generation: &Generation, call: &ApiCall) -> Result<ApiResponse, ApiError> {
        let (query, now) = (call.query.as_deref(), self.clock.now());
        Ok(match &call.route {
            Route::Breakers => json(&upstreams::list_breakers(generation)),
            Route::Config => typed(status::shown(generation), "application/json"),
            Route::Explain => json(&requests::explain(generation, &call.body, now)?),
            Route::Groups => json(&upstreams::list_groups(generation)),
            Route::Health => text(StatusCode::OK, "ok\n"),
            Route::Key(zone, key) => json(&keys::look(generation, zone, key, now)?),
            Route::Keys(zone) => json(&keys::list(generation, zone, query, now)?),
            Route::Metrics => typed(
                metrics::page(generation, &self.writer, &self.reloads),
                "text/plain; version=0.0.4; charset=utf-8",
            ),
            Route::OpenApi => typed(OPENAPI.as_str(), "application/json"),
            Route::Ready if self.is_ready() => text(StatusCode::OK, "ready\n"),
            Route::Ready => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            Route::RefusalStream => events(requests::stream(&self.listeners)?),
            Route::Refusals => json(&requests::list(query)?),
            Route::Status => json(&status::show(self, generation)),
            Route::Store => json(&status::list(generation)),
            Route::Upstreams => json(&upstreams::list(generation)),
            Route::Zone(zone) => json(&zones::detail(generation, zone, now)?),
            Route::Zones => json(&zones::list(generation)),
            _ => return Err(unknown()),
        })
    }

    async fn change(
        &self,
        generation: &Arc<Generation>,
        call: &ApiCall,
    ) -> Result<ApiResponse, ApiError> {
        let (body, now) = (&call.body[..], self.clock.now());
        Ok(match &call.route {
            Route::Breakers => json(&upstreams::change_breaker(generation, &parse(body)?)?),
            Route::Group(name) => json(&upstreams::change_group(generation, name, &parse(body)?)?),
            Route::Key(zone, key) => json(&keys::forget(generation, zone, key).await?),
            Route::Mark(zone, key, mark) => {
                let which = (zone.as_str(), key.as_str(), *mark);
                match call.method {
                    Method::DELETE => json(&keys::remove(generation, which, now)?),
                    _ => json(&keys::put(generation, which, body, now)?),
                }
            }
            Route::Override(zone) => {
                let generation = zones::restore(&self.generation, zone)?;
                json(&zones::detail(&generation, zone, now)?)
            }
            Route::Reload => return self.reload().await,
            Route::Server(upstream, server) => {
                let change = parse(body)?;
                json(&upstreams::change(generation, upstream, server, &change)?)
            }
            Route::Zone(zone) => {
                let generation = zones::change(&self.generation, zone, &parse(body)?)?;
                json(&zones::detail(&generation, zone, now)?)
            }
            _ => return Err(unknown()),
        })
    }

    /// Has the configuration read again.
    async fn reload(&self) -> Result<ApiResponse, ApiError> {
        match self.reloads.ask_and_wait().await {
            Some(Ok(reloaded)) => Ok(json(&reloaded)),
            Some(Err(refused)) => {
                let mut reply = json(&refused);
                *reply.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
                Ok(reply)
            }
            None => Err(ApiError::conflict("it is stopping")),
        }
    }
}

/// A route that is not there for this, which its methods have kept out already.
fn unknown() -> ApiError {
    ApiError::missing("there is nothing here")
}

/// How this can be called, for programs.
static OPENAPI: LazyLock<String> = LazyLock::new(|| format!("{:#}\n", api::document()));

/// Something that can be called. Names are as they came, their escapes undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    Breakers,
    Config,
    Explain,
    Group(String),
    Groups,
    Health,
    Key(String, String),
    Keys(String),
    Mark(String, String, KeyActionKind),
    Metrics,
    OpenApi,
    Override(String),
    Ready,
    RefusalStream,
    Refusals,
    Reload,
    Server(String, String),
    Status,
    Store,
    Upstreams,
    Zone(String),
    Zones,
}

/// What an operator can put on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyActionKind {
    Block,
    Exempt,
    Grant,
}

impl Route {
    /// What a path stands for; a query does not belong to it.
    pub(super) fn find(path: &str) -> Option<Self> {
        let segments = path.strip_prefix('/')?.split('/');
        let segments: Vec<_> = segments.map(percent_decode).collect::<Option<_>>()?;
        let segments: Vec<_> = segments.iter().map(String::as_str).collect();
        let name = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        Some(match segments[..] {
            ["healthz"] => Self::Health,
            ["readyz"] => Self::Ready,
            ["metrics"] => Self::Metrics,
            ["api", "breakers"] => Self::Breakers,
            ["api", "config"] => Self::Config,
            ["api", "explain"] => Self::Explain,
            ["api", "groups"] => Self::Groups,
            ["api", "groups", group] => Self::Group(name(group)?),
            ["api", "openapi.json"] => Self::OpenApi,
            ["api", "refusals"] => Self::Refusals,
            ["api", "refusals", "stream"] => Self::RefusalStream,
            ["api", "reload"] => Self::Reload,
            ["api", "status"] => Self::Status,
            ["api", "store"] => Self::Store,
            ["api", "upstreams"] => Self::Upstreams,
            ["api", "upstreams", upstream, "servers", server] => {
                Self::Server(name(upstream)?, name(server)?)
            }
            ["api", "zones"] => Self::Zones,
            ["api", "zones", zone] => Self::Zone(name(zone)?),
            ["api", "zones", zone, "override"] => Self::Override(name(zone)?),
            ["api", "zones", zone, "keys"] => Self::Keys(name(zone)?),
            ["api", "zones", zone, "keys", key] => Self::Key(name(zone)?, name(key)?),
            ["api", "zones", zone, "keys", key, mark] => {
                let mark = match mark {
                    "block" => KeyActionKind::Block,
                    "exempt" => KeyActionKind::Exempt,
                    "grant" => KeyActionKind::Grant,
                    _ => return None,
                };
                Self::Mark(name(zone)?, name(key)?, mark)
            }
            _ => return None,
        })
    }

    /// What may be done there.
    pub(super) fn methods(&self) -> &'static [Method] {
        const LOOK: &[Method] = &[Method::GET, Method::HEAD];
        match self {
            Self::Breakers => &[Method::GET, Method::HEAD, Method::PATCH],
            Self::Explain | Self::Reload => &[Method::POST],
            Self::Group(_) | Self::Server(..) => &[Method::PATCH],
            Self::Key(..) => &[Method::GET, Method::HEAD, Method::DELETE],
            Self::Mark(..) => &[Method::PUT, Method::DELETE],
            Self::Override(_) => &[Method::DELETE],
            Self::Zone(_) => &[Method::GET, Method::HEAD, Method::PATCH],
            _ => LOOK,
        }
    }

    /// Whether doing this there changes something.
    pub(super) fn is_changed_by(&self, method: &Method) -> bool {
        *self != Self::Explain && !matches!(*method, Method::GET | Method::HEAD)
    }
}

/// A value of a query, its escapes undone.
pub(super) fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    percent_decode(&value.replace('+', " "))
}

/// The body as text, of a call that changes something.
pub(super) async fn read(request: Request<Incoming>) -> Result<Vec<u8>, ApiError> {
    let limited = Limited::new(request.into_body(), LARGEST);
    let collected = tokio::time::timeout(PATIENCE, limited.collect()).await;
    match collected {
        Ok(Ok(body)) => Ok(body.to_bytes().to_vec()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(ApiError::bad(
            format!("the body is too large: the most is {LARGEST} bytes"),
        )),
        Ok(Err(_)) => Err(ApiError::bad("the body did not come to its end")),
        Err(_) => Err(ApiError::bad("the body did not come in time")),
    }
}

/// What the body says; one that is empty says `{}`.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => ApiError::bad(format!("the body: {error}")),
        _ => ApiError::bad(format!("the body is not JSON: {error}")),
    })
}

/// Whether the body says of itself that it is JSON, which a page of another origin cannot say without asking first.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

/// What is asked for never takes more.
const LARGEST: usize = 64 * 1024;

const PATIENCE: Duration = Duration::from_secs(10);

/// An answer.
pub(super) type ApiResponse = Response<Either<Full<Bytes>, EventStream>>;

/// Events as they come, until whoever makes them stops.
#[derive(Debug)]
pub(super) struct EventStream(pub(super) mpsc::Receiver<Bytes>);

/// Why something is not done.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    error: String,
    allow: Option<&'static [Method]>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self {
            status,
            error: error.into(),
            allow: None,
        }
    }

    /// What was sent makes no sense.
    pub(super) fn bad(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error)
    }

    /// It makes sense, and cannot be done with what there is.
    pub(super) fn conflict(error: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, error)
    }

    /// There is no such thing.
    pub(super) fn missing(error: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, error)
    }

    /// Something else can be done with it.
    pub(super) fn method(allow: &'static [Method]) -> Self {
        let error = format!("only {} here", listed(allow));
        Self {
            allow: Some(allow),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, error)
        }
    }

    /// Whether it is for want of a token.
    pub(super) fn is_unauthorized(&self) -> bool {
        self.status == StatusCode::UNAUTHORIZED
    }
}

impl From<ApiError> for ApiResponse {
    fn from(problem: ApiError) -> Self {
        let mut reply = json(&ErrorBody {
            error: problem.error,
        });
        *reply.status_mut() = problem.status;
        if let Some(allow) = problem.allow
            && let Ok(allow) = HeaderValue::try_from(listed(allow))
        {
            reply.headers_mut().insert(header::ALLOW, allow);
        }
        if problem.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer realm=\"weir\"");
            reply
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, challenge);
        }
        reply
    }
}

/// Something to be read by programs.
pub(super) fn json(value: &impl Serialize) -> ApiResponse {
    // Only numbers, texts and maps by text: there is nothing in it that could fail.
    let text = serde_json::to_string(value).unwrap_or_default();
    typed(text, "application/json")
}

/// Something to be read by people, or by Prometheus.
pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> ApiResponse {
    let mut reply = typed(body, "text/plain; charset=utf-8");
    *reply.status_mut() = status;
    reply
}

/// Something of this type.
pub(super) fn typed(body: impl Into<Bytes>, content_type: &'static str) -> ApiResponse {
    with_fields(Either::Left(Full::new(body.into())), content_type)
}

/// Server-sent events.
pub(super) fn events(events: EventStream) -> ApiResponse {
    with_fields(Either::Right(events), "text/event-stream")
}

fn with_fields(body: Either<Full<Bytes>, EventStream>, content_type: &'static str) -> ApiResponse {
    let mut reply = Response::new(body);
    let fields = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // No page of another origin gets hold of what is said here, not even as an image or a script.
        (CROSS_ORIGIN_RESOURCE_POLICY, "same-origin"),
    ];
    for (name, value) in fields {
        reply
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    reply
}

fn listed(methods: &[Method]) -> String {
    let names: Vec<_> = methods.iter().map(Method::as_str).collect();
    names.join(", ")
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.0.poll_recv(context);
        next.map(|event| event.map(|bytes| Ok(Frame::data(bytes))))
    }
}

const CROSS_ORIGIN_RESOURCE_POLICY: header::HeaderName =
    header::HeaderName::from_static("cross-origin-resource-policy");

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn names_are_read_with_their_escapes_undone() {
        assert_eq!(
            Route::find("/api/zones/a%2Fb/keys/2001%3Adb8%3A%3A1"),
            Some(Route::Key("a/b".into(), "2001:db8::1".into()))
        );
        assert_eq!(
            Route::find("/api/zones/z/keys/%5Cx00/block"),
            Some(Route::Mark(
                "z".into(),
                "\\x00".into(),
                KeyActionKind::Block
            ))
        );
        for wrong in [
            "/api/zones/%zz",
            "/api/zones/%4",
            "/api/zones/%ff",
            "/api/zones/",
            "api",
            "",
        ] {
            assert_eq!(Route::find(wrong), None, "{wrong}");
        }
    }

    /// How the description of the API writes a route.
    fn described(route: &Route) -> &'static str {
        match route {
            Route::Breakers => "/api/breakers",
            Route::Config => "/api/config",
            Route::Explain => "/api/explain",
            Route::Group(_) => "/api/groups/{group}",
            Route::Groups => "/api/groups",
            Route::Health => "/healthz",
            Route::Key(..) => "/api/zones/{zone}/keys/{key}",
            Route::Keys(_) => "/api/zones/{zone}/keys",
            Route::Mark(_, _, KeyActionKind::Block) => "/api/zones/{zone}/keys/{key}/block",
            Route::Mark(_, _, KeyActionKind::Exempt) => "/api/zones/{zone}/keys/{key}/exempt",
            Route::Mark(_, _, KeyActionKind::Grant) => "/api/zones/{zone}/keys/{key}/grant",
            Route::Metrics => "/metrics",
            Route::OpenApi => "/api/openapi.json",
            Route::Override(_) => "/api/zones/{zone}/override",
            Route::Ready => "/readyz",
            Route::RefusalStream => "/api/refusals/stream",
            Route::Refusals => "/api/refusals",
            Route::Reload => "/api/reload",
            Route::Server(..) => "/api/upstreams/{upstream}/servers/{server}",
            Route::Status => "/api/status",
            Route::Store => "/api/store",
            Route::Upstreams => "/api/upstreams",
            Route::Zone(_) => "/api/zones/{zone}",
            Route::Zones => "/api/zones",
        }
    }

    #[test]
    fn every_path_is_described_and_every_description_is_a_path() {
        let text = include_str!("../../conf/openapi.json");
        let description: serde_json::Value = serde_json::from_str(text).unwrap();
        let paths = description["paths"].as_object().unwrap();
        for path in paths.keys() {
            let route = Route::find(&path.replace(['{', '}'], "")).expect(path);
            assert_eq!(described(&route), path);
        }
        // Whoever adds a route adds it above, and its description.
        assert_eq!(paths.len(), 24);
    }

    #[test]
    fn a_query_is_read_by_name() {
        let query = Some("sort=refuse&limit=5&x=a%26b+c");
        assert_eq!(parameter(query, "limit").as_deref(), Some("5"));
        assert_eq!(parameter(query, "x").as_deref(), Some("a&b c"));
        assert_eq!(parameter(query, "y"), None);
    }
}
