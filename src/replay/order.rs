//! Sorts requests by time.
//!
//! A log is written when requests end, by several workers that each hold some lines back, so its lines are only nearly in
//! order. They are collected in buckets of a second each. A bucket is emptied when a request comes that lies further ahead
//! than the window, and not before; a request that lies further back than that is late.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::time::TimePrecision;

/// One line of a log that is a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogEntry {
    /// When it happened, in milliseconds since the Unix epoch.
    pub(super) at: i64,
    pub(super) precision: TimePrecision,
    /// How long it took, in milliseconds; `None` if that is not logged.
    pub(super) took: Option<u32>,
    /// The client's address; `None` for a client on a unix socket.
    pub(super) client: Option<IpAddr>,
    /// The index of its file.
    pub(super) file: u32,
    pub(super) line: u64,
    /// Where its texts stand in those of its bucket.
    pub(super) texts: (u32, u32),
}

/// Entries of one second and their texts.
#[derive(Debug, Default)]
pub(super) struct TimeBucket {
    entries: Vec<LogEntry>,
    texts: Vec<u8>,
}

impl TimeBucket {
    /// Its entries in order, each with its texts.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&LogEntry, &[u8])> {
        self.entries.iter().map(|entry| {
            let (start, end) = entry.texts;
            (entry, &self.texts[start as usize..end as usize])
        })
    }

    fn put(&mut self, mut entry: LogEntry, texts: &[u8]) {
        let start = self.texts.len();
        self.texts.extend_from_slice(texts);
        // A bucket never holds four gigabytes: all of them together hold far less.
        entry.texts = (
            u32::try_from(start).unwrap_or(u32::MAX),
            u32::try_from(self.texts.len()).unwrap_or(u32::MAX),
        );
        self.entries.push(entry);
    }

    /// Spreads entries whose time is only known to the second evenly over it, and sorts.
    fn sort(&mut self, second: i64) {
        let coarse = self
            .entries
            .iter()
            .filter(|entry| entry.precision == TimePrecision::Second);
        let count = i64::try_from(coarse.count()).unwrap_or(i64::MAX).max(1);
        let mut index = 0;
        for entry in &mut self.entries {
            if entry.precision == TimePrecision::Second {
                entry.at = second * 1000 + index * 1000 / count;
                entry.precision = TimePrecision::Milli;
                index += 1;
            }
        }
        // Stable: entries of the same millisecond stay in the order in which they were logged.
        self.entries.sort_by_key(|entry| entry.at);
    }
}

/// The buckets of a window.
#[derive(Debug)]
pub(super) struct ReorderWindow {
    buckets: VecDeque<TimeBucket>,
    /// The second of the first bucket; `None` before there is any.
    first: Option<i64>,
    window: i64,
    entries: usize,
    /// Empty buckets, kept for their memory.
    spare: Vec<TimeBucket>,
    started: bool,
    /// How many entries came too late for their bucket, and by how much at most, in milliseconds.
    pub(super) late: u64,
    pub(super) latest: i64,
}

impl ReorderWindow {
    /// A window of so many seconds.
    pub(super) fn new(window: u32) -> Self {
        Self {
            buckets: VecDeque::new(),
            first: None,
            window: i64::from(window),
            entries: 0,
            spare: Vec::new(),
            started: false,
            late: 0,
            latest: 0,
        }
    }

    /// Puts an entry into its bucket, and passes the buckets that are complete by that to `take`.
    pub(super) fn put(
        &mut self,
        mut entry: LogEntry,
        texts: &[u8],
        mut take: impl FnMut(&TimeBucket),
    ) {
        let second = entry.at.div_euclid(1000);
        let mut first = *self.first.get_or_insert(second);
        if second - first > self.window {
            self.advance(second - self.window, &mut take);
            first = second - self.window;
        }
        if second < first {
            // Before the first bucket: the window may have room there.
            let room = self.buckets.len() as i64 + (first - second);
            if !self.started && room <= self.window + 1 {
                for _ in second..first {
                    self.buckets
                        .push_front(self.spare.pop().unwrap_or_default());
                }
                self.first = Some(second);
                first = second;
            } else {
                self.late += 1;
                self.latest = self.latest.max(first * 1000 - entry.at);
                entry.at = first * 1000;
                entry.precision = TimePrecision::Milli;
            }
        }
        let index = usize::try_from(entry.at.div_euclid(1000) - first).unwrap_or(0);
        while self.buckets.len() <= index {
            self.buckets.push_back(self.spare.pop().unwrap_or_default());
        }
        self.buckets[index].put(entry, texts);
        self.entries += 1;
        if self.entries > MOST_ENTRIES {
            self.advance(first + 1, &mut take);
        }
    }

