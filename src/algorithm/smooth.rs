//! Guava's rate limiters: permits are saved while idle, and the next request pays for the last one.
//!
//! The state of a key is when it is free again and what it has saved. A request waits until then, whatever it costs, and
//! moves that moment on by its price: for saved permits as [`PermitCost`] says, for the rest at the rate. Saved permits
//! are stored as the time they took to save, so a change of the rate turns them into as many more or fewer of the new ones,
//! as Guava's `setRate` does.
//!
//! [`Bursty`] is Guava's `SmoothBursty`: saved permits are free, and a second's worth is saved unless the rule says otherwise. A
//! new key has saved nothing.
//!
//! [`WarmUp`] is Guava's `SmoothWarmingUp` with its cold factor of three: an idle key gets cold and starts again at a third of
//! the rate. Saved permits are not a right to a burst but measure how cold a key is. Half of `warm_up` can be spent at
//! the rate; what is beyond costs more the colder the key is, up to three times as much. Spending all that is beyond
//! takes exactly `warm_up`, and getting cold again takes as long. Sentinel's warm up has the same curve.

#[cfg(test)]
#[path = "tests/smooth_bursty.rs"]
mod bursty_tests;
#[cfg(test)]
#[path = "tests/smooth_warm_up.rs"]
mod warm_up_tests;

use std::marker::PhantomData;
use std::time::Duration;

use super::core::{Algorithm, AlgorithmInfo, BurstMeaning, ExcessScale, MAX_NANOS, ScriptArgs};
use super::quantities::{Cost, Excess, KeyStatus, KeyTime, Nanos, Rate, Spent, Verdict, narrow};
use crate::clock::Millis;

/// The price of saved permits.
pub trait PermitCost: Copy + std::fmt::Debug {
    /// The algorithm with this price.
    const INFO: AlgorithmInfo;

    /// Whether a new key has saved all it can.
    const STARTS_SAVED: bool;

    /// The price of spending a part of what is saved, of at most `most`.
    fn of(saved: Nanos, spent: Nanos, most: Nanos) -> Nanos;
}

/// The numbers of one of Guava's rate limiters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Smooth<P> {
    rate: Rate,
    max_wait: Nanos,
    /// The most that is saved.
    most: Nanos,
    quota: u64,
    price: PhantomData<P>,
}

/// The state of a key.
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
        let max_wait = max_wait.into();
        let spec = Self {
            rate,
            max_wait,
            most,
            quota: 0,
            price: PhantomData,
        };
        let rested = spec.admitted(most, max_wait);
        Self {
            quota: rested.max(spec.admitted(Nanos(0), max_wait)),
            ..spec
        }
    }

    /// The state at this moment, and this moment.
    fn at(&self, key: &SmoothState, now: Millis) -> (SmoothState, Nanos) {
        let time = KeyTime::new(key.last, now);
        let now = Nanos::at(time.now);
        let free_at = key.free_at.minus(Nanos::at(Millis(time.set_back)));
        let saved = key.saved.plus(now.minus(free_at)).min(self.most);
        let key = SmoothState {
            free_at: free_at.max(now),
            saved,
            last: time.now,
        };
        (key, now)
    }

    /// The price of a request for a key that has saved this much, and what it spends of that.
    fn price(&self, saved: Nanos, cost: Cost) -> (Nanos, Nanos) {
        let time = Nanos::for_cost(cost, self.rate);
        let spent = time.min(saved);
        let price = P::of(saved, spent, self.most);
        (price.plus(time.minus(spent)), spent)
    }

    fn take(&self, key: &mut SmoothState, now: Millis, cost: Cost) -> Spent {
        *key = self.at(key, now).0;
        let (price, spent) = self.price(key.saved, cost);
        key.free_at = key.free_at.plus(price);
        key.saved = key.saved.minus(spent);
        Spent(spent.0)
    }

    /// How many requests pass at one moment before their price is more than `room`.
    fn admitted(&self, saved: Nanos, room: Nanos) -> u64 {
        let fits = |count: u64| self.price(saved, Cost::requests(count)).0 <= room;
        let (mut fitting, mut too_many) = (0, u64::MAX / Cost::ONE.0);
        while too_many - fitting > 1 {
            let middle = fitting + (too_many - fitting) / 2;
            if fits(middle) {
                fitting = middle;
            } else {
                too_many = middle;
            }
        }
        // The next one still finds no more ahead of it than it may.
        fitting + 1
    }

    fn excess(&self, wait: Nanos) -> Excess {
        Excess(wait.at_rate(self.rate))
    }
}

impl<P: PermitCost> Algorithm for Smooth<P> {
    const INFO: AlgorithmInfo = P::INFO;

    type State = SmoothState;

    fn new_state(&self, now: Millis) -> SmoothState {
        SmoothState {
            free_at: Nanos::at(now),
            saved: if P::STARTS_SAVED { self.most } else { Nanos(0) },
            last: now,
        }
    }

