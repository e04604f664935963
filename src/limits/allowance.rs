//! What a client whose request was let in is told of its limits: `limit_headers` with `on: all`.

use std::sync::Arc;
use std::time::Duration;

use http::header::Entry;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::Limits;
use super::applied::RuleResult;
use super::fields::{
    self, RATELIMIT, RATELIMIT_POLICY, X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET,
    ZoneName,
};
use super::key::KeyLookup;
use super::rule::ReqRule;
use super::shared::SharedDecision;
use crate::clock::Millis;
use crate::config::plan::{DryRun, HeaderForm};
use crate::message::RequestRecord;
use crate::store::algorithm::{KeyStatus, LimitSpec};

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
    pub(super) fn of(name: &Arc<ZoneName>, quota: u64, standing: Option<KeyStatus>) -> Self {
        let mut left = Self::new(name, quota, quota);
        if let Some(standing) = standing {
            left.remaining = standing.remaining;
            left.after = Some(match standing.remaining {
                0 => standing.retry_after,
                _ => standing.reset_after,
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
                    fields::add_state(&mut state, &left.name, left.remaining, left.after);
                }
                let own = [
                    self.policy
                        .map(|policy| (RATELIMIT_POLICY, HeaderValue::clone(&policy))),
                    fields::value(state).map(|state| (RATELIMIT, state)),
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
        let seconds = left.after.map(fields::seconds);
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
        exchange: &RequestRecord,
        now: Millis,
        case: Option<&SharedDecision>,
    ) -> Option<Box<AllowedHeaders>> {
        let mut policies = Vec::new();
        if self.requests_voice.dry_run == DryRun::Off {
            for (index, rule) in self.requests.iter().enumerate() {
                policies.extend(match case {
                    Some(case) => case.left(&self.requests, index, now),
                    None => rule.left(exchange, now),
                });
            }
        }
        Some(Box::new(AllowedHeaders {
            form: self.tells?,
            policy: self.policy_of(exchange),
            policies,
        }))
    }

    /// Adds what is left of the `limit_conn`, for a request that has its places.
    pub(super) fn add_places(&self, allowance: &mut AllowedHeaders, exchange: &RequestRecord) {
        if self.connections_voice.dry_run == DryRun::On {
            return;
        }
        for rule in &self.connections {
            // What other gateways have taken is known to the store alone.
            if rule.zone.shared.is_none()
                && let KeyLookup::Key(key) = rule.zone.find(exchange)
            {
                let free = rule.limit.saturating_sub(rule.zone.store.taken(&key));
                let (name, limit) = (&rule.zone.name, u64::from(rule.limit));
                let left = PolicyBalance::new(name, limit, u64::from(free));
                allowance.policies.push(left);
            }
        }
    }

    /// What holds for a request here.
    pub(super) fn policy_of(&self, exchange: &RequestRecord) -> Option<Arc<HeaderValue>> {
        let usual = |rule: &ReqRule| match rule.zone.find(exchange) {
            KeyLookup::Key(keyed) => rule.zone.own(&keyed).is_none(),
            KeyLookup::Nothing => false,
            KeyLookup::Refuse(_) => true,
        };
        if !self.overridden || self.requests.iter().all(usual) {
            return self.policy.clone();
        }
        self.policy_by(|rule| match rule.zone.find(exchange) {
            KeyLookup::Key(keyed) => Some(rule.own_terms(&keyed).unwrap_or(rule.terms)),
            // A key without a limit, or none at all.
            KeyLookup::Nothing => None,
            KeyLookup::Refuse(_) => Some(rule.terms),
        })
    }

    /// What is enforced here, by the numbers that each rule has for somebody; `None` where it does not hold.
    pub(super) fn policy_by(
        &self,
        numbers: impl Fn(&ReqRule) -> Option<LimitSpec>,
    ) -> Option<Arc<HeaderValue>> {
        let mut text = String::new();
        if self.requests_voice.dry_run == DryRun::Off {
            for rule in self.requests.iter() {
                if let Some(terms) = numbers(rule) {
                    fields::add_requests(&mut text, &rule.zone.name, &terms, &rule.weight);
                }
            }
        }
        if self.connections_voice.dry_run == DryRun::Off {
            for rule in &self.connections {
                fields::add_connections(&mut text, &rule.zone.name, rule.limit);
            }
        }
        fields::value(text).map(Arc::new)
    }
}

impl ReqRule {
    fn left(&self, exchange: &RequestRecord, now: Millis) -> Option<PolicyBalance> {
        let KeyLookup::Key(keyed) = self.zone.find(exchange) else {
            return None;
        };
        Some(self.with_terms(&keyed, |terms| {
            let standing = self.zone.store.standing(&keyed.key, now, terms);
            PolicyBalance::of(&self.zone.name, terms.quota(), standing)
        }))
    }
}

impl SharedDecision {
    /// What is left of a rule's policy for a request that was let in.
    fn left(&self, rules: &[ReqRule], rule: usize, now: Millis) -> Option<PolicyBalance> {
        let held = self.keys.iter().find(|held| held.rule == rule)?;
        let (zone, terms) = (&rules[rule].zone, &held.terms);
        let standing = || zone.store.standing(&held.keyed.key, now, terms);
        match held.spoken {
            RuleResult::Nothing | RuleResult::Ruled(_) => None,
            RuleResult::There(answer) => Some(PolicyBalance::new(
                &zone.name,
                terms.quota(),
                answer.remaining,
            )),
            // As far as this gateway knows: what others do with theirs is heard of later.
            RuleResult::Here(..) | RuleResult::Leased(_) | RuleResult::Waits(..) => {
                Some(PolicyBalance::of(&zone.name, terms.quota(), standing()))
            }
        }
    }
}
