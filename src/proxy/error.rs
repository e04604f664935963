//! What went wrong, whose fault it was, and the response for it.
//!
//! The one map from errors to statuses and log lines, in nginx's numbers and words. The folders below say what happened;
//! here that becomes what the client is told and what the error log says.
//!
//! Under attack nearly every request gets the same refusal as the one before it: same rule, same number of seconds, same
//! `Accept`. So each event loop keeps the last one ([`CachedRefusal`]), mostly prebuilt to the last byte.
//!
//! Also here is the text of configured bodies, of a `return` and of a rule's refusals. Their variables may hold what the
//! client has written, and a page that repeated it as it is would let one client put a script before another. So values
//! are escaped for the format of the body.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderValue, Method, StatusCode, header};

use super::context::{RequestContext, Response, allows_raw_headers};
use crate::config::plan::{
    self, BodyFormat, HeaderForm, Part, RefusalBodies, RefusalBody, TypedText,
};
use crate::limits::Refusal;
use crate::message::headers::TransferCoding;
use crate::message::{
    Ambiguity, CloseConnection, LocalReply, OfferedFormat, Prebuilt, PrebuiltResponse, RawHeaders,
    RequestRecord, ResponseBody, best_offer, grpc, headers, reason, variables,
};
use crate::telemetry::about;
use crate::upstream::breaker::{self, BreakerOpen};
use crate::{message, text, upstream};

/// What a request comes to.
pub(super) type Outcome = Result<Response, ProxyError>;

/// The settings of a location that responses of our own depend on.
#[derive(Debug)]
pub(super) struct ReplySettings {
    /// `limit_headers`
    pub(super) limit_headers: HeaderForm,
    /// Whether nothing at the location reads or changes the headers of responses.
    pub(super) raw_headers: bool,
}

