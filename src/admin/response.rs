//! The responses of the admin listener: JSON, text, a stream of events, or an error with its reason.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame};
use http_body_util::{Either, Full};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::api::ErrorBody;

/// A response of the admin listener.
pub(super) type ApiResponse = Response<Either<Full<Bytes>, EventStream>>;

/// Server-sent events; ends when their sender is dropped.
#[derive(Debug)]
pub(super) struct EventStream(pub(super) mpsc::Receiver<Bytes>);

/// Why a call failed.
#[derive(Debug)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    error: String,
    /// The `Allow` header of a 405.
    allow: Option<String>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self {
            status,
            error: error.into(),
            allow: None,
        }
    }

    /// 400: the call is invalid.
    pub(super) fn bad(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error)
    }

    /// 409: the call conflicts with the present state.
    pub(super) fn conflict(error: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, error)
    }

    /// 404: the object does not exist.
    pub(super) fn missing(error: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, error)
    }

    /// 405: the path has only these methods.
    pub(super) fn method(allow: String) -> Self {
        let error = format!("the methods of this path are {allow}");
        Self {
            allow: Some(allow),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, error)
        }
    }
}

impl From<ApiError> for ApiResponse {
    fn from(failure: ApiError) -> Self {
        let mut response = json(&ErrorBody {
            error: failure.error,
        });
        *response.status_mut() = failure.status;
        let headers = response.headers_mut();
        if let Some(Ok(allow)) = failure.allow.map(HeaderValue::try_from) {
            headers.insert(header::ALLOW, allow);
        }
        if failure.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer realm=\"weir\"");
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

/// A JSON response.
pub(super) fn json(value: &impl Serialize) -> ApiResponse {
    // Only numbers, texts and maps by text: nothing of it can fail.
    let text = serde_json::to_string(value).unwrap_or_default();
    with_type(text, "application/json")
}

/// A plain text.
pub(super) fn text(status: StatusCode, body: &'static str) -> ApiResponse {
    let mut response = with_type(body, "text/plain; charset=utf-8");
    *response.status_mut() = status;
    response
}

/// A complete body of this content type.
pub(super) fn with_type(body: impl Into<Bytes>, content_type: &'static str) -> ApiResponse {
    with_headers(Either::Left(Full::new(body.into())), content_type)
}

/// Server-sent events.
pub(super) fn events(events: EventStream) -> ApiResponse {
    with_headers(Either::Right(events), "text/event-stream")
}

fn with_headers(body: Either<Full<Bytes>, EventStream>, content_type: &'static str) -> ApiResponse {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // No page of another origin reads a response, not even as an image or a script.
        (CROSS_ORIGIN_RESOURCE_POLICY, "same-origin"),
    ];
    let mut response = Response::new(body);
    for (name, value) in headers {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
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

const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-resource-policy");
