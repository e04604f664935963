//! What may stand at the top level, in a server and in a location, written once for all three.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::access::AccessWord;
use super::bandwidth::SizeText;
use super::buffering::Buffering;
use super::client::{ProxyProtocol, RealIp};
use super::credential::HeaderText;
use super::fallback::Fallback;
use super::health::Breaker;
use super::limits::{ConnRule, LimitHeaders, ReqRule};
use super::redirect::ProxyRedirect;
use super::tls::ProxySsl;
use super::values::{
    Flag, HeaderCount, HttpVersion, LogLevel, RefusalStatus, RequestCount, Size, Streams, Time,
    Tries,
};
use crate::config::decode::{
    Decode, DecodeContext, Field, List, NamedMap, OrOff, Required, Spanned, Text, record,
    scalar_from,
};
use crate::config::near;
use crate::config::report::Diagnostic;
use crate::config::tree::{Node, NodeKind};
use crate::config::units::{self, ParseError};

record! {
    /// Settings of the top level, of a server and of a location; the inner one holds.
    pub struct Settings {
        /// Rates to keep to, all of them. An inner list takes the place of an outer one; `off` for none.
        limit_req: Field<OrOff<List<ReqRule>>>,
        /// Rates that are proposed: asked and counted beside `limit_req`, and not enforced. An inner list takes the place of an outer one; `off` for none.
        shadow: Field<OrOff<List<ReqRule>>>,
        /// Numbers of requests at once to keep to, all of them. An inner list takes the place of an outer one; `off` for none.
        limit_conn: Field<OrOff<List<ConnRule>>>,
        /// The status of a request that `limit_req` refuses, 400 to 599. Default: 429 (nginx: 503).
        limit_req_status: Field<RefusalStatus>,
        /// The status of a request that `limit_conn` refuses, 400 to 599. Default: 503.
        limit_conn_status: Field<RefusalStatus>,
        /// Only report what `limit_req` would do. Default: false.
        limit_req_dry_run: Field<Flag>,
        /// Only report what `limit_conn` would do. Default: false.
        limit_conn_dry_run: Field<Flag>,
        /// At which level a refusal by `limit_req` is logged; a delay goes one lower. Default: error.
        limit_req_log_level: Field<LogLevel>,
        /// At which level a refusal by `limit_conn` is logged. Default: error.
        limit_conn_log_level: Field<LogLevel>,
        /// Which header fields tell clients of their limits besides Retry-After: `ietf` for RateLimit and RateLimit-Policy, `legacy` for X-RateLimit-*, or `off`; a mapping also says on which responses. Default: ietf, on refusals.
        limit_headers: Field<LimitHeaders>,
        /// Who may come in: addresses, networks, `all` or `unix:`. Where it is given, everybody else may not.
        allow: Field<List<AccessWord>>,
        /// Who may not come in. Of `allow` and `deny` the longest prefix holds.
        deny: Field<List<AccessWord>>,
        /// Whose word is taken for the client's address. Each of its keys is inherited by itself.
        real_ip: Field<RealIp>,
        /// The largest request body; 0 for no limit. Default: 1m.
        client_max_body_size: Field<Size>,
        /// How long a client may take between two pieces of its body. Default: 60s.
        client_body_timeout: Field<Time>,
        /// How many bytes a second a client's body has to come with, on average over client_body_timeout; 0 for any speed. Default: 100.
        client_body_min_rate: Field<Size>,
        /// How long a connection may idle between requests; 0 closes it after each. Default: 75s.
        keepalive_timeout: Field<Time>,
        /// How many requests a connection carries. Default: 1000.
        keepalive_requests: Field<RequestCount>,
        /// How long a client may take between two pieces of the answer. Default: 60s.
        send_timeout: Field<Time>,
        /// How many bytes a second of the answer a client has to take, on average over send_timeout; 0 for any speed. Default: 100.
        send_min_rate: Field<Size>,
        /// How fast an answer leaves, in bytes a second: a size as 100k, or a text of variables that gives one; 0 or nothing for any speed. Default: 0.
        limit_rate: Field<SizeText>,
        /// How much of an answer leaves before limit_rate holds: a size, or a text of variables that gives one. Default: 0.
        limit_rate_after: Field<SizeText>,
        /// How long to wait for more of what a client sends after its answer, before closing. Default: 5s.
        lingering_timeout: Field<Time>,
        /// Headers to send on, in place of the client's; an empty value removes one. An inner mapping takes the place of an outer one.
        proxy_set_header: Field<NamedMap<HeaderText>>,
        /// What is changed about `Location` and `Refresh` of responses: `default` to put the location's path in place of the URL of `proxy_pass`, pairs of what they begin with and what takes its place, or `off`. An inner list takes the place of an outer one. Default: default.
        proxy_redirect: Field<ProxyRedirect>,
        /// What upstreams are spoken to in: `1.1`, or `2` with many requests on one connection. Default: 1.1, and 2 with `grpc_pass`.
        proxy_http_version: Field<HttpVersion>,
        /// Whether upstreams are told the client's address by a PROXY header: on or v1, v2, or off. Each request then has a connection of its own. Default: off.
        proxy_protocol: Field<ProxyProtocol>,
        /// How long connecting to an upstream may take. Default: 60s.
        proxy_connect_timeout: Field<Time>,
        /// How long an upstream may take between two pieces of the request. Default: 60s.
        proxy_send_timeout: Field<Time>,
        /// How long an upstream may take between two pieces of its answer. Default: 60s.
        proxy_read_timeout: Field<Time>,
        /// How many header fields an upstream's response may have; all together 64k. Default: 1000.
        proxy_max_headers: Field<HeaderCount>,
        /// When the next server is tried: error, timeout, invalid_header, non_idempotent, http_500, http_502, http_503, http_504, http_403, http_404, http_429, or off. Default: error timeout.
        proxy_next_upstream: Field<NextUpstream>,
        /// How many servers are tried at most; 0 for each once. Default: 0.
        proxy_next_upstream_tries: Field<Tries>,
        /// For how long another server may be tried; 0 for no limit. Default: 0.
        proxy_next_upstream_timeout: Field<Time>,
        /// Answers 503 at once for a while where the location's requests fail too often; `{}` for one with all defaults. Default: off.
        breaker: Field<OrOff<Breaker>>,
        /// What is answered when the answer proper is not to be had. Default: off.
        fallback: Field<OrOff<Fallback>>,
        /// One of `degrade_groups`, with which this is turned off and on.
        degrade_group: Field<Text>,
        /// Whether a client's `Upgrade` (WebSocket and others, never h2c) is sent on, and a tunnel made where the upstream agrees. Default: on.
        proxy_upgrade: Field<Flag>,
        /// Whether header fields with an underscore in their name are sent on. Default: off.
        underscores_in_headers: Field<Flag>,
        /// Whether upstreams are sent a `Via` header. Default: on.
        via: Field<Flag>,
    }
    with buffering: Buffering, proxy_ssl: ProxySsl,
}

