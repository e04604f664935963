//! The header fields that tell a client what it is held to, as
//! draft-ietf-httpapi-ratelimit-headers-11 writes them.

use std::fmt::Write;

use http::{HeaderName, HeaderValue};

use crate::config::plan::Excess;
use crate::store::algorithm::leaky_bucket::Terms;

/// A zone's name, plain and as a structured-field string.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) plain: Box<str>,
    pub(super) quoted: Box<str>,
}

impl Name {
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

/// How many requests a key may send at one moment: its burst, and the one that is within the rate.
pub(super) fn quota(terms: &Terms) -> u64 {
    terms.burst.0 / Excess::ONE.0 + 1
}

/// Appends what a `limit_req` allows to a `RateLimit-Policy`.
pub(super) fn add_requests(policy: &mut String, name: &Name, terms: &Terms) {
    let quota = quota(terms);
    let per_second = u128::from(terms.rate.units_per_milli()).max(1) * 1000;
    // The time in which a whole quota drains.
    let window = (u128::from(quota) * u128::from(Excess::ONE.0)).div_ceil(per_second);
    separate(policy);
    // Writing to a string cannot fail.
    let _written = write!(policy, "{};q={quota};w={window}", name.quoted);
}

/// Appends what a `limit_conn` allows to a `RateLimit-Policy`.
pub(super) fn add_connections(policy: &mut String, name: &Name, limit: u32) {
    separate(policy);
    let _written = write!(
        policy,
        "{};q={limit};qu=\"concurrent-requests\"",
        name.quoted
    );
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
    use crate::config::plan::{Delay, Rate};

    fn policy(rate: Rate, burst: u32) -> String {
        let mut text = String::new();
        let terms = Terms {
            rate,
            burst: Excess::requests(burst),
            delay: Delay::Never,
        };
        add_requests(&mut text, &Name::new("perip"), &terms);
        text
    }

    #[test]
    fn a_policy_is_the_quota_and_the_time_it_takes_to_drain() {
        assert_eq!(policy(Rate::per_second(10_000), 20), "\"perip\";q=21;w=3");
        assert_eq!(policy(Rate::per_minute(1_000), 0), "\"perip\";q=1;w=60");
        assert_eq!(policy(Rate::per_second(1_000_000), 0), "\"perip\";q=1;w=1");
        assert_eq!(policy(Rate::per_day(1), 0), "\"perip\";q=1;w=86400000");
    }

    #[test]
    fn names_are_quoted() {
        assert_eq!(&*Name::new(r#"a"b\c"#).quoted, r#""a\"b\\c""#);
        assert_eq!(&*Name::new("zöne\n").quoted, "\"z?ne?\"");
    }

    #[test]
    fn several_policies_make_a_list() {
        let mut text = policy(Rate::per_second(10_000), 20);
        add_connections(&mut text, &Name::new("conn"), 10);
        assert_eq!(
            text,
            "\"perip\";q=21;w=3, \"conn\";q=10;qu=\"concurrent-requests\""
        );
    }
}
