//! The header fields of limits, in the form of draft-ietf-httpapi-ratelimit-headers-11 or of older practice.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::algorithm::{KeyStatus, LimitSpec};
use crate::config::plan::{CostSource, HeaderForm};

/// A zone's name, plain and as a structured-field string.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ZoneName {
    pub(super) plain: Arc<str>,
    pub(super) quoted: Box<str>,
}

impl ZoneName {
    pub(super) fn new(plain: &str) -> Self {
        let mut quoted = String::with_capacity(plain.len() + 2);
        quoted.push('"');
        for letter in plain.chars() {
            match letter {
                '"' | '\\' => quoted.extend(['\\', letter]),
                ' '..='~' => quoted.push(letter),
                // Structured fields take printable ASCII only.
                _ => quoted.push('?'),
            }
        }
        quoted.push('"');
        Self {
            plain: plain.into(),
            quoted: quoted.into(),
        }
    }
}

/// Appends what a `limit_req` allows to a `RateLimit-Policy`.
pub(super) fn add_requests(
    policy: &mut String,
    name: &ZoneName,
    spec: &LimitSpec,
    cost_source: &CostSource,
) {
    let quota = spec.quota();
    let window = spec.period().as_millis().div_ceil(1000);
    let unit = match cost_source {
        CostSource::RequestBytes | CostSource::ResponseBytes => ";qu=\"content-bytes\"",
        CostSource::After(_) | CostSource::Before(_) | CostSource::Fixed(_) => "",
    };
    separate(policy);
    // Writing to a string cannot fail.
    let _written = write!(policy, "{};q={quota}{unit};w={window}", name.quoted);
}

/// Appends what a `limit_conn` allows to a `RateLimit-Policy`.
pub(super) fn add_connections(policy: &mut String, name: &ZoneName, limit: u32) {
    separate(policy);
    let _written = write!(
        policy,
        "{};q={limit};qu=\"concurrent-requests\"",
        name.quoted
    );
}

/// Appends what is left of a policy to a `RateLimit`, and until when.
pub(super) fn add_state(state: &mut String, name: &ZoneName, left: u64, after: Option<Duration>) {
    separate(state);
    let _written = match after.map(whole_seconds) {
        Some(t) => write!(state, "{};r={left};t={t}", name.quoted),
        None => write!(state, "{};r={left}", name.quoted),
    };
}

/// A time in whole seconds, rounded up, at least one.
pub fn whole_seconds(after: Duration) -> u64 {
    let started = u64::from(after.subsec_nanos() > 0);
    after.as_secs().saturating_add(started).max(1)
}

/// A field's value; `None` if it is empty.
pub(super) fn value(text: String) -> Option<HeaderValue> {
    if text.is_empty() {
        return None;
    }
    HeaderValue::try_from(text).ok()
}

fn separate(policy: &mut String) {
    if !policy.is_empty() {
        policy.push_str(", ");
    }
}

pub(super) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(super) const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(super) const X_RATELIMIT_REMAINING: HeaderName =
    HeaderName::from_static("x-ratelimit-remaining");
pub(super) const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The header fields of a response to an admitted request: `limit_headers` with `on: all`.
#[derive(Debug)]
pub struct AllowedHeaders {
    pub(super) form: HeaderForm,
    pub(super) policy: Option<Arc<HeaderValue>>,
    pub(super) balances: Vec<PolicyBalance>,
}

/// What is left of one policy.
#[derive(Debug)]
pub(super) struct PolicyBalance {
    name: Arc<ZoneName>,
    quota: u64,
    remaining: u64,
    /// When it is whole again, or when one more request passes where nothing is left; `None` where only the store knows.
    after: Option<Duration>,
}

impl PolicyBalance {
    pub(super) fn new(name: &Arc<ZoneName>, quota: u64, remaining: u64) -> Self {
        Self {
            name: Arc::clone(name),
            quota,
            remaining,
            after: None,
        }
    }

    /// The balance of a key with this status, or of one that its zone does not know.
    pub(super) fn of_key(
        name: &Arc<ZoneName>,
        spec: &LimitSpec,
        key_status: Option<KeyStatus>,
    ) -> Self {
        let mut balance = Self::new(name, spec.quota(), spec.quota());
        if let Some(key_status) = key_status {
            balance.remaining = key_status.remaining;
            let after = match key_status.remaining {
                0 => key_status.retry_after,
                _ => key_status.reset_after,
            };
            balance.after = Some(after).filter(|after| !after.is_zero());
        }
        balance
    }
}

