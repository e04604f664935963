//! What a request weighs against a zone, where that is not the same for all.
//!
//! What a request turns out to cost, charged when it is over.
//!
//! Until then it has cost nothing: it was let in because its key was not in debt. So what is charged here may leave the
//! key in debt, and keeps the next request out until that is paid.

use std::cell::RefCell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::key::KeyLookup;
use super::rule::ReqRule;
use super::zone::RuleKey;
use crate::algorithm::{Cost, Excess, LimitSpec};
use crate::clock::Millis;
use crate::config::plan::{CostSource, Template};
use crate::message::RequestRecord;
use crate::message::variables::KeyReader;
use crate::store::{OutageCharge, StoreRequest};
use crate::telemetry::RateLimitedLog;

/// The cost of a request as far as it is known when it comes; what is known only afterwards is charged then.
pub(super) fn before(weight: &CostSource, parts: KeyReader, record: &RequestRecord) -> Cost {
    match weight {
        CostSource::After(_) | CostSource::RequestBytes | CostSource::ResponseBytes => Cost(0),
        CostSource::Before(template) => told(template, parts, record, record.started),
        CostSource::Fixed(cost) => *cost,
    }
}

/// What is to be charged when a request is over, at whatever point that came.
pub(super) fn after(
    weight: &CostSource,
    parts: KeyReader,
    record: &RequestRecord,
    now: Millis,
) -> Cost {
    match weight {
        CostSource::After(template) => told(template, parts, record, now),
        CostSource::Before(_) | CostSource::Fixed(_) => Cost(0),
        CostSource::RequestBytes => Cost::milli(record.body_received.saturating_mul(1000)),
        CostSource::ResponseBytes => Cost::milli(record.body_sent.saturating_mul(1000)),
    }
}

/// Whether a client gives a part of what a request weighs more than once.
pub(super) fn is_ambiguous(template: &Template, parts: KeyReader, record: &RequestRecord) -> bool {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        parts.render(template, record, scratch).is_err()
    })
}

/// How often a text that should have said what a request costs did not.
#[must_use]
pub fn bad_costs() -> u64 {
    BAD.total()
}

/// What a text says. It comes from outside: one that says no number, or one that nobody could ever pay, weighs as
/// much as any request.
fn told(template: &Template, parts: KeyReader, record: &RequestRecord, now: Millis) -> Cost {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        // One that is ambiguous has been refused, unless only the response made it so.
        let known = parts.render(template, record, scratch).is_ok();
        if scratch.is_empty() {
            return Cost::ONE;
        }
        number(scratch).filter(|_| known).unwrap_or_else(|| {
            if let Some(times) = BAD.note(now) {
                let text = scratch[..scratch.len().min(LONGEST)].escape_ascii();
                tracing::warn!(times, "\"{text}\" is not a cost, counted as 1");
            }
            Cost::ONE
        })
    })
}

/// The number a text is, if a key could owe as much.
fn number(text: &[u8]) -> Option<Cost> {
    let milli = milli(text)?;
    (milli <= u64::MAX / (Excess::ONE.0 / 1000)).then(|| Cost::milli(milli))
}

/// It may be said by anybody, in every request.
static BAD: RateLimitedLog = RateLimitedLog::new();

/// How much of such a text is worth a place in the log, in bytes.
const LONGEST: usize = 64;

/// A decimal in thousandths, more decimals cut off; the most there can be where it is larger.
fn milli(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    let dot = text.iter().position(|byte| *byte == b'.');
    let (whole, decimals) = match dot {
        Some(dot) => (&text[..dot], text.get(dot + 1..).unwrap_or_default()),
        None => (text, &b"0"[..]),
    };
    let all_digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    if !all_digits(whole) || !all_digits(decimals) {
        return None;
    }
    let padded = decimals.iter().copied().chain(*b"000").take(3);
    let digits = whole.iter().copied().chain(padded);
    Some(digits.fold(0u64, |sum, digit| {
        sum.saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'))
    }))
}

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What one request owes to the rules that let it in.
#[derive(Debug)]
#[must_use = "what nobody settles is never charged"]
pub struct DeferredCharge {
    rules: Arc<[ReqRule]>,
    owed: SmallVec<[OwedRule; 1]>,
}

/// To one rule.
#[derive(Debug)]
struct OwedRule {
    rule: usize,
    rule_key: RuleKey,
    /// What the key was made from, where a store has to be told.
    bytes: Vec<u8>,
}

