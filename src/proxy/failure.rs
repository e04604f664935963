//! What went wrong, whose fault it was, and which answer it gets.
//!
//! The one place that knows statuses: the rooms below say what happened, here it becomes what the client
//! is told, in nginx's numbers.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};

use super::site::{ALLOWED, Location, NO_ANSWER};
use super::{Generation, refused};
use crate::config::plan;
use crate::limits::Refusal;
use crate::message::answer::{LocalReply, reason};
use crate::message::doubt::Ambiguity;
use crate::message::headers::TransferCoding;
use crate::message::{CloseConnection, RequestRecord, ResponseBody, grpc, target, upload};
use crate::telemetry::about;
use crate::upstream::breaker::{self, BreakerOpen};
use crate::upstream::{self, UpstreamBody};

/// Why a request was not answered by a backend.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyError {
    /// Host or path make no sense; often a probe, sometimes a smuggling attempt.
    #[error(transparent)]
    BadTarget(#[from] target::Error),
    /// The request could be read in two ways.
    #[error(transparent)]
    Doubtful(#[from] Ambiguity),
    /// Its body could not be taken in.
    #[error(transparent)]
    Body(#[from] upload::RequestBodyError),
    /// A call has taken longer than its client waits: its own doing, not the backend's.
    #[error("the call's deadline has passed")]
    Deadline,
    /// `allow` and `deny` keep this address out.
    #[error("access forbidden by rule")]
    Forbidden,
    /// A request over HTTP/2 for a server that does not speak it, over a connection that was made for another.
    #[error("client sent an HTTP/2 request to a server with `http2: off`")]
    Http2Off,
    /// An operator has turned this off for a while.
    #[error("turned off for a while")]
    Degraded,
    /// The location's breaker is open.
    #[error(transparent)]
    Open(#[from] BreakerOpen),
    /// `Max-Forwards` cannot be understood, and so nobody knows whether to forward the request.
    #[error("client sent invalid \"Max-Forwards\" header")]
    MaxForwards,
    /// A method that a gateway does not carry: CONNECT, TRACE.
    #[error("method not allowed")]
    Method,
    /// The configuration wants no answer at all.
    #[error("closed without an answer, as configured")]
    NoAnswer,
    /// Nothing is configured for this path.
    #[error("nothing is configured for this path")]
    NotFound,
    /// A limit turned it away.
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
    /// Somebody speaks plain HTTP where TLS is spoken.
    #[error("client sent plain HTTP request to HTTPS port")]
    PlainToTls,
    /// The client's certificate is no good.
    #[error("client SSL certificate verify error: {0}")]
    BadCertificate(Box<str>),
    /// A transfer coding that two readers might take for two different bodies.
    #[error("client sent an invalid transfer coding")]
    TransferCoding,
    /// A transfer coding that would have to be undone, by somebody who knows it.
    #[error("client sent an unknown transfer coding")]
    UnknownCoding,
    /// Its target has bytes in it that HTTP/2 cannot say.
    #[error("the target cannot be sent over HTTP/2")]
    Unsayable,
    /// The backends could not be made to answer.
    #[error(transparent)]
    Upstream(#[from] upstream::Error),
}

impl ProxyError {
    /// The answer for the client, unless there is to be none.
    pub(super) fn answer(
        self,
        exchange: &RequestRecord,
        site: &Location,
        live: &Generation,
    ) -> Result<Response<ResponseBody<UpstreamBody>>, CloseConnection> {
        let status = self.status();
        if status.as_u16() == NO_ANSWER {
            return Err(CloseConnection);
        }
        self.log(exchange);
        if grpc::is_call(&exchange.head) {
            return Ok(self.grpc_answer(exchange, &site.plan));
        }
        if let Self::Refused(refusal) = self {
            return Ok(refused::respond(refusal, exchange, site, live));
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
            exchange.peer.line.linger_on_close();
        }
        Ok(respond(answer, exchange))
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

    /// The answer to a gRPC call, which looks for its reason elsewhere.
    fn grpc_answer(
        self,
        exchange: &RequestRecord,
        site: &plan::LocationConf,
    ) -> Response<ResponseBody<UpstreamBody>> {
        let code = match &self {
            Self::Refused(_) => grpc::GrpcStatus::ResourceExhausted,
            other => grpc::GrpcStatus::of(other.status()),
        };
        let kind = exchange.head.headers.get(header::CONTENT_TYPE);
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
            headers.extend(refusal.header_fields(site.limit_headers.form));
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
            Self::NoAnswer => StatusCode::from_u16(NO_ANSWER).unwrap_or(StatusCode::NOT_FOUND),
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Degraded | Self::Open(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Refused(refusal) => refusal.status,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnknownCoding => StatusCode::NOT_IMPLEMENTED,
            Self::Body(error) => body_status(error),
            Self::Upstream(error) => upstream_status(error),
        }
    }

    /// After these nobody can say where the next request would begin, or nobody wants it.
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
    fn log(&self, exchange: &RequestRecord) {
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
                tracing::info!("{}", about(format_args!("{self}"), exchange, None));
            }
            Self::Forbidden => {
                tracing::error!("{}", about(format_args!("{self}"), exchange, None));
            }
            Self::TooLarge => {
                let announced = exchange.head.headers.get(header::CONTENT_LENGTH);
                let announced = announced.and_then(|length| length.to_str().ok());
                let message = format_args!("{self}: {} bytes", announced.unwrap_or("unknown"));
                tracing::error!("{}", about(message, exchange, None));
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

fn body_status(error: &upload::RequestBodyError) -> StatusCode {
    match error {
        upload::RequestBodyError::Broken(_) => StatusCode::BAD_REQUEST,
        upload::RequestBodyError::Paused | upload::RequestBodyError::Slow => {
            StatusCode::REQUEST_TIMEOUT
        }
        upload::RequestBodyError::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        upload::RequestBodyError::Unreadable(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn upstream_status(error: &upstream::Error) -> StatusCode {
    match error {
        upstream::Error::Client(_) => error
            .client_fault()
            .map_or(StatusCode::BAD_REQUEST, body_status),
        upstream::Error::TooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        upstream::Error::Crowded { .. } => StatusCode::SERVICE_UNAVAILABLE,
        upstream::Error::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
        upstream::Error::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
        error if error.is_ours() => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::BAD_GATEWAY,
    }
}

/// Puts an answer of our own into the form this client wants.
pub(super) fn respond(
    answer: LocalReply,
    exchange: &RequestRecord,
) -> Response<ResponseBody<UpstreamBody>> {
    let accept = exchange.head.headers.get(header::ACCEPT);
    if exchange.head.method == Method::HEAD {
        return Response::from_parts(
            answer.into_head_for(accept),
            ResponseBody::whole(Bytes::new()),
        );
    }
    let (head, body) = answer.into_parts_for(accept);
    Response::from_parts(head, ResponseBody::whole(body))
}

/// As of a breaker that an operator has opened.
const DEGRADED: Duration = breaker::TURNED_OFF;
