//! What an algorithm is: the [`Algorithm`] trait, and what the configuration needs to know of one.

use std::fmt::Debug;
use std::time::Duration;

use super::level::Level;
use super::quantities::{Cost, Excess, KeyStatus, Spent, Verdict};
use super::script::ScriptArgs;
use crate::clock::Millis;

/// One algorithm with the numbers that a key is held to.
pub trait Algorithm: Copy {
    /// Its word, its script and what the keys of a rule mean to it.
    const INFO: AlgorithmInfo;

    /// What is remembered of one key.
    type State: Debug;

    /// The state of a key that was not charged yet.
    fn fresh(&self, now: Millis) -> Self::State;

    /// The verdict on a request of this cost; changes nothing.
    ///
    /// A cost of nothing asks whether the key is in debt. A cost that is more than a key can ever have is refused
    /// without a time to retry; where the next request pays for the last there is no such cost.
    fn ask(&self, state: &Self::State, now: Millis, cost: Cost) -> Verdict;

    /// Decides about a request and charges the key with it, unless it is refused.
    #[inline]
    fn charge(&self, state: &mut Self::State, now: Millis, cost: Cost) -> (Verdict, Spent) {
        let verdict = self.ask(state, now, cost);
        if !matches!(verdict, Verdict::Refuse { .. }) {
            self.debit(state, now, cost);
        }
        (verdict, Spent::default())
    }

    /// Takes back a charge with the same arguments that gave `spent`; other charges may have come in between.
    fn refund(&self, state: &mut Self::State, now: Millis, cost: Cost, spent: Spent);

    /// Charges what was found to be owed after the fact: never refuses, and may leave the key in debt.
    fn debit(&self, state: &mut Self::State, now: Millis, cost: Cost);

    /// Charges a refused request as far as the key has something left, so that a client that keeps asking stays out.
    fn count_refused(&self, state: &mut Self::State, now: Millis, cost: Cost);

    /// The time from which on forgetting the key changes no verdict.
    fn drained_at(&self, state: &Self::State) -> Millis;

    /// Where a key stands.
    fn key_status(&self, state: &Self::State, now: Millis) -> KeyStatus;

    /// What a key may have at one moment, in whole requests.
    fn quota(&self) -> u64;

    /// The time in which a whole quota comes back.
    fn period(&self) -> Duration;

    /// Of both, the numbers that take longer to drain and more memory.
    #[must_use]
    fn slower(self, other: Self) -> Self;

    /// Whether a state that was kept with the numbers of `other` can be read with these.
    fn reads_state_of(&self, _other: &Self) -> bool {
        true
    }

    /// The most bytes a key takes besides its state.
    fn most_heap(&self) -> usize {
        0
    }

    /// The bytes a key takes besides its state.
    fn heap(_: &Self::State) -> usize {
        0
    }

    /// The arguments of its script for a request of this cost.
    fn script_args(&self, cost: Cost) -> ScriptArgs;

    /// The turn of a request that a lease lets pass, and the queue with it. Only algorithms with a queue delay it.
    fn queued(&self, queue: Level, _now: Millis, _cost: Cost) -> (Verdict, Level) {
        (Verdict::Pass { excess: Excess(0) }, queue)
    }

    /// How much later a request that was refused with `excess` would have passed if it had cost `more`; `None` where
    /// that depends on when earlier requests came. Not asked where [`AlgorithmInfo::next_pays`].
    fn later(&self, _excess: Excess, _more: Cost) -> Option<Duration> {
        None
    }

    /// How long a request waits that fills the burst.
    fn wait_in_burst(&self) -> Duration {
        Duration::ZERO
    }

    /// Tells rules of one zone apart that hold the same key to other numbers.
    fn class(&self) -> u64 {
        self.quota()
    }
}

/// What is known of an algorithm without its numbers.
#[derive(Debug, Clone, Copy)]
pub struct AlgorithmInfo {
    /// Its word in the configuration, the API and the documentation.
    pub name: &'static str,
    /// Its part of the scripts that decide in a store.
    pub script: &'static str,
    /// The meaning of a rule's `burst`.
    pub burst: BurstMeaning,
    /// Whether a rule's `delay` and `nodelay` have a meaning.
    pub delays: bool,
    /// Whether requests over the burst can wait in order, as `on_excess: delay` has them.
    pub ordered: bool,
    /// Whether it counts in windows, which begin at moments of the clock.
    pub windowed: bool,
    /// Whether the next request pays for the last one, so that a request is delayed or refused whatever it costs itself.
    pub next_pays: bool,
    /// Whether a gateway can take leases of its keys from a store.
    pub leasable: bool,
    /// The bytes it remembers of each request within the limit.
    pub request_bytes: u64,
}

/// The meaning of a rule's `burst`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BurstMeaning {
    /// The size of a bucket: one request unless the rule says otherwise, and never zero.
    Capacity,
    /// Requests beyond the rate: none unless the rule says otherwise.
    Excess,
    /// None, and why.
    Nothing(&'static str),
    /// The most that is saved while idle: a second's worth unless the rule says otherwise.
    Saved,
}

impl AlgorithmInfo {
    /// What holds unless the algorithm says otherwise.
    #[must_use]
    pub const fn new(name: &'static str, script: &'static str) -> Self {
        Self {
            name,
            script,
            burst: BurstMeaning::Excess,
            delays: false,
            ordered: false,
            windowed: false,
            next_pays: false,
            leasable: true,
            request_bytes: 0,
        }
    }

    /// What holds for those that count in windows.
    pub(super) const fn windowed(name: &'static str, script: &'static str) -> Self {
        Self {
            burst: BurstMeaning::Nothing("all of the zone's `limit` may come at once"),
            windowed: true,
            ..Self::new(name, script)
        }
    }
}

/// What the allocator keeps for itself of each piece, in bytes.
pub(super) const ALLOCATION: usize = 16;

/// The turn of a request that a lease lets pass, in a queue that was last heard of as `queue`.
pub(super) fn queued<A: Algorithm<State = Level>>(
    numbers: &A,
    mut queue: Level,
    now: Millis,
    cost: Cost,
) -> (Verdict, Level) {
    let verdict = match numbers.charge(&mut queue, now, cost).0 {
        Verdict::Refuse { excess, .. } => {
            // It has a place; only the picture of the queue is out of date.
            let last = numbers.ask(&queue, now, Cost(0));
            numbers.debit(&mut queue, now, cost);
            match last {
                Verdict::Refuse { .. } => Verdict::Pass { excess },
                other => other,
            }
        }
        verdict => verdict,
    };
    (verdict, queue)
}
