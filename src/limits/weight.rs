//! What a request weighs against a zone, where that is not the same for all.

use std::cell::RefCell;

use http::header::CONTENT_LENGTH;

use crate::config::plan::{Cost, Weight};
use crate::message::{Exchange, vars};

/// The cost of a request as far as it is known when it comes; what is known only with the answer is charged then.
pub(super) fn before(weight: &Weight, exchange: &Exchange) -> Cost {
    match weight {
        Weight::After(_) | Weight::ResponseBytes => Cost(0),
        Weight::Before(template) => SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            vars::render(template, exchange, scratch);
            number(scratch)
        }),
        Weight::Fixed(cost) => *cost,
        Weight::RequestBytes => match exchange.head.headers.get(CONTENT_LENGTH) {
            Some(length) => number(length.as_bytes()),
            None => Cost(0),
        },
    }
}

/// The number a text says; the text comes from outside, and one that says none weighs as much as any request.
pub(super) fn number(text: &[u8]) -> Cost {
    milli(text).map_or(Cost::ONE, Cost::milli)
}

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
    use crate::limits::tests::support::{exchange, header, key};

    #[test]
    fn numbers_are_read_to_the_thousandth() {
        for (text, expected) in [
            ("5", 5_000),
            (" 0.5 ", 500),
            ("2.7189", 2_718),
            ("0", 0),
            ("007.25", 7_250),
        ] {
            assert_eq!(number(text.as_bytes()), Cost::milli(expected), "{text}");
        }
        assert_eq!(number(b"99999999999999999999999999"), Cost(u64::MAX));
    }

    #[test]
    fn what_is_not_a_number_weighs_as_one_request() {
        for text in [
            "", "-5", "+5", "x", "1.", ".5", "1e9", "0x10", "1 2", "1.2.3",
        ] {
            assert_eq!(number(text.as_bytes()), Cost::ONE, "{text}");
        }
    }

    #[test]
    fn a_cost_may_stand_in_the_request() {
        let exchange = exchange(&[header("x-cost", "2.5"), header("content-length", "700")]);
        let cost = |weight| before(&weight, &exchange);
        assert_eq!(cost(Weight::Before(key("x-cost"))), Cost::milli(2_500));
        assert_eq!(cost(Weight::Before(key("x-none"))), Cost::ONE);
        assert_eq!(cost(Weight::RequestBytes), Cost::milli(700_000));
        assert_eq!(cost(Weight::ResponseBytes), Cost(0));
        assert_eq!(cost(Weight::After(key("x-cost"))), Cost(0));
    }
}
