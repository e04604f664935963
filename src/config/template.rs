//! Templates: texts with variables, parsed when the configuration is read and rendered for every request.
//!
//! `$name` and `${name}` as in nginx; a `$` that no name follows is a dollar sign. `${NAME}` in upper case is the
//! environment's and filled in before (see `config::source`).

use std::ops::Range;

use http::{HeaderName, HeaderValue, header};

use super::compile::{Compiler, Resolved};
use super::decode::Spanned;
use super::decode::value::Text;
use super::report::{self, Diagnostic, ParseError};

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

/// Declares variables, each with the names that users write without the dollar sign, if it has any of its own.
macro_rules! variables {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $(
                $(#[$variant_meta:meta])*
                $variant:ident $( ( $($field:ty),+ ) )? $( = $first:literal $(| $alias:literal)* )?,
            )+
        }
    ) => {
        $(#[$meta])*
        $vis enum $name {
            $( $(#[$variant_meta])* $variant $( ( $($field),+ ) )?, )+
        }

        impl $name {
            const NAMES: &'static [(&'static str, Self)] = &[
                $( $( ($first, Self::$variant), $( ($alias, Self::$variant), )* )? )+
            ];
        }
    };
}

variables! {
    /// A variable, named as nginx names it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Variable {
        /// `$arg_NAME`: one argument of the query, name in lower case.
        Arg(Box<str>),
        /// `$args`, `$query_string`: the query as the client wrote it.
        Args = "args" | "query_string",
        /// `$binary_remote_addr`: the client's address in 4 or 16 bytes.
        BinaryRemoteAddr = "binary_remote_addr",
        /// `$body_bytes_sent`
        BodyBytesSent = "body_bytes_sent",
        /// `$bytes_sent`
        BytesSent = "bytes_sent",
        /// `$connection`: the connection's serial number.
        Connection = "connection",
        /// `$connection_requests`: how many requests it has carried, this one included.
        ConnectionRequests = "connection_requests",
        /// `$content_length`
        ContentLength = "content_length",
        /// `$content_type`
        ContentType = "content_type",
        /// `$cookie_NAME`
        Cookie(Box<str>),
        /// `$host`: from the target or the Host header, lower case, no port; else the server's name.
        Host = "host",
        /// `$hostname`: this machine's.
        Hostname = "hostname",
        /// `$http2`: `h2` over TLS, `h2c` without, nothing for HTTP/1.
        Http2 = "http2",
        /// `$http_NAME`: a request header.
        Http(HeaderName),
        /// `$https`: `on` inside TLS.
        Https = "https",
        /// `$is_args`: `?` if there is a query.
        IsArgs = "is_args",
        /// What limits did to it.
        Limit(LimitVariable),
        /// `$NAME` of `maps`, by index.
        Map(usize),
        /// `$msec`: seconds since the epoch with milliseconds, when the line is written.
        Msec = "msec",
        /// `Host` as it is sent on by default: `$http_host`, or where a request has none `$proxy_host`. Has no name of its own.
        PassedHost,
        /// `$pid`
        Pid = "pid",
        /// `$proxy_add_x_forwarded_for`: the client's X-Forwarded-For with its address appended.
        ProxyAddXForwardedFor = "proxy_add_x_forwarded_for",
        /// `X-Forwarded-For` as it is sent on by default: `$proxy_add_x_forwarded_for` from a trusted proxy, else
        /// `$remote_addr`. Has no name of its own.
        ForwardedFor,
        /// `$proxy_host`: name and port of the upstream as `proxy_pass` wrote them.
        ProxyHost = "proxy_host",
        /// `$proxy_protocol_addr`: the client's address in the PROXY header.
        ProxyProtocolAddr = "proxy_protocol_addr",
        /// `$proxy_protocol_port`
        ProxyProtocolPort = "proxy_protocol_port",
        /// `$proxy_protocol_server_addr`: the address the client connected to, in the PROXY header.
        ProxyProtocolServerAddr = "proxy_protocol_server_addr",
        /// `$proxy_protocol_server_port`
        ProxyProtocolServerPort = "proxy_protocol_server_port",
        /// `$proxy_protocol_tlv_NAME`
        ProxyProtocolTlv(ProxyTlv),
        /// `$realip_remote_addr`: the address of the connection's other end.
        RealipRemoteAddr = "realip_remote_addr",
        /// `$realip_remote_port`
        RealipRemotePort = "realip_remote_port",
        /// `$remote_addr`
        RemoteAddr = "remote_addr",
        /// `$remote_port`
        RemotePort = "remote_port",
        /// `$remote_user`: the name in a Basic Authorization header.
        RemoteUser = "remote_user",
        /// `$request`: the request line.
        Request = "request",
        /// `$request_id`: 32 random hexadecimal digits.
        RequestId = "request_id",
        /// `$request_length`: head and body as received.
        RequestLength = "request_length",
        /// `$request_method`
        RequestMethod = "request_method",
        /// `$request_time`: seconds with milliseconds since the head was read.
        RequestTime = "request_time",
        /// `$request_uri`: the target as the client wrote it.
        RequestUri = "request_uri",
        /// `$scheme`
        Scheme = "scheme",
        /// `$sent_http_NAME`: a response header.
        SentHttp(HeaderName),
        /// `$server_addr`
        ServerAddr = "server_addr",
        /// `$server_name`
        ServerName = "server_name",
        /// `$server_port`
        ServerPort = "server_port",
        /// `$server_protocol`
        ServerProtocol = "server_protocol",
        /// `$ssl_…`: what is known of the TLS connection.
        Ssl(TlsVariable),
        /// `$status`
        Status = "status",
        /// `$time_iso8601`
        TimeIso8601 = "time_iso8601",
        /// `$time_local`
        TimeLocal = "time_local",
        /// Where it stands in a trace.
        Trace(TraceVariable),
        /// `$upstream_addr`: every server tried, comma separated.
        UpstreamAddr = "upstream_addr",
        /// `$upstream_connect_time`
        UpstreamConnectTime = "upstream_connect_time",
        /// `$upstream_header_time`
        UpstreamHeaderTime = "upstream_header_time",
        /// `$upstream_http_NAME`: a header field of the last upstream response.
        UpstreamHttp(HeaderName),
        /// `$upstream_response_time`
        UpstreamResponseTime = "upstream_response_time",
        /// `$upstream_status`
        UpstreamStatus = "upstream_status",
        /// A header field of a trusted proxy; empty from others. Has no name of its own.
        Trusted(HeaderName),
        /// The field of a trusted proxy, else the variable.
        TrustedOr(HeaderName, Box<Self>),
        /// `$uri`, `$document_uri`: the path, decoded and normalised.
        Uri = "document_uri" | "uri",
    }
}

