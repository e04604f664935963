//! Guava's way of counting: permits are saved while idle, and the next caller pays for the last one.
//!
//! A key remembers when it is free again and what it has saved. Whoever comes waits until then, however much it
//! asks for, and moves that moment on by what it takes: for what is saved as the [`PermitCost`] says, for the rest at the
//! rate. Saved permits are kept as the time they took to save. So a change of rate turns them into as many more or
//! fewer of the new ones, as Guava's `setRate` does.
//!
//! Guava's `SmoothBursty`: what is saved while idle is free, and a second's worth is saved unless said otherwise.
//!
//! It begins with nothing saved. A request never waits for itself: it goes when the last one has been paid for, and
//! who comes after it pays.
//!
//! Guava's `SmoothWarmingUp`: who was idle is cold, and begins at a third of the rate.
//!
//! As in Guava, with its cold factor of three: what is saved while idle is not a right to a burst but a measure of
//! how cold a key is. Half of `warm_up` can be spent at the rate; what is beyond it costs the more the colder it
//! is, up to three times as much. Spending all that is beyond takes exactly `warm_up`, and going cold again takes
//! as long. Sentinel's warm up is the same line.

#[cfg(test)]
#[path = "tests/smooth_bursty.rs"]
mod bursty_tests;
#[cfg(test)]
#[path = "tests/smooth_warm_up.rs"]
mod warm_up_tests;

use std::marker::PhantomData;
use std::time::Duration;

use super::core::{Algorithm, AlgorithmInfo, BurstMeaning};
use super::quantities::{Cost, Delay, Excess, KeyStatus, Rate, Spent, Verdict};
use super::script::{ExcessScale, MAX_NANOS, ScriptArgs};
use super::time::{KeyTime, Nanos};
use crate::clock::Millis;

/// What saved permits cost.
pub trait PermitCost: Copy + std::fmt::Debug {
    /// The algorithm that counts so.
    const INFO: AlgorithmInfo;

    /// Whether a key that is not known has saved all it can.
    const STARTS_SAVED: bool;

    /// What it takes to spend so much of what is saved, where `most` can be.
    fn of(saved: Length, spent: Length, most: Length) -> Length;
}

/// A length of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Length(pub(super) u64);

/// The numbers a key is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Smooth<P> {
    rate: Rate,
    max_wait: Nanos,
    /// The most that is saved, as the time that takes.
    most: Nanos,
    quota: u64,
    price: PhantomData<P>,
}

/// What is remembered of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmoothState {
    /// When it is free again.
    free_at: Nanos,
    /// What it has saved by then.
    saved: Nanos,
    last: Millis,
}

impl<P: PermitCost> Smooth<P> {
    pub(super) fn new(rate: Rate, max_wait: Duration, most: Nanos) -> Self {
        let max_wait = Nanos::of_duration(max_wait);
        let numbers = Self {
            rate,
            max_wait,
            most,
            quota: 0,
            price: PhantomData,
        };
        let rested = numbers.admits(most, max_wait);
        Self {
            quota: rested.max(numbers.admits(Nanos(0), max_wait)),
            ..numbers
        }
    }

    /// A key as it is now, and now.
    fn at(&self, key: &SmoothState, now: Millis) -> (SmoothState, Nanos) {
        let moment = KeyTime::of(key.last, now);
        let now = Nanos::at(moment.now);
        let free_at = key.free_at.before(Nanos::at(Millis(moment.back)));
        let saved = key.saved.after(now.before(free_at)).min(self.most);
        let key = SmoothState {
            free_at: free_at.max(now),
            saved,
            last: moment.now,
        };
        (key, now)
    }

    /// What it takes a key with so much saved to let so much pass; and how much of what is saved that spends.
    fn owed(&self, saved: Nanos, cost: Cost) -> (Nanos, Nanos) {
        let time = Nanos::of(cost, self.rate);
        let spent = time.min(saved);
        let price = P::of(Length(saved.0), Length(spent.0), Length(self.most.0));
        (Nanos(price.0).after(time.before(spent)), spent)
    }

