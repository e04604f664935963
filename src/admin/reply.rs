//! What callers are told: JSON, a text, or a stream of events; and why not.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{Either, Full};
use serde::Serialize;
use tokio::sync::mpsc;

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
        let mut reply = json(&serde_json::json!({ "error": problem.error }));
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
