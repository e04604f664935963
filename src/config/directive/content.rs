//! What is answered when the answer proper is not to be had.
//!
//! `fallback`, and the groups that are degraded together.
//!
//! `return`: answers without an upstream.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};

use super::location::{
    Content, HttpVersion, LocationConf, ProxyPass, Return, ReturnBody, SettingLevels,
};
use super::refusal::{BodyFormat, RefusalBody};
use super::{server, settings};
use crate::config::compile::{Compiler, PathRule, Resolved};
use crate::config::decode::value::{OrOff, Text, mistaken};
use crate::config::decode::{Spanned, units};
use crate::config::report;
use crate::config::source::Span;
use crate::config::template::{Template, TemplatePhase, Variable};

pub(crate) mod raw {
    //! `fallback` and `degrade_groups`: what is answered when the answer proper is not to be had.
    use crate::config::decode::Field;
    use crate::config::decode::record::record;
    use crate::config::decode::units::ParseError;
    use crate::config::decode::value::{Flag, HasShorthand, List, Shorthand, Text, Time, scalar};
    use crate::config::directive::content;
    use crate::config::directive::server::raw::Return;
    use crate::config::report;

    record! {
        /// What is answered when the answer proper is not to be had; of several ways the first that leads somewhere is gone.
        pub struct Fallback {
            /// When: open, no_server, timeout, error, limited, or statuses of 400 to 599. Default: open, no_server, timeout, error, 500, 502, 503, 504.
            on: Field<List<Text>>,
            /// First: another upstream, written as for a location. Only for what may be sent again.
            proxy_pass: Field<Text>,
            /// Second: the last good response, no older than this time, of those that HTTP allows a shared cache to keep; or a mapping.
            stale: Field<Shorthand<Stale>>,
            /// Third: always the same answer.
            r#return: Field<Return>,
        }
        instead fixed;
    }

    record! {
        /// Which last good responses are given again.
        pub struct Stale {
            /// Those no older than this. Default: 10m.
            max_age: Field<Time>,
            /// What tells requests apart besides virtual server, scheme, host and target: a text with variables.
            key: Field<Text>,
            /// Responses to requests with credentials are kept, too, each for requests with the same `key`. Default: false.
            private: Field<Flag>,
        }
    }

    impl HasShorthand for Stale {
        const KEY: &'static str = "max_age";
    }

    /// What reads like a `return` is meant as one.
    fn fixed(text: &str) -> Option<String> {
        let answers = text.starts_with(|first: char| first.is_ascii_digit());
        answers.then(|| format!("write `{{ return: \"{text}\" }}`"))
    }

    scalar! {
        /// Whether a group is degraded.
        pub struct DegradeMode(content::DegradeMode);
        "`auto`, `on` or `off`",
        // Both are also flags of YAML's older dialect.
        |text| match text {
            "auto" => Ok(content::DegradeMode::Auto),
            "on" | "true" | "yes" => Ok(content::DegradeMode::On),
            "off" | "false" | "no" => Ok(content::DegradeMode::Off),
            _ => {
                let words = ["auto", "on", "off"];
                let hint = report::hint(text, words).unwrap_or_else(|| "expected `auto`, `on` or `off`".to_owned());
                Err(ParseError::new(format!("`{text}` is no way to degrade")).help(hint))
            }
        },
        { "enum": ["auto", "on", "off", true, false] }
    }
}

/// `fallback`: the ways are gone in this order, as far as they are given.
#[derive(Debug, Clone)]
pub struct Fallback {
    /// `on`: when.
    pub on: FallbackTriggers,
    /// `proxy_pass`: somebody else is asked.
    pub proxy_pass: Option<Arc<ProxyPass>>,
    /// `stale`: the last good answer.
    pub stale: Option<Stale>,
    /// `return`: always the same.
    pub answer: Option<Return>,
}

/// Which last good answers are given again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale {
    /// Those no older than this.
    pub max_age: Duration,
    /// What tells requests apart besides server, scheme, host and target.
    pub key: Option<Template>,
    /// Whether answers for one client are kept, too, for that client.
    pub private: bool,
}

