//! Requests into the order they came in.
//!
//! A log is written when requests end, by several workers that each keep some lines back, so its lines are only nearly in
//! order. They are collected in baskets, one for each second. A basket is opened when something is found that lies
//! further ahead than the window, and not before: what lies further back than that is late.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::log_format::TimePrecision;

/// One line of a log that is a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogEntry {
    /// When it happened, in milliseconds since the Unix epoch.
    pub(super) at: i64,
    pub(super) exact: TimePrecision,
    /// How long it took, in milliseconds; `None` if the log does not say.
    pub(super) took: Option<u32>,
    /// Who asked; `None` for somebody on a unix socket.
    pub(super) client: Option<IpAddr>,
    /// Where its line stands.
    pub(super) file: u32,
    pub(super) line: u64,
    /// Where its texts stand in the basket's.
    text: (u32, u32),
}

impl LogEntry {
    pub(super) fn new(
        at: i64,
        exact: TimePrecision,
        took: Option<u32>,
        client: Option<IpAddr>,
        place: (u32, u64),
    ) -> Self {
        Self {
            at,
            exact,
            took,
            client,
            file: place.0,
            line: place.1,
            text: (0, 0),
        }
    }
}

/// Entries of one second, and the texts that belong to them.
#[derive(Debug, Default)]
pub(super) struct TimeBucket {
    entries: Vec<LogEntry>,
    texts: Vec<u8>,
}

impl TimeBucket {
    /// Its entries in their order, each with its texts.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&LogEntry, &[u8])> {
        self.entries.iter().map(|entry| {
            let (start, end) = entry.text;
            (entry, &self.texts[start as usize..end as usize])
        })
    }

    fn put(&mut self, mut entry: LogEntry, texts: &[u8]) {
        let start = self.texts.len();
        self.texts.extend_from_slice(texts);
        // A basket never holds four gigabytes: the whole line of them holds far less.
        entry.text = (
            u32::try_from(start).unwrap_or(u32::MAX),
            u32::try_from(self.texts.len()).unwrap_or(u32::MAX),
        );
        self.entries.push(entry);
    }

    /// Spreads those that are only known to the second evenly over it, and sorts.
    fn settle(&mut self, second: i64) {
        let coarse = self
            .entries
            .iter()
            .filter(|entry| entry.exact == TimePrecision::Second);
        let count = i64::try_from(coarse.count()).unwrap_or(i64::MAX).max(1);
        let mut index = 0;
        for entry in &mut self.entries {
            if entry.exact == TimePrecision::Second {
                entry.at = second * 1000 + index * 1000 / count;
                entry.exact = TimePrecision::Milli;
                index += 1;
            }
        }
        // Stable: of two in the same millisecond the one that was logged first stays first.
        self.entries.sort_by_key(|entry| entry.at);
    }
}

/// Baskets for as many seconds as the window is wide.
#[derive(Debug)]
pub(super) struct ReorderWindow {
    baskets: VecDeque<TimeBucket>,
    /// The second of the first basket; none before there is any.
    first: Option<i64>,
    window: i64,
    held: usize,
    spare: Vec<TimeBucket>,
    opened: bool,
    /// How many came too late for their basket, and by how much at most, in milliseconds.
    pub(super) late: u64,
    pub(super) latest: i64,
}

impl ReorderWindow {
    /// With a window of so many seconds.
    pub(super) fn new(window: u32) -> Self {
        Self {
            baskets: VecDeque::new(),
            first: None,
            window: i64::from(window),
            held: 0,
            spare: Vec::new(),
            opened: false,
            late: 0,
            latest: 0,
        }
    }

    /// Puts an entry where it belongs, and hands out the baskets that are complete by that.
    pub(super) fn put(
        &mut self,
        mut entry: LogEntry,
        texts: &[u8],
        mut open: impl FnMut(&TimeBucket),
    ) {
        let second = entry.at.div_euclid(1000);
        let mut first = *self.first.get_or_insert(second);
        if second - first > self.window {
            self.advance(second - self.window, &mut open);
            first = second - self.window;
        }
        if second < first {
            // Before the very first: there may still be room in front.
            let room = self.baskets.len() as i64 + (first - second);
            if !self.opened && room <= self.window + 1 {
                for _ in second..first {
                    self.baskets
                        .push_front(self.spare.pop().unwrap_or_default());
                }
                self.first = Some(second);
                first = second;
            } else {
                self.late += 1;
                self.latest = self.latest.max(first * 1000 - entry.at);
                entry.at = first * 1000;
                entry.exact = TimePrecision::Milli;
            }
        }
        let index = usize::try_from(entry.at.div_euclid(1000) - first).unwrap_or(0);
        while self.baskets.len() <= index {
            self.baskets.push_back(self.spare.pop().unwrap_or_default());
        }
        self.baskets[index].put(entry, texts);
        self.held += 1;
        if self.held > MOST_HELD {
            self.advance(first + 1, &mut open);
        }
    }

