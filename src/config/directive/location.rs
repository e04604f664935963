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
use super::limits::{ConnRule, HeaderForm, LimitHeaders, ReqRule};
use super::proxy_pass::Redirect;
use super::refusal::RefusalBody;
use super::settings::{Buffering, ClientSettings, LimitRate, LimitSettings, ProxySettings};
use super::{client, limits, server};
use crate::config::compile::{Compiler, PathRule};
use crate::config::decode::value::Text;
use crate::config::decode::{Field, Spanned};
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
    /// What is done about limits that do not say it themselves.
    pub limits: LimitSettings,
    /// `limit_headers`
    pub limit_headers: LimitHeaders,
    /// `allow` and `deny`.
    pub access: AccessRules,
    /// `real_ip`, where the location has one of its own: asked when the server's has said nothing.
    pub real_ip: Option<RealIp>,
    /// What holds towards the client.
    pub client: ClientSettings,
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
    pub fn proxy_passes(&self) -> impl Iterator<Item = &ProxyPass> {
        let first = match &self.action {
            Content::ProxyPass(proxy_pass) => Some(&**proxy_pass),
            Content::NotFound | Content::Return(_) => None,
        };
        let fallback = self.fallback.as_ref();
        let second = fallback.and_then(|fallback| fallback.proxy_pass.as_deref());
        first.into_iter().chain(second)
    }
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
    ProxyPass(Arc<ProxyPass>),
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
    /// How it is sent on.
    pub settings: ProxySettings,
    /// `proxy_http_version`
    pub version: HttpVersion,
    /// `proxy_protocol`
    pub proxy_protocol: ProxyProtocolVersion,
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
    pub(in crate::config) fn iter(self) -> impl Iterator<Item = &'a Settings> + Clone {
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

impl Compiler<'_> {
    /// What holds where `levels` do and `does` is done, under this path (`None` for a server's own).
    pub(in crate::config) fn conf(
        &mut self,
        levels: SettingLevels<'_>,
        does: ContentDirectives<'_>,
        path: Option<&PathRule>,
    ) -> LocationConf {
        LocationConf {
            limit_req: self.req_rules(levels.find(|s| &s.limits.limit_req)),
            shadow: self.req_rules(levels.find(|s| &s.limits.shadow)),
            limit_conn: self.conn_rules(levels.find(|s| &s.limits.limit_conn)),
            limits: LimitSettings::merge(levels.iter().map(|s| &s.limits), self),
            limit_headers: self.limit_headers(levels),
            access: client::compile(levels),
            real_ip: None,
            client: ClientSettings::merge(levels.iter().map(|s| &s.client), self),
            breaker: self.site_breaker(levels).map(Box::new),
            fallback: self.fallback(levels, path),
            degrade_group: self.degrade_group(levels),
            bandwidth: self.bandwidth(levels),
            action: self.action(levels, does, path),
        }
    }

    fn limit_headers(&mut self, levels: SettingLevels<'_>) -> LimitHeaders {
        match levels
            .find(|s| &s.limits.limit_headers)
            .map(|given| &given.value)
        {
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
                .proxy_pass(&pass, version, path, levels)
                .map_or(Content::NotFound, |proxy_pass| {
                    Content::ProxyPass(Arc::new(proxy_pass))
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
