//! The one map from errors to responses and log lines, in nginx's numbers and words.
//!
//! In an attack nearly every request gets the same refusal as the one before it: same rule, same number of seconds, same
//! `Accept`. So each event loop keeps the last one ([`CachedRefusal`]), mostly prebuilt to the last byte.
//!
//! Configured bodies, of a `return` and of a rule's refusals, are rendered here, too. Their variables may hold what the
//! client has sent, and a page that repeated it as it is would let one client show a script to another. So values are
//! escaped for the format of the body.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use tracing::Level;

use super::context::{RequestContext, Response, allows_raw_headers};
use crate::config::plan::{
    self, BodyFormat, HeaderForm, Part, RefusalBodies, RefusalBody, TypedText,
};
use crate::limits::{self, Refusal};
use crate::message::headers::TransferCoding;
use crate::message::{
    Ambiguity, CloseConnection, LocalReply, PageFormat, Prebuilt, PrebuiltResponse, RawHeaders,
    RequestRecord, ResponseBody, best_offer, grpc, headers, reason, variables,
};
use crate::telemetry::about;
use crate::upstream::breaker::{self, BreakerOpen};
use crate::{message, text, upstream};

/// The response to a request, or the error that takes its place.
pub(super) type Outcome = Result<Response, ProxyError>;

/// The settings of a location for responses that weir writes itself.
#[derive(Debug)]
pub(super) struct ReplySettings {
    /// `limit_headers`
    pub(super) limit_headers: HeaderForm,
    /// Whether nothing at the location reads or changes the headers of responses.
    pub(super) raw_headers: bool,
}

