//! How one server stands: its weight, what it did, and where it is to be found for it.

use std::time::Duration;

use crate::clock::Millis;
use crate::config::plan::UpstreamServer;

/// What a backend says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) struct BackendSnapshot {
    /// Somebody does not want it to be asked.
    pub(in crate::upstream) barred: bool,
    /// It has as much to do as it may have.
    pub(in crate::upstream) full: bool,
    /// Requests in progress.
    pub(in crate::upstream) active: u32,
}

#[derive(Debug)]
pub(super) struct PeerState {
    pub(super) weight: i64,
    /// What it earns back in a round.
    pub(super) unit: i64,
    pub(super) max_fails: u32,
    pub(super) fail_timeout: Duration,
    slow_start: Duration,
    pub(super) backup: bool,
    pub(super) presence: BackendSnapshot,
    /// Not for this pick: it has been asked already.
    pub(super) skipped: bool,
    pub(super) effective: i64,
    /// While it is not seated: there its side keeps the score.
    pub(super) current: i64,
    /// Its weight grows since then.
    risen: Option<Millis>,
    pub(super) fails: u32,
    pub(super) accessed: Millis,
    pub(super) checked: Millis,
    pub(super) seat: Seat,
    /// Where it sits when it does.
    pub(super) place: usize,
}

/// Where a server is to be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seat {
    /// Among those who are left alone until this has passed.
    Asleep(Millis),
    /// Nowhere: it is barred or full.
    Away,
    /// Among those who may be asked.
    Playing,
    /// There too, with less than its weight.
    Recovering,
}

impl PeerState {
    pub(super) fn new(server: &UpstreamServer, presence: BackendSnapshot, unit: i64) -> Self {
        let weight = i64::from(server.weight) * unit;
        Self {
            weight,
            unit,
            max_fails: server.max_fails,
            fail_timeout: server.fail_timeout,
            slow_start: server.slow_start,
            backup: server.backup,
            presence,
            skipped: false,
            effective: weight,
            current: 0,
            risen: None,
            fails: 0,
            accessed: Millis::default(),
            checked: Millis::default(),
            seat: Seat::Away,
            place: 0,
        }
    }

    /// Requests in progress.
    pub(super) fn active(&self) -> u32 {
        self.presence.active
    }

    /// Whether it has enough to do, and could be asked otherwise.
    pub(super) fn is_full(&self) -> bool {
        self.presence.full && !self.presence.barred
    }

    /// Whether its weight grows with time.
    pub(super) fn is_rising(&self) -> bool {
        self.risen.is_some()
    }

    /// The weight that time has given it, where its weight grows with time.
    pub(super) fn grow(&mut self, now: Millis) {
        let Some(risen) = self.risen else {
            return;
        };
        let (elapsed, whole) = (now.since(risen).as_millis(), self.slow_start.as_millis());
        if elapsed >= whole {
            self.risen = None;
            self.effective = self.weight;
            return;
        }
        let share = u128::from(self.weight.unsigned_abs()) * elapsed / whole;
        // At least something, or the only one left would never be asked.
        self.effective = i64::try_from(share).unwrap_or(self.weight).max(1);
    }

    /// A round in which it had less than its weight is over.
    pub(super) fn earn(&mut self) {
        if self.risen.is_none() {
            self.effective = (self.effective + self.unit).min(self.weight);
        }
    }

    /// Whether it has its whole weight.
    pub(super) fn is_whole(&self) -> bool {
        self.risen.is_none() && self.effective >= self.weight
    }

    /// It can be asked again after a time in which it could not.
    pub(super) fn rise(&mut self, now: Millis) {
        if !self.slow_start.is_zero() {
            self.risen = Some(now);
            self.effective = 1;
        }
    }

    /// It failed: time alone does not give it weight any more.
    pub(super) fn fall(&mut self) {
        self.risen = None;
    }

    /// Where it belongs now.
    pub(super) fn proper_seat(&self, now: Millis) -> Seat {
        if self.presence.barred || self.presence.full {
            Seat::Away
        } else if self.is_left_alone(now) {
            Seat::Asleep(self.checked.after(self.fail_timeout))
        } else if self.is_whole() {
            Seat::Playing
        } else {
            Seat::Recovering
        }
    }

    /// Whether it has failed too often, too short a time ago.
    pub(super) fn is_left_alone(&self, now: Millis) -> bool {
        self.max_fails > 0
            && self.fails >= self.max_fails
            && now.since(self.checked) <= self.fail_timeout
    }
}
