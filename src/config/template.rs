//! A text with variables, parsed once when the configuration is read and rendered for every request.
//!
//! Texts of variables become templates.
//!
//! `$name` and `${name}` as in nginx; a `$` that no name follows stands for itself. `${NAME}` in upper case never
//! gets here: it is the environment's (see `config::read`).
//!
//! The names of variables.

use std::ops::Range;

use http::{HeaderName, header};

use super::compile::{Compiler, Resolved};
use super::decode::Spanned;
use super::report::{self, Diagnostic};
use crate::config::decode::value::Text;

/// A text of literal parts and variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Template {
    /// In order of appearance; two literals never stand side by side.
    pub parts: Box<[Part]>,
}

/// A piece of a [`Template`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Stands for itself.
    Text(Box<str>),
    /// Stands for what is known of the request.
    Variable(Variable),
}

/// A variable, named as nginx names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variable {
    /// `$arg_NAME`: one argument of the query, name in lower case.
    Arg(Box<str>),
    /// `$args`, `$query_string`: the query as the client wrote it.
    Args,
    /// `$binary_remote_addr`: the client's address in 4 or 16 bytes.
    BinaryRemoteAddr,
    /// `$body_bytes_sent`
    BodyBytesSent,
    /// `$bytes_sent`
    BytesSent,
    /// `$connection`: the connection's serial number.
    Connection,
    /// `$connection_requests`: how many requests it has carried, this one included.
    ConnectionRequests,
    /// `$content_length`
    ContentLength,
    /// `$content_type`
    ContentType,
    /// `$cookie_NAME`
    Cookie(Box<str>),
    /// `$host`: from the target or the Host header, lower case, no port; else the server's name.
    Host,
    /// `$hostname`: this machine's.
    Hostname,
    /// `$http2`: `h2` over TLS, `h2c` without, nothing for HTTP/1.
    Http2,
    /// `$http_NAME`: a request header.
    Http(HeaderName),
    /// `$https`: `on` inside TLS.
    Https,
    /// `$is_args`: `?` if there is a query.
    IsArgs,
    /// What limits said of it.
    Limit(LimitVariable),
    /// `$NAME` of `maps`, by index.
    Map(usize),
    /// `$msec`: seconds since the epoch with milliseconds, when the line is written.
    Msec,
    /// `Host` as it is sent on by default: `$http_host`, or where a request has none `$proxy_host`. Has no name of its own.
    PassedHost,
    /// `$pid`
    Pid,
    /// `$proxy_add_x_forwarded_for`: the client's X-Forwarded-For with its address appended.
    ProxyAddXForwardedFor,
    /// `X-Forwarded-For` as it is sent on by default: `$proxy_add_x_forwarded_for` from a proxy that is believed, else
    /// `$remote_addr`. Has no name of its own.
    ForwardedFor,
    /// `$proxy_host`: name and port of the upstream as `proxy_pass` wrote them.
    ProxyHost,
    /// `$proxy_protocol_addr`: the client's address in the PROXY header.
    ProxyProtocolAddr,
    /// `$proxy_protocol_port`
    ProxyProtocolPort,
    /// `$proxy_protocol_server_addr`: the address the client connected to, in the PROXY header.
    ProxyProtocolServerAddr,
    /// `$proxy_protocol_server_port`
    ProxyProtocolServerPort,
    /// `$proxy_protocol_tlv_NAME`
    ProxyProtocolTlv(ProxyTlv),
    /// `$realip_remote_addr`: the connection's own other end, whoever the client is.
    RealipRemoteAddr,
    /// `$realip_remote_port`
    RealipRemotePort,
    /// `$remote_addr`
    RemoteAddr,
    /// `$remote_port`
    RemotePort,
    /// `$remote_user`: the name in a Basic Authorization header.
    RemoteUser,
    /// `$request`: the request line.
    Request,
    /// `$request_id`: 32 random hexadecimal digits.
    RequestId,
    /// `$request_length`: head and body as received.
    RequestLength,
    /// `$request_method`
    RequestMethod,
    /// `$request_time`: seconds with milliseconds since the head was read.
    RequestTime,
    /// `$request_uri`: the target as the client wrote it.
    RequestUri,
    /// `$scheme`
    Scheme,
    /// `$sent_http_NAME`: a response header.
    SentHttp(HeaderName),
    /// `$server_addr`
    ServerAddr,
    /// `$server_name`
    ServerName,
    /// `$server_port`
    ServerPort,
    /// `$server_protocol`
    ServerProtocol,
    /// `$ssl_…`: what is known of the TLS connection.
    Ssl(TlsVariable),
    /// `$status`
    Status,
    /// `$time_iso8601`
    TimeIso8601,
    /// `$time_local`
    TimeLocal,
    /// Where it stands in a trace.
    Trace(TraceVariable),
    /// `$upstream_addr`: every server tried, comma separated.
    UpstreamAddr,
    /// `$upstream_connect_time`
    UpstreamConnectTime,
    /// `$upstream_header_time`
    UpstreamHeaderTime,
    /// `$upstream_http_NAME`: a header field of the answer as the last upstream server gave it.
    UpstreamHttp(HeaderName),
    /// `$upstream_response_time`
    UpstreamResponseTime,
    /// `$upstream_status`
    UpstreamStatus,
    /// A header field of a proxy that is believed; nothing from anybody else. Has no name of its own.
    Trusted(HeaderName),
    /// What a proxy that is believed says in this field, else what we know ourselves.
    TrustedOr(HeaderName, Box<Self>),
    /// `$uri`, `$document_uri`: the path, decoded and normalised.
    Uri,
}

