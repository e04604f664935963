//! The names of variables.

use http::HeaderName;

use crate::config::plan::{LimitVariable, ProxyTlv, TlsVariable, TraceVariable, Variable};

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
pub(super) fn names() -> impl Iterator<Item = &'static str> {
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
pub(in crate::config) fn name(variable: &Variable) -> String {
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
mod tests {
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
        for known in names().chain(families) {
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
