//! What is counted for the whole process: whatever belongs to no zone, no upstream and no listener.

use std::sync::atomic::AtomicU64;

use http::StatusCode;

use super::Exposition;
use super::cells::{PerLoop, count};

/// The process's own.
pub static COUNTERS: Counters = Counters::new();

/// Counts of requests and of clients that were sent away.
#[derive(Debug)]
pub struct Counters {
    cells: PerLoop<ProcessCell>,
}

#[derive(Debug, Default)]
struct ProcessCell {
    requests: [AtomicU64; STATUSES.len()],
    crowded: [AtomicU64; CROWDS.len()],
    evicted: AtomicU64,
    slow: [AtomicU64; SLOW.len()],
}

/// Which cap a connection was one too many for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitedBy {
    /// `max_connections`
    All = 0,
    /// `max_connections_per_address`
    Address = 1,
}

/// What a client was too slow with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlowPart {
    /// Taking its answer.
    Answer = 0,
    /// Sending its body.
    Body = 1,
}

impl Counters {
    /// All at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            cells: PerLoop::new(),
        }
    }

    /// Counts a request that is over; `None` where it was never answered.
    pub fn answer(&self, status: Option<StatusCode>) {
        let class = status.map_or(0, |status| usize::from(status.as_u16() / 100));
        // Statuses of a class nobody has defined stand with the unanswered.
        count(&self.cells.mine().requests[if class < STATUSES.len() { class } else { 0 }]);
    }

    /// Counts a connection that was closed at once because there were enough.
    pub fn turn_away(&self, crowd: LimitedBy) {
        count(&self.cells.mine().crowded[crowd as usize]);
    }

    /// Counts an idle connection that was closed to make room for another.
    pub fn evict(&self) {
        count(&self.cells.mine().evicted);
    }

    /// Counts a client that was given up because it fell behind its least rate.
    pub fn give_up(&self, slow: SlowPart) {
        count(&self.cells.mine().slow[slow as usize]);
    }

    /// Requests that are over.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.by_status().map(|(_, count)| count).sum()
    }

    /// The same by the class of the answer's status.
    pub fn by_status(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let classes = STATUSES.iter().enumerate();
        classes.map(|(class, status)| (*status, self.cells.sum(|cell| &cell.requests[class])))
    }

    /// Writes them all.
    pub fn describe(&self, page: &mut Exposition) {
        for (status, count) in self.by_status() {
            page.counter(
                "weir_requests_total",
                "Requests that are over, by the class of the answer's status; none where the client got no answer.",
                &[("status", status)],
                count,
            );
        }
        for (index, cap) in CROWDS.iter().enumerate() {
            page.counter(
                "weir_connections_refused_total",
                "Connections closed at once because there were as many as allowed.",
                &[("cap", cap)],
                self.cells.sum(|cell| &cell.crowded[index]),
            );
        }
        page.counter(
            "weir_connections_evicted_total",
            "Idle connections closed to make room for others.",
            &[],
            self.cells.sum(|cell| &cell.evicted),
        );
        for (index, what) in SLOW.iter().enumerate() {
            page.counter(
                "weir_slow_clients_total",
                "Clients given up because they fell behind the least rate for what they sent or took.",
                &[("with", what)],
                self.cells.sum(|cell| &cell.slow[index]),
            );
        }
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

/// By class: the index is the status's first digit.
const STATUSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// By [`LimitedBy`], as the configuration calls them.
const CROWDS: [&str; 2] = ["max_connections", "max_connections_per_address"];

/// By [`SlowPart`].
const SLOW: [&str; 2] = ["answer", "body"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart_by_class() {
        let counters = Counters::new();
        for status in [200, 204, 429, 999] {
            counters.answer(StatusCode::from_u16(status).ok());
        }
        counters.answer(None);
        let mut page = Exposition::new();
        counters.describe(&mut page);
        let text = page.finish();
        for line in [
            "weir_requests_total{status=\"none\"} 2",
            "weir_requests_total{status=\"2xx\"} 2",
            "weir_requests_total{status=\"4xx\"} 1",
            "weir_requests_total{status=\"5xx\"} 0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        assert_eq!(counters.requests(), 5);
    }
}
