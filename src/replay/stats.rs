//! What is counted while a log goes by: by zone, by key, by time.
//!
//! Memory is bounded. Keys are counted exactly until there are a million in a zone; then the half with the fewest
//! requests is forgotten, so that those who matter stay, and the report says so. Nothing depends on the order of a hash
//! map: what is sorted is sorted to the last difference.
//!
//! Numbers over time, in a few hundred cells however long the log is.
//!
//! Nobody knows how long it will be. So a cell is a second wide at first, and whenever there are too many, two become
//! one.

use std::collections::HashMap;

use crate::algorithm::VerdictKind;

/// How often what was verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VerdictCounts {
    /// Let through at once.
    pub pass: u64,
    /// Let through after a wait.
    pub delay: u64,
    /// Turned away.
    pub refuse: u64,
}

impl VerdictCounts {
    fn count(&mut self, verdict: VerdictKind) {
        match verdict {
            VerdictKind::Delay(_) => self.delay += 1,
            VerdictKind::Pass => self.pass += 1,
            VerdictKind::Refuse => self.refuse += 1,
        }
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.pass + self.delay + self.refuse
    }
}

/// One key of a zone.
#[derive(Debug, Clone)]
pub struct KeyStats {
    /// As people read it.
    pub label: Box<str>,
    /// What became of its requests.
    pub counts: VerdictCounts,
    /// The longest of its waits, in milliseconds.
    pub longest: u64,
    /// The most requests it sent in one second.
    pub peak: u32,
    /// The present second, and how many requests it has sent in it.
    second: i64,
    in_second: u32,
    /// A number of its own, by the order of first requests.
    pub(super) id: u32,
}

/// A wait worth telling of.
#[derive(Debug, Clone)]
pub struct LongWait {
    /// How long, in milliseconds.
    pub millis: u64,
    /// When, in milliseconds since the Unix epoch.
    pub at: i64,
    /// Whose.
    pub key: Box<str>,
    /// File and line.
    pub line: (u32, u64),
}

/// A zone's numbers.
#[derive(Debug, Default)]
pub(super) struct ZoneStats {
    pub(super) counts: VerdictCounts,
    pub(super) timeline: Timeline,
    /// The longest waits, longest first.
    pub(super) waits: Vec<LongWait>,
    keys: Vec<KeyStats>,
    index: HashMap<Box<[u8]>, u32>,
    next_id: u32,
    /// Keys that were forgotten, and how many requests one of them may have had at most.
    pub(super) forgotten: u64,
    pub(super) forgotten_most: u64,
}

/// One request in the eyes of a zone.
#[derive(Debug, Clone, Copy)]
pub(super) struct ZoneEvent {
    pub(super) verdict: VerdictKind,
    pub(super) at: i64,
    pub(super) line: (u32, u64),
}

impl ZoneStats {
    /// Counts a request; `label` is asked for what a new key looks like to people. Gives the key's number.
    pub(super) fn count(
        &mut self,
        key: &[u8],
        event: ZoneEvent,
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
            let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            key.longest = key.longest.max(millis);
            let long_wait = |label: &str| LongWait {
                millis,
                at: event.at,
                key: label.into(),
                line: event.line,
            };
            if self.waits.len() < MOST_WAITS
                || self.waits.last().is_some_and(|last| last.millis < millis)
            {
                let place = self.waits.partition_point(|other| other.millis >= millis);
                self.waits.insert(place, long_wait(&key.label));
                self.waits.truncate(MOST_WAITS);
            }
        }
        key.id
    }

    /// How many keys there were: exactly, or about if some were forgotten.
    pub(super) fn len(&self) -> u64 {
        self.keys.len() as u64 + self.forgotten
    }

    /// All keys that are remembered, those hit hardest first.
    pub(super) fn hardest(&self) -> Vec<&KeyStats> {
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
            self.forget();
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

    /// Forgets the half of the keys with the fewest requests; of equals, the newer ones.
    fn forget(&mut self) {
        let mut totals: Vec<(u64, u32)> = self
            .keys
            .iter()
            .map(|key| (key.counts.total(), u32::MAX - key.id))
            .collect();
        let half = totals.len() / 2;
        let (_, &mut bound, _) = totals.select_nth_unstable(half);
        let stays: Vec<bool> = self
            .keys
            .iter()
            .map(|key| (key.counts.total(), u32::MAX - key.id) >= bound)
            .collect();
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
        self.forgotten += half as u64;
        self.forgotten_most += bound.0;
    }
}

