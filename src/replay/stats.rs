//! What is counted while a log is read: verdicts by zone, by key and over time.
//!
//! Memory is bounded. Keys are counted exactly until a zone has a million; then the half with the fewest requests is
//! dropped, so that the keys that matter stay, and the report says so. The order of a hash map never shows: ties are
//! broken to the last difference.

use std::collections::HashMap;
use std::ops::AddAssign;
use std::time::Duration;

use serde::Serialize;

use crate::algorithm::VerdictKind;

/// How many requests passed, waited and were refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct VerdictCounts {
    /// Passed at once.
    pub pass: u64,
    /// Passed after a wait.
    pub delay: u64,
    /// Refused.
    pub refuse: u64,
}

impl VerdictCounts {
    fn count(&mut self, verdict: VerdictKind) {
        *match verdict {
            VerdictKind::Delay(_) => &mut self.delay,
            VerdictKind::Pass => &mut self.pass,
            VerdictKind::Refuse => &mut self.refuse,
        } += 1;
    }

    /// All requests.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.pass + self.delay + self.refuse
    }
}

impl AddAssign for VerdictCounts {
    fn add_assign(&mut self, other: Self) {
        self.pass += other.pass;
        self.delay += other.delay;
        self.refuse += other.refuse;
    }
}

/// The figures of one key of a zone.
#[derive(Debug, Clone, Serialize)]
pub struct KeyStats {
    /// The key as text.
    #[serde(rename = "key")]
    pub label: Box<str>,
    /// The verdicts on its requests.
    #[serde(flatten)]
    pub counts: VerdictCounts,
    /// The longest of its waits, in milliseconds.
    #[serde(rename = "longest_delay_ms")]
    pub longest: u64,
    /// The most requests it sent in one second.
    #[serde(rename = "peak_per_second")]
    pub peak: u32,
    /// The second of its last request, and how many requests it has sent in it.
    #[serde(skip)]
    second: i64,
    #[serde(skip)]
    in_second: u32,
    /// A unique number, by the order of first requests.
    #[serde(skip)]
    id: u32,
}

/// One of the longest waits in a zone.
#[derive(Debug, Clone, Serialize)]
pub struct LongWait {
    /// The request's key as text.
    pub key: Box<str>,
    /// How long it waited, in milliseconds.
    #[serde(rename = "delay_ms")]
    pub millis: u64,
    /// When the request came, in milliseconds since the Unix epoch.
    #[serde(rename = "at_ms")]
    pub at: i64,
    /// The log file.
    pub file: Box<str>,
    /// The line in it.
    pub line: u64,
}

/// The figures of a zone.
#[derive(Debug, Default)]
pub(super) struct ZoneStats {
    pub(super) counts: VerdictCounts,
    pub(super) timeline: Timeline,
    /// The longest waits, longest first.
    pub(super) waits: Vec<LongWait>,
    keys: Vec<KeyStats>,
    index: HashMap<Box<[u8]>, u32>,
    next_id: u32,
    /// Keys that were dropped, and the most requests that one of them can have had.
    pub(super) dropped: u64,
    pub(super) dropped_most: u64,
}

/// One verdict of a zone.
#[derive(Debug, Clone, Copy)]
pub(super) struct ZoneEvent<'a> {
    pub(super) verdict: VerdictKind,
    /// When the request came, in milliseconds since the Unix epoch.
    pub(super) at: i64,
    pub(super) file: &'a str,
    pub(super) line: u64,
}

impl ZoneStats {
    /// Counts a request; `label` makes the text of a key that is new. Returns the key's number.
    pub(super) fn count(
        &mut self,
        key: &[u8],
        event: ZoneEvent<'_>,
        label: impl FnOnce() -> String,
    ) -> u32 {
        let index = match self.index.get(key) {
            Some(index) => *index,
            None => self.insert(key, label()),
        };
        let key = &mut self.keys[index as usize];
        let second = event.at.div_euclid(1000);
        if key.second != second {
            key.second = second;
            key.in_second = 0;
        }
        key.in_second += 1;
        key.peak = key.peak.max(key.in_second);
        key.counts.count(event.verdict);
        self.counts.count(event.verdict);
        self.timeline.count(event.at, event.verdict, key.in_second);
        if let VerdictKind::Delay(wait) = event.verdict {
            let millis = millis(wait);
            key.longest = key.longest.max(millis);
            let index = self.waits.partition_point(|other| other.millis >= millis);
            if index < MOST_WAITS {
                let wait = LongWait {
                    key: key.label.clone(),
                    millis,
                    at: event.at,
                    file: event.file.into(),
                    line: event.line,
                };
                self.waits.insert(index, wait);
                self.waits.truncate(MOST_WAITS);
            }
        }
        key.id
    }

