//! Responses that weir writes itself: refusals, errors, `return`.
//!
//! Under an attack most responses are of this kind, so they must cost next to nothing: the page for a status is written once in
//! the life of the process and never freed, and copying it counts no references.
//!
//! Pages come in three formats, chosen by the client's `Accept`. Plain text is the default: `*/*` is what tools send, and tools
//! show the response to people in terminals.

#[cfg(test)]
#[path = "tests/local_reply.rs"]
mod tests;

use std::sync::OnceLock;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, response};
use hyper::ext::ReasonPhrase;
use serde_json::Value;

use crate::text::{escape_html, percent_encode};

/// A response weir writes itself.
#[derive(Debug)]
pub struct LocalReply {
    status: StatusCode,
    headers: HeaderMap,
    content: ReplyContent,
}

#[derive(Debug)]
enum ReplyContent {
    /// The page for the status.
    Page(Option<PageReason>),
    Text {
        body: Bytes,
        content_type: HeaderValue,
    },
}

/// What the page for a status says more than the status.
#[derive(Debug)]
enum PageReason {
    /// The request lacks the key that this zone counts by.
    LacksKey(Box<str>),
    /// The limit of this zone refused the request.
    Violated(Box<str>),
}

impl LocalReply {
    /// The page for a status, in the format that the client prefers.
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

    /// Sets a body instead of the page.
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
            .filter(|_| url.iter().all(|byte| may_be_in_location(*byte)))
            .or_else(|| HeaderValue::try_from(escape_location(url)).ok());
        match value {
            Some(value) => self.with_header(header::LOCATION, value),
            None => self,
        }
    }

    /// Names the zone whose limit is the reason, in `application/problem+json`.
    #[must_use]
    pub fn violating(mut self, zone: &str) -> Self {
        if let ReplyContent::Page(reason @ None) = &mut self.content {
            *reason = Some(PageReason::Violated(zone.into()));
        }
        self
    }

    /// Reports that the request lacks the key that this zone counts by.
    #[must_use]
    pub fn lacking_key(mut self, zone: &str) -> Self {
        self.content = ReplyContent::Page(Some(PageReason::LacksKey(zone.into())));
        self
    }

    /// Its status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Headers and body, the page in the format that the client's `Accept` prefers.
    #[must_use]
    pub fn into_parts_for(self, accept: Option<&HeaderValue>) -> (response::Parts, Bytes) {
        let Self {
            status,
            mut headers,
            content,
        } = self;
        let (content_type, body) = match content {
            ReplyContent::Page(reason) => {
                let format = best_format(accept);
                headers.insert(header::VARY, HeaderValue::from_static("Accept"));
                (format.content_type(), page(status, format, reason.as_ref()))
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

    /// The response to a HEAD: the headers of the same response, with the length of the body it leaves out.
    /// hyper would add the length too, given the body, but then drops a body it never sends, and that looks like an abort.
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

fn may_be_in_location(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\"<>\\".contains(&byte)
}

/// What no URL may hold is percent-encoded.
pub(super) fn escape_location(url: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(url.len() + 16);
    percent_encode(url, may_be_in_location, &mut text);
    text
}

/// A format that pages are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageFormat {
    /// `text/html`
    Html,
    /// `application/problem+json`
    Json,
    /// `text/plain`
    Text,
}

/// The one of these that an `Accept` field prefers; where it accepts none, the first.
pub fn best_offer(accept: Option<&HeaderValue>, offers: &[PageFormat]) -> Option<PageFormat> {
    let accept = accept.map_or(&b"*/*"[..], HeaderValue::as_bytes);
    let offered = offers
        .iter()
        .map(|format| (preference(accept, *format), *format));
    let accepted = offered.filter(|(preference, _)| preference.quality > 0);
    let best = accepted.max_by_key(|(preference, _)| *preference);
    best.map(|(_, format)| format)
        .or_else(|| offers.first().copied())
}

/// The format of a page for a client with this `Accept` field.
fn best_format(accept: Option<&HeaderValue>) -> PageFormat {
    let formats = [PageFormat::Text, PageFormat::Html, PageFormat::Json];
    match accept {
        Some(range) if range != "*/*" => best_offer(accept, &formats).unwrap_or(PageFormat::Text),
        _ => PageFormat::Text,
    }
}

/// How much a client prefers a format; the greatest wins, compared field by field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct AcceptPreference {
    /// Its `q` parameter, in thousandths.
    quality: u16,
    /// How specific the media range is.
    clarity: u8,
    /// Our own order, for formats that the client prefers alike.
    preference: u8,
}

impl PageFormat {
    /// Its `Content-Type`.
    fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Html => "text/html; charset=utf-8",
            Self::Json => "application/problem+json",
            Self::Text => "text/plain; charset=utf-8",
        })
    }

    /// How specifically a media range names this format; `None` if it does not cover it.
    fn clarity(self, range: &[u8]) -> Option<u8> {
        let is = |name: &str| range.eq_ignore_ascii_case(name.as_bytes());
        let (named, family) = match self {
            Self::Html => (is("text/html"), is("text/*")),
            Self::Json => (
                is("application/problem+json") || is("application/json"),
                is("application/*"),
            ),
            Self::Text => (is("text/plain"), is("text/*")),
        };
        match (named, family) {
            (true, _) => Some(2),
            (_, true) => Some(1),
            _ => is("*/*").then_some(0),
        }
    }
}