/// What limits said of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitVariable {
    /// `$limit_conn_status`, in nginx's words.
    ConnStatus,
    /// `$limit_req_status`, in nginx's words.
    ReqStatus,
    /// `$limit_verdict`: `pass`, `delay` or `refuse`, as in the metrics.
    Verdict,
    /// `$limit_zone`: the zone that delayed or refused it.
    Zone,
}

/// Where a request stands in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceVariable {
    /// `$trace_id`, `$otel_trace_id`
    Id,
    /// `$otel_parent_id`: the part of the trace that led here.
    Parent,
    /// `$otel_parent_sampled`: 1 or 0.
    ParentSampled,
    /// `$span_id`, `$otel_span_id`: our part of the trace.
    Span,
}

/// What is known of a TLS connection, behind `$ssl_`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVariable {
    /// `$ssl_alpn_protocol`: what was agreed to speak inside.
    AlpnProtocol,
    /// `$ssl_cipher`: by OpenSSL's name.
    Cipher,
    /// `$ssl_client_escaped_cert`: the client's certificate in PEM, percent-encoded.
    ClientEscapedCert,
    /// `$ssl_client_fingerprint`: the SHA-1 of the client's certificate.
    ClientFingerprint,
    /// `$ssl_client_i_dn`: who issued it.
    ClientIDn,
    /// `$ssl_client_s_dn`: whom it names.
    ClientSDn,
    /// `$ssl_client_serial`
    ClientSerial,
    /// `$ssl_client_verify`: `SUCCESS`, `NONE` or `FAILED:reason`.
    ClientVerify,
    /// `$ssl_curve`: the group of the key exchange.
    Curve,
    /// `$ssl_protocol`: `TLSv1.2` or `TLSv1.3`.
    Protocol,
    /// `$ssl_server_name`: the name the client asked for.
    ServerName,
    /// `$ssl_session_reused`: `r` for a session taken up again, else `.`.
    SessionReused,
}

/// A piece of a PROXY header of version 2, by its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyTlv {
    /// One of the header's own.
    Plain(u8),
    /// One inside that of TLS.
    Ssl(u8),
    /// What came of verifying the client's certificate: 0 is well.
    SslVerify,
}

impl Variable {
    /// Whether its value is something that only one client knows, or can use: not a name, which others may claim.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        match self {
            Self::Arg(_) | Self::Cookie(_) | Self::ProxyProtocolTlv(_) => true,
            Self::Http(name) => ![header::HOST, header::USER_AGENT].contains(name),
            // Names in a certificate are whatever its issuer writes; only the whole of it has a private key.
            Self::Ssl(what) => matches!(
                what,
                TlsVariable::ClientEscapedCert | TlsVariable::ClientFingerprint
            ),
            // Among them `$remote_user`: the password beside it is not checked.
            _ => false,
        }
    }
}

impl Template {
    /// A text without variables.
    #[must_use]
    pub fn literal(text: &str) -> Self {
        if text.is_empty() {
            return Self::default();
        }
        Self {
            parts: Box::new([Part::Text(text.into())]),
        }
    }

    /// One variable and nothing else.
    #[must_use]
    pub fn variable(variable: Variable) -> Self {
        Self {
            parts: Box::new([Part::Variable(variable)]),
        }
    }

