//! What holds at one location, everything inherited already filled in.
//!
//! What holds at one location, after inheritance: the innermost level that gives a setting wins.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, StatusCode};
use ipnet::IpNet;

use super::client::{ProxyProtocolVersion, RealIp};
use super::content::Fallback;
use super::health::Breaker;
use super::limits::{ConnRule, DryRun, HeaderForm, LimitHeaders, LogLevel, ReqRule};
use super::proxy_pass::Redirect;
use super::refusal::RefusalBody;
use super::settings::{Buffering, LimitRate};
use super::{client, limits, server};
use crate::config::compile::{Compiler, PathRule};
use crate::config::decode::value::Text;
use crate::config::decode::{Field, Spanned, value};
use crate::config::directive::settings::raw::Settings;
use crate::config::secret::is_credential;
use crate::config::template::Template;

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

/// The settings that hold somewhere, the innermost first.
#[derive(Debug, Clone, Copy)]
pub(in crate::config) struct SettingLevels<'a>(pub(in crate::config) &'a [&'a Settings]);

impl<'a> SettingLevels<'a> {
    /// The innermost value given.
    pub(in crate::config) fn find<T>(
        self,
        pick: impl Fn(&'a Settings) -> &'a Field<T>,
    ) -> Option<&'a Spanned<T>> {
        self.0.iter().find_map(|settings| pick(settings).get())
    }

    /// Each level.
    pub(in crate::config) fn iter(self) -> impl Iterator<Item = &'a Settings> {
        self.0.iter().copied()
    }
}

/// What one level does with its requests.
#[derive(Clone, Copy)]
pub(in crate::config) struct ContentDirectives<'a> {
    /// `proxy_pass`
    pub(in crate::config) pass: &'a Field<Text>,
    /// `grpc_pass`
    pub(in crate::config) grpc: &'a Field<Text>,
    /// `return`
    pub(in crate::config) answer: &'a Field<server::raw::Return>,
}

impl ContentDirectives<'_> {
    /// Whether it does anything at all.
    pub(in crate::config) fn something(self) -> bool {
        let passes = self.pass.key().or_else(|| self.grpc.key());
        passes.or_else(|| self.answer.key()).is_some()
    }
}

/// nginx's default of `client_max_body_size`.
const MAX_BODY: u64 = 1 << 20;

/// Bytes a second that a client keeps up with whatever it is connected by.
const MIN_RATE: u64 = 100;

