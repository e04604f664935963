//! What is asked for about one key, and what a store says to it.

use std::time::Duration;

use crate::store::algorithm::Verdict;

/// What is asked for at once about one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LeaseRequest {
    /// To be charged whatever is left.
    pub(super) owed: u64,
    /// Leased in `window` and given back.
    pub(super) back: u64,
    pub(super) window: u64,
    /// So many requests are to be leased.
    pub(super) want: u64,
    /// How many more would pass at most, as far as is known here.
    pub(super) left: Option<u64>,
}

/// What a store said to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseGrant {
    /// What would have become of one request before anything was leased.
    pub(super) outcome: Verdict,
    /// How many more would pass now.
    pub(super) remaining: u64,
    /// So many requests are leased.
    pub(super) granted: u64,
    /// For how long, where that is not for ever, and in which window.
    pub(super) lasts: Option<Duration>,
    pub(super) window: u64,
    /// For how much longer the key serves a penalty.
    pub(super) penalty: Option<Duration>,
}