    /// The text, if there is no variable in it.
    #[must_use]
    pub fn as_literal(&self) -> Option<&str> {
        match &*self.parts {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Whether one of its variables is like this, or a map, of which it is not known here what it is made from.
    #[must_use]
    pub fn may_use(&self, like: impl Fn(&Variable) -> bool) -> bool {
        self.parts.iter().any(|part| match part {
            Part::Text(_) => false,
            Part::Variable(variable) => matches!(variable, Variable::Map(_)) || like(variable),
        })
    }

    /// Its variables, in order.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Variable(variable) => Some(variable),
        })
    }

    /// The variable, if it is all there is.
    #[must_use]
    pub fn as_variable(&self) -> Option<&Variable> {
        match &*self.parts {
            [Part::Variable(variable)] => Some(variable),
            _ => None,
        }
    }
}

/// When a template is rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TemplatePhase {
    /// After the answer: everything is known.
    After,
    /// Before there is an answer.
    Before,
}

/// A piece of text as cut up, not yet understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TemplateToken<'a> {
    /// Stands for itself.
    Literal(&'a str),
    /// `${` with something in it that is not a name, or without an end.
    Malformed,
    /// A variable's name.
    Name(&'a str),
}

/// Cuts a text up, each piece with its place.
pub(super) fn pieces(text: &str) -> Vec<(TemplateToken<'_>, Range<usize>)> {
    let mut pieces = Vec::new();
    let mut rest = text;
    let mut at = 0;
    while !rest.is_empty() {
        let (piece, length) = piece(rest);
        pieces.push((piece, at..at + length));
        at += length;
        rest = rest.get(length..).unwrap_or_default();
    }
    pieces
}

fn piece(rest: &str) -> (TemplateToken<'_>, usize) {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let Some(behind) = rest.strip_prefix('$') else {
        let end = rest.find('$').unwrap_or(rest.len());
        return (TemplateToken::Literal(rest.split_at(end).0), end);
    };
    if let Some(inside) = behind.strip_prefix('{') {
        return match inside.split_once('}') {
            Some((name, _)) if !name.is_empty() && name.chars().all(is_name) => {
                (TemplateToken::Name(name), name.len() + 3)
            }
            Some((wrong, _)) => (TemplateToken::Malformed, wrong.len() + 3),
            None => (TemplateToken::Malformed, rest.len()),
        };
    }
    let end = behind.find(|c| !is_name(c)).unwrap_or(behind.len());
    match behind.split_at(end).0 {
        "" => (TemplateToken::Literal("$"), 1),
        name => (TemplateToken::Name(name), end + 1),
    }
}

/// The names of all variables in a text.
pub(super) fn template_names(text: &str) -> impl Iterator<Item = &str> {
    pieces(text)
        .into_iter()
        .filter_map(|(piece, _)| match piece {
            TemplateToken::Name(name) => Some(name),
            TemplateToken::Literal(_) | TemplateToken::Malformed => None,
        })
}

impl Compiler<'_> {
    /// A text as a template.
    pub(super) fn template(&mut self, text: &Spanned<Text>, when: TemplatePhase) -> Template {
        let mut parts: Vec<Part> = Vec::new();
        for (piece, range) in pieces(&text.value.text) {
            match piece {
                TemplateToken::Literal(literal) => match parts.last_mut() {
                    Some(Part::Text(before)) => *before = format!("{before}{literal}").into(),
                    _ => parts.push(Part::Text(literal.into())),
                },
                TemplateToken::Malformed => {
                    self.wrong_variable(
                        text,
                        range,
                        "`${` without a name and a `}`".to_owned(),
                        None,
                    );
                }
                TemplateToken::Name(name) => {
                    if let Some(variable) = self.variable(text, range, name, when) {
                        parts.push(Part::Variable(variable));
                    }
                }
            }
        }
        Template {
            parts: parts.into(),
        }
    }

    /// Whether a template needs something that is not known before the answer.
    pub(super) fn is_late(&self, template: &Template) -> bool {
        template.parts.iter().any(|part| match part {
            Part::Text(_) => false,
            Part::Variable(variable) => self.is_late_variable(variable),
        })
    }

    fn is_late_variable(&self, variable: &Variable) -> bool {
        match variable {
            Variable::Map(index) => self.late_maps.get(*index).copied().unwrap_or(false),
            other => is_late(other),
        }
    }

    fn variable(
        &mut self,
        text: &Spanned<Text>,
        range: Range<usize>,
        name: &str,
        when: TemplatePhase,
    ) -> Option<Variable> {
        let variable = match self.maps.find(name) {
            Resolved::At(index) => Some(Variable::Map(index)),
            Resolved::Broken => return None,
            Resolved::Nowhere => find(name),
        };
        let Some(variable) = variable else {
            let mut known: Vec<&str> = variable_names().collect();
            known.extend(self.maps.all());
            let hint = if name.bytes().all(|byte| byte.is_ascii_digit()) {
                Some("what an expression captures cannot be used here".to_owned())
            } else {
                report::near(name, known).map(|meant| format!("did you mean `${meant}`?"))
            };
            self.wrong_variable(text, range, format!("unknown variable `${name}`"), hint);
            return None;
        };
        if self.is_late_variable(&variable) && when == TemplatePhase::Before {
            let sentence = format!("`${name}` is not known before the answer is");
            self.wrong_variable(
                text,
                range,
                sentence,
                Some("here only what is known of the request can be used".to_owned()),
            );
        }
        Some(variable)
    }

    fn wrong_variable(
        &mut self,
        text: &Spanned<Text>,
        range: Range<usize>,
        sentence: String,
        hint: Option<String>,
    ) {
        let part = text.value.part(text.span, range);
        self.report.add(
            Diagnostic::new(part, sentence)
                .hint(hint)
                .part_of(text.span),
        );
    }
}

