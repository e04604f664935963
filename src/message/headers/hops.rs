//! `Max-Forwards`: how many more times a request may be forwarded (RFC 9110, section 7.6.2).

use http::Method;
use http::header::MAX_FORWARDS;
use http::request::Parts;

/// How many more times a request may be forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxForwards {
    /// As often as it takes.
    Any,
    /// So many times; at 0 this is the last recipient.
    Left(u64),
    /// The header is there more than once, or is no number.
    Malformed,
}

/// What a request's `Max-Forwards` asks for. Only OPTIONS is read for it: TRACE is never forwarded, and to other methods
/// the header means nothing.
#[inline]
#[must_use]
pub fn hops(head: &Parts) -> MaxForwards {
    match head.method == Method::OPTIONS {
        true => read(head),
        false => MaxForwards::Any,
    }
}

#[cold]
fn read(head: &Parts) -> MaxForwards {
    let mut values = head.headers.get_all(MAX_FORWARDS).iter();
    let Some(value) = values.next() else {
        return MaxForwards::Any;
    };
    let digits = value.as_bytes();
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if !is_number || values.next().is_some() {
        return MaxForwards::Malformed;
    }
    // More than we can count is taken for the most that we can, as the RFC says.
    let digits = value.to_str().unwrap_or_default();
    MaxForwards::Left(digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::testing;

    #[test]
    fn only_a_number_counts_and_only_for_options() {
        let asked = |method: &str, values: &[&str]| {
            let fields: Vec<_> = values.iter().map(|it| ("max-forwards", *it)).collect();
            hops(&testing::request(method, "/", &fields).head)
        };
        assert_eq!(asked("OPTIONS", &[]), MaxForwards::Any);
        assert_eq!(asked("OPTIONS", &["0"]), MaxForwards::Left(0));
        assert_eq!(asked("OPTIONS", &["0010"]), MaxForwards::Left(10));
        assert_eq!(
            asked("OPTIONS", &["99999999999999999999999"]),
            MaxForwards::Left(u64::MAX)
        );
        for wrong in ["", "-1", "+1", "1.0", "0x1", "1, 2", "many"] {
            assert_eq!(
                asked("OPTIONS", &[wrong]),
                MaxForwards::Malformed,
                "{wrong}"
            );
        }
        assert_eq!(asked("OPTIONS", &["1", "1"]), MaxForwards::Malformed);
        assert_eq!(asked("GET", &["0"]), MaxForwards::Any);
    }
}
