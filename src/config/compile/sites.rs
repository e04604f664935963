//! What holds at one location, after inheritance: the innermost level that gives a setting wins.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::{Compiler, access};
use crate::config::decode::{Field, Spanned, Text};
use crate::config::model::{self, Settings};
use crate::config::plan::{
    ClientTimeouts, Content, DryRun, HeaderForm, HttpVersion, LimitHeaders, LocationConf, LogLevel,
    PathRule,
};

/// The settings that hold somewhere, the innermost first.
#[derive(Debug, Clone, Copy)]
pub(super) struct SettingLevels<'a>(pub(super) &'a [&'a Settings]);

impl<'a> SettingLevels<'a> {
    /// The innermost value given.
    pub(super) fn find<T>(
        self,
        pick: impl Fn(&'a Settings) -> &'a Field<T>,
    ) -> Option<&'a Spanned<T>> {
        self.0.iter().find_map(|settings| pick(settings).get())
    }

    /// Each level.
    pub(super) fn iter(self) -> impl Iterator<Item = &'a Settings> {
        self.0.iter().copied()
    }
}

/// What one level does with its requests.
#[derive(Clone, Copy)]
pub(super) struct ContentDirectives<'a> {
    /// `proxy_pass`
    pub(super) pass: &'a Field<Text>,
    /// `grpc_pass`
    pub(super) grpc: &'a Field<Text>,
    /// `return`
    pub(super) answer: &'a Field<model::Return>,
}

impl ContentDirectives<'_> {
    /// Whether it does anything at all.
    pub(super) fn something(self) -> bool {
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
    pub(super) fn site(
        &mut self,
        levels: SettingLevels<'_>,
        does: ContentDirectives<'_>,
        path: Option<&PathRule>,
        timeouts: ClientTimeouts,
    ) -> LocationConf {
        let status = |given: Option<&Spanned<model::RefusalStatus>>, default| {
            given
                .and_then(|given| StatusCode::from_u16(given.value.0).ok())
                .unwrap_or(default)
        };
        let dry = |given: Option<&Spanned<model::Flag>>| match given {
            Some(flag) if flag.value.0 => DryRun::On,
            _ => DryRun::Off,
        };
        let level = |given: Option<&Spanned<model::LogLevel>>| {
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
            access: access::compile(levels),
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
            Some(model::LimitHeaders::Form(form)) => LimitHeaders {
                form: form.0,
                ..LimitHeaders::default()
            },
            Some(model::LimitHeaders::Parts(parts)) => {
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
    pub(super) fn client_timeouts(
        &mut self,
        levels: SettingLevels<'_>,
        header: Duration,
    ) -> ClientTimeouts {
        let time = |given: Option<&Spanned<model::Time>>, default| {
            given.map_or_else(|| Duration::from_secs(default), |given| given.value.0)
        };
        let rate =
            |given: Option<&Spanned<model::Size>>| given.map_or(MIN_RATE, |given| given.value.0);
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