/// Variables with a fixed name.
const FIXED: &[(&str, Variable)] = &[
    ("args", Variable::Args),
    ("binary_remote_addr", Variable::BinaryRemoteAddr),
    ("body_bytes_sent", Variable::BodyBytesSent),
    ("bytes_sent", Variable::BytesSent),
    ("connection", Variable::Connection),
    ("connection_requests", Variable::ConnectionRequests),
    ("content_length", Variable::ContentLength),
    ("content_type", Variable::ContentType),
    ("document_uri", Variable::Uri),
    ("host", Variable::Host),
    ("hostname", Variable::Hostname),
    ("http2", Variable::Http2),
    ("https", Variable::Https),
    ("is_args", Variable::IsArgs),
    (
        "limit_conn_status",
        Variable::Limit(LimitVariable::ConnStatus),
    ),
    (
        "limit_req_status",
        Variable::Limit(LimitVariable::ReqStatus),
    ),
    ("limit_verdict", Variable::Limit(LimitVariable::Verdict)),
    ("limit_zone", Variable::Limit(LimitVariable::Zone)),
    ("msec", Variable::Msec),
    ("otel_parent_id", Variable::Trace(TraceVariable::Parent)),
    (
        "otel_parent_sampled",
        Variable::Trace(TraceVariable::ParentSampled),
    ),
    ("pid", Variable::Pid),
    ("proxy_add_x_forwarded_for", Variable::ProxyAddXForwardedFor),
    ("proxy_host", Variable::ProxyHost),
    ("proxy_protocol_addr", Variable::ProxyProtocolAddr),
    ("proxy_protocol_port", Variable::ProxyProtocolPort),
    (
        "proxy_protocol_server_addr",
        Variable::ProxyProtocolServerAddr,
    ),
    (
        "proxy_protocol_server_port",
        Variable::ProxyProtocolServerPort,
    ),
    ("query_string", Variable::Args),
    ("realip_remote_addr", Variable::RealipRemoteAddr),
    ("realip_remote_port", Variable::RealipRemotePort),
    ("remote_addr", Variable::RemoteAddr),
    ("remote_port", Variable::RemotePort),
    ("remote_user", Variable::RemoteUser),
    ("request", Variable::Request),
    ("request_id", Variable::RequestId),
    ("request_length", Variable::RequestLength),
    ("request_method", Variable::RequestMethod),
    ("request_time", Variable::RequestTime),
    ("request_uri", Variable::RequestUri),
    ("scheme", Variable::Scheme),
    ("server_addr", Variable::ServerAddr),
    ("server_name", Variable::ServerName),
    ("server_port", Variable::ServerPort),
    ("server_protocol", Variable::ServerProtocol),
    ("span_id", Variable::Trace(TraceVariable::Span)),
    ("otel_span_id", Variable::Trace(TraceVariable::Span)),
    (
        "ssl_alpn_protocol",
        Variable::Ssl(TlsVariable::AlpnProtocol),
    ),
    ("ssl_cipher", Variable::Ssl(TlsVariable::Cipher)),
    (
        "ssl_client_escaped_cert",
        Variable::Ssl(TlsVariable::ClientEscapedCert),
    ),
    (
        "ssl_client_fingerprint",
        Variable::Ssl(TlsVariable::ClientFingerprint),
    ),
    ("ssl_client_i_dn", Variable::Ssl(TlsVariable::ClientIDn)),
    ("ssl_client_s_dn", Variable::Ssl(TlsVariable::ClientSDn)),
    (
        "ssl_client_serial",
        Variable::Ssl(TlsVariable::ClientSerial),
    ),
    (
        "ssl_client_verify",
        Variable::Ssl(TlsVariable::ClientVerify),
    ),
    ("ssl_curve", Variable::Ssl(TlsVariable::Curve)),
    ("ssl_protocol", Variable::Ssl(TlsVariable::Protocol)),
    ("ssl_server_name", Variable::Ssl(TlsVariable::ServerName)),
    (
        "ssl_session_reused",
        Variable::Ssl(TlsVariable::SessionReused),
    ),
    ("status", Variable::Status),
    ("time_iso8601", Variable::TimeIso8601),
    ("time_local", Variable::TimeLocal),
    ("trace_id", Variable::Trace(TraceVariable::Id)),
    ("otel_trace_id", Variable::Trace(TraceVariable::Id)),
    ("upstream_addr", Variable::UpstreamAddr),
    ("upstream_connect_time", Variable::UpstreamConnectTime),
    ("upstream_header_time", Variable::UpstreamHeaderTime),
    ("upstream_response_time", Variable::UpstreamResponseTime),
    ("upstream_status", Variable::UpstreamStatus),
    ("uri", Variable::Uri),
];

