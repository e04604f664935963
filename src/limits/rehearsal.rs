//! The same decisions for those who only want to know: what every rule said of a request, and under which key.
//!
//! Nothing is decided here. What happens on the road is asked of the road's own functions, and told rule by rule.

use std::time::Duration;

use smallvec::SmallVec;

use super::Limits;
use super::key::KeyLookup;
use super::rule::{ConnRule, Decision, RuleObserver};
use super::verdict::{Admission, Permit};
use crate::clock::Millis;
use crate::config::plan::{ConnQueue, DryRun};
use crate::message::RequestRecord;
use crate::store::Key;
use crate::store::algorithm::Verdict;

/// What a rule said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleVerdict {
    /// It has to wait for so long.
    Delay(Duration),
    /// It may pass.
    Pass,
    /// It may not.
    Refuse,
}

/// The places a request needs in `limit_conn` zones, to be taken when its time has come.
#[derive(Debug, Default)]
pub struct SlotKeys {
    keys: SmallVec<[Option<Key>; 2]>,
    /// The rule that turns it away because it has no key.
    keyless: Option<usize>,
}

/// What came of wanting a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotOutcome {
    /// There was none, which changes nothing in a dry run.
    DryRun,
    /// There was none; one may wait for it in this line, if there is room in it.
    Line(ConnQueue),
    /// There was none.
    No,
    /// None is needed.
    NotNeeded,
    /// It is held.
    Yes,
}

impl Limits {
    /// As [`Limits::ask_requests`], and tells what each rule said that had a say: the request, the rule's
    /// index, the request's key there, and its word. Of a request that is refused, only the rule that refused it had one.
    pub fn ask_requests_aloud(
        &self,
        exchange: &mut RequestRecord,
        now: Millis,
        mut tell: impl FnMut(&RequestRecord, usize, &[u8], RuleVerdict),
    ) -> Admission {
        let mut heard = VerdictRecorder::default();
        let decision = self.requests.decide(exchange, now, &mut heard);
        match &decision {
            Decision::NoKey { rule, .. } => tell(exchange, *rule, b"", RuleVerdict::Refuse),
            Decision::NotLimited => {}
            Decision::Delay { .. } | Decision::Pass => {
                for (rule, said) in heard.0 {
                    self.requests[rule]
                        .zone
                        .with_key(exchange, |key| tell(exchange, rule, key, said));
                }
            }
            Decision::Penalize { rule, .. } | Decision::Refuse { rule, .. } => {
                let zone = &self.requests[*rule].zone;
                zone.with_key(exchange, |key| {
                    tell(exchange, *rule, key, RuleVerdict::Refuse)
                });
            }
        }
        self.pronounce(decision, exchange, now)
    }

    /// Whether a request's key has numbers of its own in the zone of a `limit_req`.
    #[must_use]
    pub fn has_own_numbers(&self, rule: usize, exchange: &RequestRecord) -> bool {
        let zone = &self.requests[rule].zone;
        match zone.find(exchange) {
            KeyLookup::Key(keyed) => zone.own(&keyed).is_some(),
            KeyLookup::Nothing | KeyLookup::Refuse(_) => false,
        }
    }

    /// What the key of a request looks like to people, in the zone of a `limit_req`.
    #[must_use]
    pub fn requests_label(&self, rule: usize, exchange: &RequestRecord) -> String {
        self.requests[rule].zone.label(exchange)
    }

    /// The same in the zone of a `limit_conn`.
    #[must_use]
    pub fn connections_label(&self, rule: usize, exchange: &RequestRecord) -> String {
        self.connections[rule].zone.label(exchange)
    }

    /// The key of a request in the zone of a `limit_conn`.
    pub fn with_connections_key(
        &self,
        rule: usize,
        exchange: &RequestRecord,
        act: impl FnOnce(&[u8]),
    ) {
        self.connections[rule].zone.with_key(exchange, act);
    }

