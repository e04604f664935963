//! The [`Algorithm`] trait, what the configuration needs to know of an algorithm, and the arguments of its script.
//!
//! Lua's numbers are exact up to 2^53, where [`Excess`] counts 86 400 000 000 units in a request. So each call of a script uses
//! the largest unit in which all its numbers are whole: with a rate of 10r/s a thousandth of a request. A bucket of more
//! than 2^53 units (104 000 requests at a rate of `1.001r/d`, nine thousand million at any rate per second) is exact to
//! sixteen digits.

use std::fmt::Debug;
use std::time::Duration;

use super::quantities::{Cost, Excess, KeyStatus, Level, Rate, Spent, Verdict, millis, narrow};
use crate::clock::Millis;

/// An algorithm with the numbers that limit a key.
///
/// ```
/// use weir::algorithm::{Algorithm, Cost, Excess, Rate, TokenBucket, Verdict};
/// use weir::clock::Millis;
///
/// let bucket = TokenBucket { rate: Rate::per_second(2_000), capacity: Excess::requests(3) };
/// let mut state = bucket.new_state(Millis(0));
/// let mut passes = |now| {
///     let (verdict, _) = bucket.charge(&mut state, Millis(now), Cost::ONE);
///     matches!(verdict, Verdict::Pass { .. })
/// };
/// assert_eq!([0, 0, 0, 0].map(&mut passes), [true, true, true, false]);
/// assert!(passes(500), "a token comes every half second");
/// ```
pub trait Algorithm: Copy {
    /// What is known without the numbers.
    const INFO: AlgorithmInfo;

    /// The state of one key.
    type State: Debug;

    /// The state of a key that was never charged.
    fn new_state(&self, now: Millis) -> Self::State;

    /// The verdict on a request of this cost; changes nothing.
    ///
    /// A cost of zero tells whether the key is in debt. A cost that is higher than a key can ever have is refused without
    /// a time to retry; there is no such cost where the next request pays for the last.
    fn peek(&self, state: &Self::State, now: Millis, cost: Cost) -> Verdict;

    /// Decides about a request and charges its key, unless the request is refused.
    #[inline]
    fn charge(&self, state: &mut Self::State, now: Millis, cost: Cost) -> (Verdict, Spent) {
        let verdict = self.peek(state, now, cost);
        if !matches!(verdict, Verdict::Refuse { .. }) {
            self.debit(state, now, cost);
        }
        (verdict, Spent::default())
    }

    /// Takes back a charge with the same arguments that gave `spent`, also after other charges.
    fn refund(&self, state: &mut Self::State, now: Millis, cost: Cost, spent: Spent);

    /// Charges a cost that is known only afterwards: never refuses, and may leave the key in debt.
    fn debit(&self, state: &mut Self::State, now: Millis, cost: Cost);

    /// Charges a refused request as far as the key has something left, so that a client that keeps trying stays out.
    fn count_refused(&self, state: &mut Self::State, now: Millis, cost: Cost);

    /// When forgetting the key changes no verdict any more.
    fn drained_at(&self, state: &Self::State) -> Millis;

    /// The status of a key.
    fn key_status(&self, state: &Self::State, now: Millis) -> KeyStatus;

    /// The most whole requests that a key may have at one moment.
    fn quota(&self) -> u64;

    /// How long it takes until a whole quota is there again.
    fn period(&self) -> Duration;

    /// The numbers of the two by which keys take longer to drain, and more memory.
    #[must_use]
    fn slower(self, other: Self) -> Self;

    /// Whether a state of `other` can be read with these numbers.
    fn reads_state_of(&self, _other: &Self) -> bool {
        true
    }

    /// The most bytes that a key takes besides its state.
    fn max_heap(&self) -> usize {
        0
    }

    /// The bytes that a key takes besides its state.
    fn heap(_: &Self::State) -> usize {
        0
    }

    /// The arguments of the script for a request of this cost.
    fn script_args(&self, cost: Cost) -> ScriptArgs;

    /// The verdict on a request that a lease lets pass, and its queue afterwards. Only algorithms with a queue delay it.
    fn queue_turn(&self, queue: Level, _now: Millis, _cost: Cost) -> (Verdict, Level) {
        (Verdict::Pass { excess: Excess(0) }, queue)
    }

    /// How much later a request that was refused with `excess` would pass if it cost `more`; `None` where that depends on
    /// when earlier requests came. Not called where [`AlgorithmInfo::next_pays`].
    fn added_wait(&self, _excess: Excess, _more: Cost) -> Option<Duration> {
        None
    }