variables! {
    /// What limits did to a request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LimitVariable {
        /// `$limit_conn_status`, in nginx's words.
        ConnStatus = "limit_conn_status",
        /// `$limit_req_status`, in nginx's words.
        ReqStatus = "limit_req_status",
        /// `$limit_verdict`: `pass`, `delay` or `refuse`, as in the metrics.
        Verdict = "limit_verdict",
        /// `$limit_zone`: the zone that delayed or refused it.
        Zone = "limit_zone",
    }
}

variables! {
    /// Where a request stands in a trace.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum TraceVariable {
        /// `$trace_id`, `$otel_trace_id`
        Id = "trace_id" | "otel_trace_id",
        /// `$otel_parent_id`: the part of the trace that led here.
        Parent = "otel_parent_id",
        /// `$otel_parent_sampled`: 1 or 0.
        ParentSampled = "otel_parent_sampled",
        /// `$span_id`, `$otel_span_id`: our part of the trace.
        Span = "span_id" | "otel_span_id",
    }
}

variables! {
    /// What is known of a TLS connection, behind `$ssl_`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum TlsVariable {
        /// `$ssl_alpn_protocol`: what was agreed to speak inside.
        AlpnProtocol = "ssl_alpn_protocol",
        /// `$ssl_cipher`: by OpenSSL's name.
        Cipher = "ssl_cipher",
        /// `$ssl_client_escaped_cert`: the client's certificate in PEM, percent-encoded.
        ClientEscapedCert = "ssl_client_escaped_cert",
        /// `$ssl_client_fingerprint`: the SHA-1 of the client's certificate.
        ClientFingerprint = "ssl_client_fingerprint",
        /// `$ssl_client_i_dn`: its issuer.
        ClientIDn = "ssl_client_i_dn",
        /// `$ssl_client_s_dn`: its subject.
        ClientSDn = "ssl_client_s_dn",
        /// `$ssl_client_serial`
        ClientSerial = "ssl_client_serial",
        /// `$ssl_client_verify`: `SUCCESS`, `NONE` or `FAILED:reason`.
        ClientVerify = "ssl_client_verify",
        /// `$ssl_curve`: the group of the key exchange.
        Curve = "ssl_curve",
        /// `$ssl_protocol`: `TLSv1.2` or `TLSv1.3`.
        Protocol = "ssl_protocol",
        /// `$ssl_server_name`: the name the client asked for.
        ServerName = "ssl_server_name",
        /// `$ssl_session_reused`: `r` for a session taken up again, else `.`.
        SessionReused = "ssl_session_reused",
    }
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

    /// Whether it is not known before the response.
    pub(super) fn is_late(&self) -> bool {
        matches!(
            self,
            Self::BodyBytesSent
                | Self::BytesSent
                | Self::Limit(_)
                | Self::RequestTime
                | Self::SentHttp(_)
                | Self::Status
                | Self::UpstreamAddr
                | Self::UpstreamConnectTime
                | Self::UpstreamHeaderTime
                | Self::UpstreamHttp(_)
                | Self::UpstreamResponseTime
                | Self::UpstreamStatus
        )
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
    /// After the response: everything is known.
    After,
    /// Before the response.
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
pub(super) fn tokens(text: &str) -> Vec<(TemplateToken<'_>, Range<usize>)> {
    let mut tokens = Vec::new();
    let mut rest = text;
    let mut at = 0;
    while !rest.is_empty() {
        let (token, length) = token(rest);
        tokens.push((token, at..at + length));
        at += length;
        rest = rest.get(length..).unwrap_or_default();
    }
    tokens
}

fn token(rest: &str) -> (TemplateToken<'_>, usize) {
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
    tokens(text)
        .into_iter()
        .filter_map(|(token, _)| match token {
            TemplateToken::Name(name) => Some(name),
            TemplateToken::Literal(_) | TemplateToken::Malformed => None,
        })
}

impl Template {
    /// Reads a text.
    pub(super) fn compile(
        text: &Spanned<Text>,
        phase: TemplatePhase,
        compiler: &mut Compiler<'_>,
    ) -> Self {
        let mut parts: Vec<Part> = Vec::new();
        for (token, range) in tokens(&text.value.text) {
            let read = match token {
                TemplateToken::Literal(literal) => {
                    match parts.last_mut() {
                        Some(Part::Text(before)) => *before = format!("{before}{literal}").into(),
                        _ => parts.push(Part::Text(literal.into())),
                    }
                    continue;
                }
                TemplateToken::Malformed => Err(ParseError::new("`${` without a name and a `}`")),
                TemplateToken::Name(name) => resolve(name, phase, compiler),
            };
            match read {
                Ok(variable) => parts.extend(variable.map(Part::Variable)),
                Err(error) => {
                    let part = text.value.part(text.span, range);
                    let diagnostic = Diagnostic::parse(part, error).part_of(text.span);
                    compiler.report.add(diagnostic);
                }
            }
        }
        Self {
            parts: parts.into(),
        }
    }

    /// Reads the value of a header.
    pub(super) fn compile_header(text: &Spanned<Text>, compiler: &mut Compiler<'_>) -> Self {
        let template = Self::compile(text, TemplatePhase::Before, compiler);
        let is_valid = |part: &Part| match part {
            Part::Text(text) => HeaderValue::from_str(text).is_ok(),
            Part::Variable(_) => true,
        };
        if !template.parts.iter().all(is_valid) {
            let sentence = "a header cannot contain line breaks or control characters";
            compiler.report.error(text.span, sentence);
        }
        template
    }
}

/// Whether a variable needs something that is not known before the response.
pub(super) fn is_late(variable: &Variable, compiler: &Compiler<'_>) -> bool {
    match variable {
        Variable::Map(index) => compiler.late_maps.get(*index) == Some(&true),
        other => other.is_late(),
    }
}

/// The variable of this name; `None` for a map that is reported already.
fn resolve(
    name: &str,
    phase: TemplatePhase,
    compiler: &Compiler<'_>,
) -> Result<Option<Variable>, ParseError> {
    let variable = match compiler.maps.find(name) {
        Resolved::At(index) => Some(Variable::Map(index)),
        Resolved::Broken => return Ok(None),
        Resolved::Nowhere => find(name),
    };
    let Some(variable) = variable else {
        let error = ParseError::new(format!("unknown variable `${name}`"));
        if name.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(error.help("capture groups of an expression cannot be used here"));
        }
        let mut known: Vec<&str> = variable_names().collect();
        known.extend(compiler.maps.all());
        return Err(match report::near(name, known) {
            Some(meant) => error.help(format!("did you mean `${meant}`?")),
            None => error,
        });
    };
    if phase == TemplatePhase::Before && is_late(&variable, compiler) {
        let sentence = format!("`${name}` is not known before the response");
        let hint = "only variables of the request can be used here";
        return Err(ParseError::new(sentence).help(hint));
    }
    Ok(Some(variable))
}