    /// Which places a request needs.
    #[must_use]
    pub fn places(&self, exchange: &RequestRecord) -> SlotKeys {
        let mut places = SlotKeys::default();
        for (index, rule) in self.connections.iter().enumerate() {
            places.keys.push(match rule.zone.find(exchange) {
                KeyLookup::Key(key) => Some(key),
                KeyLookup::Nothing => None,
                KeyLookup::Refuse(_) => {
                    places.keyless.get_or_insert(index);
                    None
                }
            });
        }
        places
    }

    /// Takes the place a request needs in the zone of one `limit_conn`, if there is one, into its permit.
    pub fn take_place_aloud(
        &self,
        rule: usize,
        places: &SlotKeys,
        now: Millis,
        permit: &mut Permit,
    ) -> SlotOutcome {
        let ConnRule {
            zone, limit, queue, ..
        } = &self.connections[rule];
        let taken = match places.keys.get(rule).copied().flatten() {
            Some(key) => zone.store.take(&key, *limit, now).map_err(|_| *queue),
            None if places.keyless == Some(rule) => Err(None),
            None => return SlotOutcome::NotNeeded,
        };
        match (taken, self.connections_voice.dry_run) {
            (Ok(place), _) => {
                permit.hold(place);
                SlotOutcome::Yes
            }
            (Err(_), DryRun::On) => SlotOutcome::DryRun,
            (Err(Some(queue)), DryRun::Off) => SlotOutcome::Line(queue),
            (Err(None), DryRun::Off) => SlotOutcome::No,
        }
    }
}

#[derive(Default)]
struct VerdictRecorder(SmallVec<[(usize, RuleVerdict); 4]>);

impl RuleObserver for VerdictRecorder {
    fn hear(&mut self, rule: usize, outcome: &Verdict) {
        self.0.push((
            rule,
            match outcome {
                Verdict::Delay { wait, .. } => RuleVerdict::Delay(*wait),
                Verdict::Pass { .. } => RuleVerdict::Pass,
                Verdict::Refuse { .. } => RuleVerdict::Refuse,
            },
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::tests::support::{
        conn_rule, conn_zone, exchange_from, limits, plan, req_rule, req_zone,
    };

    fn ask(limits: &Limits, exchange: &mut RequestRecord, now: u64) -> Vec<(usize, RuleVerdict)> {
        let mut told = Vec::new();
        let verdict = limits.ask_requests_aloud(exchange, Millis(now), |_, rule, key, said| {
            assert_eq!(key, [192, 0, 2, 1]);
            told.push((rule, said));
        });
        let refused = told.iter().any(|(_, said)| *said == RuleVerdict::Refuse);
        assert_eq!(refused, matches!(verdict, Admission::Refuse(_)));
        told
    }

    #[test]
    fn only_who_refuses_has_said_something_of_a_refused_request() {
        let plan = plan(vec![req_zone("a", 1_000), req_zone("b", 1_000)], vec![]);
        let limits = limits(&plan, &[req_rule(0, 5), req_rule(1, 0)], &[]);
        let mut exchange = exchange_from("192.0.2.1", &[]);
        assert_eq!(
            ask(&limits, &mut exchange, 0),
            [(0, RuleVerdict::Pass), (1, RuleVerdict::Pass)]
        );
        assert_eq!(ask(&limits, &mut exchange, 1), [(1, RuleVerdict::Refuse)]);
        assert_eq!(limits.requests_label(0, &exchange), "192.0.2.1");
    }

    #[test]
    fn places_are_held_until_they_are_let_go() {
        let plan = plan(vec![], vec![conn_zone("c")]);
        let limits = limits(&plan, &[], &[conn_rule(0, 1)]);
        let exchange = exchange_from("192.0.2.1", &[]);
        let places = limits.places(&exchange);
        let take = |now| {
            let mut permit = Permit::default();
            let taken = limits.take_place_aloud(0, &places, Millis(now), &mut permit);
            (taken, permit)
        };
        let (taken, permit) = take(0);
        assert_eq!(taken, SlotOutcome::Yes);
        assert_eq!(take(1).0, SlotOutcome::No);
        drop(permit);
        assert_eq!(take(2).0, SlotOutcome::Yes);
    }
}
