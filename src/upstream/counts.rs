//! What a server was asked and how it answered.
//!
//! The server's and not its plan's: when a reload changes an upstream, the backends of a server that stays go on counting
//! in the same place.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;

use crate::telemetry::{Histogram, HistogramSnapshot};

/// The counters of a server.
#[derive(Debug)]
pub struct BackendCounters {
    opened: AtomicU64,
    reused: AtomicU64,
    answers: [AtomicU64; STATUSES],
    latency: Histogram,
    /// How often it has failed since its last good answer.
    failures: AtomicU32,
}

impl BackendCounters {
    /// Connections made so far.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Requests so far that went over a kept connection.
    pub fn reused(&self) -> u64 {
        self.reused.load(Ordering::Relaxed)
    }

    /// How many requests ended with which status, those without any left out. A failed one has the status its
    /// failure stands for.
    pub fn answers(&self) -> impl Iterator<Item = (u16, u64)> {
        (FIRST_STATUS..)
            .zip(&self.answers)
            .map(|(status, count)| (status, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
    }

    /// How long they took, until the head of the answer or until they failed.
    pub fn latency(&self) -> HistogramSnapshot {
        self.latency.read()
    }

    /// How often it has failed since its last good answer, whether or not it is left alone for that.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    pub(super) fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_reused(&self) {
        self.reused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_answer(&self, status: StatusCode, taken: Duration) {
        // A status over 599 is none that HTTP defines; it is passed on, and not counted.
        let counter = self
            .answers
            .get(usize::from(status.as_u16() - FIRST_STATUS));
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
            self.latency.observe(taken);
            if self.failures() > 0 && !status.is_server_error() {
                self.failures.store(0, Ordering::Relaxed);
            }
        }
    }
}

impl Default for BackendCounters {
    fn default() -> Self {
        Self {
            opened: AtomicU64::new(0),
            reused: AtomicU64::new(0),
            answers: [const { AtomicU64::new(0) }; STATUSES],
            latency: Histogram::new(),
            failures: AtomicU32::new(0),
        }
    }
}

const FIRST_STATUS: u16 = 100;
const STATUSES: usize = 500;