record! {
    /// Settings that hold before the location is known, hence at the top level and in a server only.
    pub struct Connection {
        /// How long a client may take for the head of a request. Default: 60s.
        client_header_timeout: Field<Time>,
        /// The first piece of memory for a request's head; it grows as needed. Default: 1k.
        client_header_buffer_size: Field<Size>,
        /// How large a request's head may be: number and size, multiplied. Default: 4 8k.
        large_client_header_buffers: Field<Buffers>,
        /// Whether clients may speak HTTP/2, which they choose with TLS or say first. Default: on.
        http2: Field<Flag>,
        /// How many requests a client may have under way at once on an HTTP/2 connection. Default: 128.
        http2_max_concurrent_streams: Field<Streams>,
        /// How many requests a client may reset at once on an HTTP/2 connection; a tenth of that it may reset every second. Default: twice `http2_max_concurrent_streams`, at least 200.
        http2_max_resets: Field<Streams>,
    }
}

/// `large_client_header_buffers`: a number and a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// How many.
    pub number: u64,
    /// How large each.
    pub size: u64,
}

record! {
    /// A number of buffers and the size of each.
    pub struct BuffersParts {
        /// How many.
        number: Required<RequestCount>,
        /// How large each.
        size: Required<Size>,
    }
}

impl Decode for Buffers {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        if let NodeKind::Mapping(_) = node.kind {
            let parts: BuffersParts = context.record(node)?;
            return Some(Self {
                number: parts.number.value()?.0,
                size: parts.size.value()?.0,
            });
        }
        scalar_from(
            node,
            context,
            "a number and a size such as `4 8k`",
            |text| {
                let (number, size) = text.split_once(' ').ok_or_else(|| {
                    ParseError::new(format!("`{text}` is not a number and a size"))
                        .help("expected for example `4 8k`")
                })?;
                Ok(Self {
                    number: units::whole(number, "a number of buffers", 1, 1024)?,
                    size: units::size(size.trim())?,
                })
            },
        )
    }
}

impl JsonSchema for Buffers {
    fn schema_name() -> Cow<'static, str> {
        "Buffers".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let parts = generator.subschema_for::<BuffersParts>();
        json_schema!({ "anyOf": [{ "type": "string", "pattern": "^[0-9]+ +[0-9]+[kKmMgG]?$" }, parts] })
    }
}

/// `proxy_next_upstream`: a list of words, or one text of them as in nginx.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextUpstream(pub Vec<String>);

/// What may stand there.
const OCCASIONS: [&str; 12] = [
    "error",
    "timeout",
    "invalid_header",
    "non_idempotent",
    "http_500",
    "http_502",
    "http_503",
    "http_504",
    "http_403",
    "http_404",
    "http_429",
    "off",
];

impl Decode for NextUpstream {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        let texts = List::<Text>::decode(node, context)?;
        let mut words = Vec::new();
        for Spanned { value, span } in &texts.0 {
            let mut at = 0;
            for word in value.text.split(' ') {
                let place = value.part(*span, at..at + word.len());
                at += word.len() + 1;
                // `off` is a flag in YAML's older dialect, and so may come as one of its other names.
                let word = match word {
                    "" => continue,
                    "false" | "no" => "off",
                    word => word,
                };
                if !OCCASIONS.contains(&word) {
                    let hint = near::hint(word, OCCASIONS)
                        .unwrap_or_else(|| format!("expected some of {}", OCCASIONS.join(", ")));
                    let sentence = format!("`{word}` is no reason to try the next server");
                    context.complain(Diagnostic::new(place, sentence).help(hint));
                }
                words.push(word.to_owned());
            }
        }
        if words.len() > 1 && words.iter().any(|word| word == "off") {
            let sentence = "`off` cannot stand beside other words";
            context.complain(Diagnostic::new(node.span, sentence));
        }
        Some(Self(words))
    }
}

impl JsonSchema for NextUpstream {
    fn schema_name() -> Cow<'static, str> {
        "NextUpstream".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "string" },
                { "const": false },
                { "type": "array", "items": { "enum": OCCASIONS } },
            ],
        })
    }
}