/// Variables with a fixed name.
fn fixed() -> impl Iterator<Item = (&'static str, Variable)> {
    let limits = LimitVariable::NAMES.iter();
    let traces = TraceVariable::NAMES.iter();
    let tls = TlsVariable::NAMES.iter();
    (Variable::NAMES.iter().cloned())
        .chain(limits.map(|(name, variable)| (*name, Variable::Limit(*variable))))
        .chain(traces.map(|(name, variable)| (*name, Variable::Trace(*variable))))
        .chain(tls.map(|(name, variable)| (*name, Variable::Ssl(*variable))))
}

/// All fixed names, for near misses.
pub(super) fn variable_names() -> impl Iterator<Item = &'static str> {
    fixed().map(|(name, _)| name)
}

/// weir's own variable of this name.
pub(super) fn find(name: &str) -> Option<Variable> {
    if let Some((_, variable)) = fixed().find(|(known, _)| *known == name) {
        return Some(variable);
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
    if let Some((name, _)) = fixed().find(|(_, known)| known == variable) {
        return name.to_owned();
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

#[cfg(test)]
mod templates_tests {

    use super::*;

    fn cut(text: &str) -> Vec<TemplateToken<'_>> {
        tokens(text).into_iter().map(|(token, _)| token).collect()
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
