//! The sliding log: when each request came, so that the verdict is exact.
//!
//! It takes the most memory of all algorithms: a time and a cost for every request within the window, at most as many as
//! the limit. Requests that cost less than one could be more than that; those that do not fit share the latest time, which
//! is stricter and never laxer.

#[cfg(test)]
#[path = "tests/sliding_log.rs"]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use super::core::{ALLOCATION, Algorithm, AlgorithmInfo, ScriptArgs, window_quota};
use super::quantities::{Cost, Excess, KeyStatus, KeyTime, Spent, Verdict, millis, plus};
use crate::clock::Millis;

/// The numbers of a sliding log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingLog {
    /// How many requests may come in any window.
    pub limit: Excess,
    /// The length of a window.
    pub window: Duration,
}

/// The state of a key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestLog {
    /// The oldest first.
    entries: VecDeque<LoggedRequest>,
    /// The cost of all of them.
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

    /// Adds a cost; at most `most` entries.
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
            // By doubling, but exactly to the bound in the end: doubling alone may end at twice the bound.
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
    fn most(&self) -> usize {
        usize::try_from(self.quota()).unwrap_or(usize::MAX).max(1)
    }

    /// Whether a request that came `at` is out of the window.
    fn is_out(&self, at: Millis, time: KeyTime) -> bool {
        time.now.0.saturating_sub(time.shifted(at).0) >= millis(self.window)
    }

    /// The cost of all requests within the window.
    fn used(&self, log: &RequestLog, time: KeyTime) -> u64 {
        let out = log
            .entries
            .iter()
            .take_while(|entry| self.is_out(entry.at, time));
        log.total - out.map(|entry| entry.cost).sum::<u64>()
    }

    /// Drops the requests that are out of the window.
    fn advance(&self, log: &mut RequestLog, now: Millis) -> KeyTime {
        let time = KeyTime::new(log.last(), now);
        while let Some(oldest) = log.entries.front()
            && self.is_out(oldest.at, time)
        {
            log.total -= oldest.cost;
            log.entries.pop_front();
        }
        if time.set_back > 0 {
            for entry in &mut log.entries {
                entry.at = time.shifted(entry.at);
            }
        }
        time
    }

    /// How long until `cost` fits; `None` if it never does.
    fn room_after(&self, log: &RequestLog, now: Millis, cost: Cost) -> Option<Duration> {
        let room = self.limit.0.checked_sub(cost.0)?;
        let time = KeyTime::new(log.last(), now);
        let mut left = log.total;
        let mut at = now;
        for entry in &log.entries {
            if left <= room {
                break;
            }
            left -= entry.cost;
            at = plus(time.shifted(entry.at), millis(self.window));
        }
        Some(at.since(now))
    }
}

impl Algorithm for SlidingLog {
    const INFO: AlgorithmInfo = AlgorithmInfo {
        request_bytes: size_of::<LoggedRequest>() as u64,
        ..AlgorithmInfo::windowed("sliding_log", include_str!("lua/sliding_log.lua"))
    };

    window_quota!();

    type State = RequestLog;

    fn new_state(&self, _: Millis) -> RequestLog {
        RequestLog::default()
    }

    fn peek(&self, log: &RequestLog, now: Millis, cost: Cost) -> Verdict {
        let used = self.used(log, KeyTime::new(log.last(), now));
        let surplus = used.saturating_add(cost.0).saturating_sub(self.limit.0);
        Verdict::for_surplus(surplus, || self.room_after(log, now, cost))
    }

    fn charge(&self, log: &mut RequestLog, now: Millis, cost: Cost) -> (Verdict, Spent) {
        // Drops what is out of the window first, so that the rest does not pass over it again.
        self.advance(log, now);
        let verdict = self.peek(log, now, cost);
        if !matches!(verdict, Verdict::Refuse { .. }) {
            self.debit(log, now, cost);
        }
        (verdict, Spent::default())
    }

    fn refund(&self, log: &mut RequestLog, now: Millis, cost: Cost, _: Spent) {
        // Where the clock is a little behind, it was added at the latest time of the key.
        let came = KeyTime::new(log.last(), now).now;
        let after = log.entries.partition_point(|entry| entry.at < came);
        // The next one, where several share a time.
        if let Some(entry) = log.entries.get_mut(after) {
            let back = cost.0.min(entry.cost);
            entry.cost -= back;
            log.total -= back;
            if entry.cost == 0 {
                log.entries.remove(after);
            }
        }
    }

    fn debit(&self, log: &mut RequestLog, now: Millis, cost: Cost) {
        let time = self.advance(log, now);
        log.add(time.now, cost.0, self.most());
    }

    fn count_refused(&self, log: &mut RequestLog, now: Millis, cost: Cost) {
        let time = self.advance(log, now);
        let cost = cost.0.min(self.limit.0);
        // The latest requests are those that count.
        let surplus = log.total.saturating_add(cost).saturating_sub(self.limit.0);
        log.drop_oldest(surplus.min(cost));
        log.add(time.now, cost, self.most());
    }

    fn drained_at(&self, log: &RequestLog) -> Millis {
        match log.entries.back() {
            Some(last) => plus(last.at, millis(self.window)),
            None => Millis(0),
        }
    }

    fn key_status(&self, log: &RequestLog, now: Millis) -> KeyStatus {
        let time = KeyTime::new(log.last(), now);
        let used = self.used(log, time);
        KeyStatus {
            excess: Excess(used.saturating_sub(self.limit.0)),
            limit: self.quota(),
            remaining: self.limit.0.saturating_sub(used) / Excess::ONE.0,
            retry_after: self.room_after(log, now, Cost::ONE).unwrap_or_default(),
            reset_after: self.drained_at(log).since(now),
        }
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

    fn max_heap(&self) -> usize {
        let entries = self.most().saturating_mul(size_of::<LoggedRequest>());
        entries.saturating_add(ALLOCATION)
    }

    fn heap(log: &RequestLog) -> usize {
        match log.entries.capacity() {
            0 => 0,
            entries => entries * size_of::<LoggedRequest>() + ALLOCATION,
        }
    }
}