/// When a fallback is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FallbackTriggers {
    /// `error`: no connection, or it broke, or what came was no answer.
    pub error: bool,
    /// `limited`: a limit refused.
    pub limited: bool,
    /// `no_server`: no server could be asked.
    pub no_server: bool,
    /// `open`: a breaker is.
    pub open: bool,
    /// `timeout`
    pub timeout: bool,
    /// These answers.
    pub statuses: Vec<StatusCode>,
}

/// One of `degrade_groups`; [`LocationConf::degrade_group`](super::location::LocationConf::degrade_group) is an index.
#[derive(Debug, Clone)]
pub struct DegradeGroup {
    /// Its name.
    pub name: Box<str>,
    /// What holds until somebody says otherwise.
    pub mode: DegradeMode,
}

/// Whether what is not essential is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DegradeMode {
    /// Where there is a reason to.
    #[default]
    Auto,
    /// Never: what goes wrong is seen to go wrong.
    Off,
    /// Always: nobody is asked.
    On,
}

impl DegradeMode {
    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::On => "on",
        }
    }
}

/// What may stand in `on` besides statuses.
const OCCASIONS: [&str; 5] = ["open", "no_server", "timeout", "error", "limited"];

impl Compiler<'_> {
    /// `degrade_groups`, in the file's order.
    pub(in crate::config) fn degrade_groups(&self) -> Vec<DegradeGroup> {
        let named = self.config.degrade_groups.value();
        let entries = named.map_or(&[][..], |named| &named.entries);
        entries
            .iter()
            .map(|(name, mode)| DegradeGroup {
                name: name.value.as_str().into(),
                mode: mode.value.0,
            })
            .collect()
    }

    /// `stale_size`
    pub(in crate::config) fn stale_size(&mut self) -> usize {
        let Some(given) = self.config.stale_size.get() else {
            return 32 << 20;
        };
        if given.value.0 < LEAST_STALE {
            self.complain_with(
                given.span,
                "too little to keep answers in",
                "the least is 64k",
            );
        }
        usize::try_from(given.value.0).unwrap_or(usize::MAX)
    }

    /// The group a location belongs to.
    pub(in crate::config) fn degrade_group(&mut self, levels: SettingLevels<'_>) -> Option<usize> {
        let given = levels.find(|settings| &settings.proxy.degrade_group)?;
        let name = given.value.text.as_str();
        match self.degraded.find(name) {
            Resolved::At(index) => Some(index),
            Resolved::Broken => None,
            Resolved::Nowhere => {
                let hint = report::hint(name, self.degraded.all())
                    .unwrap_or_else(|| format!("define it: `degrade_groups: {{ {name}: auto }}`"));
                self.complain_with(given.span, format!("unknown group `{name}`"), hint);
                None
            }
        }
    }

    /// The fallback of a location under this path.
    pub(in crate::config) fn fallback(
        &mut self,
        levels: SettingLevels<'_>,
        path: Option<&PathRule>,
    ) -> Option<Box<Fallback>> {
        let given = levels.find(|settings| &settings.proxy.fallback)?;
        let OrOff::On(fallback) = &given.value else {
            return None;
        };
        let proxy_pass = fallback
            .proxy_pass
            .get()
            .and_then(|pass| self.proxy_pass(pass, HttpVersion::One, path, levels));
        let answer = fallback.r#return.get().and_then(|it| self.answer(it));
        let ways = [
            fallback.proxy_pass.key(),
            fallback.stale.key(),
            fallback.r#return.key(),
        ];
        if ways.iter().all(Option::is_none) {
            let hint = "give one or more of `proxy_pass`, `stale` and `return`";
            self.complain_with(given.span, "a fallback to nothing", hint);
        }
        let stale = fallback.stale.get();
        let stale = stale.map(|given| self.stale(&given.value.0));
        Some(Box::new(Fallback {
            on: self.occasions(fallback),
            proxy_pass: proxy_pass.map(Arc::new),
            stale,
            answer,
        }))
    }

    /// Which last good answers are given again.
    fn stale(&mut self, given: &raw::Stale) -> Stale {
        let key = given.key.get();
        let template = key.map(|key| self.template(key, TemplatePhase::Before));
        let private = given.private.get().filter(|private| private.value.0);
        if let Some(private) = private {
            let secret = "a variable that only one client knows the value of, such as `$http_authorization`, \
                          `$cookie_session` or `$ssl_client_fingerprint`";
            match (key, &template) {
                (None, _) | (_, None) => {
                    let sentence = "`private: true` without a `key` would show one client's responses to others";
                    self.complain_with(
                        private.span,
                        sentence,
                        format!("add a `key` with {secret}"),
                    );
                }
                (Some(key), Some(template)) if !template.variables().any(Variable::is_secret) => {
                    let sentence = "this `key` does not tell one client from another";
                    self.complain_with(key.span, sentence, format!("add {secret}"));
                }
                _ => {}
            }
        }
        Stale {
            max_age: self.some_time(given.max_age.get(), 600),
            key: template,
            private: private.is_some(),
        }
    }

    /// Warns of what a location says of requests that it sends on, where it sends none.
    pub(in crate::config) fn warn_of_nothing_sent(
        &mut self,
        own: &settings::raw::Settings,
        conf: &LocationConf,
    ) {
        let Content::Return(answer) = &conf.action else {
            return;
        };
        let hint = "requests are answered here; it is for those that `proxy_pass` sends on";
        if let Some(key) = own.proxy.breaker.key().filter(|_| conf.breaker.is_some()) {
            self.warn(key, "this `breaker` has nothing to count", hint);
        }
        let limited = !conf.limit_req.is_empty() || !conf.limit_conn.is_empty();
        let used = |fallback: &Fallback| {
            let mut statuses = fallback.on.statuses.iter();
            conf.degrade_group.is_some()
                || (fallback.on.limited && limited)
                || statuses.any(|status| status.as_u16() == answer.status)
        };
        if let (Some(key), Some(fallback)) = (own.proxy.fallback.key(), conf.fallback.as_deref())
            && !used(fallback)
        {
            self.warn(key, "there is no reason to use this `fallback`", hint);
        }
    }

    fn occasions(&mut self, given: &raw::Fallback) -> FallbackTriggers {
        let Some(list) = given.on.value() else {
            return FallbackTriggers {
                error: true,
                limited: false,
                no_server: true,
                open: true,
                timeout: true,
                statuses: FAILURES.to_vec(),
            };
        };
        let mut on = FallbackTriggers::default();
        for Spanned { value, span } in &list.0 {
            match value.text.as_str() {
                "error" => on.error = true,
                "limited" => on.limited = true,
                "no_server" => on.no_server = true,
                "open" => on.open = true,
                "timeout" => on.timeout = true,
                _ => on.statuses.extend(self.listed_status(value, *span)),
            }
        }
        on
    }

    fn listed_status(&mut self, given: &Text, span: Span) -> Option<StatusCode> {
        let text = given.text.as_str();
        let text = text.strip_prefix("http_").unwrap_or(text);
        if !text.starts_with(|first: char| first.is_ascii_digit()) {
            let hint = report::hint(text, OCCASIONS).unwrap_or_else(|| {
                format!("expected some of {}, or statuses", OCCASIONS.join(", "))
            });
            self.complain_with(span, format!("`{text}` is no reason for a fallback"), hint);
            return None;
        }
        let status = units::whole(text, "a status", 400, 599)
            .map_err(|mistake| self.report.add(mistaken(span, mistake)))
            .ok()?;
        StatusCode::from_u16(u16::try_from(status).ok()?).ok()
    }
}

