//! What holds at one location, everything inherited already filled in.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, StatusCode};
use ipnet::IpNet;

use super::{
    Breaker, Buffering, ConnRule, DryRun, Fallback, LimitHeaders, LimitRate, LogLevel,
    ProxyProtocolVersion, RealIp, Redirect, RefusalBody, ReqRule, Template,
};
use crate::config::secret::is_credential;

/// What holds at one location.
#[derive(Debug, Clone)]
pub struct LocationConf {
    /// `limit_req`, in order.
    pub limit_req: Vec<ReqRule>,
    /// `shadow`: proposed rules that are not enforced, in order.
    pub shadow: Vec<ReqRule>,
    /// `limit_conn`, in order.
    pub limit_conn: Vec<ConnRule>,
    /// `limit_req_status`
    pub limit_req_status: StatusCode,
    /// `limit_conn_status`
    pub limit_conn_status: StatusCode,
    /// `limit_req_dry_run`
    pub limit_req_dry_run: DryRun,
    /// `limit_conn_dry_run`
    pub limit_conn_dry_run: DryRun,
    /// `limit_req_log_level`
    pub limit_req_log_level: LogLevel,
    /// `limit_conn_log_level`
    pub limit_conn_log_level: LogLevel,
    /// `limit_headers`
    pub limit_headers: LimitHeaders,
    /// `allow` and `deny`.
    pub access: AccessRules,
    /// `real_ip`, where the location has one of its own: asked when the server's has said nothing.
    pub real_ip: Option<RealIp>,
    /// `client_max_body_size`; `None` for no limit (written 0).
    pub max_body: Option<u64>,
    /// Timeouts towards the client.
    pub timeouts: ClientTimeouts,
    /// `breaker`
    pub breaker: Option<Box<Breaker>>,
    /// `fallback`
    pub fallback: Option<Box<Fallback>>,
    /// `degrade_group`
    pub degrade_group: Option<usize>,
    /// `limit_rate` and `limit_rate_after`
    pub bandwidth: LimitRate,
    /// What is done with a request that passed.
    pub action: Content,
}

impl LocationConf {
    /// Every way a request may be sent on here: to whom it should go, and to whom if that is of no use.
    pub fn forwards(&self) -> impl Iterator<Item = &ProxyPass> {
        let first = match &self.action {
            Content::Forward(forward) => Some(&**forward),
            Content::NotFound | Content::Return(_) => None,
        };
        let fallback = self.fallback.as_ref();
        let second = fallback.and_then(|fallback| fallback.forward.as_deref());
        first.into_iter().chain(second)
    }
}

/// Timeouts towards the client, under nginx's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientTimeouts {
    /// `client_header_timeout`: for the whole head.
    pub header: Duration,
    /// `client_body_timeout`: between two reads of the body.
    pub body: Duration,
    /// `client_body_min_rate`: bytes a second; 0 for any speed.
    pub body_min_rate: u64,
    /// `keepalive_timeout`: between requests; `None` closes after each (written 0).
    pub keepalive: Option<Duration>,
    /// `keepalive_requests`: how many a connection carries.
    pub keepalive_requests: u64,
    /// `send_timeout`: between two writes.
    pub send: Duration,
    /// `send_min_rate`: bytes a second; 0 for any speed.
    pub send_min_rate: u64,
    /// `lingering_timeout`: how long to wait for more of what a client sends after its answer, before closing.
    pub lingering: Duration,
}

/// Who may come in, by address.
#[derive(Debug, Clone, Default)]
pub struct AccessRules {
    /// Both lists together, longest prefix first, refusal before permission where they are equal.
    pub networks: Vec<(ClientMatch, bool)>,
    /// What becomes of the rest: refused where an `allow` list was given.
    pub refuse_others: bool,
}

/// Some clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientMatch {
    /// Those with an address in this network.
    Ip(IpNet),
    /// Those on a unix socket.
    Unix,
}

impl ClientMatch {
    /// Whether somebody with this address is one of them; `None` is on a unix socket.
    #[must_use]
    pub fn contains(&self, address: Option<IpAddr>) -> bool {
        match (self, address) {
            (Self::Ip(network), Some(address)) => network.contains(&address),
            (Self::Unix, None) => true,
            (Self::Ip(_), None) | (Self::Unix, Some(_)) => false,
        }
    }
}

