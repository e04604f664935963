//! The numbers of a rule as its script takes them.
//!
//! Lua's numbers are exact up to 2^53, where [`Excess`] counts 86 400 000 000 units in a request. So each call uses the
//! largest unit in which all its numbers are whole: with a rate of 10r/s a thousandth of a request. A bucket of more than
//! 2^53 units (104 000 requests at a rate of `1.001r/d`, nine thousand million at any rate a second) is exact to sixteen
//! digits.

use std::time::Duration;

use super::quantities::{Cost, Excess, Rate};

/// The arguments of a script for one rule.
#[derive(Debug, Clone)]
pub struct ScriptArgs {
    /// The name of the algorithm in the script.
    pub way: &'static str,
    /// What the request costs.
    pub cost: u64,
    /// The numbers that the key is held to.
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
    /// The time that the excess takes, one request taking so many nanoseconds.
    Nanos(u64),
    /// Units of this size.
    Units(u64),
    /// Nanoseconds of waiting, where so many units pass in a millisecond.
    Wait(u64),
}

impl ScriptArgs {
    /// Those of an algorithm that counts in windows; `most` is for its script.
    pub(super) fn windowed(
        way: &'static str,
        cost: Cost,
        limit: Excess,
        window: Duration,
        most: u64,
    ) -> Self {
        Self {
            way,
            cost: scaled(cost.0, THOUSANDTH),
            numbers: [
                number(Excess::ONE.0, THOUSANDTH),
                number(limit.0, THOUSANDTH),
                number(super::time::millis(window), 1),
                number(most, 1),
            ],
            scale: ExcessScale::Units(THOUSANDTH),
        }
    }

    /// Those of an algorithm that has a level that falls with time; `third` and `fourth` are for its script.
    pub(super) fn levelled(
        way: &'static str,
        cost: Cost,
        rate: Rate,
        third: u64,
        fourth: Option<u64>,
    ) -> Self {
        let per_milli = rate.units_per_milli().max(1);
        let unit = unit(per_milli);
        Self {
            way,
            cost: scaled(cost.0, unit),
            numbers: [
                number(Excess::ONE.0, unit),
                number(per_milli, unit),
                number(third, unit),
                fourth.map_or(-1, |fourth| number(fourth, unit)),
            ],
            scale: ExcessScale::Units(unit),
        }
    }

    /// Those of an algorithm that remembers moments: the cost and the numbers in nanoseconds, none more than `most`.
    pub(super) fn timed(
        way: &'static str,
        cost: u64,
        numbers: [u64; 3],
        most: u64,
        scale: ExcessScale,
    ) -> Self {
        let [first, second, third] = numbers.map(|nanos| number(nanos.min(most), 1));
        Self {
            way,
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
        let units = match self {
            Self::Area { unit, length } => returned * u128::from(unit) / u128::from(length.max(1)),
            Self::Nanos(interval) => {
                (returned * one / u128::from(interval.max(1))).saturating_sub(one)
            }
            Self::Units(unit) => returned * u128::from(unit),
            Self::Wait(units) => returned * u128::from(units) / 1_000_000,
        };
        Excess(u64::try_from(units).unwrap_or(u64::MAX))
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
    amount.div_ceil(unit).min(LARGEST)
}

fn number(amount: u64, unit: u64) -> i64 {
    i64::try_from(scaled(amount, unit)).unwrap_or(i64::MAX)
}

/// Costs are given to the thousandth of a request.
pub(super) const THOUSANDTH: u64 = Excess::ONE.0 / 1000;

/// The longest time in nanoseconds where sums of such are exact, too: thirteen days.
pub(super) const MAX_NANOS: u64 = 1 << 50;

/// The largest number that Lua counts exactly to.
pub(super) const LARGEST: u64 = 1 << 53;
