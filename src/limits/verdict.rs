//! What comes of asking the limits: a permit, a wait, or a refusal that can say why and until when.
//!
//! When a refused request would pass: by the rule that refused it, and by all that hold for it.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode, header};

use super::cost::DeferredCharge;
use super::headers::{
    self, AllowedHeaders, RATELIMIT, RATELIMIT_POLICY, X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING,
    X_RATELIMIT_RESET, ZoneName,
};
use super::key::KeyLookup;
use super::rule::{Decision, ReqRule};
use crate::algorithm::{LimitSpec, Verdict};
use crate::clock::Millis;
use crate::config::plan::{HeaderForm, RefusalBodies};
use crate::message::RequestRecord;
use crate::store::{ConnSlot, SharedSlotGuard};

/// What the `limit_req` rules of a location say of a request.
#[derive(Debug)]
pub enum Admission {
    /// It goes on after a wait; it is charged already.
    Delay(Duration),
    /// It goes on.
    Pass,
    /// It is turned away.
    Refuse(Refusal),
}

/// What a request in progress holds; its places are given back when this is dropped.
// Two inline: nearly every location has at most one zone by address and one by server.
#[derive(Debug, Default)]
#[must_use = "a permit that is not held gives its places back"]
pub struct Permit {
    first: Option<ConnSlot>,
    second: Option<ConnSlot>,
    more: Vec<ConnSlot>,
    /// The same places in the stores that gateways share.
    leases: Vec<SharedSlotGuard>,
    /// What the request owes when it is over.
    pub bills: Vec<DeferredCharge>,
    /// What its client is told of the limits with the response, where that is wanted.
    pub allowance: Option<Box<AllowedHeaders>>,
}

/// Why a request was turned away, and all that its answer has to say about it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("limited by zone \"{}\"", self.zone())]
pub struct Refusal {
    /// What there was too much of.
    pub kind: LimitKind,
    /// The status it is answered with.
    pub status: StatusCode,
    /// What it is answered with; `None` for weir's own page.
    pub body: Option<Arc<RefusalBodies>>,
    /// When the same request would pass; `None` where nobody knows.
    pub retry_after: Option<Duration>,
    pub(super) name: Arc<ZoneName>,
    pub(super) quota: u64,
    /// What its key has left there, in whole requests: less than this request weighs.
    pub(super) left: u64,
    /// When the rule that refused it would let it pass, whatever others say.
    pub(super) own: Option<Duration>,
    pub(super) policy: Option<Arc<HeaderValue>>,
    /// Whether there is nothing to say of limits: no waiting makes the request a good one.
    pub(super) is_bad_request: bool,
    /// Whether it has no key, where the zone wants one.
    pub(super) lacks_key: bool,
}

/// What there was too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// Requests at once: `limit_conn`.
    Connections,
    /// Requests in a time: `limit_req`.
    Requests,
}

impl LimitKind {
    /// Its word in a configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connections => "limit_conn",
            Self::Requests => "limit_req",
        }
    }
}

impl Permit {
    pub(super) fn hold(&mut self, place: ConnSlot) {
        if self.first.is_none() {
            self.first = Some(place);
        } else if self.second.is_none() {
            self.second = Some(place);
        } else {
            self.more.push(place);
        }
    }

    pub(super) fn lease(&mut self, lease: SharedSlotGuard) {
        self.leases.push(lease);
    }
}