fn preference(accept: &[u8], format: PageFormat) -> AcceptPreference {
    let ranges = accept.split(|b| *b == b',').filter_map(|item| {
        let mut parts = item.split(|b| *b == b';').map(<[u8]>::trim_ascii);
        let clarity = format.clarity(parts.next()?)?;
        Some((clarity, parts.find_map(quality).unwrap_or(1000)))
    });
    // The clearest range decides, as RFC 9110 has it: `text/*;q=0.5, text/html;q=0` is a no to HTML. Of two equally
    // clear ones (application/json and its problem form) the friendlier counts.
    let (clarity, quality) = ranges.max().unwrap_or((0, 0));
    let preference = match format {
        PageFormat::Json if clarity == 2 => 3,
        PageFormat::Html if clarity == 2 => 2,
        PageFormat::Text => 1,
        PageFormat::Html | PageFormat::Json => 0,
    };
    AcceptPreference {
        quality,
        clarity,
        preference,
    }
}

/// A `q` parameter in thousandths; one that is not a number between 0 and 1 counts as 0.
fn quality(parameter: &[u8]) -> Option<u16> {
    let [b'q' | b'Q', b'=', value @ ..] = parameter else {
        return None;
    };
    Some(match value {
        [b'1', ..] => 1000,
        [b'0', b'.', digits @ ..] => {
            let digit = |at: usize| {
                let byte = digits.get(at).filter(|byte| byte.is_ascii_digit());
                byte.map_or(0, |byte| u16::from(byte - b'0'))
            };
            digit(0) * 100 + digit(1) * 10 + digit(2)
        }
        _ => 0,
    })
}

/// Statuses a page can be kept for: all there are below 600.
const STATUSES: usize = 500;

