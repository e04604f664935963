//! The header fields that tell a client what it is held to, as
//! draft-ietf-httpapi-ratelimit-headers-11 writes them.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::config::plan::CostSource;
use crate::store::algorithm::LimitSpec;

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
                // Such a string is of printable ASCII and has no way to say more.
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
    terms: &LimitSpec,
    weight: &CostSource,
) {
    let quota = terms.quota();
    let window = terms.period().as_millis().div_ceil(1000);
    let unit = match weight {
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

/// Appends what is left of a policy to a `RateLimit`, and for how long that has to do.
pub(super) fn add_state(state: &mut String, name: &ZoneName, left: u64, after: Option<Duration>) {
    separate(state);
    let _written = match after.map(seconds) {
        Some(t) => write!(state, "{};r={left};t={t}", name.quoted),
        None => write!(state, "{};r={left}", name.quoted),
    };
}

/// A time as clients are told: whole seconds, rounded up, at least one.
pub(super) fn seconds(after: Duration) -> u64 {
    let started = u64::from(after.subsec_nanos() > 0);
    after.as_secs().saturating_add(started).max(1)
}

/// A field's value; `None` if there is nothing to say.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::{AlgorithmParams, Cost, Delay, Excess, Rate};

    fn policy(rate: Rate, burst: u32) -> String {
        policy_of(&AlgorithmParams::LeakyBucket { rate }, burst)
    }

    fn policy_of(algorithm: &AlgorithmParams, burst: u32) -> String {
        let mut text = String::new();
        let terms = LimitSpec::new(algorithm, Excess::requests(burst), Delay::Never);
        add_requests(
            &mut text,
            &ZoneName::new("perip"),
            &terms,
            &CostSource::Fixed(Cost::ONE),
        );
        text
    }

    #[test]
    fn a_policy_in_bytes_says_so() {
        let terms = LimitSpec::new(
            &AlgorithmParams::FixedWindow {
                limit: 1_000_000,
                window: Duration::from_secs(60),
            },
            Excess::requests(0),
            Delay::Never,
        );
        for weight in [CostSource::RequestBytes, CostSource::ResponseBytes] {
            let mut text = String::new();
            add_requests(&mut text, &ZoneName::new("upload"), &terms, &weight);
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
        let sliding = |precision| AlgorithmParams::SlidingWindow {
            limit,
            window,
            precision,
        };
        for algorithm in [
            AlgorithmParams::FixedWindow { limit, window },
            AlgorithmParams::SlidingLog { limit, window },
            sliding(None),
            sliding(Some(Duration::from_secs(1))),
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
