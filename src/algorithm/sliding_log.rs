//! The sliding log: when each request came, so that the answer is exact.
//!
//! The most room of all ways to count: a moment and a cost for every request within the window, and as many of them
//! as the limit. Requests of less than one each could be more than that; those that do not fit share the latest
//! moment, which is stricter and never laxer.

#[cfg(test)]
#[path = "tests/sliding_log.rs"]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use super::core::{ALLOCATION, Algorithm, AlgorithmInfo};
use super::quantities::{Cost, Delay, Excess, KeyStatus, Spent, Verdict};
use super::script::ScriptArgs;
use super::time::{KeyTime, millis};
use crate::clock::Millis;

/// The numbers a key is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingLog {
    /// How many in any window.
    pub limit: Excess,
    /// How long it is.
    pub window: Duration,
}

/// What is remembered of one key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestLog {
    /// The oldest first.
    entries: VecDeque<LoggedRequest>,
    /// All of them together.
    total: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LoggedRequest {
    at: Millis,
    cost: u64,
}

impl RequestLog {
    fn last(&self) -> Millis {
        self.entries.back().map_or(Millis(0), |entry| entry.at)
    }

    /// Adds what came now; at most `most` entries.
    fn add(&mut self, now: Millis, cost: u64, most: usize) {
        let cost = cost.min(u64::MAX - self.total);
        if cost == 0 {
            return;
        }
        self.total += cost;
        let length = self.entries.len();
        if let Some(last) = self.entries.back_mut()
            && (last.at == now || length >= most)
        {
            last.at = now;
            last.cost += cost;
            return;
        }
        if length == self.entries.capacity() {
            // By doubling, but exactly to the bound at last: doubling alone may end at twice of it.
            let target = (length * 2).clamp(1, most.max(1));
            self.entries.reserve_exact(target - length);
        }
        self.entries.push_back(LoggedRequest { at: now, cost });
    }

    fn drop_oldest(&mut self, mut amount: u64) {
        while let Some(oldest) = self.entries.front_mut() {
            let taken = amount.min(oldest.cost);
            oldest.cost -= taken;
            self.total -= taken;
            amount -= taken;
            if oldest.cost > 0 {
                return;
            }
            self.entries.pop_front();
        }
    }
}

impl SlidingLog {
    pub(super) fn for_rule(limit: u32, window: Duration, _: Excess, _: Delay) -> Self {
        Self {
            limit: Excess::requests(limit),
            window,
        }
    }

    fn most(&self) -> usize {
        usize::try_from(self.quota()).unwrap_or(usize::MAX).max(1)
    }

    /// Whether something that came `at` is out of the window.
    fn is_out(&self, at: Millis, moment: KeyTime) -> bool {
        moment.now.0.saturating_sub(moment.taken(at).0) >= millis(self.window)
    }

    /// What lies within the window.
    fn used(&self, journal: &RequestLog, moment: KeyTime) -> u64 {
        let out = journal
            .entries
            .iter()
            .take_while(|entry| self.is_out(entry.at, moment));
        journal.total - out.map(|entry| entry.cost).sum::<u64>()
    }

    /// Lets go of what is out of the window.
    fn advance(&self, journal: &mut RequestLog, now: Millis) -> KeyTime {
        let moment = KeyTime::of(journal.last(), now);
        while let Some(oldest) = journal.entries.front()
            && self.is_out(oldest.at, moment)
        {
            journal.total -= oldest.cost;
            journal.entries.pop_front();
        }
        if moment.back > 0 {
            for entry in &mut journal.entries {
                entry.at = moment.taken(entry.at);
            }
        }
        moment
    }

    /// How long until `cost` fits; `None` if it never does.
    fn room_after(&self, journal: &RequestLog, now: Millis, cost: Cost) -> Option<Duration> {
        let room = self.limit.0.checked_sub(cost.0)?;
        let moment = KeyTime::of(journal.last(), now);
        let mut left = journal.total;
        let mut at = now;
        for entry in &journal.entries {
            if left <= room {
                break;
            }
            left -= entry.cost;
            at = Millis(moment.taken(entry.at).0.saturating_add(millis(self.window)));
        }
        Some(at.since(now))
    }
}

