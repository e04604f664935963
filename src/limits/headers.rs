//! The header fields that tell a client what it is held to, as
//! draft-ietf-httpapi-ratelimit-headers-11 writes them.
//!
//! What a client whose request was let in is told of its limits: `limit_headers` with `on: all`.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use http::header::Entry;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::Limits;
use super::key::KeyLookup;
use super::rule::ReqRule;
use super::shared_rule::{RuleResult, SharedDecision};
use crate::algorithm::{KeyStatus, LimitSpec};
use crate::clock::Millis;
use crate::config::plan::{CostSource, HeaderForm};
use crate::message::RequestRecord;

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
    spec: &LimitSpec,
    weight: &CostSource,
) {
    let quota = spec.quota();
    let window = spec.period().as_millis().div_ceil(1000);
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

/// The header fields of a response to a request that was let in.
#[derive(Debug)]
pub struct AllowedHeaders {
    form: HeaderForm,
    policy: Option<Arc<HeaderValue>>,
    policies: Vec<PolicyBalance>,
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

    /// Of a key that stands like this, or that its zone does not know.
    pub(super) fn of(name: &Arc<ZoneName>, quota: u64, key_status: Option<KeyStatus>) -> Self {
        let mut left = Self::new(name, quota, quota);
        if let Some(key_status) = key_status {
            left.remaining = key_status.remaining;
            left.after = Some(match key_status.remaining {
                0 => key_status.retry_after,
                _ => key_status.reset_after,
            })
            .filter(|after| !after.is_zero());
        }
        left
    }
}

impl AllowedHeaders {
    /// Adds the fields to a response. Those of a backend that limits as well stay: with `ietf` beside weir's, with `legacy` in
    /// place of weir's where the backend has less left.
    pub fn write(self, headers: &mut HeaderMap) {
        match self.form {
            HeaderForm::Ietf => {
                let mut state = String::new();
                for left in &self.policies {
                    add_state(&mut state, &left.name, left.remaining, left.after);
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
        let Some(left) = self.policies.iter().min_by_key(|left| left.remaining) else {
            return;
        };
        let others = headers.get(X_RATELIMIT_REMAINING);
        let others = others.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if others.is_some_and(|remaining| remaining < left.remaining) {
            return;
        }
        let seconds = left.after.map(seconds);
        let own: [(HeaderName, Option<u64>); 3] = [
            (X_RATELIMIT_LIMIT, Some(left.quota)),
            (X_RATELIMIT_REMAINING, Some(left.remaining)),
            (X_RATELIMIT_RESET, seconds),
        ];
        for (name, number) in own {
            match (headers.entry(name), number) {
                (Entry::Occupied(mut field), Some(number)) => {
                    field.insert(HeaderValue::from(number));
                }
                (Entry::Occupied(field), None) => {
                    field.remove_entry_mult();
                }
                (Entry::Vacant(field), Some(number)) => {
                    field.insert(HeaderValue::from(number));
                }
                (Entry::Vacant(_), None) => {}
            }
        }
    }
}

impl Limits {
    /// What a request that was let in is told of the `limit_req` of its location; `case` has what stores said of it.
    pub(super) fn allowance(
        &self,
        record: &RequestRecord,
        now: Millis,
        case: Option<&SharedDecision>,
    ) -> Option<Box<AllowedHeaders>> {
        let mut policies = Vec::new();
        if !self.requests_voice.dry_run {
            for (index, rule) in self.requests.iter().enumerate() {
                policies.extend(match case {
                    Some(case) => case.left(&self.requests, index, now),
                    None => rule.left(record, now),
                });
            }
        }
        Some(Box::new(AllowedHeaders {
            form: self.tells?,
            policy: self.policy_of(record),
            policies,
        }))
    }

    /// Adds what is left of the `limit_conn`, for a request that has its places.
    pub(super) fn add_places(&self, allowance: &mut AllowedHeaders, record: &RequestRecord) {
        if self.connections_voice.dry_run {
            return;
        }
        for rule in &self.connections {
            // What other gateways have taken is known to the store alone.
            if rule.zone.shared.is_none()
                && let KeyLookup::Key(key) = rule.zone.find(record)
            {
                let free = rule.limit.saturating_sub(rule.zone.store.taken(&key));
                let (name, limit) = (&rule.zone.name, u64::from(rule.limit));
                let left = PolicyBalance::new(name, limit, u64::from(free));
                allowance.policies.push(left);
            }
        }
    }

    /// What holds for a request here.
    pub(super) fn policy_of(&self, record: &RequestRecord) -> Option<Arc<HeaderValue>> {
        let usual = |rule: &ReqRule| match rule.zone.find(record) {
            KeyLookup::Key(rule_key) => rule.zone.own(&rule_key).is_none(),
            KeyLookup::Nothing => false,
            KeyLookup::Refuse(_) => true,
        };
        if !self.overridden || self.requests.iter().all(usual) {
            return self.policy.clone();
        }
        self.policy_by(|rule| match rule.zone.find(record) {
            KeyLookup::Key(rule_key) => Some(rule.own_terms(&rule_key).unwrap_or(rule.spec)),
            // A key without a limit, or none at all.
            KeyLookup::Nothing => None,
            KeyLookup::Refuse(_) => Some(rule.spec),
        })
    }

    /// What is enforced here, by the numbers that each rule has for somebody; `None` where it does not hold.
    pub(super) fn policy_by(
        &self,
        numbers: impl Fn(&ReqRule) -> Option<LimitSpec>,
    ) -> Option<Arc<HeaderValue>> {
        let mut text = String::new();
        if !self.requests_voice.dry_run {
            for rule in self.requests.iter() {
                if let Some(spec) = numbers(rule) {
                    add_requests(&mut text, &rule.zone.name, &spec, &rule.weight);
                }
            }
        }
        if !self.connections_voice.dry_run {
            for rule in &self.connections {
                add_connections(&mut text, &rule.zone.name, rule.limit);
            }
        }
        value(text).map(Arc::new)
    }
}

impl ReqRule {
    fn left(&self, record: &RequestRecord, now: Millis) -> Option<PolicyBalance> {
        let KeyLookup::Key(rule_key) = self.zone.find(record) else {
            return None;
        };
        Some(self.with_terms(&rule_key, |spec| {
            let key_status = self.zone.store.key_status(&rule_key.key, now, spec);
            PolicyBalance::of(&self.zone.name, spec.quota(), key_status)
        }))
    }
}

impl SharedDecision {
    /// What is left of a rule's policy for a request that was let in.
    fn left(&self, rules: &[ReqRule], rule: usize, now: Millis) -> Option<PolicyBalance> {
        let held = self.keys.iter().find(|held| held.rule == rule)?;
        let (zone, spec) = (&rules[rule].zone, &held.spec);
        let key_status = || zone.store.key_status(&held.rule_key.key, now, spec);
        match held.spoken {
            RuleResult::Nothing | RuleResult::Ruled(_) => None,
            RuleResult::There(answer) => Some(PolicyBalance::new(
                &zone.name,
                spec.quota(),
                answer.remaining,
            )),
            // As far as this gateway knows: what others do with theirs is heard of later.
            RuleResult::Here(..) | RuleResult::Leased(_) | RuleResult::Waits(..) => {
                Some(PolicyBalance::of(&zone.name, spec.quota(), key_status()))
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
        for weight in [CostSource::RequestBytes, CostSource::ResponseBytes] {
            let mut text = String::new();
            add_requests(&mut text, &ZoneName::new("upload"), &spec, &weight);
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
