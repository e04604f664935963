//! Numbers and times as people read them, the same in every verb.

use super::admin::answers::Verdicts;
pub(super) use crate::replay::report::number;
use crate::replay::report::{duration, percent};

/// A time in seconds.
pub(super) fn span(seconds: f64) -> String {
    // A cast of a float keeps to the range of what it is cast to.
    let millis = (seconds * 1000.0).ceil() as u64;
    match millis / DAY {
        0 => duration(millis),
        days => format!("{days} d {} h", millis % DAY / 3_600_000),
    }
}

/// Requests, in parts of one where it is not whole.
pub(super) fn requests(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A lag: what matters begins below a millisecond.
pub(super) fn lag(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 0.1 => format!("{:.1} ms", seconds * 1000.0),
        Some(seconds) => span(seconds),
    }
}

/// What became of how many.
pub(super) fn verdicts(counts: Verdicts) -> String {
    let share = percent(counts.refuse, counts.demand());
    format!(
        "{} pass, {} delay, {} refuse ({share})",
        number(counts.pass),
        number(counts.delay),
        number(counts.refuse)
    )
}

const DAY: u64 = 86_400_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_shares_are_short() {
        assert_eq!(span(0.04), "40 ms");
        assert_eq!(span(600.0), "10 min 0 s");
        assert_eq!(span(200_000.0), "2 d 7 h");
        assert_eq!(span(f64::INFINITY), span(f64::MAX));
        assert_eq!(requests(20.4), "20.4");
        assert_eq!(requests(20.0), "20");
        assert_eq!(lag(Some(0.000_42)), "0.4 ms");
        assert_eq!(lag(None), "-");
    }
}
