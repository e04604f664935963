//! Notices that many answers of a store come too late, so that its operator can be told once.

use std::time::Duration;

use crate::clock::Millis;

/// How many decisions came too late lately.
#[derive(Debug, Default)]
pub(super) struct LateShare {
    /// When it was last looked, and what had been asked for and been late by then.
    looked: Option<(Millis, u64, u64)>,
    said: bool,
}

impl LateShare {
    /// Looks at how many decisions were asked for, and how many came too late, in all. Which part of the last minute's was late, in
    /// percent, where that should be said.
    pub(super) fn look(&mut self, now: Millis, asked: u64, late: u64) -> Option<u64> {
        let (at, asked_before, late_before) = *self.looked.get_or_insert((now, asked, late));
        if now.since(at) < MINUTE {
            return None;
        }
        self.looked = Some((now, asked, late));
        let (asked, late) = (asked - asked_before, late - late_before);
        let percent = late.saturating_mul(100) / asked.max(1);
        if asked < FEW {
            return None;
        }
        let news = percent > 0 && !self.said;
        self.said = percent > 0;
        news.then_some(percent)
    }
}

const MINUTE: Duration = Duration::from_secs(60);

/// Fewer decisions than this say nothing.
const FEW: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_said_once_until_it_is_over() {
        let mut lateness = LateShare::default();
        let mut look =
            |minute: u64, asked, late| lateness.look(Millis(minute * 60_000), asked, late);
        assert_eq!(look(0, 1_000, 900), None, "nothing is known yet");
        assert_eq!(look(1, 2_000, 1_100), Some(20));
        assert_eq!(look(2, 3_000, 1_500), None, "it is no news");
        assert_eq!(look(3, 4_000, 1_505), None, "less than one in a hundred");
        assert_eq!(look(4, 5_000, 1_515), Some(1));
        assert_eq!(look(5, 5_010, 1_525), None, "too few");
    }

    #[test]
    fn a_store_that_is_in_time_is_not_mentioned() {
        let mut lateness = LateShare::default();
        for minute in 0..5 {
            let look = lateness.look(Millis(minute * 60_000), minute * 1_000, 0);
            assert_eq!(look, None, "in minute {minute}");
        }
        assert_eq!(lateness.look(Millis(5 * 60_000), 5_000, 1_000), Some(100));
    }

    #[test]
    fn a_minute_that_is_not_over_is_looked_at_when_it_is() {
        let mut lateness = LateShare::default();
        assert_eq!(lateness.look(Millis(0), 0, 0), None);
        assert_eq!(lateness.look(Millis(30_000), 1_000, 500), None);
        assert_eq!(lateness.look(Millis(90_000), 2_000, 500), Some(25));
    }
}
