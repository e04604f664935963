//! A plan and a request made by hand, for tests that need a whole [`RequestRecord`].

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};

use super::client_addr::RemoteAddr;
use super::connection::ClientConnection;
use super::record::RequestRecord;
use super::target::Target;
use crate::clock::Millis;
use crate::config::plan::{
    AccessRules, BufferBounds, Buffering, ClientSettings, ConnectionLimits, Content, HttpVersion,
    LimitHeaders, LimitRate, LimitSettings, LocationConf, Log, MaxTries, NextUpstream, Plan,
    ProxyPass, ProxyProtocolVersion, ProxySettings, ResponseBuffering, Server, ServerName,
};

/// A plan of one server, `example.com`, that has no locations.
pub(crate) fn plan() -> Plan {
    Plan {
        workers: 1,
        degrade_groups: Vec::new(),
        stale_size: 1 << 20,
        buffers: BufferBounds::default(),
        temp_paths: Vec::new(),
        shutdown_timeout: Duration::from_secs(30),
        log: Log {
            error: None,
            level: tracing::Level::INFO,
            access: None,
        },
        admin: None,
        tracing: None,
        caps: ConnectionLimits::default(),
        maps: Vec::new(),
        stores: Vec::new(),
        req_zones: Vec::new(),
        conn_zones: Vec::new(),
        upstreams: Vec::new(),
        upstream_tls: Vec::new(),
        listeners: Vec::new(),
        servers: vec![server("example.com")],
        source: Box::default(),
    }
}

/// A server with one name and no locations.
pub(crate) fn server(name: &str) -> Server {
    Server {
        name: name.into(),
        names: vec![ServerName::Exact(name.into())],
        client: ClientSettings::default(),
        header_timeout: Duration::from_secs(60),
        tls: None,
        real_ip: None,
        max_head: 32 * 1024,
        http2: true,
        max_streams: 128,
        max_resets: 256,
        locations: Vec::new(),
        fallback: conf(Content::NotFound),
    }
}

/// A site without limits.
pub(crate) fn conf(action: Content) -> LocationConf {
    LocationConf {
        breaker: None,
        fallback: None,
        degrade_group: None,
        limit_req: Vec::new(),
        shadow: Vec::new(),
        limit_conn: Vec::new(),
        limits: LimitSettings::default(),
        limit_headers: LimitHeaders::default(),
        access: AccessRules::default(),
        real_ip: None,
        client: ClientSettings {
            client_max_body_size: 0,
            ..ClientSettings::default()
        },
        bandwidth: LimitRate::default(),
        action,
    }
}

/// A `proxy_pass` to the first upstream that sets no header and adds no Via.
pub(crate) fn proxy_pass() -> ProxyPass {
    ProxyPass {
        upstream: 0,
        tls: None,
        host: "app".into(),
        uri: None,
        replaces: 0,
        set_headers: Vec::new(),
        redirects: Box::default(),
        settings: ProxySettings {
            via: false,
            ..ProxySettings::default()
        },
        version: HttpVersion::One,
        proxy_protocol: ProxyProtocolVersion::Off,
        next_upstream: NextUpstream {
            error: true,
            timeout: true,
            invalid_header: false,
            non_idempotent: false,
            statuses: Vec::new(),
            tries: MaxTries::Each,
            within: None,
        },
        buffering: Buffering {
            request: None,
            response: ResponseBuffering {
                on: false,
                memory: 32 << 10,
                disk: 0,
                path: Path::new("/var/tmp").into(),
            },
        },
    }
}

/// A client at 192.0.2.7, port 50000.
pub(crate) fn connection() -> ClientConnection {
    let remote = SocketAddr::from(([192, 0, 2, 7], 50_000));
    let local = SocketAddr::from(([127, 0, 0, 1], 8080));
    ClientConnection::new(RemoteAddr::Ip(remote), Some(local), 17, Millis(0))
}

/// A request for `/` with these fields; a Host field is added where there is none.
pub(crate) fn record(fields: &[(&str, &str)]) -> RequestRecord {
    request("GET", "/", fields)
}

/// Any request, in a [`plan`] of its own, begun at 1000 ms.
pub(crate) fn request(method: &str, uri: &str, fields: &[(&str, &str)]) -> RequestRecord {
    request_in(plan(), connection(), method, uri, fields)
}

/// Any request from any client in any plan.
pub(crate) fn request_in(
    plan: Plan,
    connection: ClientConnection,
    method: &str,
    uri: &str,
    fields: &[(&str, &str)],
) -> RequestRecord {
    let mut request = Request::builder().method(method).uri(uri);
    if !fields
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("host"))
    {
        let target: Uri = uri.parse().unwrap();
        let host = target.authority().map_or("example.com", |own| own.as_str());
        request = request.header("host", host);
    }
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let (head, ()) = request
        .body(())
        .expect("a test's request is well-formed")
        .into_parts();
    let target = Target::parse(&head).expect("a test's target is well-formed");
    RequestRecord::begin(
        Arc::new(plan),
        0,
        Arc::new(connection),
        head,
        target,
        Millis(1000),
    )
}

/// These fields.
pub(crate) fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    let field = |(name, value): &(&'static str, &'static str)| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        )
    };
    fields.iter().map(field).collect()
}
