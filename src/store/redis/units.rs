//! The numbers of a rule as its script is told them.
//!
//! Lua's numbers are exact up to 2^53, where [`Excess`] counts 86 400 000 000 units in a request. So each question is
//! put in the largest unit in which all its numbers are whole: with a rate of 10r/s a thousandth of a request. A bucket
//! of more than 2^53 of them (104 000 requests at a rate of `1.001r/d`, nine thousand million at any rate a second) is
//! exact to sixteen digits.

use std::time::Duration;

use crate::config::plan::{Cost, Delay, Excess};
use crate::store::algorithm::LimitSpec;
use crate::store::algorithm::reserve::SmoothNanos;

/// What a script is told of one rule.
#[derive(Debug, Clone)]
pub(super) struct ScriptArgs {
    pub(super) way: &'static str,
    pub(super) cost: u64,
    pub(super) numbers: [i64; 4],
    pub(super) scale: ExcessScale,
}

/// What an excess is counted in.
#[derive(Debug, Clone, Copy)]
pub(super) enum ExcessScale {
    /// Units times milliseconds: so large is a unit, and so long a window.
    Area { unit: u64, length: u64 },
    /// The time it takes, one request taking so many nanoseconds.
    Nanos(u64),
    /// Units of this size.
    Units(u64),
    /// Nanoseconds of waiting, where so many units pass in a millisecond.
    Wait(u64),
}

impl ScriptArgs {
    pub(super) fn of(terms: &LimitSpec, cost: Cost) -> Self {
        match terms {
            LimitSpec::Blocks(terms) => {
                let blocks = terms.count() as u64;
                Self::windowed("blocks", cost, terms.limit, terms.precision, blocks).0
            }
            LimitSpec::Bursty(terms) => Self::reserved("bursty", terms.in_nanos(cost)),
            LimitSpec::FixedWindow(terms) => {
                Self::windowed("fixed_window", cost, terms.limit, terms.window, 0).0
            }
            LimitSpec::Gcra(terms) => {
                let (interval, tolerance, takes) = terms.in_nanos(cost);
                Self {
                    way: "gcra",
                    cost: takes.min(LARGEST),
                    numbers: [number(interval, 1), number(tolerance, 1), 0, 0],
                    scale: ExcessScale::Nanos(interval),
                }
            }
            LimitSpec::LeakyBucket(terms) => {
                let threshold = match terms.delay {
                    Delay::After(threshold) => Some(threshold.0),
                    Delay::Never => None,
                };
                let rate = terms.rate.units_per_milli();
                Self::levelled("leaky_bucket", cost, rate, terms.burst.0, threshold)
            }
            LimitSpec::Paced(terms) => {
                let rate = terms.rate.units_per_milli();
                let longest = u64::try_from(terms.max_wait.as_millis()).unwrap_or(u64::MAX);
                Self::levelled("paced", cost, rate, longest.saturating_mul(rate), None)
            }
            LimitSpec::SlidingLog(terms) => {
                let most = (terms.limit.0 / Excess::ONE.0).max(1);
                Self::windowed("sliding_log", cost, terms.limit, terms.window, most).0
            }
            LimitSpec::SlidingWindow(terms) => {
                let (told, length) =
                    Self::windowed("sliding_window", cost, terms.limit, terms.window, 0);
                let unit = THOUSANDTH;
                let scale = ExcessScale::Area { unit, length };
                Self { scale, ..told }
            }
            LimitSpec::TokenBucket(terms) => {
                let rate = terms.rate.units_per_milli();
                Self::levelled("token_bucket", cost, rate, terms.capacity.0, None)
            }
            LimitSpec::WarmUp(terms) => Self::reserved("warm_up", terms.in_nanos(cost)),
        }
    }
}

impl ScriptArgs {
    /// One that counts in windows, and how long those are.
    fn windowed(
        way: &'static str,
        cost: Cost,
        limit: Excess,
        window: Duration,
        most: u64,
    ) -> (Self, u64) {
        let length = u64::try_from(window.as_millis()).unwrap_or(u64::MAX).max(1);
        let told = Self {
            way,
            cost: scaled(cost.0, THOUSANDTH),
            numbers: [
                number(Excess::ONE.0, THOUSANDTH),
                number(limit.0, THOUSANDTH),
                number(length, 1),
                number(most, 1),
            ],
            scale: ExcessScale::Units(THOUSANDTH),
        };
        (told, length)
    }

    /// One where the next pays for the last.
    fn reserved(way: &'static str, nanos: SmoothNanos) -> Self {
        let number = |nanos: u64| number(nanos.min(LONGEST), 1);
        Self {
            way,
            cost: nanos.cost.min(LONGEST),
            numbers: [
                number(nanos.max_wait),
                number(nanos.most),
                number(nanos.request),
                0,
            ],
            scale: ExcessScale::Wait(nanos.units_per_milli),
        }
    }

    /// One that has a level that falls with time.
    fn levelled(
        way: &'static str,
        cost: Cost,
        per_milli: u64,
        third: u64,
        fourth: Option<u64>,
    ) -> Self {
        let unit = unit(per_milli);
        Self {
            way,
            cost: scaled(cost.0, unit),
            numbers: [
                number(Excess::ONE.0, unit),
                number(per_milli.max(1), unit),
                number(third, unit),
                fourth.map_or(-1, |fourth| number(fourth, unit)),
            ],
            scale: ExcessScale::Units(unit),
        }
    }
}

impl ExcessScale {
    /// What an answer means.
    pub(super) fn excess(self, told: u64) -> Excess {
        let told = u128::from(told);
        let units = match self {
            Self::Area { unit, length } => told * u128::from(unit) / u128::from(length.max(1)),
            Self::Nanos(interval) => (told * u128::from(Excess::ONE.0)
                / u128::from(interval.max(1)))
            .saturating_sub(u128::from(Excess::ONE.0)),
            Self::Units(unit) => told * u128::from(unit),
            Self::Wait(units) => told * u128::from(units) / 1_000_000,
        };
        Excess(u64::try_from(units).unwrap_or(u64::MAX))
    }
}

/// The largest unit in which a rate and every cost are whole.
fn unit(units_per_milli: u64) -> u64 {
    let (mut a, mut b) = (THOUSANDTH, units_per_milli.max(1));
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn scaled(amount: u64, unit: u64) -> u64 {
    amount.div_ceil(unit).min(LARGEST)
}

fn number(amount: u64, unit: u64) -> i64 {
    i64::try_from(scaled(amount, unit)).unwrap_or(i64::MAX)
}

/// Costs are given to the thousandth of a request.
const THOUSANDTH: u64 = Excess::ONE.0 / 1000;

/// The longest time in nanoseconds where sums of such are exact, too: thirteen days.
const LONGEST: u64 = 1 << 50;

/// No number is larger where Lua counts exactly.
const LARGEST: u64 = 1 << 53;