    /// Passes all buckets that are left to `take`.
    pub(super) fn finish(&mut self, mut take: impl FnMut(&TimeBucket)) {
        while !self.buckets.is_empty() {
            self.take_first(&mut take);
        }
    }

    /// Passes every bucket before this second to `take`.
    fn advance(&mut self, second: i64, take: &mut impl FnMut(&TimeBucket)) {
        while self.first.is_some_and(|first| first < second) {
            if self.buckets.is_empty() {
                self.first = Some(second);
                return;
            }
            self.take_first(take);
        }
    }

    fn take_first(&mut self, take: &mut impl FnMut(&TimeBucket)) {
        let Some(mut bucket) = self.buckets.pop_front() else {
            return;
        };
        let second = self.first.unwrap_or_default();
        bucket.sort(second);
        self.started = true;
        take(&bucket);
        self.entries -= bucket.entries.len();
        self.first = Some(second + 1);
        bucket.entries.clear();
        bucket.texts.clear();
        if self.spare.len() < MOST_SPARE {
            self.spare.push(bucket);
        }
    }
}

/// The most entries in a window, however wide: with their texts, some two hundred bytes each.
const MOST_ENTRIES: usize = 1 << 20;

/// The most empty buckets that are kept.
const MOST_SPARE: usize = 8;

#[cfg(test)]
mod tests {

    use super::*;

    fn entry(at: i64, precision: TimePrecision, line: u64) -> LogEntry {
        LogEntry {
            at,
            precision,
            took: None,
            client: None,
            file: 0,
            line,
            texts: (0, 0),
        }
    }

    /// Times and lines in the order they come out.
    fn sorted(window: u32, times: &[(i64, TimePrecision)]) -> (Vec<(i64, u64)>, ReorderWindow) {
        let mut buckets = ReorderWindow::new(window);
        let mut all = Vec::new();
        let take = |bucket: &TimeBucket, all: &mut Vec<(i64, u64)>| {
            for (entry, texts) in bucket.iter() {
                assert_eq!(texts, entry.line.to_string().as_bytes());
                all.push((entry.at, entry.line));
            }
        };
        for (line, (at, exact)) in (1..).zip(times) {
            let texts = line.to_string();
            buckets.put(entry(*at, *exact, line), texts.as_bytes(), |bucket| {
                take(bucket, &mut all);
            });
        }
        buckets.finish(|bucket| take(bucket, &mut all));
        (all, buckets)
    }

    fn exact(times: &[i64]) -> Vec<(i64, TimePrecision)> {
        times.iter().map(|at| (*at, TimePrecision::Milli)).collect()
    }

    #[test]
    fn entries_within_the_window_are_sorted() {
        let (all, buckets) = sorted(
            6,
            &exact(&[3_000, 1_500, 7_200, 2_900, 1_500, 9_000, 4_000]),
        );
        let times: Vec<_> = all.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [1_500, 1_500, 2_900, 3_000, 4_000, 7_200, 9_000]);
        assert_eq!(all[..2], [(1_500, 2), (1_500, 5)], "the first logged first");
        assert_eq!(buckets.late, 0);
    }

    #[test]
    fn a_late_entry_is_taken_when_it_comes_and_counted() {
        let (all, buckets) = sorted(2, &exact(&[1_000, 10_000, 3_500, 10_001]));
        assert_eq!(all, [(1_000, 1), (8_000, 3), (10_000, 2), (10_001, 4)]);
        assert_eq!((buckets.late, buckets.latest), (1, 4_500));
    }

    #[test]
    fn entries_of_one_second_are_spread_evenly_over_it() {
        let coarse = |second: i64| (second * 1000, TimePrecision::Second);
        let (all, _) = sorted(3, &[coarse(5), coarse(5), coarse(6), coarse(5), coarse(5)]);
        assert_eq!(
            all,
            [(5_000, 1), (5_250, 2), (5_500, 4), (5_750, 5), (6_000, 3)]
        );
    }

    #[test]
    fn a_gap_of_years_is_skipped() {
        let (all, _) = sorted(
            30,
            &exact(&[0, 1_794_794_603_000, 1_794_794_603_001, -5_000]),
        );
        assert_eq!(all.len(), 4);
        assert!(all.is_sorted());
    }

    #[test]
    fn a_full_window_is_emptied_early() {
        let mut buckets = ReorderWindow::new(1_000_000);
        let mut out = 0;
        for at in 0..3_000_000 {
            buckets.put(entry(at, TimePrecision::Milli, 1), b"", |bucket| {
                out += bucket.entries.len()
            });
        }
        assert!(3_000_000 - out <= MOST_ENTRIES, "{out}");
    }
}