impl Refusal {
    /// The same request refused because it is ambiguous, and not for what there is too much of.
    pub(super) fn of_a_bad_request(self) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            body: None,
            is_bad_request: true,
            ..self
        }
    }

    /// The same request refused because it has no key, with this status where there is one.
    pub(super) fn without_key(self, status: Option<StatusCode>) -> Self {
        Self {
            status: status.unwrap_or(self.status),
            lacks_key: true,
            ..self
        }
    }

    /// Whether it has no key, where the zone wants one.
    #[must_use]
    pub fn lacks_key(&self) -> bool {
        self.lacks_key
    }

    /// Whether the limit of the zone is not what it failed.
    #[must_use]
    pub fn is_bad_request(&self) -> bool {
        self.is_bad_request
    }

    /// The zone that refused.
    #[must_use]
    pub fn zone(&self) -> &str {
        &self.name.plain
    }

    /// Whether both are told to the client in the very same words.
    #[must_use]
    pub fn reads_like(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.name, &other.name)
            && self.status == other.status
            && self.body.as_ref().map(Arc::as_ptr) == other.body.as_ref().map(Arc::as_ptr)
            && self.kind == other.kind
            && self.is_bad_request == other.is_bad_request
            && self.lacks_key == other.lacks_key
            && (self.quota, self.left) == (other.quota, other.left)
            && self.own.map(headers::seconds) == other.own.map(headers::seconds)
            && self.retry_after_seconds() == other.retry_after_seconds()
            // The text is shared by all refusals of a location, so where it stands says which one it is.
            && self.policy.as_ref().map(Arc::as_ptr) == other.policy.as_ref().map(Arc::as_ptr)
    }

    /// `Retry-After`: whole seconds, rounded up, at least one; `None` for a request without a key, which no
    /// waiting helps.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        match (self.kind, self.retry_after) {
            // A place may come free at any moment.
            (LimitKind::Connections, None) => Some(1),
            (_, after) => after.map(headers::seconds),
        }
    }

    /// The header fields of the answer.
    pub fn header_fields(
        &self,
        form: HeaderForm,
    ) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<> {
        let (seconds, form) = match self.is_bad_request || self.lacks_key {
            true => (None, HeaderForm::Off),
            false => (self.retry_after_seconds(), form),
        };
        let mut list = [
            seconds.map(|seconds| (header::RETRY_AFTER, HeaderValue::from(seconds))),
            None,
            None,
            None,
        ];
        match form {
            HeaderForm::Ietf => {
                let mut state = String::new();
                headers::add_state(&mut state, &self.name, self.left, self.own);
                let policy = self.policy.as_deref().cloned();
                list[1] = policy.map(|policy| (RATELIMIT_POLICY, policy));
                list[2] = headers::value(state).map(|state| (RATELIMIT, state));
            }
            HeaderForm::Legacy => {
                list[1] = Some((X_RATELIMIT_LIMIT, HeaderValue::from(self.quota)));
                list[2] = Some((X_RATELIMIT_REMAINING, HeaderValue::from(self.left)));
                // Where the rule names no time, as a full `limit_conn`, it is that of `Retry-After`.
                let reset = self.own.map(headers::seconds).or(seconds);
                list[3] = reset.map(|seconds| (X_RATELIMIT_RESET, HeaderValue::from(seconds)));
            }
            HeaderForm::Off => {}
        }
        list.into_iter().flatten()
    }
}

impl Decision {
    /// Makes a refusal by `rule` tell when a retry would be let in to wait for the rest of the time.
    pub(super) fn may_wait(&mut self, rule: &ReqRule, spec: &LimitSpec) {
        if let Self::Refuse {
            retry_after, own, ..
        } = self
        {
            *own = rule.enters_after(*own, spec);
            *retry_after = *own;
        }
    }

    /// Makes a refusal tell when a retry would pass the `later` rules too, which nobody has asked yet.
    pub(super) fn until_all_pass(
        &mut self,
        later: &[ReqRule],
        record: &RequestRecord,
        now: Millis,
    ) {
        for rule in later {
            let KeyLookup::Key(rule_key) = rule.zone.find(record) else {
                continue;
            };
            let cost = rule.cost(record);
            let refused = rule.with_terms(&rule_key, |spec| {
                let outcome = rule.zone.store.peek(&rule_key.key, now, cost, spec);
                rule.passes_at(&outcome, spec)
            });
            if let Some(after) = refused {
                self.not_before(after);
            }
        }
    }

    /// One of several rules refuses: the first has the say, and the longest time to wait.
    pub(super) fn hear_refusal(&mut self, other: Self, remaining: Option<u64>) {
        match (self.is_refusal(), other) {
            (true, Self::Refuse { retry_after, .. }) => self.not_before(retry_after),
            (_, other) => {
                *self = other;
                if let Self::Refuse { left, .. } = self {
                    *left = remaining;
                }
            }
        }
    }

    /// Makes a refusal tell no earlier time than another rule does; `None` where no waiting helps.
    pub(super) fn not_before(&mut self, after: Option<Duration>) {
        if let Self::Refuse { retry_after, .. } = self {
            *retry_after = after.zip(*retry_after).map(|(one, other)| one.max(other));
        }
    }
}

