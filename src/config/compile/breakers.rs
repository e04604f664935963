//! `breaker`, of an upstream's servers and of a location.

use std::time::Duration;

use http::StatusCode;

use super::Compiler;
use super::sites::SettingLevels;
use crate::config::decode::{OrOff, Spanned};
use crate::config::model::{self, Way};
use crate::config::plan::{Breaker, CallShare, Recovery};

impl Compiler<'_> {
    /// The breaker of a location.
    pub(super) fn site_breaker(&mut self, levels: SettingLevels<'_>) -> Option<Breaker> {
        match &levels.find(|settings| &settings.breaker)?.value {
            OrOff::Off => None,
            OrOff::On(given) => Some(self.breaker(given)),
        }
    }

    /// What a `breaker` says.
    pub(super) fn breaker(&mut self, given: &model::Breaker) -> Breaker {
        let share = |given: Option<&model::Percent>| given.map(|percent| percent.0);
        for ratio in [&given.failure_ratio, &given.slow_ratio] {
            if let Some(ratio) = ratio.get().filter(|ratio| ratio.value.0 == CallShare(0)) {
                let sentence = "a share of nothing is always reached";
                self.complain_with(ratio.span, sentence, "the defaults are 50% and 100%");
            }
        }
        if let (Some(ratio), None) = (given.slow_ratio.get(), given.slow_call.key()) {
            let hint = "say what is slow: `slow_call: 2s`";
            self.complain_with(ratio.span, "`slow_ratio` without `slow_call`", hint);
        }
        let failures = given.failures.value().map(|calls| calls.0);
        let open_for = self.some_time(given.open_for.get(), 5);
        let max_open_for = match given.max_open_for.get() {
            Some(longest) if longest.value.0 < open_for => {
                let sentence = "`max_open_for` is shorter than `open_for`";
                self.complain_with(longest.span, sentence, "the defaults are 60s and 5s");
                open_for
            }
            Some(longest) => longest.value.0,
            None => Duration::from_secs(60).max(open_for),
        };
        Breaker {
            failure_ratio: share(given.failure_ratio.value())
                .or_else(|| Some(CallShare(500)).filter(|_| failures.is_none())),
            failures,
            slow: given.slow_call.get().map(|limit| {
                let limit = self.some_time(Some(limit), 60);
                (
                    limit,
                    share(given.slow_ratio.value()).unwrap_or(CallShare(1000)),
                )
            }),
            window: self.some_time(given.window.get(), 10),
            min_calls: given.min_calls.value().map_or(20, |calls| calls.0),
            open_for,
            max_open_for,
            recovery: self.recovery(given),
            statuses: match given.statuses.value() {
                Some(list) => list.0.iter().filter_map(status).collect(),
                None => FAILURES.to_vec(),
            },
        }
    }

    fn recovery(&mut self, given: &model::Breaker) -> Recovery {
        let calls = given.half_open.value().map_or(3, |calls| calls.0);
        match given.recovery.value().map_or(Way::Probes, |way| way.0) {
            Way::Probes => {
                if let Some(key) = given.ramp_for.key() {
                    self.complain_with(key, "`ramp_for` without a ramp", "say `recovery: ramp`");
                }
                Recovery::Probes(calls)
            }
            Way::Ramp => Recovery::Ramp {
                over: self.some_time(given.ramp_for.get(), 10),
                min_calls: calls,
            },
        }
    }
}

fn status(given: &Spanned<model::FailureStatus>) -> Option<StatusCode> {
    StatusCode::from_u16(given.value.0).ok()
}

/// What says that a backend could not, rather than that it would not.
const FAILURES: [StatusCode; 4] = [
    StatusCode::INTERNAL_SERVER_ERROR,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];