    /// The number of keys; an estimate if some were dropped.
    pub(super) fn len(&self) -> u64 {
        self.keys.len() as u64 + self.dropped
    }

    /// All keys that were kept, the most refused first.
    pub(super) fn most_refused(&self) -> Vec<&KeyStats> {
        let mut keys: Vec<&KeyStats> = self.keys.iter().collect();
        keys.sort_unstable_by(|a, b| {
            let weight = |key: &KeyStats| (key.counts.refuse, key.counts.delay, key.counts.pass);
            weight(b)
                .cmp(&weight(a))
                .then_with(|| a.label.cmp(&b.label))
                .then(a.id.cmp(&b.id))
        });
        keys
    }

    fn insert(&mut self, key: &[u8], label: String) -> u32 {
        if self.keys.len() >= MOST_KEYS {
            self.drop_half();
        }
        let index = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        self.index.insert(key.into(), index);
        self.keys.push(KeyStats {
            label: shortened(label),
            counts: VerdictCounts::default(),
            longest: 0,
            peak: 0,
            second: i64::MIN,
            in_second: 0,
            id: self.next_id,
        });
        self.next_id = self.next_id.saturating_add(1);
        index
    }

    /// Drops the half of the keys with the fewest requests; of equals, the newer ones.
    fn drop_half(&mut self) {
        let weight = |key: &KeyStats| (key.counts.total(), u32::MAX - key.id);
        let mut weights: Vec<_> = self.keys.iter().map(weight).collect();
        let half = weights.len() / 2;
        let (_, &mut bound, _) = weights.select_nth_unstable(half);
        let stays: Vec<bool> = self.keys.iter().map(|key| weight(key) >= bound).collect();
        let mut moved = vec![0; self.keys.len()];
        let mut next = 0;
        for (old, stays) in stays.iter().enumerate() {
            moved[old] = next;
            next += u32::from(*stays);
        }
        self.index.retain(|_, index| {
            let old = *index as usize;
            *index = moved[old];
            stays[old]
        });
        let mut at = stays.iter();
        self.keys.retain(|_| at.next().copied().unwrap_or(true));
        self.dropped += half as u64;
        self.dropped_most += bound.0;
    }
}

fn shortened(mut label: String) -> Box<str> {
    if label.len() > LONGEST_LABEL {
        label.truncate(label.floor_char_boundary(LONGEST_LABEL));
        label.push('…');
    }
    label.into()
}

/// A duration in whole milliseconds.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The most keys of a zone that are kept; each takes about two hundred bytes.
const MOST_KEYS: usize = 1 << 20;

/// How many of the longest waits of a zone are kept.
const MOST_WAITS: usize = 10;

/// The most of a key that is shown, in bytes.
const LONGEST_LABEL: usize = 200;

/// Verdicts of a zone in one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimelineBin {
    /// The verdicts.
    pub counts: VerdictCounts,
    /// The most requests of one key in one second.
    pub busiest: u32,
}

/// Verdicts over time, in a few hundred bins of equal width.
// How long a log is, is known at its end only: a bin is a second wide at first, and when there are too many, each two
// become one.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    /// When the first bin begins, in seconds since the Unix epoch.
    start: i64,
    /// Seconds in a bin; zero before there is any.
    width: i64,
    bins: Vec<TimelineBin>,
}

impl Timeline {
    /// Counts a request whose key sent so many in the same second. Time never goes back.
    fn count(&mut self, at: i64, verdict: VerdictKind, in_second: u32) {
        let second = at.div_euclid(1000);
        if self.width == 0 {
            (self.start, self.width) = (second, 1);
        }
        let mut index = (second - self.start).max(0) / self.width;
        while index >= MOST_BINS {
            self.widen();
            index = (second - self.start) / self.width;
        }
        let index = usize::try_from(index).unwrap_or(0);
        if index >= self.bins.len() {
            self.bins.resize(index + 1, TimelineBin::default());
        }
        let bin = &mut self.bins[index];
        bin.counts.count(verdict);
        bin.busiest = bin.busiest.max(in_second);
    }

    /// Every bin with when it begins, in milliseconds since the Unix epoch.
    pub fn bins(&self) -> impl Iterator<Item = (i64, &TimelineBin)> {
        let starts = (0..).map(|index| (self.start + index * self.width) * 1000);
        starts.zip(&self.bins)
    }

    /// Seconds in a bin.
    #[must_use]
    pub fn width(&self) -> i64 {
        self.width.max(1)
    }

    fn widen(&mut self) {
        self.width *= 2;
        let pairs = self.bins.chunks(2).map(|pair| {
            let mut sum = pair[0];
            if let Some(second) = pair.get(1) {
                sum.counts += second.counts;
                sum.busiest = sum.busiest.max(second.busiest);
            }
            sum
        });
        self.bins = pairs.collect();
    }
}