/// Less than this holds no answer worth keeping.
const LEAST_STALE: u64 = 64 << 10;

/// Answers that nobody is helped by.
const FAILURES: [StatusCode; 4] = [
    StatusCode::INTERNAL_SERVER_ERROR,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];

/// Statuses that lead elsewhere.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

/// Closes the connection without an answer, as nginx's.
const CLOSE: u16 = 444;

impl Compiler<'_> {
    /// A `return`.
    pub(in crate::config) fn answer(
        &mut self,
        given: &Spanned<server::raw::Return>,
    ) -> Option<Return> {
        match &given.value {
            server::raw::Return::Parts(parts) => self.answer_in_parts(parts, given.span),
            server::raw::Return::Text(text) => self.answer_in_words(text, given.span),
        }
    }

    /// nginx's way: `204`, `200 text`, `301 https://…` or `https://…` alone.
    fn answer_in_words(&mut self, text: &Text, span: Span) -> Option<Return> {
        let whole = text.text.trim();
        if ["http://", "https://", "$scheme"]
            .iter()
            .any(|start| whole.starts_with(start))
        {
            let url = Spanned {
                value: text.clone(),
                span,
            };
            return Some(Return {
                status: 302,
                body: ReturnBody::Location(self.header_value(&url)),
            });
        }
        let (status, rest) = whole.split_once(' ').unwrap_or((whole, ""));
        let status = self.status(status, span)?;
        let rest = Spanned {
            value: text.tail(rest.trim_start()),
            span,
        };
        let body = if rest.value.text.is_empty() {
            None
        } else {
            Some(&rest)
        };
        if REDIRECTS.contains(&status) {
            self.assemble(status, None, body, None, span)
        } else {
            self.assemble(status, body, None, None, span)
        }
    }

    fn answer_in_parts(&mut self, parts: &server::raw::ReturnParts, span: Span) -> Option<Return> {
        let url = parts.url.get().or_else(|| parts.location.get());
        if let (Some(_), Some(second)) = (parts.url.get(), parts.location.get()) {
            self.complain(
                second.span,
                "`url` and `location` mean the same; give one of them",
            );
        }
        let status = match parts.status.get() {
            Some(status) => self.status(&status.value.text, status.span)?,
            None if url.is_some() => 302,
            None => 200,
        };
        self.assemble(
            status,
            parts.body.get(),
            url,
            parts.content_type.get(),
            span,
        )
    }

    fn assemble(
        &mut self,
        status: u16,
        body: Option<&Spanned<Text>>,
        url: Option<&Spanned<Text>>,
        content_type: Option<&Spanned<Text>>,
        span: Span,
    ) -> Option<Return> {
        let content_type = self.content_type(content_type, body.is_some());
        let body = match (body, url) {
            (Some(body), Some(_)) => {
                self.complain(body.span, "a redirect has no `body`");
                return None;
            }
            (None, Some(url)) if !REDIRECTS.contains(&status) => {
                let sentence = format!("a redirect with status {status}");
                self.complain_with(
                    url.span,
                    sentence,
                    "expected one of 301, 302, 303, 307, 308",
                );
                return None;
            }
            (None, Some(url)) => ReturnBody::Location(self.header_value(url)),
            (_, None) if REDIRECTS.contains(&status) => {
                let sentence = format!("a return with status {status} leads nowhere");
                self.complain_with(
                    span,
                    sentence,
                    "say where to: `{ status: 301, url: \"https://$host$request_uri\" }`",
                );
                return None;
            }
            (Some(body), None) if matches!(status, 204 | 304 | CLOSE) => {
                self.complain(
                    body.span,
                    format!("an answer with status {status} has no body"),
                );
                return None;
            }
            (Some(body), None) => ReturnBody::Text {
                text: RefusalBody {
                    text: self.template(body, TemplatePhase::After),
                    form: BodyFormat::of(&content_type),
                },
                content_type,
            },
            (None, None) => ReturnBody::Page,
        };
        Some(Return { status, body })
    }

    pub(in crate::config) fn content_type(
        &mut self,
        given: Option<&Spanned<Text>>,
        has_body: bool,
    ) -> Box<str> {
        let Some(given) = given else {
            return "text/plain".into();
        };
        if !has_body {
            self.complain(given.span, "a `content_type` without a `body`");
        } else if HeaderValue::from_str(&given.value.text).is_err()
            || !given.value.text.contains('/')
        {
            let sentence = format!("`{}` is not a content type", given.value.text);
            self.complain_with(
                given.span,
                sentence,
                "expected for example `application/json`",
            );
        }
        given.value.text.as_str().into()
    }

    fn status(&mut self, text: &str, span: Span) -> Option<u16> {
        units::whole(text, "a status", 200, 599)
            .map_err(|mistake| self.report.add(mistaken(span, mistake)))
            .ok()
            .and_then(|status| u16::try_from(status).ok())
    }
}