impl AllowedHeaders {
    /// Adds the fields to a response. Those of a backend that limits too stay: with `ietf` beside weir's, with `legacy` in place
    /// of weir's where less is left at the backend.
    pub fn write(self, headers: &mut HeaderMap) {
        match self.form {
            HeaderForm::Ietf => {
                let mut state = String::new();
                for balance in &self.balances {
                    let (remaining, after) = (balance.remaining, balance.after);
                    add_state(&mut state, &balance.name, remaining, after);
                }
                let own = [
                    self.policy
                        .map(|policy| (RATELIMIT_POLICY, HeaderValue::clone(&policy))),
                    value(state).map(|state| (RATELIMIT, state)),
                ];
                for (name, value) in own.into_iter().flatten() {
                    headers.append(name, value);
                }
            }
            HeaderForm::Legacy => self.write_tightest(headers),
            HeaderForm::Off => {}
        }
    }

    fn write_tightest(&self, headers: &mut HeaderMap) {
        let Some(tightest) = self.balances.iter().min_by_key(|it| it.remaining) else {
            return;
        };
        let theirs = headers.get(X_RATELIMIT_REMAINING);
        let theirs = theirs.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if theirs.is_some_and(|theirs| theirs < tightest.remaining) {
            return;
        }
        for (name, number) in [
            (X_RATELIMIT_LIMIT, Some(tightest.quota)),
            (X_RATELIMIT_REMAINING, Some(tightest.remaining)),
            (X_RATELIMIT_RESET, tightest.after.map(whole_seconds)),
        ] {
            match number {
                Some(number) => drop(headers.insert(name, HeaderValue::from(number))),
                None => drop(headers.remove(name)),
            }
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::algorithm::{AlgorithmParams, Cost, Delay, Excess, Rate};

    fn policy(rate: Rate, burst: u32) -> String {
        policy_of(&AlgorithmParams::LeakyBucket { rate }, burst)
    }

    fn policy_of(algorithm: &AlgorithmParams, burst: u32) -> String {
        let mut text = String::new();
        let spec = LimitSpec::new(algorithm, Excess::requests(burst), Delay::Never);
        add_requests(
            &mut text,
            &ZoneName::new("perip"),
            &spec,
            &CostSource::Fixed(Cost::ONE),
        );
        text
    }

    #[test]
    fn a_policy_in_bytes_says_so() {
        let spec = LimitSpec::new(
            &AlgorithmParams::FixedWindow {
                limit: 1_000_000,
                window: Duration::from_secs(60),
            },
            Excess::requests(0),
            Delay::Never,
        );
        for cost_source in [CostSource::RequestBytes, CostSource::ResponseBytes] {
            let mut text = String::new();
            add_requests(&mut text, &ZoneName::new("upload"), &spec, &cost_source);
            assert_eq!(text, "\"upload\";q=1000000;qu=\"content-bytes\";w=60");
        }
    }

    #[test]
    fn a_policy_is_the_quota_and_the_time_it_takes_to_drain() {
        assert_eq!(policy(Rate::per_second(10_000), 20), "\"perip\";q=21;w=3");
        assert_eq!(policy(Rate::per_minute(1_000), 0), "\"perip\";q=1;w=60");
        assert_eq!(policy(Rate::per_second(1_000_000), 0), "\"perip\";q=1;w=1");
        assert_eq!(policy(Rate::per_day(1), 0), "\"perip\";q=1;w=86400000");
    }

    #[test]
    fn a_policy_of_a_window_is_as_long_as_the_window() {
        let (limit, window) = (7, Duration::from_secs(10));
        let precision = Duration::from_secs(1);
        for algorithm in [
            AlgorithmParams::FixedWindow { limit, window },
            AlgorithmParams::SlidingLog { limit, window },
            AlgorithmParams::SlidingWindow { limit, window },
            AlgorithmParams::Blocks {
                limit,
                window,
                precision,
            },
        ] {
            let text = policy_of(&algorithm, 0);
            assert_eq!(text, "\"perip\";q=7;w=10", "{algorithm:?}");
        }
    }

    #[test]
    fn names_are_quoted() {
        assert_eq!(&*ZoneName::new(r#"a"b\c"#).quoted, r#""a\"b\\c""#);
        assert_eq!(&*ZoneName::new("zöne\n").quoted, "\"z?ne?\"");
    }

    #[test]
    fn several_policies_make_a_list() {
        let mut text = policy(Rate::per_second(10_000), 20);
        add_connections(&mut text, &ZoneName::new("conn"), 10);
        assert_eq!(
            text,
            "\"perip\";q=21;w=3, \"conn\";q=10;qu=\"concurrent-requests\""
        );
    }
}