fn shortened(mut label: String) -> Box<str> {
    if label.len() > LONGEST_LABEL {
        label.truncate(label.floor_char_boundary(LONGEST_LABEL));
        label.push('…');
    }
    label.into()
}

/// Keys of a zone that are remembered at once; each takes about two hundred bytes.
const MOST_KEYS: usize = 1 << 20;

/// Waits worth telling of.
const MOST_WAITS: usize = 10;

/// How much is shown of a key, in bytes.
const LONGEST_LABEL: usize = 200;

/// What happened in one stretch of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimelineBin {
    /// What was verdict.
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
    pub(super) fn count(&mut self, at: i64, verdict: VerdictKind, in_second: u32) {
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
        cell.counts.count(verdict);
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

    use std::time::Duration;

    use super::*;

    fn event(verdict: VerdictKind, at: i64) -> ZoneEvent {
        ZoneEvent {
            verdict,
            at,
            line: (0, 1),
        }
    }

    #[test]
    fn keys_are_told_in_the_order_of_how_hard_they_were_hit() {
        let mut zone = ZoneStats::default();
        let mut count = |key: &str, verdict, at| {
            zone.count(key.as_bytes(), event(verdict, at), || key.to_owned());
        };
        for at in 0..3 {
            count("busy", VerdictKind::Pass, at);
        }
        count("hit", VerdictKind::Refuse, 5);
        count("slow", VerdictKind::Delay(Duration::from_millis(70)), 1_000);
        count("a", VerdictKind::Pass, 2_000);
        count("b", VerdictKind::Pass, 2_000);
        let labels: Vec<_> = zone.hardest().iter().map(|key| &*key.label).collect();
        assert_eq!(labels, ["hit", "slow", "busy", "a", "b"]);
        assert_eq!(
            zone.counts,
            VerdictCounts {
                pass: 5,
                delay: 1,
                refuse: 1
            }
        );
        assert_eq!(zone.hardest()[2].peak, 3);
        assert_eq!((zone.waits[0].millis, &*zone.waits[0].key), (70, "slow"));
    }

    #[test]
    fn only_the_longest_waits_are_kept_the_first_of_equals_first() {
        let mut zone = ZoneStats::default();
        for at in 0..100 {
            let millis = u64::try_from(at % 20).unwrap() + 1;
            zone.count(
                b"k",
                event(VerdictKind::Delay(Duration::from_millis(millis)), at),
                || "k".to_owned(),
            );
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
    fn those_who_matter_are_not_forgotten() {
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
        assert_eq!(zone.forgotten_most, 1);
        let heavy = zone
            .hardest()
            .iter()
            .filter(|key| key.counts.total() == 3)
            .count();
        assert_eq!(heavy, MOST_KEYS.div_ceil(1000));
        // And those that are left are still found where they are.
        zone.count(
            &7_u32.to_be_bytes(),
            event(VerdictKind::Pass, 0),
            || unreachable!(),
        );
        assert_eq!(zone.hardest()[0].counts.total(), 4);
    }
}

#[cfg(test)]
mod timeline_tests {

    use std::time::Duration;

    use super::*;

    #[test]
    fn any_time_fits_and_nothing_is_lost() {
        let mut timeline = Timeline::default();
        for second in (0..86_400 * 40).step_by(97) {
            timeline.count(
                second * 1000,
                VerdictKind::Pass,
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
        timeline.count(0, VerdictKind::Refuse, 1);
        timeline.count(
            1_794_794_603_000,
            VerdictKind::Delay(Duration::from_millis(3)),
            1,
        );
        let cells: Vec<_> = timeline.cells().map(|(_, cell)| *cell).collect();
        assert_eq!(cells[0].counts.refuse, 1);
        assert_eq!(cells.last().map(|cell| cell.counts.delay), Some(1));
    }
}
