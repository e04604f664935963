//! The names of variables.

use http::HeaderName;

use crate::config::plan::Variable;

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
    ("is_args", Variable::IsArgs),
    ("limit_conn_status", Variable::LimitConnStatus),
    ("limit_req_status", Variable::LimitReqStatus),
    ("msec", Variable::Msec),
    ("pid", Variable::Pid),
    ("proxy_add_x_forwarded_for", Variable::ProxyAddXForwardedFor),
    ("proxy_host", Variable::ProxyHost),
    ("query_string", Variable::Args),
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
    ("status", Variable::Status),
    ("time_iso8601", Variable::TimeIso8601),
    ("time_local", Variable::TimeLocal),
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
    if let Some(argument) = name.strip_prefix("arg_") {
        return (!argument.is_empty()).then(|| Variable::Arg(argument.to_ascii_lowercase().into()));
    }
    let cookie = name.strip_prefix("cookie_")?;
    (!cookie.is_empty()).then(|| Variable::Cookie(cookie.into()))
}

fn header_name(name: &str) -> Option<HeaderName> {
    HeaderName::try_from(name.replace('_', "-")).ok()
}

/// Whether it is not known before the answer is.
pub(super) fn is_late(variable: &Variable) -> bool {
    matches!(
        variable,
        Variable::BodyBytesSent
            | Variable::BytesSent
            | Variable::LimitConnStatus
            | Variable::LimitReqStatus
            | Variable::RequestTime
            | Variable::SentHttp(_)
            | Variable::Status
            | Variable::UpstreamAddr
            | Variable::UpstreamConnectTime
            | Variable::UpstreamHeaderTime
            | Variable::UpstreamResponseTime
            | Variable::UpstreamStatus
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