    fn take(&self, key: &mut SmoothState, now: Millis, cost: Cost) -> Spent {
        *key = self.at(key, now).0;
        let (owed, spent) = self.owed(key.saved, cost);
        key.free_at = key.free_at.after(owed);
        key.saved = key.saved.before(spent);
        Spent(spent.0)
    }

    /// How many requests pass at one moment where one more may owe so much.
    fn admits(&self, saved: Nanos, room: Nanos) -> u64 {
        let fits = |count: u64| {
            let cost = Cost(count.saturating_mul(Cost::ONE.0));
            self.owed(saved, cost).0 <= room
        };
        let (mut fitting, mut too_many) = (0, MOST);
        while too_many - fitting > 1 {
            let middle = fitting + (too_many - fitting) / 2;
            if fits(middle) {
                fitting = middle;
            } else {
                too_many = middle;
            }
        }
        // The one that comes then finds only just as much ahead of it as it may.
        fitting + 1
    }

    fn excess(&self, wait: Nanos) -> Excess {
        Excess(wait.at_rate(self.rate))
    }
}

impl<P: PermitCost> Algorithm for Smooth<P> {
    const INFO: AlgorithmInfo = P::INFO;

    type State = SmoothState;

    fn fresh(&self, now: Millis) -> SmoothState {
        SmoothState {
            free_at: Nanos::at(now),
            saved: if P::STARTS_SAVED { self.most } else { Nanos(0) },
            last: now,
        }
    }

    fn ask(&self, key: &SmoothState, now: Millis, _: Cost) -> Verdict {
        let (key, now) = self.at(key, now);
        let wait = key.free_at.before(now);
        let excess = self.excess(wait);
        if wait > self.max_wait {
            return Verdict::Refuse {
                excess,
                retry_after: Some(wait.before(self.max_wait).to_millis()),
            };
        }
        // Less than a millisecond is no wait, as in nginx.
        match wait.whole_millis() {
            Duration::ZERO => Verdict::Pass { excess },
            wait => Verdict::Delay { excess, wait },
        }
    }

    fn charge(&self, key: &mut SmoothState, now: Millis, cost: Cost) -> (Verdict, Spent) {
        let outcome = self.ask(key, now, cost);
        let spent = match outcome {
            Verdict::Refuse { .. } => Spent::default(),
            Verdict::Delay { .. } | Verdict::Pass { .. } => self.take(key, now, cost),
        };
        (outcome, spent)
    }

    fn refund(&self, key: &mut SmoothState, _: Millis, cost: Cost, spent: Spent) {
        let spent = Nanos(spent.0);
        key.saved = key.saved.after(spent).min(self.most);
        let price = P::of(Length(key.saved.0), Length(spent.0), Length(self.most.0));
        let fresh = Nanos::of(cost, self.rate).before(spent);
        key.free_at = key.free_at.before(Nanos(price.0)).before(fresh);
    }

    fn debit(&self, key: &mut SmoothState, now: Millis, cost: Cost) {
        self.take(key, now, cost);
    }

    fn count_refused(&self, key: &mut SmoothState, now: Millis, cost: Cost) {
        let (at, now) = self.at(key, now);
        // As if it had come when the wait was just short enough.
        let filled = now.after(self.max_wait).after(Nanos::of(cost, self.rate));
        *key = SmoothState {
            free_at: at.free_at.max(filled),
            ..at
        };
    }

    fn drained_at(&self, key: &SmoothState) -> Millis {
        // Who is forgotten has saved nothing, or everything where that is the harder start.
        let missing = if P::STARTS_SAVED {
            self.most.before(key.saved)
        } else {
            Nanos(0)
        };
        key.free_at.after(missing).passed_at()
    }

