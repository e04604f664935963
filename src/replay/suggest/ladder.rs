//! The rates that are tried: numbers people would write.

use crate::config::plan::Rate;

/// From one a minute to a million a second, slowest first.
pub(in crate::replay) fn ladder() -> impl Iterator<Item = Rate> {
    let minutes = MINUTES.iter().map(|rate| Rate::per_minute(rate * 1000));
    let seconds = (0..6).flat_map(|power| {
        let times = 10_u64.pow(power) * 100;
        SECONDS
            .iter()
            .map(move |tenths| Rate::per_second(tenths * times))
    });
    minutes.chain(seconds)
}

const MINUTES: [u64; 15] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50];

/// In tenths.
const SECONDS: [u64; 13] = [10, 12, 15, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_larger_than_the_one_before() {
        let units: Vec<_> = ladder().map(Rate::units_per_milli).collect();
        assert!(units.is_sorted_by(|a, b| a < b));
        let texts: Vec<_> = ladder().map(|rate| rate.to_string()).collect();
        assert_eq!(
            (&*texts[0], &*texts[14], &*texts[15], &*texts[16]),
            ("1r/m", "50r/m", "1r/s", "1.2r/s")
        );
        assert_eq!(texts.last().map(String::as_str), Some("900000r/s"));
    }
}
