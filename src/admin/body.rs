//! What a caller sends: a small JSON object, in good time.

use std::time::Duration;

use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use super::reply::ApiError;

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