impl DeferredCharge {
    /// Of a request that these rules have let in.
    pub(super) fn new(rules: Arc<[ReqRule]>, record: &RequestRecord) -> Self {
        let late = rules.iter().enumerate().filter(|it| it.1.weight.is_late());
        let owed = late
            .filter_map(|(rule, ReqRule { zone, .. })| {
                let mut bytes = Vec::new();
                let found = match zone.shared {
                    Some(_) => zone.find_in_full(record, &mut bytes),
                    None => zone.find(record),
                };
                match found {
                    KeyLookup::Key(rule_key) => Some(OwedRule {
                        rule,
                        rule_key,
                        bytes,
                    }),
                    KeyLookup::Nothing | KeyLookup::Refuse(_) => None,
                }
            })
            .collect();
        Self { rules, owed }
    }

    /// Charges it, now that the request is over, however it ended.
    pub fn settle(self, record: &RequestRecord, now: Millis) {
        for owed in self.owed {
            let rule = &self.rules[owed.rule];
            let parts = rule.zone.source.parts();
            let cost = after(&rule.weight, parts, record, now);
            if cost > Cost(0) {
                rule.with_terms(&owed.rule_key, |spec| owed.charge(rule, spec, cost, now));
            }
        }
    }
}

impl OwedRule {
    fn charge(&self, rule: &ReqRule, spec: &LimitSpec, cost: Cost, now: Millis) {
        let zone = &rule.zone;
        let debit = |cost: Cost| zone.store.debit(&self.rule_key.key, now, cost, spec);
        match &zone.shared {
            Some(store) if store.is_away() => {
                let share = store.alone(cost, spec);
                debit(share.needs);
                debit(share.owes);
                let key = &self.rule_key.key;
                store.owe(OutageCharge::new(
                    store,
                    &zone.store,
                    key,
                    &self.bytes,
                    spec,
                    cost,
                ));
            }
            Some(store) => {
                // Here, too: this gateway goes on from there when the store is away.
                debit(cost);
                let mut inquiry = StoreRequest::default();
                let name = &zone.name.plain;
                inquiry.add(store, name, &self.bytes, spec, cost, zone.count_refused);
                store.charge_later(inquiry);
            }
            None => debit(cost),
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::limits::tests::support::{header, key, record};

    #[test]
    fn numbers_are_read_to_the_thousandth() {
        for (text, expected) in [
            ("5", 5_000),
            (" 0.5 ", 500),
            ("2.7189", 2_718),
            ("0", 0),
            ("007.25", 7_250),
        ] {
            assert_eq!(
                number(text.as_bytes()),
                Some(Cost::milli(expected)),
                "{text}"
            );
        }
        assert!(number(b"213503982.334").is_some());
    }

    #[test]
    fn what_is_not_a_number_weighs_as_one_request() {
        for text in [
            "-5",
            "+5",
            "x",
            "1.",
            ".5",
            "1e9",
            "0x10",
            "1 2",
            "1.2.3",
            "213503983",
            "99999999999999999999999999",
        ] {
            assert_eq!(number(text.as_bytes()), None, "{text}");
            let record = record(&[header("x-cost", text)]);
            let before = bad_costs();
            let cost = told(&key("x-cost"), KeyReader::default(), &record, Millis(0));
            assert_eq!(cost, Cost::ONE, "{text}");
            assert!(bad_costs() > before);
        }
    }

    #[test]
    fn a_cost_may_stand_in_the_request() {
        let record = record(&[header("x-cost", "2.5"), header("content-length", "700")]);
        let cost = |weight| before(&weight, KeyReader::default(), &record);
        assert_eq!(cost(CostSource::Before(key("x-cost"))), Cost::milli(2_500));
        assert_eq!(cost(CostSource::Before(key("x-none"))), Cost::ONE);
        assert_eq!(cost(CostSource::RequestBytes), Cost(0));
        assert_eq!(cost(CostSource::ResponseBytes), Cost(0));
        assert_eq!(cost(CostSource::After(key("x-cost"))), Cost(0));
    }

    #[test]
    fn bytes_are_known_when_it_is_over() {
        let mut record = record(&[header("x-cost", "2.5")]);
        record.body_received = 700;
        record.body_sent = 50;
        let cost = |weight| after(&weight, KeyReader::default(), &record, Millis(0));
        assert_eq!(cost(CostSource::RequestBytes), Cost::milli(700_000));
        assert_eq!(cost(CostSource::ResponseBytes), Cost::milli(50_000));
        assert_eq!(cost(CostSource::After(key("x-cost"))), Cost::milli(2_500));
        assert_eq!(cost(CostSource::After(key("x-none"))), Cost::ONE);
        assert_eq!(cost(CostSource::Before(key("x-cost"))), Cost(0));
        assert_eq!(cost(CostSource::Fixed(Cost::ONE)), Cost(0));
    }
}
