//! From values to places, and which values are worth writing down.

use std::fmt::Write;

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// One of a plot's two directions.
#[derive(Debug, Clone)]
pub struct Axis {
    /// What it counts.
    pub label: String,
    /// What its values are.
    pub unit: AxisUnit,
    /// How they are spread.
    pub scale: AxisScale,
    /// Its first and last value.
    pub range: (f64, f64),
}

/// What values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxisUnit {
    /// Just numbers.
    Number,
    /// Shares: 1 is 100 %.
    Share,
    /// Moments, in milliseconds since the Unix epoch.
    Time,
}

/// How values are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxisScale {
    /// Evenly.
    Linear,
    /// Ten times as much is always as far away. What is not above zero stands at the start.
    Log,
}

impl Axis {
    /// Where a value stands, from 0 to 1; what is outside stands at the edge.
    pub(super) fn place(&self, value: f64) -> f64 {
        let (from, to) = self.range;
        let part = match self.scale {
            AxisScale::Linear => (value - from) / (to - from),
            AxisScale::Log => (value.max(from).ln() - from.ln()) / (to.ln() - from.ln()),
        };
        if part.is_finite() {
            part.clamp(0.0, 1.0)
        } else {
            0.0
        }
    }

    /// About so many values worth writing down, each with its text.
    pub(super) fn ticks(&self, count: usize) -> Vec<(f64, String)> {
        let (from, to) = self.range;
        if !(from.is_finite() && to.is_finite() && from < to) {
            return Vec::new();
        }
        match (self.scale, self.unit) {
            (AxisScale::Log, unit) => decades(from, to, count)
                .into_iter()
                .map(|value| (value, written(value, value, unit)))
                .collect(),
            (AxisScale::Linear, AxisUnit::Time) => {
                let step = pick(&TIME_STEPS, (to - from) / count as f64);
                multiples(from, to, step)
                    .map(|value| (value, moment(value, step)))
                    .collect()
            }
            (AxisScale::Linear, unit) => {
                let step = round_step((to - from) / count as f64);
                multiples(from, to, step)
                    .map(|value| (value, written(value, step, unit)))
                    .collect()
            }
        }
    }

    /// The range from zero to a round number not below `most`.
    #[must_use]
    pub fn up_to(most: f64) -> (f64, f64) {
        if !(most.is_finite() && most > 0.0) {
            return (0.0, 1.0);
        }
        let step = round_step(most / 4.0);
        (0.0, (most / step).ceil() * step)
    }
}

fn multiples(from: f64, to: f64, step: f64) -> impl Iterator<Item = f64> {
    let first = (from / step).ceil();
    (0..MOST_TICKS)
        .map(move |at| (first + f64::from(at)) * step)
        .take_while(move |value| *value <= to + step * 1e-9)
}

/// 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0].into_iter();
    times
        .map(|times| times * power)
        .find(|step| *step >= least * (1.0 - 1e-9))
        .unwrap_or(power * 10.0)
}

fn pick(steps: &[f64], least: f64) -> f64 {
    let found = steps.iter().find(|step| **step >= least).copied();
    found.unwrap_or_else(|| round_step(least / DAY) * DAY)
}

/// Powers of ten, with their doubles and fives where there is room.
fn decades(from: f64, to: f64, count: usize) -> Vec<f64> {
    let times: &[f64] = match to.log10() - from.log10() {
        span if span * 3.0 <= count as f64 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let first = from.log10().floor();
    let every = ((to.log10() - first) / count as f64).ceil().max(1.0);
    (0..MOST_TICKS)
        .map(|at| 10f64.powf(first + f64::from(at) * every))
        .take_while(|power| *power <= to)
        .flat_map(|power| times.iter().map(move |times| times * power))
        .filter(|value| (from * (1.0 - 1e-9)..=to * (1.0 + 1e-9)).contains(value))
        .collect()
}

/// A value, with as many decimals as its neighbours, `step` away, ask for.
fn written(value: f64, step: f64, unit: AxisUnit) -> String {
    let (value, step, sign) = match unit {
        AxisUnit::Share => (value * 100.0, step * 100.0, " %"),
        AxisUnit::Number | AxisUnit::Time => (value, step, ""),
    };
    let (value, step, letter) = match value.abs() {
        large if large >= 1e9 => (value / 1e9, step / 1e9, "G"),
        large if large >= 1e6 => (value / 1e6, step / 1e6, "M"),
        large if large >= 1e4 => (value / 1e3, step / 1e3, "k"),
        _ => (value, step, ""),
    };
    let decimals = (0..9)
        .find(|decimals| {
            let scaled = step.abs() * 10f64.powi(*decimals);
            (scaled - scaled.round()).abs() < 1e-6 * scaled.max(1.0) && scaled >= 0.5
        })
        .unwrap_or(0);
    let decimals = usize::try_from(decimals).unwrap_or(0);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = write!(text, "{value:.decimals$}{letter}{sign}");
    text
}

/// A moment in UTC, as exact as its neighbours, `step` milliseconds away, ask for.
fn moment(value: f64, step: f64) -> String {
    let format = match step {
        step if step >= DAY => "%d %b",
        step if step >= 60_000.0 => "%H:%M",
        step if step >= 1_000.0 => "%H:%M:%S",
        _ => "%H:%M:%S%.3f",
    };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a time of day fits, and another is not shown"
    )]
    let moment = Timestamp::from_millisecond(value as i64).unwrap_or_default();
    let zoned = moment.to_zoned(TimeZone::UTC);
    zoned.strftime(format).to_string()
}

