//! The results of asking the limits: an admission, a permit, and a refusal with its reason and its end.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode, header};
use smallvec::SmallVec;

use super::headers::{
    self, AllowedHeaders, RATELIMIT, RATELIMIT_POLICY, X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING,
    X_RATELIMIT_RESET, ZoneName,
};
use super::key::KeyFault;
use super::log::LimitKind;
use super::rule::{ConnRule, DeferredCharge, ReqRule};
use crate::config::plan::{HeaderForm, RefusalAction, RefusalBodies};
use crate::store::{ConnSlot, SharedSlotGuard};

/// The decision of a location's `limit_req` on a request.
#[derive(Debug)]
pub enum Admission {
    /// The request goes on after a wait; it is charged already.
    Delay(Duration),
    /// It goes on.
    Pass,
    /// It is refused.
    Refuse(Refusal),
}

/// What a request in progress holds; its slots are released when this is dropped.
#[derive(Debug, Default)]
#[must_use = "a permit that is not held releases its slots"]
pub struct Permit {
    // Two inline: nearly every location has at most one zone by address and one by server.
    pub(super) slots: SmallVec<[ConnSlot; 2]>,
    /// The same slots in the stores that gateways share.
    pub(super) shared_slots: Vec<SharedSlotGuard>,
    /// What the request is charged when it is over.
    pub charges: Vec<DeferredCharge>,
    /// The header fields that its response gets, where they are wanted.
    pub allowed_headers: Option<Box<AllowedHeaders>>,
}

/// Why a request was refused, and all that its response says about it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("limited by zone \"{}\"", self.zone())]
pub struct Refusal {
    /// The kind of limit.
    pub kind: LimitKind,
    /// The status of the response.
    pub status: StatusCode,
    /// The body of the response; `None` for weir's own page.
    pub body: Option<Arc<RefusalBodies>>,
    /// When the same request would pass; `None` where that is not known.
    pub retry_after: Option<Duration>,
    pub(super) name: Arc<ZoneName>,
    pub(super) quota: u64,
    /// What the key has left, in whole requests: less than the cost of this request.
    pub(super) left: u64,
    /// When the rule that refused the request would let it pass, whatever others decide.
    pub(super) own: Option<Duration>,
    pub(super) policy: Option<Arc<HeaderValue>>,
    /// Why the request has no key, if that is the reason.
    pub(super) key_fault: Option<KeyFault>,
}

impl Permit {
    /// Releases the slots.
    #[inline]
    pub fn release(&mut self) {
        self.slots.clear();
        self.shared_slots.clear();
    }
}

impl Refusal {
    /// A refusal by a `limit_req`, without what depends on the key.
    pub(super) fn of_requests(rule: &ReqRule) -> Self {
        let (kind, quota) = (LimitKind::Requests, rule.spec.quota());
        Self::new(kind, rule.status, &rule.action, &rule.zone.name, quota)
    }

    /// A refusal by a `limit_conn`.
    pub(super) fn of_connections(rule: &ConnRule) -> Self {
        let (kind, quota) = (LimitKind::Connections, rule.limit.into());
        Self::new(kind, rule.status, &rule.action, &rule.zone.name, quota)
    }

    #[inline]
    fn new(
        kind: LimitKind,
        status: StatusCode,
        action: &RefusalAction,
        name: &Arc<ZoneName>,
        quota: u64,
    ) -> Self {
        Self {
            kind,
            status,
            body: action.body.clone(),
            retry_after: None,
            name: Arc::clone(name),
            quota,
            left: 0,
            own: None,
            policy: None,
            key_fault: None,
        }
    }

    /// The same of a request without a key.
    pub(super) fn without_key(self, fault: KeyFault) -> Self {
        Self {
            status: match fault {
                KeyFault::Ambiguous => StatusCode::BAD_REQUEST,
                KeyFault::Empty(status) => status.unwrap_or(self.status),
            },
            body: self.body.filter(|_| fault != KeyFault::Ambiguous),
            key_fault: Some(fault),
            ..self
        }
    }

    /// Whether the request has no key, where the zone wants one.
    #[must_use]
    pub fn lacks_key(&self) -> bool {
        matches!(self.key_fault, Some(KeyFault::Empty(_)))
    }

    /// Whether the request is malformed, and would be at any rate.
    #[must_use]
    pub fn is_bad_request(&self) -> bool {
        self.key_fault == Some(KeyFault::Ambiguous)
    }

    /// The zone that refused.
    #[must_use]
    pub fn zone(&self) -> &str {
        &self.name.plain
    }

    /// Whether the responses to both read the same.
    #[must_use]
    pub fn reads_like(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.name, &other.name)
            && self.status == other.status
            && self.body.as_ref().map(Arc::as_ptr) == other.body.as_ref().map(Arc::as_ptr)
            && self.kind == other.kind
            && self.key_fault == other.key_fault
            && (self.quota, self.left) == (other.quota, other.left)
            && self.own.map(headers::whole_seconds) == other.own.map(headers::whole_seconds)
            && self.retry_after_seconds() == other.retry_after_seconds()
            // The text is shared by all refusals of a location, so its address identifies it.
            && self.policy.as_ref().map(Arc::as_ptr) == other.policy.as_ref().map(Arc::as_ptr)
    }

    /// `Retry-After`: whole seconds, rounded up, at least one; `None` for a request without a key, which no
    /// waiting helps.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        match (self.kind, self.retry_after) {
            // A slot may come free at any moment.
            (LimitKind::Connections, None) => Some(1),
            (_, after) => after.map(headers::whole_seconds),
        }
    }

    /// The header fields of the response.
    pub fn header_fields(
        &self,
        form: HeaderForm,
    ) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<> {
        let (seconds, form) = match self.key_fault {
            Some(_) => (None, HeaderForm::Off),
            None => (self.retry_after_seconds(), form),
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
                let reset = self.own.map(headers::whole_seconds).or(seconds);
                list[3] = reset.map(|seconds| (X_RATELIMIT_RESET, HeaderValue::from(seconds)));
            }
            HeaderForm::Off => {}
        }
        list.into_iter().flatten()
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
            key_fault: None,
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
    fn without_a_time_no_retry_after_is_sent() {
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
    fn the_time_beside_a_policy_is_its_own() {
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