    fn peek(&self, key: &SmoothState, now: Millis, _: Cost) -> Verdict {
        let (key, now) = self.at(key, now);
        let wait = key.free_at.minus(now);
        let excess = self.excess(wait);
        if wait > self.max_wait {
            return Verdict::Refuse {
                excess,
                retry_after: Some(wait.minus(self.max_wait).to_millis()),
            };
        }
        Verdict::for_wait(excess, wait.whole_millis())
    }

    fn charge(&self, key: &mut SmoothState, now: Millis, cost: Cost) -> (Verdict, Spent) {
        let verdict = self.peek(key, now, cost);
        let spent = match verdict {
            Verdict::Refuse { .. } => Spent::default(),
            Verdict::Delay { .. } | Verdict::Pass { .. } => self.take(key, now, cost),
        };
        (verdict, spent)
    }

    fn refund(&self, key: &mut SmoothState, _: Millis, cost: Cost, spent: Spent) {
        let spent = Nanos(spent.0);
        key.saved = key.saved.plus(spent).min(self.most);
        let price = P::of(key.saved, spent, self.most);
        let unsaved = Nanos::for_cost(cost, self.rate).minus(spent);
        key.free_at = key.free_at.minus(price).minus(unsaved);
    }

    fn debit(&self, key: &mut SmoothState, now: Millis, cost: Cost) {
        self.take(key, now, cost);
    }

    fn count_refused(&self, key: &mut SmoothState, now: Millis, cost: Cost) {
        let (at, now) = self.at(key, now);
        // As if it had come when the wait was just short enough.
        let filled = now
            .plus(self.max_wait)
            .plus(Nanos::for_cost(cost, self.rate));
        *key = SmoothState {
            free_at: at.free_at.max(filled),
            ..at
        };
    }

    fn drained_at(&self, key: &SmoothState) -> Millis {
        // A forgotten key has saved nothing, or everything where that makes a slower start.
        let missing = if P::STARTS_SAVED {
            self.most.minus(key.saved)
        } else {
            Nanos(0)
        };
        key.free_at.plus(missing).to_moment()
    }

    fn key_status(&self, key: &SmoothState, now: Millis) -> KeyStatus {
        let (key, now) = self.at(key, now);
        let wait = key.free_at.minus(now);
        let missing = if P::STARTS_SAVED {
            Nanos(0)
        } else {
            self.most.minus(key.saved)
        };
        KeyStatus {
            excess: self.excess(wait),
            limit: self.quota(),
            remaining: if wait > self.max_wait {
                0
            } else {
                self.admitted(key.saved, self.max_wait.minus(wait))
            },
            retry_after: wait.minus(self.max_wait).to_millis(),
            reset_after: wait.plus(missing).to_millis(),
        }
    }

    fn quota(&self) -> u64 {
        self.quota
    }

    fn period(&self) -> Duration {
        Nanos::for_cost(Cost::requests(self.quota), self.rate).to_millis()
    }

    fn slower(self, other: Self) -> Self {
        if other.rate < self.rate { other } else { self }
    }

    fn script_args(&self, cost: Cost) -> ScriptArgs {
        let request = Nanos::for_cost(Cost::ONE, self.rate);
        ScriptArgs::timed(
            P::INFO.name,
            Nanos::for_cost(cost, self.rate).0,
            [self.max_wait.0, self.most.0, request.0],
            MAX_NANOS,
            ExcessScale::Wait(self.rate.units_per_milli()),
        )
    }
}

/// Saved permits are free.
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

    fn of(_: Nanos, _: Nanos, _: Nanos) -> Nanos {
        Nanos(0)
    }
}

impl Smooth<Bursty> {
    /// At this rate, with this burst saved at most.
    #[must_use]
    pub fn bursty(rate: Rate, max_wait: Duration, burst: Excess) -> Self {
        Self::new(rate, max_wait, Nanos::for_cost(Cost(burst.0), rate))
    }
}

/// Saved permits cost more the colder a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmUp;

impl PermitCost for WarmUp {
    const INFO: AlgorithmInfo = AlgorithmInfo {
        burst: BurstMeaning::Nothing(
            "an idle key starts slowly; how many may wait is a matter of `max_wait`",
        ),
        next_pays: true,
        leasable: false,
        ..AlgorithmInfo::new("warm_up", include_str!("lua/warm_up.lua"))
    };

    const STARTS_SAVED: bool = true;

    // The area under Guava's curve: level up to the half, rising from there to three times that height.
    fn of(saved: Nanos, spent: Nanos, most: Nanos) -> Nanos {
        let beyond = |saved: u64| u128::from(saved.saturating_sub(most.0 / 2));
        let square = |side: u128| side.saturating_mul(side);
        let (from, to) = (beyond(saved.0), beyond(saved.0.saturating_sub(spent.0)));
        let rise = (square(from) - square(to)).saturating_mul(2) / u128::from(most.0.max(1));
        Nanos(narrow(rise)).plus(spent)
    }
}

impl Smooth<WarmUp> {
    /// At this rate once warm.
    #[must_use]
    pub fn warm_up(rate: Rate, max_wait: Duration, warm_up: Duration) -> Self {
        Self::new(rate, max_wait, warm_up.into())
    }
}