/// What is done with a request.
#[derive(Debug, Clone)]
pub enum Content {
    /// Sent to an upstream.
    Forward(Arc<ProxyPass>),
    /// Nothing is configured here: 404.
    NotFound,
    /// Answered at once.
    Return(Return),
}

/// `return`
#[derive(Debug, Clone)]
pub struct Return {
    /// With this status; 444 closes without an answer.
    pub status: u16,
    /// And this.
    pub body: ReturnBody,
}

/// What a `return` answers with.
#[derive(Debug, Clone)]
pub enum ReturnBody {
    /// A redirect to this address.
    Location(Template),
    /// weir's own page for the status.
    Page,
    /// This text.
    Text {
        /// The text.
        text: RefusalBody,
        /// Its `Content-Type`.
        content_type: Box<str>,
    },
}

/// `proxy_pass` and what belongs to it.
#[derive(Debug, Clone)]
pub struct ProxyPass {
    /// Index of the upstream.
    pub upstream: usize,
    /// Behind `https://`: index of how its servers are met.
    pub tls: Option<usize>,
    /// What `$proxy_host` gives: the upstream's name, or host and port of the address.
    pub host: Arc<str>,
    /// The URI part of `proxy_pass`, which takes the place of the first `replaces` bytes of the normalised path; `None`
    /// sends the target on as the client wrote it.
    pub uri: Option<Box<str>>,
    /// Length of the location's prefix.
    pub replaces: usize,
    /// `proxy_set_header`, defaults included (`Host`, and the `X-Forwarded-` family), in order. An empty value removes.
    pub set_headers: Vec<SetHeader>,
    /// `proxy_redirect`, in order; none for `off`.
    pub redirects: Box<[Redirect]>,
    /// `via`
    pub via: Via,
    /// `proxy_upgrade`
    pub upgrades: Upgrades,
    /// `underscores_in_headers`
    pub underscores: Underscores,
    /// `proxy_http_version`
    pub version: HttpVersion,
    /// `proxy_protocol`
    pub proxy_protocol: ProxyProtocolVersion,
    /// `proxy_connect_timeout`
    pub connect_timeout: Duration,
    /// `proxy_send_timeout`
    pub send_timeout: Duration,
    /// `proxy_read_timeout`
    pub read_timeout: Duration,
    /// `proxy_max_headers`
    pub max_headers: usize,
    /// `proxy_next_upstream`
    pub next_upstream: NextUpstream,
    /// `proxy_request_buffering` and `proxy_buffering`
    pub buffering: Buffering,
}

/// One header towards the upstream.
#[derive(Clone)]
pub struct SetHeader {
    /// Its name.
    pub name: HeaderName,
    /// Its value.
    pub value: Template,
}

impl fmt::Debug for SetHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("SetHeader");
        shown.field("name", &self.name);
        match is_credential(self.name.as_str()) && self.value.as_variable().is_none() {
            true => shown.finish_non_exhaustive(),
            false => shown.field("value", &self.value).finish(),
        }
    }
}

/// Whether a `Via` field is added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Via {
    /// Not.
    Off,
    /// As RFC 9110 asks.
    #[default]
    On,
}

/// What becomes of fields with an underscore in their name, which many backends cannot tell from a hyphen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Underscores {
    /// They stay behind: one could pass for a field that only we may set.
    #[default]
    Drop,
    /// They are sent on.
    Keep,
}

/// Whether a client and a backend may agree to speak something else than HTTP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Upgrades {
    /// Not: what they say of it is removed.
    Off,
    /// Through a tunnel.
    #[default]
    On,
}

/// What an upstream is spoken to in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.1
    #[default]
    One,
    /// HTTP/2
    Two,
}

/// When the next server may be tried.
#[derive(Debug, Clone)]
pub struct NextUpstream {
    /// `error`: no connection, or it broke before the answer's head.
    pub error: bool,
    /// `timeout`
    pub timeout: bool,
    /// `invalid_header`: what came was not an answer.
    pub invalid_header: bool,
    /// `non_idempotent`: also for requests that must not be sent twice.
    pub non_idempotent: bool,
    /// `http_500`, `http_502`, `http_503`, `http_504`, `http_403`, `http_404`, `http_429`.
    pub statuses: Vec<StatusCode>,
    /// `proxy_next_upstream_tries`
    pub tries: MaxTries,
    /// `proxy_next_upstream_timeout`; `None` for no limit (written 0).
    pub within: Option<Duration>,
}

/// How many servers may be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxTries {
    /// Each once (written 0).
    Each,
    /// At most so many, the first included.
    Most(u32),
}
