//! What time it is for one key, when the clock does not only go forward.

use crate::clock::Millis;

/// How far ahead a key's time may lie before the clock is taken to have jumped, in milliseconds; nginx's number.
pub(super) const FARTHEST_AHEAD: u64 = 60_000;

/// When something happens to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyTime {
    pub(super) now: Millis,
    /// By how much the clock jumped back: all that the key remembers has to be taken as so much earlier, in
    /// milliseconds. Nothing is won by it and nothing lost.
    pub(super) back: u64,
}

impl KeyTime {
    /// For a key that was last seen at `last`.
    pub(super) fn of(last: Millis, now: Millis) -> Self {
        match last.0.checked_sub(now.0) {
            None => Self { now, back: 0 },
            // Another thread read the clock a little later than we did: no time has passed.
            Some(ahead) if ahead <= FARTHEST_AHEAD => Self { now: last, back: 0 },
            Some(ahead) => Self { now, back: ahead },
        }
    }

    /// Something the key remembers, in this moment's time.
    pub(super) fn taken(self, at: Millis) -> Millis {
        Millis(at.0.saturating_sub(self.back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_jump_moves_what_is_remembered() {
        let of = |last, now| {
            let moment = KeyTime::of(Millis(last), Millis(now));
            (moment.now.0, moment.taken(Millis(last)).0)
        };
        assert_eq!(of(1_000, 5_000), (5_000, 1_000));
        assert_eq!(of(100_000, 40_000), (100_000, 100_000));
        assert_eq!(of(100_000, 39_999), (39_999, 39_999));
        assert_eq!(of(u64::MAX, 0), (0, 0));
    }
}