// Leaked on purpose and bounded: each status and form at most once.
static PAGES: [[OnceLock<&'static str>; 3]; STATUSES] =
    [const { [const { OnceLock::new() }; 3] }; STATUSES];

/// The page for a status; without a reason it is written once.
fn page(status: StatusCode, format: PageFormat, reason: Option<&PageReason>) -> Bytes {
    match (format, reason) {
        (_, Some(PageReason::LacksKey(zone))) => {
            let detail = format!("The request lacks the key that the limit \"{zone}\" counts by.");
            let detail_json = Value::from(&*detail);
            return match format {
                PageFormat::Html => html(status, &detail),
                PageFormat::Json => json(
                    status,
                    "about:blank",
                    &format!(r#","detail":{detail_json}"#),
                ),
                PageFormat::Text => text(status) + &detail + "\n",
            }
            .into();
        }
        (PageFormat::Json, Some(PageReason::Violated(zone))) => {
            let kind = match status {
                StatusCode::SERVICE_UNAVAILABLE => "temporary-reduced-capacity",
                _ => "quota-exceeded",
            };
            let kind = format!("https://iana.org/assignments/http-problem-types#{kind}");
            let zone = Value::from(&**zone);
            return json(status, &kind, &format!(r#","violated-policies":[{zone}]"#)).into();
        }
        _ => {}
    }
    let write = || match format {
        PageFormat::Html => html(status, advice(status)),
        PageFormat::Json => json(status, "about:blank", ""),
        PageFormat::Text => text(status),
    };
    match PAGES.get(usize::from(status.as_u16()).wrapping_sub(100)) {
        Some(formats) => {
            let page = formats[format as usize].get_or_init(|| Box::leak(write().into()));
            Bytes::from_static(page.as_bytes())
        }
        None => write().into(),
    }
}

fn text(status: StatusCode) -> String {
    format!("{} {}\n", status.as_u16(), reason(status))
}

/// A problem (RFC 9457) of this type; `members` are appended to the usual ones.
fn json(status: StatusCode, kind: &str, members: &str) -> String {
    let (title, code) = (Value::from(reason(status)), status.as_u16());
    format!(r#"{{"type":"{kind}","title":{title},"status":{code}{members}}}"#)
}

fn html(status: StatusCode, advice: &str) -> String {
    let title = format!("{} {}", status.as_u16(), reason(status));
    let title = escape_html(&title);
    let advice = escape_html(advice);
    format!(
        "<!doctype html>\n\
         <html lang=\"en\">\n\
         <meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n\
         <style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:32rem;margin:20vh auto;padding:0 1rem}}h1{{font-size:1.5rem}}</style>\n\
         <h1>{title}</h1>\n\
         <p>{advice}</p>\n"
    )
}

/// One sentence for a person in front of a browser.
fn advice(status: StatusCode) -> &'static str {
    match status.as_u16() {
        403 => "You are not allowed to see this.",
        404 => "There is nothing at this address.",
        413 => "What you sent is too large.",
        429 => {
            "Too many requests came from you in a short time. Please wait a moment and try again."
        }
        300..=399 => "This is found elsewhere.",
        400..=499 => "The request could not be understood or may not be answered.",
        502 => "The server behind this gateway could not be reached.",
        503 => "This service is busy at the moment. Please try again soon.",
        504 => "The server behind this gateway did not answer in time.",
        500..=599 => "Something went wrong on our side.",
        _ => "That is all.",
    }
}

#[cfg(test)]
mod accept_tests {

    use super::*;

    #[test]
    fn what_is_offered_is_chosen_from() {
        let best = |accept: &'static str, offers: &[PageFormat]| {
            best_offer(Some(&HeaderValue::from_static(accept)), offers)
        };
        let all = [PageFormat::Text, PageFormat::Html, PageFormat::Json];
        assert_eq!(best("*/*", &all), Some(PageFormat::Text));
        assert_eq!(best("text/html,*/*;q=0.8", &all), Some(PageFormat::Html));
        assert_eq!(best("application/json", &all), Some(PageFormat::Json));
        let two = [PageFormat::Html, PageFormat::Json];
        assert_eq!(best("*/*", &two), Some(PageFormat::Json));
        assert_eq!(best_offer(None, &two), Some(PageFormat::Json));
        assert_eq!(best("image/png", &two), Some(PageFormat::Html));
        assert_eq!(
            best("text/html", &[PageFormat::Json]),
            Some(PageFormat::Json)
        );
        assert_eq!(best_offer(None, &[]), None);
    }

    #[test]
    fn the_form_liked_best_is_chosen() {
        for (accept, form) in [
            ("*/*", PageFormat::Text),
            ("", PageFormat::Text),
            ("image/png", PageFormat::Text),
            ("text/plain", PageFormat::Text),
            ("text/*", PageFormat::Text),
            ("text/html", PageFormat::Html),
            ("TEXT/HTML;level=1", PageFormat::Html),
            ("application/json", PageFormat::Json),
            ("application/problem+json", PageFormat::Json),
            ("application/*", PageFormat::Json),
            // A browser, axios, curl with a preference.
            (
                "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                PageFormat::Html,
            ),
            ("application/json, text/plain, */*", PageFormat::Json),
            ("text/html;q=0.5, application/json;q=0.6", PageFormat::Json),
            ("text/html;q=0.7, application/json;q=0.6", PageFormat::Html),
            ("text/html; q=0.123, text/plain; Q=0.124", PageFormat::Text),
            ("text/*;q=0.9, text/html;q=0", PageFormat::Text),
            (
                "text/html;q=0, text/plain;q=0, application/json;q=0",
                PageFormat::Text,
            ),
            ("application/json;q=x, text/html;q=0.1", PageFormat::Html),
            ("*/*;q=0.1, application/json;q=0.0", PageFormat::Text),
            (",;,=;q", PageFormat::Text),
        ] {
            let value = HeaderValue::from_str(accept).unwrap();
            assert_eq!(best_format(Some(&value)), form, "{accept}");
        }
    }
}

#[cfg(test)]
mod page_tests {

    use super::*;

    #[test]
    fn a_page_is_written_once() {
        let page_in = |form| page(StatusCode::NOT_FOUND, form, None);
        for form in [PageFormat::Html, PageFormat::Json, PageFormat::Text] {
            assert_eq!(page_in(form).as_ptr(), page_in(form).as_ptr());
        }
        assert_eq!(page_in(PageFormat::Text), "404 Not Found\n");
        assert_eq!(
            page_in(PageFormat::Json),
            r#"{"type":"about:blank","title":"Not Found","status":404}"#
        );
        assert!(page_in(PageFormat::Html).starts_with(b"<!doctype html>"));
    }

    #[test]
    fn a_status_without_a_place_in_the_cache_has_a_page_too() {
        let status = StatusCode::from_u16(999).unwrap();
        assert_eq!(page(status, PageFormat::Text, None), "999 Unknown\n");
    }

    #[test]
    fn a_refusal_names_the_policy_in_its_problem() {
        let too_many = page(
            StatusCode::TOO_MANY_REQUESTS,
            PageFormat::Json,
            Some(&PageReason::Violated("perip".into())),
        );
        assert_eq!(
            too_many,
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,"violated-policies":["perip"]}"#
        );
        let busy = page(
            StatusCode::SERVICE_UNAVAILABLE,
            PageFormat::Json,
            Some(&PageReason::Violated("a\"b".into())),
        );
        let busy: Value = serde_json::from_slice(&busy).unwrap();
        assert_eq!(busy["violated-policies"][0], "a\"b");
        assert!(
            busy["type"]
                .as_str()
                .unwrap()
                .ends_with("#temporary-reduced-capacity")
        );
    }
}