    fn key_status(&self, key: &SmoothState, now: Millis) -> KeyStatus {
        let (key, now) = self.at(key, now);
        let wait = key.free_at.before(now);
        let missing = if P::STARTS_SAVED {
            Nanos(0)
        } else {
            self.most.before(key.saved)
        };
        KeyStatus {
            excess: self.excess(wait),
            limit: self.quota(),
            remaining: if wait > self.max_wait {
                0
            } else {
                self.admits(key.saved, self.max_wait.before(wait))
            },
            retry_after: wait.before(self.max_wait).to_millis(),
            reset_after: wait.after(missing).to_millis(),
        }
    }

    fn quota(&self) -> u64 {
        self.quota
    }

    fn period(&self) -> Duration {
        let whole = Cost(self.quota().saturating_mul(Cost::ONE.0));
        Nanos::of(whole, self.rate).to_millis()
    }

    fn slower(self, other: Self) -> Self {
        if other.rate < self.rate { other } else { self }
    }

    fn script_args(&self, cost: Cost) -> ScriptArgs {
        let request = Nanos::of(Cost::ONE, self.rate);
        ScriptArgs::timed(
            P::INFO.name,
            Nanos::of(cost, self.rate).0,
            [self.max_wait.0, self.most.0, request.0],
            MAX_NANOS,
            ExcessScale::Wait(self.rate.units_per_milli()),
        )
    }
}

/// More requests at one moment are not told apart.
const MOST: u64 = u64::MAX / Cost::ONE.0;

/// What is saved is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bursty;

impl PermitCost for Bursty {
    const INFO: AlgorithmInfo = AlgorithmInfo {
        burst: BurstMeaning::Saved,
        next_pays: true,
        leasable: false,
        ..AlgorithmInfo::new("bursty", include_str!("lua/bursty.lua"))
    };

    const STARTS_SAVED: bool = false;

    fn of(_: Length, _: Length, _: Length) -> Length {
        Length(0)
    }
}

impl Smooth<Bursty> {
    pub(super) fn for_rule(rate: Rate, max_wait: Duration, burst: Excess, _: Delay) -> Self {
        Self::bursty(rate, max_wait, burst)
    }

    /// At this rate, with so much saved at most.
    #[must_use]
    pub fn bursty(rate: Rate, max_wait: Duration, burst: Excess) -> Self {
        Self::new(rate, max_wait, Nanos::of(Cost(burst.0), rate))
    }
}

/// What is saved is dearer the colder it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmUp;

impl PermitCost for WarmUp {
    const INFO: AlgorithmInfo = AlgorithmInfo {
        burst: BurstMeaning::Nothing(
            "who was idle begins slowly; how many may wait is a matter of `max_wait`",
        ),
        next_pays: true,
        leasable: false,
        ..AlgorithmInfo::new("warm_up", include_str!("lua/warm_up.lua"))
    };

    const STARTS_SAVED: bool = true;

    // The area under Guava's line: level up to the half, rising from there to three times that height.
    fn of(saved: Length, spent: Length, most: Length) -> Length {
        let beyond = |saved: u64| u128::from(saved.saturating_sub(most.0 / 2));
        let square = |side: u128| side.saturating_mul(side);
        let (from, to) = (beyond(saved.0), beyond(saved.0.saturating_sub(spent.0)));
        let rise = (square(from) - square(to)).saturating_mul(2) / u128::from(most.0.max(1));
        Length(
            u64::try_from(rise)
                .unwrap_or(u64::MAX)
                .saturating_add(spent.0),
        )
    }
}

impl Smooth<WarmUp> {
    pub(super) fn for_rule(
        rate: Rate,
        max_wait: Duration,
        warm_up: Duration,
        _: Excess,
        _: Delay,
    ) -> Self {
        Self::warm_up(rate, max_wait, warm_up)
    }

    /// At this rate once warm.
    #[must_use]
    pub fn warm_up(rate: Rate, max_wait: Duration, warm_up: Duration) -> Self {
        Self::new(rate, max_wait, Nanos::of_duration(warm_up))
    }
}
