//! Numbers over time, in a few hundred cells however long the log is.
//!
//! Nobody knows how long it will be. So a cell is a second wide at first, and whenever there are too many, two become
//! one.

use super::tally::{ReplayVerdictKind, VerdictCounts};

/// What happened in one stretch of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimelineBin {
    /// What was said.
    pub counts: VerdictCounts,
    /// The most requests of one key in one second.
    pub busiest: u32,
}

/// Cells one after the other.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    /// When the first begins, in seconds since the Unix epoch.
    start: i64,
    /// Seconds in a cell; zero before there is any.
    width: i64,
    cells: Vec<TimelineBin>,
}

impl Timeline {
    /// Counts a request whose key sent so many in the same second. Time never goes back.
    pub(super) fn count(&mut self, at: i64, said: ReplayVerdictKind, in_second: u32) {
        let second = at.div_euclid(1000);
        if self.width == 0 {
            (self.start, self.width) = (second, 1);
        }
        let mut index = (second - self.start).max(0) / self.width;
        while index >= MOST_CELLS {
            self.widen();
            index = (second - self.start) / self.width;
        }
        let index = usize::try_from(index).unwrap_or(0);
        if index >= self.cells.len() {
            self.cells.resize(index + 1, TimelineBin::default());
        }
        let cell = &mut self.cells[index];
        match said {
            ReplayVerdictKind::Delay(_) => cell.counts.delay += 1,
            ReplayVerdictKind::Pass => cell.counts.pass += 1,
            ReplayVerdictKind::Refuse => cell.counts.refuse += 1,
        }
        cell.busiest = cell.busiest.max(in_second);
    }

    /// Every cell with when it begins, in milliseconds since the Unix epoch.
    pub fn cells(&self) -> impl Iterator<Item = (i64, &TimelineBin)> {
        let starts = (0..).map(|index| (self.start + index * self.width) * 1000);
        starts.zip(&self.cells)
    }

    /// Seconds in a cell.
    #[must_use]
    pub fn width(&self) -> i64 {
        self.width.max(1)
    }

    fn widen(&mut self) {
        self.width *= 2;
        self.cells = self
            .cells
            .chunks(2)
            .map(|two| {
                two.iter()
                    .fold(TimelineBin::default(), |sum, cell| TimelineBin {
                        counts: VerdictCounts {
                            pass: sum.counts.pass + cell.counts.pass,
                            delay: sum.counts.delay + cell.counts.delay,
                            refuse: sum.counts.refuse + cell.counts.refuse,
                        },
                        busiest: sum.busiest.max(cell.busiest),
                    })
            })
            .collect();
    }
}

/// More than a plot has points across.
const MOST_CELLS: i64 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_time_fits_and_nothing_is_lost() {
        let mut timeline = Timeline::default();
        for second in (0..86_400 * 40).step_by(97) {
            timeline.count(
                second * 1000,
                ReplayVerdictKind::Pass,
                1 + u32::from(second == 970),
            );
        }
        let cells: Vec<_> = timeline.cells().collect();
        assert!(cells.len() <= 512, "{}", cells.len());
        let passed: u64 = cells.iter().map(|(_, cell)| cell.counts.pass).sum();
        assert_eq!(passed, (86_400_u64 * 40).div_ceil(97));
        assert_eq!(cells[0].1.busiest, 2);
        assert_eq!(cells[1].0 - cells[0].0, timeline.width() * 1000);
    }

    #[test]
    fn a_gap_of_years_is_only_a_gap() {
        let mut timeline = Timeline::default();
        timeline.count(0, ReplayVerdictKind::Refuse, 1);
        timeline.count(1_794_794_603_000, ReplayVerdictKind::Delay(3), 1);
        let cells: Vec<_> = timeline.cells().map(|(_, cell)| *cell).collect();
        assert_eq!(cells[0].counts.refuse, 1);
        assert_eq!(cells.last().map(|cell| cell.counts.delay), Some(1));
    }
}
