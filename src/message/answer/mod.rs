//! Answers weir gives itself: refusals, failures, `return`.
//!
//! A gateway under attack answers mostly with these, so they must cost next to nothing: the page for a status is
//! written once in the life of the process and never freed, and handing it out counts no references.

mod accept;
mod page;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, response};
use hyper::ext::ReasonPhrase;

use super::target::push_escaped;
use accept::PageFormat;
pub use accept::{OfferedFormat, best_offer};

/// A response weir writes itself.
#[derive(Debug)]
pub struct LocalReply {
    status: StatusCode,
    headers: HeaderMap,
    content: ReplyContent,
}

#[derive(Debug)]
enum ReplyContent {
    /// The page that says that there is no key for this zone.
    Keyless(Box<str>),
    /// The page for the status, naming the zone that refused if one did.
    Page(Option<Box<str>>),
    Text {
        body: Bytes,
        content_type: HeaderValue,
    },
}

impl LocalReply {
    /// The page for a status, in a form the client likes.
    #[must_use]
    pub fn new(status: StatusCode) -> Self {
        Self {
            status,
            headers: HeaderMap::new(),
            content: ReplyContent::Page(None),
        }
    }

    /// Sets a header field.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Says this instead of the page.
    #[must_use]
    pub fn with_text(mut self, body: impl Into<Bytes>, content_type: &str) -> Self {
        self.content = ReplyContent::Text {
            body: body.into(),
            content_type: HeaderValue::from_str(content_type)
                .unwrap_or(HeaderValue::from_static("application/octet-stream")),
        };
        self
    }

    /// Sends the client elsewhere. What no URL may hold is escaped: a line break from a decoded path must not begin a
    /// field of its own, nor a backslash, which browsers take for a slash, make a host of a path.
    #[must_use]
    pub fn with_location(self, url: &[u8]) -> Self {
        let value = HeaderValue::from_bytes(url)
            .ok()
            .filter(|_| url.iter().all(may_be_in_location))
            .or_else(|| HeaderValue::try_from(escape_location(url)).ok());
        match value {
            Some(value) => self.with_header(header::LOCATION, value),
            None => self,
        }
    }

    /// Names the zone whose limit is the reason, for those who read `application/problem+json`.
    #[must_use]
    pub fn violating(mut self, zone: &str) -> Self {
        if let ReplyContent::Page(violated) = &mut self.content {
            *violated = Some(zone.into());
        }
        self
    }

    /// Says that the request lacks the key that this zone counts by.
    #[must_use]
    pub fn lacking_key(mut self, zone: &str) -> Self {
        self.content = ReplyContent::Keyless(zone.into());
        self
    }

    /// Its status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Head and body, the page in the form the client's `Accept` likes best.
    #[must_use]
    pub fn into_parts_for(self, accept: Option<&HeaderValue>) -> (response::Parts, Bytes) {
        let Self {
            status,
            mut headers,
            content,
        } = self;
        let (content_type, body) = match content {
            ReplyContent::Page(violated) => {
                let form = accept.map_or(PageFormat::Text, accept::best_form);
                headers.insert(header::VARY, HeaderValue::from_static("Accept"));
                (
                    form.content_type(),
                    page::body(status, form, violated.as_deref()),
                )
            }
            ReplyContent::Keyless(zone) => {
                let form = accept.map_or(PageFormat::Text, accept::best_form);
                headers.insert(header::VARY, HeaderValue::from_static("Accept"));
                let page = page::keyless(status, form, &zone);
                (form.content_type(), page.into())
            }
            ReplyContent::Text { body, content_type } => (content_type, body),
        };
        headers.insert(header::SERVER, HeaderValue::from_static("weir"));
        let body = if has_no_body(status) {
            headers.remove(header::VARY);
            Bytes::new()
        } else {
            headers.insert(header::CONTENT_TYPE, content_type);
            body
        };
        let (mut parts, ()) = Response::new(()).into_parts();
        parts.status = status;
        parts.headers = headers;
        if status.canonical_reason().is_none() {
            let phrase = ReasonPhrase::from_static(reason(status).as_bytes());
            parts.extensions.insert(phrase);
        }
        (parts, body)
    }

    /// What a HEAD is answered with: the head of the same answer, which tells the length of the body it leaves out.
    // The server would tell it too, given the body, but then it drops one it never sends, and that looks like an abort.
    #[must_use]
    pub fn into_head_for(self, accept: Option<&HeaderValue>) -> response::Parts {
        let (mut parts, body) = self.into_parts_for(accept);
        if !has_no_body(parts.status) {
            let length = HeaderValue::from(body.len());
            parts.headers.insert(header::CONTENT_LENGTH, length);
        }
        parts
    }
}

/// The phrase for a status; nginx's for those that only nginx knows.
#[must_use]
pub fn reason(status: StatusCode) -> &'static str {
    status
        .canonical_reason()
        .unwrap_or_else(|| match status.as_u16() {
            444 => "No Response",
            494 => "Request Header Too Large",
            495 => "SSL Certificate Error",
            496 => "SSL Certificate Required",
            497 => "HTTP Request Sent to HTTPS Port",
            499 => "Client Closed Request",
            200..=299 => "Success",
            300..=399 => "Redirection",
            400..=499 => "Client Error",
            500..=599 => "Server Error",
            _ => "Unknown",
        })
}

fn has_no_body(status: StatusCode) -> bool {
    status.is_informational()
        || matches!(
            status,
            StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED
        )
}

fn may_be_in_location(byte: &u8) -> bool {
    byte.is_ascii_graphic() && !b"\"<>\\".contains(byte)
}

/// What no URL may hold is percent-encoded.
pub(super) fn escape_location(url: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(url.len() + 16);
    for &byte in url {
        if may_be_in_location(&byte) {
            text.push(byte);
        } else {
            push_escaped(byte, &mut text);
        }
    }
    text
}

#[cfg(test)]
mod tests;