/// Why a request has no response from its content.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyError {
    /// Host or path are invalid; often a probe, sometimes a smuggling attempt.
    #[error(transparent)]
    BadTarget(#[from] message::Error),
    /// The request could be read in two ways.
    #[error(transparent)]
    Doubtful(#[from] Ambiguity),
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
    NoAnswer,
    /// Nothing is configured for this path.
    #[error("nothing is configured for this path")]
    NotFound,
    /// A limit refused the request.
    #[error("refused by a limit")]
    Refused(#[from] Refusal),
    /// The request says it is larger than `client_max_body_size`.
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
    /// Its target has bytes in it that HTTP/2 cannot say.
    #[error("the target cannot be sent over HTTP/2")]
    Unsayable,
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
        let status = self.status();
        cx.record.status = Some(status);
        if status.as_u16() == NO_RESPONSE {
            return Err(CloseConnection);
        }
        let record = &cx.record;
        self.log(record);
        if grpc::is_call(&record.head) {
            return Ok(self.grpc_response(record, settings));
        }
        if let Self::Refused(refusal) = self {
            return Ok(respond_refused(refusal, record, settings));
        }
        let mut answer = LocalReply::new(status);
        if let Some(reason) = self.reason() {
            let text = format!("400 Bad Request\n{reason}\n");
            answer = answer.with_text(text, "text/plain; charset=utf-8");
        }
        if let Some(seconds) = self.retry_after() {
            answer = answer.with_header(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Self::Method = self {
            answer = answer.with_header(header::ALLOW, ALLOWED);
        }
        if self.ends_connection() {
            answer = answer.with_header(header::CONNECTION, HeaderValue::from_static("close"));
            record.connection.state.lingers.set(true);
        }
        Ok(respond(answer, record))
    }

    /// In how many seconds it may be worth another try, where something was not even tried.
    fn retry_after(&self) -> Option<u64> {
        let after = match self {
            Self::Open(BreakerOpen { retry_after })
            | Self::Upstream(
                upstream::Error::Crowded { retry_after, .. }
                | upstream::Error::Unavailable { retry_after },
            ) => *retry_after,
            Self::Degraded => DEGRADED,
            _ => return None,
        };
        let started = u64::from(after.subsec_nanos() > 0);
        Some(after.as_secs().saturating_add(started).max(1))
    }

    /// What the page says besides the status, in nginx's words.
    fn reason(&self) -> Option<&'static str> {
        match self {
            Self::BadCertificate(_) => Some("The SSL certificate error"),
            Self::NoCertificate => Some("No required SSL certificate was sent"),
            Self::PlainToTls => Some("The plain HTTP request was sent to HTTPS port"),
            _ => None,
        }
    }

    /// What is to be said of a request's transfer coding.
    pub(super) fn of_coding(coding: TransferCoding) -> Result<(), Self> {
        match coding {
            TransferCoding::Plain => Ok(()),
            TransferCoding::Unknown => Err(Self::UnknownCoding),
            TransferCoding::Invalid => Err(Self::TransferCoding),
        }
    }

    /// The response to a gRPC call, which carries the reason in fields of its own.
    fn grpc_response(self, record: &RequestRecord, settings: &ReplySettings) -> Response {
        let code = match &self {
            Self::Refused(_) => grpc::GrpcStatus::ResourceExhausted,
            other => grpc::GrpcStatus::of(other.status()),
        };
        let kind = record.head.headers.get(header::CONTENT_TYPE);
        // What went wrong upstream is for the log; others learn from it where our backends are.
        let why = match &self {
            Self::Upstream(_) => reason(self.status()).to_owned(),
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

    /// The status it stands for.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::BadCertificate(_)
            | Self::BadTarget(_)
            | Self::Doubtful(_)
            | Self::MaxForwards
            | Self::NoCertificate
            | Self::PlainToTls
            | Self::TransferCoding
            | Self::Unsayable => StatusCode::BAD_REQUEST,
            Self::Deadline => StatusCode::GATEWAY_TIMEOUT,
            Self::Http2Off | Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::NoAnswer => StatusCode::from_u16(NO_RESPONSE).unwrap_or(StatusCode::NOT_FOUND),
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Degraded | Self::Open(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Refused(refusal) => refusal.status,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnknownCoding => StatusCode::NOT_IMPLEMENTED,
            Self::Body(error) => error.status(),
            Self::Upstream(error) => error.status(),
        }
    }

    /// Whether the connection ends: where the next request would begin is uncertain, or none is wanted.
    fn ends_connection(&self) -> bool {
        match self {
            Self::BadCertificate(_)
            | Self::BadTarget(_)
            | Self::Body(_)
            | Self::Doubtful(_)
            | Self::Method
            | Self::NoCertificate
            | Self::PlainToTls
            | Self::TooLarge
            | Self::TransferCoding
            | Self::UnknownCoding => true,
            Self::Upstream(error) => matches!(error, upstream::Error::Client(_)),
            _ => false,
        }
    }

    /// Once, here: what went wrong upstream or with a limit was logged where it was seen.
    fn log(&self, record: &RequestRecord) {
        match self {
            Self::BadCertificate(_)
            | Self::BadTarget(_)
            | Self::Body(_)
            | Self::Deadline
            | Self::Doubtful(_)
            | Self::Http2Off
            | Self::MaxForwards
            | Self::Method
            | Self::Misdirected
            | Self::NoCertificate
            | Self::PlainToTls
            | Self::TransferCoding
            | Self::UnknownCoding
            | Self::Unsayable => {
                tracing::info!("{}", about(format_args!("{self}"), record, None));
            }
            Self::Forbidden => {
                tracing::error!("{}", about(format_args!("{self}"), record, None));
            }
            Self::TooLarge => {
                let announced = record.head.headers.get(header::CONTENT_LENGTH);
                let announced = announced.and_then(|length| length.to_str().ok());
                let message = format_args!("{self}: {} bytes", announced.unwrap_or("unknown"));
                tracing::error!("{}", about(message, record, None));
            }
            Self::Degraded
            | Self::NoAnswer
            | Self::NotFound
            | Self::Open(_)
            | Self::Refused(_)
            | Self::Upstream(_) => {}
        }
    }
}

/// A response of our own in the format that this client prefers.
pub(super) fn respond(answer: LocalReply, record: &RequestRecord) -> Response {
    let accept = record.head.headers.get(header::ACCEPT);
    if record.head.method == Method::HEAD {
        return Response::from_parts(
            answer.into_head_for(accept),
            ResponseBody::whole(Bytes::new()),
        );
    }
    let (head, body) = answer.into_parts_for(accept);
    Response::from_parts(head, ResponseBody::whole(body))
}

/// Methods that are forwarded; others that upstreams know are forwarded too, but CONNECT and TRACE are not.
pub(super) const ALLOWED: HeaderValue =
    HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS");

/// nginx's status that closes the connection without a response.
pub(super) const NO_RESPONSE: u16 = plan::RefusalAction::DROP;

/// As of a breaker that an operator has opened.
const DEGRADED: Duration = breaker::TURNED_OFF;

/// The last refusal, and what its response depends on.
#[derive(Debug)]
struct CachedRefusal {
    refusal: Refusal,
    fields: HeaderForm,
    accept: Option<HeaderValue>,
    head: Parts,
    body: Bytes,
    stock: Option<Arc<PrebuiltResponse>>,
}

thread_local! {
    static LAST: RefCell<Option<CachedRefusal>> = const { RefCell::new(None) };
}

/// The response to a refused request.
fn respond_refused(refusal: Refusal, record: &RequestRecord, settings: &ReplySettings) -> Response {
    let fields = settings.limit_headers;
    let changes = |body: &Arc<RefusalBodies>| !body.is_fixed();
    if record.head.method == Method::HEAD || refusal.body.as_ref().is_some_and(changes) {
        return respond(answer(&refusal, fields, record), record);
    }
    let accept = record.head.headers.get(header::ACCEPT);
    LAST.with_borrow_mut(|last| {
        let fits = |given: &mut CachedRefusal| {
            given.fields == fields
                && given.accept.as_ref() == accept
                && given.refusal.reads_like(&refusal)
        };
        if !last.as_mut().is_some_and(fits) {
            let (head, body) = answer(&refusal, fields, record).into_parts_for(accept);
            // A copy of its own: the client's would keep alive all that was read with it.
            let accept = accept.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok());
            let stock = stock_of(&head, &body);
            *last = Some(CachedRefusal {
                refusal,
                fields,
                accept,
                head,
                body,
                stock: stock.map(Arc::new),
            });
        }
        let given = last.as_ref().expect("made above if it was not there");
        if let Some(stock) = &given.stock
            && settings.raw_headers
            && allows_raw_headers(record)
        {
            let prebuilt = Prebuilt::Shared(Arc::clone(stock));
            record.connection.state.prebuilt.put(prebuilt);
            let mut response = Response::new(ResponseBody::prebuilt(stock.length()));
            *response.status_mut() = given.head.status;
            *response.headers_mut() = headers::spare();
            return response;
        }
        Response::from_parts(given.head.clone(), ResponseBody::whole(given.body.clone()))
    })
}

fn stock_of(head: &Parts, body: &Bytes) -> Option<PrebuiltResponse> {
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

fn answer(refusal: &Refusal, fields: HeaderForm, record: &RequestRecord) -> LocalReply {
    let answer = LocalReply::new(refusal.status);
    let answer = match &refusal.body {
        Some(body) => with_body(answer, body, record),
        None if refusal.is_bad_request() => answer,
        None if refusal.lacks_key() => answer.lacking_key(refusal.zone()),
        None => answer.violating(refusal.zone()),
    };
    refusal
        .header_fields(fields)
        .fold(answer, |answer, (name, value)| {
            answer.with_header(name, value)
        })
}

/// The reply with a rule's own body, in the format the client prefers where there are several.
fn with_body(answer: LocalReply, body: &RefusalBodies, record: &RequestRecord) -> LocalReply {
    let (typed, varies) = match body {
        RefusalBodies::One(typed) => (Some(typed), false),
        RefusalBodies::Choice { html, json, text } => (chosen([text, html, json], record), true),
    };
    let Some(TypedText {
        wording,
        content_type,
    }) = typed
    else {
        return answer;
    };
    let answer = answer.with_text(render(wording, record), content_type);
    match varies {
        true => answer.with_header(header::VARY, HeaderValue::from_static("Accept")),
        false => answer,
    }
}

fn chosen<'b>(
    [text, html, json]: [&'b Option<TypedText>; 3],
    record: &RequestRecord,
) -> Option<&'b TypedText> {
    let ready = [
        (OfferedFormat::Text, text),
        (OfferedFormat::Html, html),
        (OfferedFormat::Json, json),
    ];
    let ready: Vec<(OfferedFormat, &TypedText)> = ready
        .into_iter()
        .filter_map(|(offer, typed)| Some((offer, typed.as_ref()?)))
        .collect();
    let offers: Vec<OfferedFormat> = ready.iter().map(|(offer, _)| *offer).collect();
    let best = best_offer(record.head.headers.get(header::ACCEPT), &offers);
    let mut ready = ready.into_iter();
    ready.find_map(|(offer, typed)| (Some(offer) == best).then_some(typed))
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
    // In a form with a syntax, a byte that belongs to no character could end what it stands in.
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
