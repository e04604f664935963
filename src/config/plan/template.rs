//! A text with variables, parsed once when the configuration is read and rendered for every request.

use http::{HeaderName, header};

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