impl ReqRule {
    /// When a request would pass that this rule refuses; `None` if it does not refuse it.
    pub(super) fn passes_at(
        &self,
        outcome: &Verdict,
        spec: &LimitSpec,
    ) -> Option<Option<Duration>> {
        match *outcome {
            Verdict::Refuse { retry_after, .. } => Some(self.enters_after(retry_after, spec)),
            Verdict::Delay { .. } | Verdict::Pass { .. } => None,
        }
    }

    /// When a request that would be within the burst after `turn` is let in: at once then, or earlier to wait.
    fn enters_after(&self, turn: Option<Duration>, spec: &LimitSpec) -> Option<Duration> {
        let most = self.action.max_wait.unwrap_or_default();
        // At its turn it still waits as the burst has it, and all of that has to fit into the longest wait.
        let before_its_turn = most.saturating_sub(spec.wait_in_burst());
        turn.map(|turn| turn.saturating_sub(before_its_turn))
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn refusal(kind: LimitKind, retry_after: Option<u64>) -> Refusal {
        Refusal {
            kind,
            status: StatusCode::TOO_MANY_REQUESTS,
            body: None,
            retry_after: retry_after.map(Duration::from_millis),
            name: Arc::new(ZoneName::new("perip")),
            quota: 21,
            left: 0,
            own: retry_after.map(Duration::from_millis),
            policy: Some(Arc::new(HeaderValue::from_static("\"perip\";q=21;w=3"))),
            is_bad_request: false,
            lacks_key: false,
        }
    }

    fn written(refusal: &Refusal, form: HeaderForm) -> Vec<String> {
        refusal
            .header_fields(form)
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect()
    }

    #[test]
    fn retry_after_is_rounded_up_and_never_nothing() {
        for (millis, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (62_500, 63)] {
            let refusal = refusal(LimitKind::Requests, Some(millis));
            assert_eq!(refusal.retry_after_seconds(), Some(seconds), "{millis}");
        }
        let place = refusal(LimitKind::Connections, None);
        assert_eq!(place.retry_after_seconds(), Some(1));
    }

    #[test]
    fn a_request_without_a_key_is_not_told_to_come_back() {
        let refusal = refusal(LimitKind::Requests, None);
        assert_eq!(
            written(&refusal, HeaderForm::Ietf),
            [
                "ratelimit-policy: \"perip\";q=21;w=3",
                "ratelimit: \"perip\";r=0"
            ]
        );
    }

    #[test]
    fn ietf_fields_name_the_policy_and_what_is_left_of_it() {
        assert_eq!(
            written(&refusal(LimitKind::Requests, Some(1_200)), HeaderForm::Ietf),
            [
                "retry-after: 2",
                "ratelimit-policy: \"perip\";q=21;w=3",
                "ratelimit: \"perip\";r=0;t=2"
            ]
        );
        assert_eq!(
            written(&refusal(LimitKind::Connections, None), HeaderForm::Ietf)[2],
            "ratelimit: \"perip\";r=0"
        );
    }

    #[test]
    fn legacy_fields_are_three_numbers() {
        assert_eq!(
            written(
                &refusal(LimitKind::Requests, Some(1_200)),
                HeaderForm::Legacy
            ),
            [
                "retry-after: 2",
                "x-ratelimit-limit: 21",
                "x-ratelimit-remaining: 0",
                "x-ratelimit-reset: 2"
            ]
        );
    }

    /// Another rule has to be waited for a minute; this one has three left and would let five pass after two seconds.
    #[test]
    fn what_is_told_of_a_policy_is_its_own() {
        let refusal = Refusal {
            left: 3,
            own: Some(Duration::from_secs(2)),
            ..refusal(LimitKind::Requests, Some(60_000))
        };
        let ietf = written(&refusal, HeaderForm::Ietf);
        assert_eq!(ietf[0], "retry-after: 60");
        assert_eq!(ietf[2], "ratelimit: \"perip\";r=3;t=2");
        let legacy = written(&refusal, HeaderForm::Legacy);
        assert_eq!(
            legacy[2..],
            ["x-ratelimit-remaining: 3", "x-ratelimit-reset: 2"]
        );
        let other = Refusal {
            left: 2,
            ..refusal.clone()
        };
        assert!(!refusal.reads_like(&other));
    }

    #[test]
    fn with_headers_off_retry_after_stays() {
        assert_eq!(
            written(&refusal(LimitKind::Requests, Some(1_200)), HeaderForm::Off),
            ["retry-after: 2"]
        );
    }
}