/// All fixed names, for near misses.
pub(super) fn variable_names() -> impl Iterator<Item = &'static str> {
    FIXED.iter().map(|(name, _)| *name)
}

/// weir's own variable of this name.
pub(super) fn find(name: &str) -> Option<Variable> {
    if let Some((_, variable)) = FIXED.iter().find(|(known, _)| *known == name) {
        return Some(variable.clone());
    }
    if let Some(header) = name.strip_prefix("http_") {
        return header_name(header).map(Variable::Http);
    }
    if let Some(header) = name.strip_prefix("sent_http_") {
        return header_name(header).map(Variable::SentHttp);
    }
    if let Some(header) = name.strip_prefix("upstream_http_") {
        return header_name(header).map(Variable::UpstreamHttp);
    }
    if let Some(argument) = name.strip_prefix("arg_") {
        return (!argument.is_empty()).then(|| Variable::Arg(argument.to_ascii_lowercase().into()));
    }
    if let Some(tlv) = name.strip_prefix("proxy_protocol_tlv_") {
        return tlv_type(tlv).map(Variable::ProxyProtocolTlv);
    }
    let cookie = name.strip_prefix("cookie_")?;
    (!cookie.is_empty()).then(|| Variable::Cookie(cookie.into()))
}

/// What users call a variable, without the dollar sign; of several names the first. Maps have names of their own.
pub(super) fn name(variable: &Variable) -> String {
    if let Some((name, _)) = FIXED.iter().find(|(_, known)| known == variable) {
        return (*name).to_owned();
    }
    let underscored = |name: &HeaderName| name.as_str().replace('-', "_");
    match variable {
        Variable::Arg(name) => format!("arg_{name}"),
        Variable::Cookie(name) => format!("cookie_{name}"),
        Variable::Http(name) => format!("http_{}", underscored(name)),
        Variable::ProxyProtocolTlv(ProxyTlv::Plain(kind)) => {
            format!("proxy_protocol_tlv_0x{kind:02x}")
        }
        Variable::ProxyProtocolTlv(ProxyTlv::Ssl(kind)) => {
            format!("proxy_protocol_tlv_ssl_0x{kind:02x}")
        }
        Variable::ProxyProtocolTlv(ProxyTlv::SslVerify) => {
            "proxy_protocol_tlv_ssl_verify".to_owned()
        }
        Variable::SentHttp(name) => format!("sent_http_{}", underscored(name)),
        Variable::UpstreamHttp(name) => format!("upstream_http_{}", underscored(name)),
        // The rest has no name that a user could write.
        _ => String::new(),
    }
}

fn header_name(name: &str) -> Option<HeaderName> {
    HeaderName::try_from(name.replace('_', "-")).ok()
}