impl Compiler<'_> {
    /// What holds where `levels` do and `does` is done, under this path (`None` for a server's own).
    pub(in crate::config) fn site(
        &mut self,
        levels: SettingLevels<'_>,
        does: ContentDirectives<'_>,
        path: Option<&PathRule>,
        timeouts: ClientTimeouts,
    ) -> LocationConf {
        let status = |given: Option<&Spanned<value::RefusalStatus>>, default| {
            given
                .and_then(|given| StatusCode::from_u16(given.value.0).ok())
                .unwrap_or(default)
        };
        let dry = |given: Option<&Spanned<value::Flag>>| match given {
            Some(flag) if flag.value.0 => DryRun::On,
            _ => DryRun::Off,
        };
        let level = |given: Option<&Spanned<value::LogLevel>>| {
            given.map_or(LogLevel::Error, |given| given.value.0)
        };
        LocationConf {
            limit_req: self.req_rules(levels.find(|s| &s.limit_req)),
            shadow: self.req_rules(levels.find(|s| &s.shadow)),
            limit_conn: self.conn_rules(levels.find(|s| &s.limit_conn)),
            limit_req_status: status(
                levels.find(|s| &s.limit_req_status),
                StatusCode::TOO_MANY_REQUESTS,
            ),
            limit_conn_status: status(
                levels.find(|s| &s.limit_conn_status),
                StatusCode::SERVICE_UNAVAILABLE,
            ),
            limit_req_dry_run: dry(levels.find(|s| &s.limit_req_dry_run)),
            limit_conn_dry_run: dry(levels.find(|s| &s.limit_conn_dry_run)),
            limit_req_log_level: level(levels.find(|s| &s.limit_req_log_level)),
            limit_conn_log_level: level(levels.find(|s| &s.limit_conn_log_level)),
            limit_headers: self.limit_headers(levels),
            access: client::compile(levels),
            real_ip: None,
            max_body: match levels
                .find(|s| &s.client_max_body_size)
                .map(|size| size.value.0)
            {
                Some(0) => None,
                Some(bytes) => Some(bytes),
                None => Some(MAX_BODY),
            },
            timeouts: self.client_timeouts(levels, timeouts.header),
            breaker: self.site_breaker(levels).map(Box::new),
            fallback: self.fallback(levels, path),
            degrade_group: self.degrade_group(levels),
            bandwidth: self.bandwidth(levels),
            action: self.action(levels, does, path),
        }
    }

    fn limit_headers(&mut self, levels: SettingLevels<'_>) -> LimitHeaders {
        match levels.find(|s| &s.limit_headers).map(|given| &given.value) {
            None => LimitHeaders::default(),
            Some(limits::raw::LimitHeaders::Form(form)) => LimitHeaders {
                form: form.0,
                ..LimitHeaders::default()
            },
            Some(limits::raw::LimitHeaders::Parts(parts)) => {
                let form = parts.form.get().map(|form| form.value.0);
                let form = form.unwrap_or_default();
                if let (HeaderForm::Off, Some(on)) = (form, parts.on.get()) {
                    self.complain_with(
                        on.span,
                        "`on` has no meaning with `form: off`",
                        "no response carries header fields then",
                    );
                }
                LimitHeaders {
                    form,
                    on: parts.on.get().map(|on| on.value.0).unwrap_or_default(),
                }
            }
        }
    }

    /// Timeouts towards the client; the head's is known to whoever knows the server.
    pub(in crate::config) fn client_timeouts(
        &mut self,
        levels: SettingLevels<'_>,
        header: Duration,
    ) -> ClientTimeouts {
        let time = |given: Option<&Spanned<value::Time>>, default| {
            given.map_or_else(|| Duration::from_secs(default), |given| given.value.0)
        };
        let rate =
            |given: Option<&Spanned<value::Size>>| given.map_or(MIN_RATE, |given| given.value.0);
        ClientTimeouts {
            header,
            body: self.some_time(levels.find(|s| &s.client_body_timeout), 60),
            body_min_rate: rate(levels.find(|s| &s.client_body_min_rate)),
            keepalive: Some(time(levels.find(|s| &s.keepalive_timeout), 75))
                .filter(|time| !time.is_zero()),
            keepalive_requests: levels
                .find(|s| &s.keepalive_requests)
                .map_or(1000, |most| most.value.0),
            send: self.some_time(levels.find(|s| &s.send_timeout), 60),
            send_min_rate: rate(levels.find(|s| &s.send_min_rate)),
            lingering: time(levels.find(|s| &s.lingering_timeout), 5),
        }
    }

    fn action(
        &mut self,
        levels: SettingLevels<'_>,
        does: ContentDirectives<'_>,
        path: Option<&PathRule>,
    ) -> Content {
        let pass = does.pass.get().map(|pass| (pass.clone(), HttpVersion::One));
        let grpc = does.grpc.get().and_then(|pass| self.grpc(pass));
        if let (Some(_), Some(grpc)) = (&pass, does.grpc.get()) {
            self.complain(grpc.span, "`proxy_pass` and `grpc_pass` in one place");
        }
        match (pass.or(grpc), does.answer.get()) {
            (Some(_), Some(answer)) => {
                self.complain_with(
                    answer.span,
                    "`proxy_pass` and `return` in one place",
                    "a request is either sent on or answered",
                );
                Content::NotFound
            }
            (Some((pass, version)), None) => self
                .forward(&pass, version, path, levels)
                .map_or(Content::NotFound, |forward| {
                    Content::Forward(Arc::new(forward))
                }),
            (None, Some(answer)) => self
                .answer(answer)
                .map_or(Content::NotFound, Content::Return),
            (None, None) => Content::NotFound,
        }
    }

    /// `grpc_pass` as the `proxy_pass` it stands for.
    fn grpc(&mut self, pass: &Spanned<Text>) -> Option<(Spanned<Text>, HttpVersion)> {
        let mut pass = pass.clone();
        if let Some((scheme, rest)) = pass.value.text.split_once("://") {
            let plain = match scheme {
                "grpc" => "http",
                "grpcs" => "https",
                scheme => {
                    let sentence = format!("`{scheme}://` is no scheme for `grpc_pass`");
                    self.complain_with(pass.span, sentence, "expected `grpc://` or `grpcs://`");
                    return None;
                }
            };
            pass.value.text = format!("{plain}://{rest}");
        }
        Some((pass, HttpVersion::Two))
    }
}