    /// Hands out all that is left.
    pub(super) fn finish(&mut self, mut open: impl FnMut(&TimeBucket)) {
        while !self.baskets.is_empty() {
            self.open_first(&mut open);
        }
    }

    /// Hands out every basket before this second.
    fn advance(&mut self, second: i64, open: &mut impl FnMut(&TimeBucket)) {
        while self.first.is_some_and(|first| first < second) {
            if self.baskets.is_empty() {
                self.first = Some(second);
                return;
            }
            self.open_first(open);
        }
    }

    fn open_first(&mut self, open: &mut impl FnMut(&TimeBucket)) {
        let Some(mut basket) = self.baskets.pop_front() else {
            return;
        };
        let second = self.first.unwrap_or_default();
        basket.settle(second);
        self.opened = true;
        open(&basket);
        self.held -= basket.entries.len();
        self.first = Some(second + 1);
        basket.entries.clear();
        basket.texts.clear();
        if self.spare.len() < MOST_SPARE {
            self.spare.push(basket);
        }
    }
}

/// Entries held back at once, whatever the window: with their texts, some two hundred bytes each.
const MOST_HELD: usize = 1 << 20;

/// Empty baskets kept for their memory.
const MOST_SPARE: usize = 8;

#[cfg(test)]
mod tests {

    use super::*;

    fn entry(at: i64, exact: TimePrecision, line: u64) -> LogEntry {
        LogEntry::new(at, exact, None, None, (0, line))
    }

    /// Times and lines in the order they come out.
    fn sorted(window: u32, times: &[(i64, TimePrecision)]) -> (Vec<(i64, u64)>, ReorderWindow) {
        let mut baskets = ReorderWindow::new(window);
        let mut all = Vec::new();
        let take = |basket: &TimeBucket, all: &mut Vec<(i64, u64)>| {
            for (entry, texts) in basket.iter() {
                assert_eq!(texts, entry.line.to_string().as_bytes());
                all.push((entry.at, entry.line));
            }
        };
        for (line, (at, exact)) in (1..).zip(times) {
            let texts = line.to_string();
            baskets.put(entry(*at, *exact, line), texts.as_bytes(), |basket| {
                take(basket, &mut all);
            });
        }
        baskets.finish(|basket| take(basket, &mut all));
        (all, baskets)
    }

    fn exact(times: &[i64]) -> Vec<(i64, TimePrecision)> {
        times.iter().map(|at| (*at, TimePrecision::Milli)).collect()
    }

    #[test]
    fn what_is_within_the_window_is_sorted() {
        let (all, baskets) = sorted(
            6,
            &exact(&[3_000, 1_500, 7_200, 2_900, 1_500, 9_000, 4_000]),
        );
        let times: Vec<_> = all.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [1_500, 1_500, 2_900, 3_000, 4_000, 7_200, 9_000]);
        assert_eq!(all[..2], [(1_500, 2), (1_500, 5)], "the first logged first");
        assert_eq!(baskets.late, 0);
    }

    #[test]
    fn what_is_later_than_that_is_taken_when_it_comes_and_counted() {
        let (all, baskets) = sorted(2, &exact(&[1_000, 10_000, 3_500, 10_001]));
        assert_eq!(all, [(1_000, 1), (8_000, 3), (10_000, 2), (10_001, 4)]);
        assert_eq!((baskets.late, baskets.latest), (1, 4_500));
    }

    #[test]
    fn a_second_is_spread_evenly_over_those_who_share_it() {
        let coarse = |second: i64| (second * 1000, TimePrecision::Second);
        let (all, _) = sorted(3, &[coarse(5), coarse(5), coarse(6), coarse(5), coarse(5)]);
        assert_eq!(
            all,
            [(5_000, 1), (5_250, 2), (5_500, 4), (5_750, 5), (6_000, 3)]
        );
    }

    #[test]
    fn a_gap_of_years_costs_nothing() {
        let (all, _) = sorted(
            30,
            &exact(&[0, 1_794_794_603_000, 1_794_794_603_001, -5_000]),
        );
        assert_eq!(all.len(), 4);
        assert!(all.is_sorted());
    }

    #[test]
    fn more_than_can_be_held_is_handed_out_early() {
        let mut baskets = ReorderWindow::new(1_000_000);
        let mut out = 0;
        for at in 0..3_000_000 {
            baskets.put(entry(at, TimePrecision::Milli, 1), b"", |basket| {
                out += basket.entries.len()
            });
        }
        assert!(3_000_000 - out <= MOST_HELD, "{out}");
    }
}
