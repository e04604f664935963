//! `fallback`, and the groups that are degraded together.

use std::sync::Arc;

use http::StatusCode;

use super::sites::SettingLevels;
use super::templates::TemplatePhase;
use super::{Compiler, Resolved};
use crate::config::decode::{OrOff, Spanned, Text, mistaken};
use crate::config::model;
use crate::config::near;
use crate::config::plan::{
    Content, DegradeGroup, Fallback, FallbackTriggers, HttpVersion, LocationConf, PathRule, Stale,
    Variable,
};
use crate::config::span::Span;
use crate::config::units;

/// What may stand in `on` besides statuses.
const OCCASIONS: [&str; 5] = ["open", "no_server", "timeout", "error", "limited"];

impl Compiler<'_> {
    /// `degrade_groups`, in the file's order.
    pub(super) fn degrade_groups(&self) -> Vec<DegradeGroup> {
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
    pub(super) fn stale_size(&mut self) -> usize {
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
    pub(super) fn degrade_group(&mut self, levels: SettingLevels<'_>) -> Option<usize> {
        let given = levels.find(|settings| &settings.degrade_group)?;
        let name = given.value.text.as_str();
        match self.degraded.find(name) {
            Resolved::At(index) => Some(index),
            Resolved::Broken => None,
            Resolved::Nowhere => {
                let hint = near::hint(name, self.degraded.all())
                    .unwrap_or_else(|| format!("define it: `degrade_groups: {{ {name}: auto }}`"));
                self.complain_with(given.span, format!("unknown group `{name}`"), hint);
                None
            }
        }
    }

    /// The fallback of a location under this path.
    pub(super) fn fallback(
        &mut self,
        levels: SettingLevels<'_>,
        path: Option<&PathRule>,
    ) -> Option<Box<Fallback>> {
        let given = levels.find(|settings| &settings.fallback)?;
        let OrOff::On(fallback) = &given.value else {
            return None;
        };
        let forward = fallback
            .proxy_pass
            .get()
            .and_then(|pass| self.forward(pass, HttpVersion::One, path, levels));
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
            forward: forward.map(Arc::new),
            stale,
            answer,
        }))
    }

    /// Which last good answers are given again.
    fn stale(&mut self, given: &model::Stale) -> Stale {
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
    pub(super) fn warn_of_nothing_sent(&mut self, own: &model::Settings, site: &LocationConf) {
        let Content::Return(answer) = &site.action else {
            return;
        };
        let hint = "requests are answered here; it is for those that `proxy_pass` sends on";
        if let Some(key) = own.breaker.key().filter(|_| site.breaker.is_some()) {
            self.warn(key, "this `breaker` has nothing to count", hint);
        }
        let limited = !site.limit_req.is_empty() || !site.limit_conn.is_empty();
        let used = |fallback: &Fallback| {
            let mut statuses = fallback.on.statuses.iter();
            site.degrade_group.is_some()
                || (fallback.on.limited && limited)
                || statuses.any(|status| status.as_u16() == answer.status)
        };
        if let (Some(key), Some(fallback)) = (own.fallback.key(), site.fallback.as_deref())
            && !used(fallback)
        {
            self.warn(key, "there is no reason to use this `fallback`", hint);
        }
    }

    fn occasions(&mut self, given: &model::Fallback) -> FallbackTriggers {
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
            let hint = near::hint(text, OCCASIONS).unwrap_or_else(|| {
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