/// The most bins: more than a plot has points across.
const MOST_BINS: i64 = 512;

#[cfg(test)]
mod tests {

    use super::*;

    fn event(verdict: VerdictKind, at: i64) -> ZoneEvent<'static> {
        ZoneEvent {
            verdict,
            at,
            file: "",
            line: 1,
        }
    }

    fn delay(millis: u64) -> VerdictKind {
        VerdictKind::Delay(Duration::from_millis(millis))
    }

    #[test]
    fn keys_are_sorted_by_refusals_then_delays_then_passes() {
        let mut zone = ZoneStats::default();
        let mut count = |key: &str, verdict, at| {
            zone.count(key.as_bytes(), event(verdict, at), || key.to_owned());
        };
        for at in 0..3 {
            count("busy", VerdictKind::Pass, at);
        }
        count("hit", VerdictKind::Refuse, 5);
        count("slow", delay(70), 1_000);
        count("a", VerdictKind::Pass, 2_000);
        count("b", VerdictKind::Pass, 2_000);
        let labels: Vec<_> = zone.most_refused().iter().map(|key| &*key.label).collect();
        assert_eq!(labels, ["hit", "slow", "busy", "a", "b"]);
        assert_eq!(
            zone.counts,
            VerdictCounts {
                pass: 5,
                delay: 1,
                refuse: 1
            }
        );
        assert_eq!(zone.most_refused()[2].peak, 3);
        assert_eq!((zone.waits[0].millis, &*zone.waits[0].key), (70, "slow"));
    }

    #[test]
    fn the_longest_waits_are_kept_and_equal_ones_in_order() {
        let mut zone = ZoneStats::default();
        for at in 0..100 {
            let millis = u64::try_from(at % 20).unwrap() + 1;
            zone.count(b"k", event(delay(millis), at), || "k".to_owned());
        }
        assert_eq!(zone.waits.len(), MOST_WAITS);
        let found: Vec<_> = zone
            .waits
            .iter()
            .map(|wait| (wait.millis, wait.at))
            .collect();
        assert_eq!(
            found[..6],
            [(20, 19), (20, 39), (20, 59), (20, 79), (20, 99), (19, 18)]
        );
    }

    #[test]
    fn a_full_zone_keeps_the_keys_with_the_most_requests() {
        let mut zone = ZoneStats::default();
        let most = u32::try_from(MOST_KEYS).unwrap();
        for number in 0..most + 10 {
            let key = number.to_be_bytes();
            let times = if number % 1000 == 7 { 3 } else { 1 };
            for _ in 0..times {
                zone.count(&key, event(VerdictKind::Pass, 0), || number.to_string());
            }
        }
        assert_eq!(zone.len(), u64::from(most) + 10);
        assert_eq!(zone.dropped_most, 1);
        let heavy = zone
            .most_refused()
            .iter()
            .filter(|key| key.counts.total() == 3)
            .count();
        assert_eq!(heavy, MOST_KEYS.div_ceil(1000));
        // The keys that were kept are still found.
        zone.count(
            &7_u32.to_be_bytes(),
            event(VerdictKind::Pass, 0),
            || unreachable!(),
        );
        assert_eq!(zone.most_refused()[0].counts.total(), 4);
    }
}

#[cfg(test)]
mod timeline_tests {

    use super::*;

    #[test]
    fn bins_widen_and_keep_every_count() {
        let mut timeline = Timeline::default();
        for second in (0..86_400 * 40).step_by(97) {
            timeline.count(
                second * 1000,
                VerdictKind::Pass,
                1 + u32::from(second == 970),
            );
        }
        let bins: Vec<_> = timeline.bins().collect();
        assert!(bins.len() <= 512, "{}", bins.len());
        let passed: u64 = bins.iter().map(|(_, bin)| bin.counts.pass).sum();
        assert_eq!(passed, (86_400_u64 * 40).div_ceil(97));
        assert_eq!(bins[0].1.busiest, 2);
        assert_eq!(bins[1].0 - bins[0].0, timeline.width() * 1000);
    }

    #[test]
    fn a_gap_of_years_fits_into_the_bins() {
        let mut timeline = Timeline::default();
        timeline.count(0, VerdictKind::Refuse, 1);
        timeline.count(
            1_794_794_603_000,
            VerdictKind::Delay(Duration::from_millis(3)),
            1,
        );
        let bins: Vec<_> = timeline.bins().map(|(_, bin)| *bin).collect();
        assert_eq!(bins[0].counts.refuse, 1);
        assert_eq!(bins.last().map(|bin| bin.counts.delay), Some(1));
    }
}