    /// How long a request waits that fills the burst.
    fn burst_wait(&self) -> Duration {
        Duration::ZERO
    }

    /// Tells rules of one zone apart that limit the same key by different numbers.
    fn class(&self) -> u64 {
        self.quota()
    }
}

/// The methods of an [`Algorithm`] whose state is a [`Level`] that falls by `self.rate`, with the capacity of `self.meter()`.
macro_rules! level_state {
    () => {
        type State = Level;

        fn new_state(&self, now: Millis) -> Level {
            Level::empty(now)
        }

        fn refund(&self, level: &mut Level, _: Millis, cost: Cost, _: Spent) {
            *level = level.refunded(cost);
        }

        fn debit(&self, level: &mut Level, now: Millis, cost: Cost) {
            *level = level.charged(now, cost, self.rate);
        }

        fn drained_at(&self, level: &Level) -> Millis {
            level.falls_to(Excess(0), self.rate)
        }

        fn quota(&self) -> u64 {
            self.meter().quota()
        }

        fn period(&self) -> Duration {
            self.meter().period()
        }

        fn slower(self, other: Self) -> Self {
            if other.rate < self.rate { other } else { self }
        }
    };
}
pub(super) use level_state;

/// The methods of an [`Algorithm`] with a [`Level`] that refused requests fill up to its capacity.
macro_rules! filled_level {
    () => {
        fn count_refused(&self, level: &mut Level, now: Millis, cost: Cost) {
            let meter = self.meter();
            *level = meter.filled(*level, now, cost, meter.capacity);
        }

        fn key_status(&self, level: &Level, now: Millis) -> KeyStatus {
            self.meter().key_status(*level, now)
        }
    };
}
pub(super) use filled_level;

/// The methods of an [`Algorithm`] with a `limit` for each `window`.
macro_rules! window_quota {
    () => {
        fn quota(&self) -> u64 {
            self.limit.0 / Excess::ONE.0
        }

        fn period(&self) -> Duration {
            self.window
        }
    };
}
pub(super) use window_quota;

/// What is known of an algorithm without its numbers.
#[derive(Debug, Clone, Copy)]
pub struct AlgorithmInfo {
    /// Its name in the configuration, the API and the documentation.
    pub name: &'static str,
    /// Its part of the scripts that decide in a store.
    pub script: &'static str,
    /// The meaning of a rule's `burst`.
    pub burst: BurstMeaning,
    /// Whether a rule's `delay` and `nodelay` have a meaning.
    pub delays: bool,
    /// Whether requests over the burst can wait in order, as with `on_excess: delay`.
    pub ordered: bool,
    /// Whether it counts in windows, which start at moments of the clock.
    pub windowed: bool,
    /// Whether the next request pays for the last one, so that a request is delayed or refused whatever it costs itself.
    pub next_pays: bool,
    /// Whether a gateway can take leases of its keys from a store.
    pub leasable: bool,
    /// The bytes it stores for each request within the limit.
    pub request_bytes: u64,
}

/// The meaning of a rule's `burst`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BurstMeaning {
    /// The size of a bucket: one request unless the rule gives it, and never zero.
    Capacity,
    /// Requests beyond the rate: none unless the rule gives them.
    Excess,
    /// None, and why.
    Nothing(&'static str),
    /// The most that is saved while idle: a second's worth unless the rule gives it.
    Saved,
}

impl AlgorithmInfo {
    /// What holds unless the algorithm says otherwise.
    #[must_use]
    pub const fn new(name: &'static str, script: &'static str) -> Self {
        Self {
            name,
            script,
            burst: BurstMeaning::Excess,
            delays: false,
            ordered: false,
            windowed: false,
            next_pays: false,
            leasable: true,
            request_bytes: 0,
        }
    }

    /// What holds for algorithms that count in windows.
    pub(super) const fn windowed(name: &'static str, script: &'static str) -> Self {
        Self {
            burst: BurstMeaning::Nothing("all of the zone's `limit` may come at once"),
            windowed: true,
            ..Self::new(name, script)
        }
    }
}

/// What the allocator needs for each allocation, in bytes.
pub(super) const ALLOCATION: usize = 16;