const DAY: f64 = 86_400_000.0;

/// Steps between moments that people count in, in milliseconds.
const TIME_STEPS: [f64; 29] = [
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1e3,
    2e3,
    5e3,
    10e3,
    15e3,
    30e3,
    60e3,
    120e3,
    300e3,
    600e3,
    900e3,
    1800e3,
    3600e3,
    7200e3,
    10_800e3,
    21_600e3,
    43_200e3,
    DAY,
    2.0 * DAY,
    7.0 * DAY,
];

/// Whatever the numbers: there are never more.
const MOST_TICKS: i32 = 50;

#[cfg(test)]
mod tests {

    use super::*;

    fn axis(unit: AxisUnit, scale: AxisScale, range: (f64, f64)) -> Axis {
        Axis {
            label: String::new(),
            unit,
            scale,
            range,
        }
    }

    fn texts(axis: &Axis, count: usize) -> Vec<String> {
        axis.ticks(count)
            .into_iter()
            .map(|(_, text)| text)
            .collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        let number = axis(AxisUnit::Number, AxisScale::Linear, (0.0, 7.0));
        assert_eq!(texts(&number, 4), ["0", "2", "4", "6"]);
        let share = axis(AxisUnit::Share, AxisScale::Linear, (0.0, 0.01));
        assert_eq!(texts(&share, 4), ["0.0 %", "0.5 %", "1.0 %"]);
        let large = axis(AxisUnit::Number, AxisScale::Linear, (0.0, 60_000.0));
        assert_eq!(texts(&large, 4), ["0", "20k", "40k", "60k"]);
    }

    #[test]
    fn moments_are_told_as_exactly_as_they_lie_apart() {
        let start = 1_794_794_400_000.0;
        let hour = axis(
            AxisUnit::Time,
            AxisScale::Linear,
            (start, start + 3_600_000.0),
        );
        assert_eq!(
            texts(&hour, 4),
            ["02:00", "02:15", "02:30", "02:45", "03:00"]
        );
        let minute = axis(AxisUnit::Time, AxisScale::Linear, (start, start + 60_000.0));
        assert_eq!(texts(&minute, 4)[..2], ["02:00:00", "02:00:15"]);
        let month = axis(
            AxisUnit::Time,
            AxisScale::Linear,
            (start, start + 30.0 * DAY),
        );
        assert!(
            texts(&month, 5)[0].ends_with("Nov"),
            "{:?}",
            texts(&month, 5)
        );
    }

    #[test]
    fn decades_are_spread_evenly() {
        let log = axis(AxisUnit::Number, AxisScale::Log, (1.0, 10_000.0));
        assert_eq!(texts(&log, 5), ["1", "10", "100", "1000", "10k"]);
        assert!((log.place(100.0) - 0.5).abs() < 1e-9);
        let short = axis(AxisUnit::Number, AxisScale::Log, (1.0, 10.0));
        assert_eq!(texts(&short, 5), ["1", "2", "5", "10"]);
    }

    #[test]
    fn no_range_is_too_strange() {
        for range in [
            (0.0, 0.0),
            (1.0, 0.0),
            (f64::NAN, 1.0),
            (0.0, f64::INFINITY),
            (-1e300, 1e300),
            (1.0, 1.0 + 1e-12),
        ] {
            for scale in [AxisScale::Linear, AxisScale::Log] {
                for unit in [AxisUnit::Number, AxisUnit::Share, AxisUnit::Time] {
                    let axis = axis(unit, scale, range);
                    assert!(axis.ticks(5).len() <= 200, "{axis:?}");
                    assert!((0.0..=1.0).contains(&axis.place(0.5)), "{axis:?}");
                }
            }
        }
    }
}