/// nginx's names for the pieces of a PROXY header; `0xNN` for those without one.
fn tlv_type(name: &str) -> Option<ProxyTlv> {
    let number = |name: &str| u8::from_str_radix(name.strip_prefix("0x")?, 16).ok();
    let Some(inside) = name.strip_prefix("ssl_") else {
        return Some(ProxyTlv::Plain(match name {
            "alpn" => 0x01,
            "authority" => 0x02,
            "unique_id" => 0x05,
            "ssl" => 0x20,
            "netns" => 0x30,
            name => number(name)?,
        }));
    };
    Some(ProxyTlv::Ssl(match inside {
        "verify" => return Some(ProxyTlv::SslVerify),
        "version" => 0x21,
        "cn" => 0x22,
        "cipher" => 0x23,
        "sig_alg" => 0x24,
        "key_alg" => 0x25,
        name => number(name)?,
    }))
}

/// Whether it is not known before the answer is.
pub(super) fn is_late(variable: &Variable) -> bool {
    matches!(
        variable,
        Variable::BodyBytesSent
            | Variable::BytesSent
            | Variable::Limit(_)
            | Variable::RequestTime
            | Variable::SentHttp(_)
            | Variable::Status
            | Variable::UpstreamAddr
            | Variable::UpstreamConnectTime
            | Variable::UpstreamHeaderTime
            | Variable::UpstreamHttp(_)
            | Variable::UpstreamResponseTime
            | Variable::UpstreamStatus
    )
}

#[cfg(test)]
mod templates_tests {

    use super::*;

    fn cut(text: &str) -> Vec<TemplateToken<'_>> {
        pieces(text).into_iter().map(|(piece, _)| piece).collect()
    }

    #[test]
    fn names_end_where_they_end_in_nginx() {
        assert_eq!(
            cut("$host:$uri"),
            [
                TemplateToken::Name("host"),
                TemplateToken::Literal(":"),
                TemplateToken::Name("uri")
            ]
        );
        assert_eq!(
            cut("${host}x"),
            [TemplateToken::Name("host"), TemplateToken::Literal("x")]
        );
        assert_eq!(
            cut("$server_name$uri"),
            [
                TemplateToken::Name("server_name"),
                TemplateToken::Name("uri")
            ]
        );
    }

    #[test]
    fn a_dollar_without_a_name_is_a_dollar() {
        assert_eq!(
            cut("a$ b$"),
            [
                TemplateToken::Literal("a"),
                TemplateToken::Literal("$"),
                TemplateToken::Literal(" b"),
                TemplateToken::Literal("$")
            ]
        );
    }

    #[test]
    fn braces_have_to_be_closed_around_a_name() {
        assert_eq!(cut("${host"), [TemplateToken::Malformed]);
        assert_eq!(
            cut("${}x"),
            [TemplateToken::Malformed, TemplateToken::Literal("x")]
        );
        assert_eq!(cut("${a b}"), [TemplateToken::Malformed]);
    }
}

#[cfg(test)]
mod variables_tests {

    use super::*;

    #[test]
    fn a_name_leads_to_its_variable_and_back() {
        let families = [
            "http_x_api_key",
            "arg_page",
            "cookie_Sid",
            "sent_http_etag",
            "proxy_protocol_tlv_0xea",
        ];
        for known in variable_names().chain(families) {
            let variable = find(known).unwrap();
            assert_eq!(find(&name(&variable)), Some(variable), "{known}");
        }
    }

    #[test]
    fn families_of_variables_carry_their_name() {
        assert_eq!(
            find("http_x_api_key"),
            Some(Variable::Http(HeaderName::from_static("x-api-key")))
        );
        assert_eq!(find("arg_Page"), Some(Variable::Arg("page".into())));
        assert_eq!(find("cookie_Sid"), Some(Variable::Cookie("Sid".into())));
        assert_eq!(find("http_"), None);
        assert_eq!(find("arg_"), None);
        assert_eq!(find("nothing"), None);
        let tlv = |name: &str| match find(&format!("proxy_protocol_tlv_{name}")) {
            Some(Variable::ProxyProtocolTlv(tlv)) => Some(tlv),
            _ => None,
        };
        assert_eq!(tlv("authority"), Some(ProxyTlv::Plain(2)));
        assert_eq!(tlv("0xEa"), Some(ProxyTlv::Plain(0xea)));
        assert_eq!(tlv("ssl_cn"), Some(ProxyTlv::Ssl(0x22)));
        assert_eq!(tlv("ssl_verify"), Some(ProxyTlv::SslVerify));
        assert_eq!(tlv("ssl_0x26"), Some(ProxyTlv::Ssl(0x26)));
        for wrong in ["", "0x", "0x100", "cn", "ssl_", "ssl_alpn"] {
            assert_eq!(tlv(wrong), None, "{wrong}");
        }
    }
}