/// The turn of a request that a lease lets pass, in a queue that was last known as `queue`.
pub(super) fn queue_turn<A: Algorithm<State = Level>>(
    spec: &A,
    mut queue: Level,
    now: Millis,
    cost: Cost,
) -> (Verdict, Level) {
    let verdict = match spec.charge(&mut queue, now, cost).0 {
        Verdict::Refuse { excess, .. } => {
            // It has its turn; only what is known of the queue is out of date.
            let last = spec.peek(&queue, now, Cost(0));
            spec.debit(&mut queue, now, cost);
            match last {
                Verdict::Refuse { .. } => Verdict::Pass { excess },
                other => other,
            }
        }
        verdict => verdict,
    };
    (verdict, queue)
}

/// The arguments of a script for one rule.
#[derive(Debug, Clone)]
pub struct ScriptArgs {
    /// The algorithm's name in the script.
    pub algorithm: &'static str,
    /// What the request costs.
    pub cost: u64,
    /// The numbers that limit the key.
    pub numbers: [i64; 4],
    /// The unit of the excess that the script returns.
    pub scale: ExcessScale,
}

/// The unit of an excess that a script returns.
#[derive(Debug, Clone, Copy)]
pub enum ExcessScale {
    /// Units times milliseconds.
    Area {
        /// The size of a unit.
        unit: u64,
        /// The length of the window in milliseconds.
        length: u64,
    },
    /// The nanoseconds that the excess takes, where one request takes this many.
    Nanos(u64),
    /// Units of this size.
    Units(u64),
    /// Nanoseconds of waiting, where this many units drain in a millisecond.
    Wait(u64),
}

impl ScriptArgs {
    /// For an algorithm that counts in windows; `most` is for its script.
    pub(super) fn windowed(
        algorithm: &'static str,
        cost: Cost,
        limit: Excess,
        window: Duration,
        most: u64,
    ) -> Self {
        Self {
            algorithm,
            cost: scaled(cost.0, THOUSANDTH),
            numbers: [
                number(Excess::ONE.0, THOUSANDTH),
                number(limit.0, THOUSANDTH),
                number(millis(window), 1),
                number(most, 1),
            ],
            scale: ExcessScale::Units(THOUSANDTH),
        }
    }

    /// For an algorithm with a [`Level`]; `third` and `fourth` are for its script.
    pub(super) fn levelled(
        algorithm: &'static str,
        cost: Cost,
        rate: Rate,
        third: u64,
        fourth: Option<u64>,
    ) -> Self {
        let unit = unit(rate.divisor());
        Self {
            algorithm,
            cost: scaled(cost.0, unit),
            numbers: [
                number(Excess::ONE.0, unit),
                number(rate.divisor(), unit),
                number(third, unit),
                fourth.map_or(-1, |fourth| number(fourth, unit)),
            ],
            scale: ExcessScale::Units(unit),
        }
    }

    /// For an algorithm that stores moments: the cost and the numbers in nanoseconds, none higher than `most`.
    pub(super) fn timed(
        algorithm: &'static str,
        cost: u64,
        numbers: [u64; 3],
        most: u64,
        scale: ExcessScale,
    ) -> Self {
        let [first, second, third] = numbers.map(|nanos| number(nanos.min(most), 1));
        Self {
            algorithm,
            cost: cost.min(most),
            numbers: [first, second, third, 0],
            scale,
        }
    }
}

impl ExcessScale {
    /// The excess that a script returned.
    pub(crate) fn excess(self, returned: u64) -> Excess {
        let returned = u128::from(returned);
        let one = u128::from(Excess::ONE.0);
        Excess(narrow(match self {
            Self::Area { unit, length } => returned * u128::from(unit) / u128::from(length.max(1)),
            Self::Nanos(interval) => {
                (returned * one / u128::from(interval.max(1))).saturating_sub(one)
            }
            Self::Units(unit) => returned * u128::from(unit),
            Self::Wait(units) => returned * u128::from(units) / 1_000_000,
        }))
    }
}

/// The largest unit in which a rate and every cost are whole.
fn unit(units_per_milli: u64) -> u64 {
    let (mut a, mut b) = (THOUSANDTH, units_per_milli);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn scaled(amount: u64, unit: u64) -> u64 {
    amount.div_ceil(unit).min(MAX_EXACT)
}

fn number(amount: u64, unit: u64) -> i64 {
    i64::try_from(scaled(amount, unit)).unwrap_or(i64::MAX)
}

/// Costs are given in thousandths of a request.
pub(super) const THOUSANDTH: u64 = Excess::ONE.0 / 1000;

/// The longest time in nanoseconds of which sums are exact, too: thirteen days.
pub(super) const MAX_NANOS: u64 = 1 << 50;

/// Lua counts exactly up to this number.
pub(super) const MAX_EXACT: u64 = 1 << 53;