impl Algorithm for SlidingLog {
    const INFO: AlgorithmInfo = AlgorithmInfo {
        request_bytes: size_of::<LoggedRequest>() as u64,
        ..AlgorithmInfo::windowed("sliding_log", include_str!("lua/sliding_log.lua"))
    };

    type State = RequestLog;

    fn fresh(&self, _: Millis) -> RequestLog {
        RequestLog::default()
    }

    fn ask(&self, journal: &RequestLog, now: Millis, cost: Cost) -> Verdict {
        let used = self.used(journal, KeyTime::of(journal.last(), now));
        let surplus = used.saturating_add(cost.0).saturating_sub(self.limit.0);
        if surplus > 0 {
            return Verdict::Refuse {
                excess: Excess(surplus),
                retry_after: self.room_after(journal, now, cost),
            };
        }
        Verdict::Pass { excess: Excess(0) }
    }

    fn charge(&self, journal: &mut RequestLog, now: Millis, cost: Cost) -> (Verdict, Spent) {
        // What is out goes first, so that nobody has to pass over it a second time.
        self.advance(journal, now);
        let outcome = self.ask(journal, now, cost);
        if !matches!(outcome, Verdict::Refuse { .. }) {
            self.debit(journal, now, cost);
        }
        (outcome, Spent::default())
    }

    fn refund(&self, journal: &mut RequestLog, now: Millis, cost: Cost, _: Spent) {
        // Where the clock is a little behind, it was added at the latest moment of the key.
        let came = KeyTime::of(journal.last(), now).now;
        let after = journal.entries.partition_point(|entry| entry.at < came);
        // Later where several share a moment.
        if let Some(entry) = journal.entries.get_mut(after) {
            let back = cost.0.min(entry.cost);
            entry.cost -= back;
            journal.total -= back;
            if entry.cost == 0 {
                journal.entries.remove(after);
            }
        }
    }

    fn debit(&self, journal: &mut RequestLog, now: Millis, cost: Cost) {
        let moment = self.advance(journal, now);
        journal.add(moment.now, cost.0, self.most());
    }

    fn count_refused(&self, journal: &mut RequestLog, now: Millis, cost: Cost) {
        let moment = self.advance(journal, now);
        let cost = cost.0.min(self.limit.0);
        // The latest of all that were asked for are those that count.
        let surplus = journal
            .total
            .saturating_add(cost)
            .saturating_sub(self.limit.0);
        journal.drop_oldest(surplus.min(cost));
        journal.add(moment.now, cost, self.most());
    }

    fn drained_at(&self, journal: &RequestLog) -> Millis {
        match journal.entries.back() {
            Some(last) => Millis(last.at.0.saturating_add(millis(self.window))),
            None => Millis(0),
        }
    }

    fn key_status(&self, journal: &RequestLog, now: Millis) -> KeyStatus {
        let moment = KeyTime::of(journal.last(), now);
        let used = self.used(journal, moment);
        KeyStatus {
            excess: Excess(used.saturating_sub(self.limit.0)),
            limit: self.quota(),
            remaining: self.limit.0.saturating_sub(used) / Excess::ONE.0,
            retry_after: self.room_after(journal, now, Cost::ONE).unwrap_or_default(),
            reset_after: self.drained_at(journal).since(now),
        }
    }

    fn quota(&self) -> u64 {
        self.limit.0 / Excess::ONE.0
    }

    fn period(&self) -> Duration {
        self.window
    }

    fn slower(self, other: Self) -> Self {
        Self {
            limit: self.limit.max(other.limit),
            window: self.window.max(other.window),
        }
    }

    fn script_args(&self, cost: Cost) -> ScriptArgs {
        let most = self.quota().max(1);
        ScriptArgs::windowed("sliding_log", cost, self.limit, self.window, most)
    }

    fn most_heap(&self) -> usize {
        let entries = self.most().saturating_mul(size_of::<LoggedRequest>());
        entries.saturating_add(ALLOCATION)
    }

    fn heap(journal: &RequestLog) -> usize {
        match journal.entries.capacity() {
            0 => 0,
            entries => entries * size_of::<LoggedRequest>() + ALLOCATION,
        }
    }
}
