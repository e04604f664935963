//! The cost of a request, where it is not the same for all: given by a template, or the size of its bodies.

use std::cell::RefCell;

use crate::algorithm::{Cost, Excess};
use crate::clock::Millis;
use crate::config::plan::{CostSource, Template};
use crate::message::RequestRecord;
use crate::message::variables::KeyReader;
use crate::telemetry::RateLimitedLog;

/// The cost of a request as far as it is known when it comes; the rest is charged when it is over.
pub(super) fn before(source: &CostSource, reader: KeyReader, record: &RequestRecord) -> Cost {
    match source {
        CostSource::After(_) | CostSource::RequestBytes | CostSource::ResponseBytes => Cost(0),
        CostSource::Before(template) => rendered_cost(template, reader, record, record.started),
        CostSource::Fixed(cost) => *cost,
    }
}

/// The cost that is charged when a request is over, however it ended.
pub(super) fn after(
    source: &CostSource,
    reader: KeyReader,
    record: &RequestRecord,
    now: Millis,
) -> Cost {
    match source {
        CostSource::After(template) => rendered_cost(template, reader, record, now),
        CostSource::Before(_) | CostSource::Fixed(_) => Cost(0),
        CostSource::RequestBytes => Cost::milli(record.body_received.saturating_mul(1000)),
        CostSource::ResponseBytes => Cost::milli(record.body_sent.saturating_mul(1000)),
    }
}

/// Whether a client gives a part of its request's cost more than once.
pub(super) fn is_ambiguous(template: &Template, reader: KeyReader, record: &RequestRecord) -> bool {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        reader.render(template, record, scratch).is_err()
    })
}

/// How often a template has not given a usable cost.
#[must_use]
pub fn bad_costs() -> u64 {
    BAD.total()
}

/// The cost that a template gives. It comes from outside: what is no number, or more than any key can pay, counts as one
/// request.
fn rendered_cost(
    template: &Template,
    reader: KeyReader,
    record: &RequestRecord,
    now: Millis,
) -> Cost {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        // An ambiguous one has been refused, unless only the response made it so.
        let unambiguous = reader.render(template, record, scratch).is_ok();
        if scratch.is_empty() {
            return Cost::ONE;
        }
        number(scratch).filter(|_| unambiguous).unwrap_or_else(|| {
            if let Some(times) = BAD.note(now) {
                let text = scratch[..scratch.len().min(MAX_LOGGED)].escape_ascii();
                tracing::warn!(times, "\"{text}\" is not a cost, counted as 1");
            }
            Cost::ONE
        })
    })
}

/// The number in a text, if a key could owe as much.
fn number(text: &[u8]) -> Option<Cost> {
    let milli = milli(text)?;
    (milli <= u64::MAX / (Excess::ONE.0 / 1000)).then(|| Cost::milli(milli))
}

/// Rate limited, because clients may choose the value.
static BAD: RateLimitedLog = RateLimitedLog::new();

/// The most bytes of such a text that are logged.
const MAX_LOGGED: usize = 64;

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
    fn what_is_not_a_number_costs_one_request() {
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
            let cost = rendered_cost(&key("x-cost"), KeyReader::default(), &record, Millis(0));
            assert_eq!(cost, Cost::ONE, "{text}");
            assert!(bad_costs() > before);
        }
    }

    #[test]
    fn a_request_may_name_its_cost() {
        let record = record(&[header("x-cost", "2.5"), header("content-length", "700")]);
        let cost = |source| before(&source, KeyReader::default(), &record);
        assert_eq!(cost(CostSource::Before(key("x-cost"))), Cost::milli(2_500));
        assert_eq!(cost(CostSource::Before(key("x-none"))), Cost::ONE);
        assert_eq!(cost(CostSource::RequestBytes), Cost(0));
        assert_eq!(cost(CostSource::ResponseBytes), Cost(0));
        assert_eq!(cost(CostSource::After(key("x-cost"))), Cost(0));
    }

    #[test]
    fn bytes_are_known_when_the_request_is_over() {
        let mut record = record(&[header("x-cost", "2.5")]);
        record.body_received = 700;
        record.body_sent = 50;
        let cost = |source| after(&source, KeyReader::default(), &record, Millis(0));
        assert_eq!(cost(CostSource::RequestBytes), Cost::milli(700_000));
        assert_eq!(cost(CostSource::ResponseBytes), Cost::milli(50_000));
        assert_eq!(cost(CostSource::After(key("x-cost"))), Cost::milli(2_500));
        assert_eq!(cost(CostSource::After(key("x-none"))), Cost::ONE);
        assert_eq!(cost(CostSource::Before(key("x-cost"))), Cost(0));
        assert_eq!(cost(CostSource::Fixed(Cost::ONE)), Cost(0));
    }
}