/// Why a request gets no response from its content.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyError {
    /// Host or path are invalid; often a probe, sometimes a smuggling attempt.
    #[error(transparent)]
    BadTarget(#[from] message::Error),
    /// The request could be read in two ways.
    #[error(transparent)]
    Ambiguous(#[from] Ambiguity),
    /// The request's body could not be read.
    #[error(transparent)]
    Body(#[from] message::RequestBodyError),
    /// A gRPC call has taken longer than its client waits. Not the upstream's fault.
    #[error("the call's deadline has passed")]
    Deadline,
    /// `allow` and `deny` keep this address out.
    #[error("access forbidden by rule")]
    Forbidden,
    /// A request over HTTP/2 for a server that does not speak it, over a connection that was made for another.
    #[error("client sent an HTTP/2 request to a server with `http2: off`")]
    Http2Off,
    /// The location's `degrade_group` is turned off.
    #[error("turned off for a while")]
    Degraded,
    /// The location's breaker is open.
    #[error(transparent)]
    Open(#[from] BreakerOpen),
    /// `Max-Forwards` cannot be parsed, so whether to forward the request is unknown.
    #[error("client sent invalid \"Max-Forwards\" header")]
    MaxForwards,
    /// A method that a gateway does not carry: CONNECT, TRACE.
    #[error("method not allowed")]
    Method,
    /// The configuration closes the connection without a response.
    #[error("closed without an answer, as configured")]
    NoResponse,
    /// Nothing is configured for this path.
    #[error("nothing is configured for this path")]
    NotFound,
    /// A limit refused the request.
    #[error("refused by a limit")]
    Refused(#[from] Refusal),
    /// The request announces a body larger than `client_max_body_size`.
    #[error("client intended to send too large body")]
    TooLarge,
    /// A request for a server that asks for certificates, over a connection that was made for another.
    #[error(
        "client attempted to request the server name different from the one that was negotiated"
    )]
    Misdirected,
    /// `verify_client` wants a certificate, and there is none.
    #[error("client sent no required SSL certificate")]
    NoCertificate,
    /// Plain HTTP on a TLS listener.
    #[error("client sent plain HTTP request to HTTPS port")]
    PlainToTls,
    /// The client's certificate is no good.
    #[error("client SSL certificate verify error: {0}")]
    BadCertificate(Box<str>),
    /// A transfer coding that two readers might take for two different bodies.
    #[error("client sent an invalid transfer coding")]
    TransferCoding,
    /// A transfer coding that weir does not implement.
    #[error("client sent an unknown transfer coding")]
    UnknownCoding,
    /// Its target has bytes that HTTP/2 does not allow.
    #[error("the target cannot be sent over HTTP/2")]
    NotForHttp2,
    /// No upstream server gave a usable response.
    #[error(transparent)]
    Upstream(#[from] upstream::Error),
}

impl ProxyError {
    /// The response for the client, unless the connection is to be closed without one.
    pub(super) fn into_response(
        self,
        cx: &mut RequestContext,
        settings: &ReplySettings,
    ) -> Result<Response, CloseConnection> {
        let (status, effects) = self.status_and_effects();
        cx.record.status = Some(status);
        if status.as_u16() == NO_RESPONSE {
            return Err(CloseConnection);
        }
        let record = &cx.record;
        if let Some(level) = effects.log_level {
            self.log(level, record);
        }
        if grpc::is_call(&record.head) {
            return Ok(self.grpc_response(status, record, settings));
        }
        if let Self::Refused(refusal) = self {
            return Ok(respond_refused(refusal, record, settings));
        }
        let mut reply = LocalReply::new(status);
        if let Some(reason) = self.reason() {
            let text = format!("400 Bad Request\n{reason}\n");
            reply = reply.with_text(text, "text/plain; charset=utf-8");
        }
        if let Some(seconds) = self.retry_after() {
            reply = reply.with_header(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Self::Method = self {
            reply = reply.with_header(header::ALLOW, ALLOWED);
        }
        if effects.closes_connection {
            reply = reply.with_header(header::CONNECTION, HeaderValue::from_static("close"));
            record.connection.state.lingers.set(true);
        }
        Ok(respond(reply, record))
    }

    /// The seconds after which a retry may help, where nothing was tried.
    fn retry_after(&self) -> Option<u64> {
        let after = match self {
            Self::Open(BreakerOpen { retry_after })
            | Self::Upstream(
                upstream::Error::Queue { retry_after, .. }
                | upstream::Error::Unavailable { retry_after },
            ) => *retry_after,
            Self::Degraded => DEGRADED,
            _ => return None,
        };
        Some(limits::whole_seconds(after))
    }

    /// The page's text besides the status, in nginx's words.
    fn reason(&self) -> Option<&'static str> {
        match self {
            Self::BadCertificate(_) => Some("The SSL certificate error"),
            Self::NoCertificate => Some("No required SSL certificate was sent"),
            Self::PlainToTls => Some("The plain HTTP request was sent to HTTPS port"),
            _ => None,
        }
    }

    /// Checks a request's transfer coding.
    pub(super) fn from_coding(coding: TransferCoding) -> Result<(), Self> {
        match coding {
            TransferCoding::Plain => Ok(()),
            TransferCoding::Unknown => Err(Self::UnknownCoding),
            TransferCoding::Invalid => Err(Self::TransferCoding),
        }
    }

    /// The response to a gRPC call, which carries the reason in fields of its own.
    fn grpc_response(
        self,
        status: StatusCode,
        record: &RequestRecord,
        settings: &ReplySettings,
    ) -> Response {
        let code = match &self {
            Self::Refused(_) => grpc::GrpcStatus::ResourceExhausted,
            _ => grpc::GrpcStatus::of(status),
        };
        let kind = record.head.headers.get(header::CONTENT_TYPE);
        // Upstream errors are for the log; their text would tell clients where our backends are.
        let why = match &self {
            Self::Upstream(_) => reason(status).to_owned(),
            other => other.to_string(),
        };
        let mut response = grpc::refusal(kind, code, &why);
        if let Some(seconds) = self.retry_after() {
            let millis = HeaderValue::from(seconds.saturating_mul(1000));
            response.headers_mut().insert(grpc::PUSHBACK, millis);
        }
        if let Self::Refused(refusal) = self {
            let headers = response.headers_mut();
            headers.extend(refusal.header_fields(settings.limit_headers));
            if let Some(wait) = refusal.retry_after {
                let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                headers.insert(grpc::PUSHBACK, HeaderValue::from(millis));
            }
        }
        response.map(ResponseBody::whole)
    }

    /// The status of its response, and what else comes of it. Errors of an upstream or a limit are logged where they happen.
    fn status_and_effects(&self) -> (StatusCode, Effects) {
        const SILENT: Effects = Effects::new(None, false);
        const LOGGED: Effects = Effects::new(Some(Level::INFO), false);
        // Where the next request would begin is uncertain, or none is wanted.
        const CLOSES: Effects = Effects::new(Some(Level::INFO), true);
        match self {
            Self::Ambiguous(_)
            | Self::BadCertificate(_)
            | Self::BadTarget(_)
            | Self::NoCertificate
            | Self::PlainToTls
            | Self::TransferCoding => (StatusCode::BAD_REQUEST, CLOSES),
            Self::Body(error) => (error.status(), CLOSES),
            Self::Deadline => (StatusCode::GATEWAY_TIMEOUT, LOGGED),
            Self::Degraded | Self::Open(_) => (StatusCode::SERVICE_UNAVAILABLE, SILENT),
            Self::Forbidden => (
                StatusCode::FORBIDDEN,
                Effects::new(Some(Level::ERROR), false),
            ),
            Self::Http2Off | Self::Misdirected => (StatusCode::MISDIRECTED_REQUEST, LOGGED),
            Self::MaxForwards | Self::NotForHttp2 => (StatusCode::BAD_REQUEST, LOGGED),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, CLOSES),
            Self::NoResponse => {
                let status = StatusCode::from_u16(NO_RESPONSE);
                (status.unwrap_or(StatusCode::NOT_FOUND), SILENT)
            }
            Self::NotFound => (StatusCode::NOT_FOUND, SILENT),
            Self::Refused(refusal) => (refusal.status, SILENT),
            Self::TooLarge => {
                let effects = Effects::new(Some(Level::ERROR), true);
                (StatusCode::PAYLOAD_TOO_LARGE, effects)
            }
            Self::UnknownCoding => (StatusCode::NOT_IMPLEMENTED, CLOSES),
            Self::Upstream(error) => {
                let closes = matches!(error, upstream::Error::Client(_));
                (error.status(), Effects::new(None, closes))
            }
        }
    }

    /// Logs it at a level, as nginx does.
    #[cold]
    fn log(&self, level: Level, record: &RequestRecord) {
        let size = match self {
            Self::TooLarge => {
                let announced = record.head.headers.get(header::CONTENT_LENGTH);
                let announced = announced.and_then(|length| length.to_str().ok());
                format!(": {} bytes", announced.unwrap_or("unknown"))
            }
            _ => String::new(),
        };
        let message = format_args!("{self}{size}");
        match level {
            Level::ERROR => tracing::error!("{}", about(message, record, None)),
            _ => tracing::info!("{}", about(message, record, None)),
        }
    }
}

/// What comes of an error besides its response.
#[derive(Debug, Clone, Copy)]
struct Effects {
    log_level: Option<Level>,
    closes_connection: bool,
}

impl Effects {
    const fn new(log_level: Option<Level>, closes_connection: bool) -> Self {
        Self {
            log_level,
            closes_connection,
        }
    }
}

/// A response that weir writes itself, in the format the client prefers.
pub(super) fn respond(reply: LocalReply, record: &RequestRecord) -> Response {
    let accept = record.head.headers.get(header::ACCEPT);
    if record.head.method == Method::HEAD {
        return Response::from_parts(
            reply.into_head_for(accept),
            ResponseBody::whole(Bytes::new()),
        );
    }
    let (head, body) = reply.into_parts_for(accept);
    Response::from_parts(head, ResponseBody::whole(body))
}

/// Methods that are forwarded; others that upstreams know are forwarded too, but CONNECT and TRACE are not.
pub(super) const ALLOWED: HeaderValue =
    HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS");

/// nginx's status that closes the connection without a response.
pub(super) const NO_RESPONSE: u16 = plan::RefusalAction::DROP;

/// The same as of a breaker that an operator has opened.
const DEGRADED: Duration = breaker::TURNED_OFF;

/// The last refusal and its response, with all that it depends on.
#[derive(Debug)]
struct CachedRefusal {
    refusal: Refusal,
    fields: HeaderForm,
    accept: Option<HeaderValue>,
    head: Parts,
    body: Bytes,
    prebuilt: Option<Arc<PrebuiltResponse>>,
}

thread_local! {
    static LAST: RefCell<Option<CachedRefusal>> = const { RefCell::new(None) };
}

/// The response to a refused request.
fn respond_refused(refusal: Refusal, record: &RequestRecord, settings: &ReplySettings) -> Response {
    let fields = settings.limit_headers;
    let changes = |body: &Arc<RefusalBodies>| !body.is_fixed();
    if record.head.method == Method::HEAD || refusal.body.as_ref().is_some_and(changes) {
        return respond(reply(&refusal, fields, record), record);
    }
    let accept = record.head.headers.get(header::ACCEPT);
    LAST.with_borrow_mut(|last| {
        let fits = |cached: &mut CachedRefusal| {
            cached.fields == fields
                && cached.accept.as_ref() == accept
                && cached.refusal.reads_like(&refusal)
        };
        if !last.as_mut().is_some_and(fits) {
            let (head, body) = reply(&refusal, fields, record).into_parts_for(accept);
            // A copy of its own: the client's would keep alive all that was read with it.
            let accept = accept.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok());
            let prebuilt = prebuild(&head, &body);
            *last = Some(CachedRefusal {
                refusal,
                fields,
                accept,
                head,
                body,
                prebuilt: prebuilt.map(Arc::new),
            });
        }
        let cached = last.as_ref().expect("made above if it was not there");
        if let Some(prebuilt) = &cached.prebuilt
            && settings.raw_headers
            && allows_raw_headers(record)
        {
            let state = &record.connection.state;
            state.prebuilt.put(Prebuilt::Shared(Arc::clone(prebuilt)));
            let mut response = Response::new(ResponseBody::prebuilt(prebuilt.length()));
            *response.status_mut() = cached.head.status;
            *response.headers_mut() = headers::spare();
            return response;
        }
        Response::from_parts(
            cached.head.clone(),
            ResponseBody::whole(cached.body.clone()),
        )
    })
}

fn prebuild(head: &Parts, body: &Bytes) -> Option<PrebuiltResponse> {
    // A phrase of its own is beside the fields.
    if !head.extensions.is_empty() || !PrebuiltResponse::can_complete(&Method::GET, head.status) {
        return None;
    }
    let mut lines = RawHeaders::empty();
    let length = HeaderValue::from(body.len());
    let fields = [(&header::CONTENT_LENGTH, &length)];
    for (name, value) in fields.into_iter().chain(&head.headers) {
        lines.add(name.as_str().as_bytes(), value.as_bytes());
    }
    lines
        .fits(body.len())
        .then(|| PrebuiltResponse::new(lines, body.clone()))
}

fn reply(refusal: &Refusal, fields: HeaderForm, record: &RequestRecord) -> LocalReply {
    let reply = LocalReply::new(refusal.status);
    let reply = match &refusal.body {
        Some(body) => with_body(reply, body, record),
        None if refusal.is_bad_request() => reply,
        None if refusal.lacks_key() => reply.lacking_key(refusal.zone()),
        None => reply.violating(refusal.zone()),
    };
    refusal
        .header_fields(fields)
        .fold(reply, |reply, (name, value)| reply.with_header(name, value))
}

/// The reply with a rule's own body, in the format the client prefers where there are several.
fn with_body(reply: LocalReply, body: &RefusalBodies, record: &RequestRecord) -> LocalReply {
    let (typed, varies) = match body {
        RefusalBodies::One(typed) => (Some(typed), false),
        RefusalBodies::Choice { html, json, text } => (best_body([text, html, json], record), true),
    };
    let Some(TypedText {
        wording,
        content_type,
    }) = typed
    else {
        return reply;
    };
    let reply = reply.with_text(render(wording, record), content_type);
    match varies {
        true => reply.with_header(header::VARY, HeaderValue::from_static("Accept")),
        false => reply,
    }
}

fn best_body<'b>(
    [text, html, json]: [&'b Option<TypedText>; 3],
    record: &RequestRecord,
) -> Option<&'b TypedText> {
    let bodies = [
        (PageFormat::Text, text.as_ref()),
        (PageFormat::Html, html.as_ref()),
        (PageFormat::Json, json.as_ref()),
    ];
    let offers = bodies.iter().filter(|(_, body)| body.is_some());
    let offers: Vec<PageFormat> = offers.map(|(offer, _)| *offer).collect();
    let best = best_offer(record.head.headers.get(header::ACCEPT), &offers)?;
    bodies.into_iter().find(|(offer, _)| *offer == best)?.1
}

/// The text for one request.
pub(super) fn render(wording: &RefusalBody, record: &RequestRecord) -> Vec<u8> {
    let (mut text, mut value) = (Vec::new(), Vec::new());
    for part in &wording.text.parts {
        match part {
            Part::Text(own) => text.extend_from_slice(own.as_bytes()),
            Part::Variable(variable) => {
                value.clear();
                variables::append(variable, record, &mut value);
                escape(&value, wording.form, &mut text);
            }
        }
    }
    text
}

fn escape(value: &[u8], form: BodyFormat, out: &mut Vec<u8>) {
    // In a format with a syntax, a byte that belongs to no character could end the value.
    let letters = String::from_utf8_lossy(value);
    match form {
        BodyFormat::Css => text::escape_css(&letters, out),
        BodyFormat::Html => out.extend_from_slice(text::escape_html(&letters).as_bytes()),
        BodyFormat::JavaScript => text::escape_script(&letters, out),
        BodyFormat::Json => text::escape_json(value, out),
        BodyFormat::Plain => out.extend_from_slice(value),
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::config::plan::{Template, Variable};

    fn rendered(before: &str, after: &str, agent: &str) -> String {
        let parts = [
            Part::Text(before.into()),
            Part::Variable(Variable::Http(header::USER_AGENT)),
            Part::Text(after.into()),
        ];
        let wording = RefusalBody::new(Template {
            parts: Box::new(parts),
        });
        let record = message::testing::record(&[("user-agent", agent)]);
        String::from_utf8(render(&wording, &record)).expect("a text")
    }

    #[test]
    fn what_a_client_wrote_stays_text() {
        assert_eq!(
            rendered("<p>", "</p>", "<script>'\"&"),
            "<p>&lt;script&gt;&#39;&quot;&amp;</p>"
        );
        assert_eq!(
            rendered("{\"by\":\"", "\"}", "a\\\"b\tc"),
            "{\"by\":\"a\\\\\\\"b\\tc\"}"
        );
        assert_eq!(rendered("by ", "", "<a> \"b\""), "by <a> \"b\"");
    }

    #[test]
    fn every_form_keeps_a_value_inside_its_quotes() {
        let written = |form, value: &str| {
            let mut text = Vec::new();
            escape(value.as_bytes(), form, &mut text);
            String::from_utf8(text).expect("a text")
        };
        assert_eq!(
            written(BodyFormat::Html, "a\\`\u{1}\t\u{e9}"),
            "a&#92;&#96;\u{fffd}\t\u{e9}"
        );
        assert_eq!(
            written(
                BodyFormat::JavaScript,
                "it's `${x}`</script>\u{2028}\u{1f600}"
            ),
            "it\\u0027s \\u0060\\u0024\\u007bx\\u007d\\u0060\\u003c\\u002fscript\\u003e\\u2028\\ud83d\\ude00"
        );
        assert_eq!(written(BodyFormat::Css, "a\"b}"), "a\\000022b\\00007d");
        assert_eq!(written(BodyFormat::Json, "a\"\\\n"), "a\\\"\\\\\\n");
    }
}
