//! The leaky bucket, by nginx's rules and without its rounding.
//!
//! A bucket remembers two numbers: when it was last charged, and how far above its rate it stood then.
//! The rules are nginx's to the letter: what is compared with what, what a refusal leaves alone, what
//! happens when time goes backwards. Only the units differ: nginx counts in thousandths of a request and
//! loses a fraction with every request it lets pass; [`Rate`] and [`Excess`] are exact, so a rate of one
//! a minute is one a minute.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::clock::Millis;
use crate::config::plan::{Delay, Excess, Rate};

/// What is remembered of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// How far above its rate it stood when last charged.
    pub excess: Excess,
    /// When that was.
    pub last: Millis,
}

/// The numbers a key is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How fast its bucket drains.
    pub rate: Rate,
    /// How far it may go above its rate.
    pub burst: Excess,
    /// Which of the excess waits.
    pub delay: Delay,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It passes after a wait.
    Delay {
        /// Where the bucket stands with this request in it.
        excess: Excess,
        /// For how long it waits.
        wait: Duration,
    },
    /// It passes at once.
    Pass {
        /// Where the bucket stands with this request in it.
        excess: Excess,
    },
    /// It is turned away.
    Refuse {
        /// Where the bucket would stand with this request in it.
        excess: Excess,
        /// When the same request would pass, if none comes before it.
        retry_after: Duration,
    },
}

/// Decides about one request, and gives the bucket as it is with that request in it.
///
/// A refused request changes nothing: the bucket given back is the one that came in.
#[must_use]
pub fn decide(bucket: Bucket, now: Millis, terms: &Terms) -> (Outcome, Bucket) {
    let elapsed = elapsed(bucket.last, now);
    let excess = Excess(
        bucket
            .excess
            .0
            .saturating_add(Excess::ONE.0)
            .saturating_sub(leaked(elapsed, terms.rate)),
    );
    if excess > terms.burst {
        let retry_after = retry_after(bucket, now, terms);
        let refuse = Outcome::Refuse {
            excess,
            retry_after,
        };
        return (refuse, bucket);
    }
    // Not when nothing has elapsed: a moment that lies ahead, seen by a faster thread, must stay.
    let last = if elapsed == 0 { bucket.last } else { now };
    (accept(excess, terms), Bucket { excess, last })
}

/// Decides about the first request of a key: it is free, so that a burst of 5 admits 6 at once.
#[must_use]
pub fn first(now: Millis) -> (Outcome, Bucket) {
    let excess = Excess(0);
    (Outcome::Pass { excess }, Bucket { excess, last: now })
}

/// The bucket without one of the requests it was charged with.
#[must_use]
pub fn refund(bucket: Bucket, rate: Rate) -> Bucket {
    if let Some(excess) = bucket.excess.0.checked_sub(Excess::ONE.0) {
        return Bucket {
            excess: Excess(excess),
            ..bucket
        };
    }
    // A bucket cannot hold less than nothing, but it can have been empty for longer.
    let credit = (Excess::ONE.0 - bucket.excess.0) / units(rate);
    Bucket {
        excess: Excess(0),
        last: Millis(bucket.last.0.saturating_sub(credit)),
    }
}

/// Whether forgetting the bucket would change no answer, now or later.
#[must_use]
pub fn drained(bucket: Bucket, now: Millis, rate: Rate) -> bool {
    drained_at(bucket, rate) <= now
}

/// From when on forgetting the bucket changes no answer: as soon as a request would find it at zero.
#[must_use]
pub fn drained_at(bucket: Bucket, rate: Rate) -> Millis {
    let left = bucket.excess.0.saturating_add(Excess::ONE.0);
    Millis(bucket.last.0.saturating_add(left.div_ceil(units(rate))))
}

fn accept(excess: Excess, terms: &Terms) -> Outcome {
    let Delay::After(threshold) = terms.delay else {
        return Outcome::Pass { excess };
    };
    // Whole milliseconds, the rest cut off as nginx does: less than one is no delay.
    match excess.0.saturating_sub(threshold.0) / units(terms.rate) {
        0 => Outcome::Pass { excess },
        millis => Outcome::Delay {
            excess,
            wait: Duration::from_millis(millis),
        },
    }
}

fn retry_after(bucket: Bucket, now: Millis, terms: &Terms) -> Duration {
    // Counted from when the bucket was last charged, not from now: should that moment lie ahead,
    // nothing leaks before it.
    let surplus = bucket
        .excess
        .0
        .saturating_add(Excess::ONE.0)
        .saturating_sub(terms.burst.0);
    let passes_at = bucket
        .last
        .0
        .saturating_add(surplus.div_ceil(units(terms.rate)));
    Duration::from_millis(passes_at.saturating_sub(now.0))
}

/// For how long the bucket has leaked, in milliseconds.
fn elapsed(last: Millis, now: Millis) -> u64 {
    match now.0.checked_sub(last.0) {
        Some(elapsed) => elapsed,
        // Another thread read the clock a little later than we did: nothing has leaked since.
        None if last.0 - now.0 <= FARTHEST_AHEAD => 0,
        // The clock really jumped: start over from its new time.
        None => 1,
    }
}

fn leaked(elapsed: u64, rate: Rate) -> u64 {
    elapsed.saturating_mul(rate.units_per_milli())
}

/// The divisor for everything that drains; a rate of nothing does not get past `config`, and must not
/// bring down a thread if it ever does.
fn units(rate: Rate) -> u64 {
    rate.units_per_milli().max(1)
}

/// How far ahead a bucket's time may lie before the clock is taken to have jumped, in milliseconds; nginx's number.
const FARTHEST_AHEAD: u64 = 60_000;
