//! Requests in progress: for how long each holds its places in the `limit_conn` zones.
//!
//! A request takes its places when it comes, or when its wait for a `limit_req` is over, and gives them back when it has
//! taken as long as the log says. Both lie ahead of the log's clock, so they are kept in order here until it gets there.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::request::Spot;
use crate::clock::Millis;
use crate::limits::{Permit, Places, Said};
use crate::message::LimitStatus;

/// A request that is about to take its places.
#[derive(Debug)]
pub(super) struct Coming {
    pub(super) spot: Arc<Spot>,
    pub(super) places: Places,
    /// Its key in the zone of each rule, and what that looks like; nothing where it has none.
    pub(super) keys: Vec<(Vec<u8>, String)>,
    /// When it takes them, on the log's clock.
    pub(super) at: i64,
    /// For how long it holds them, in milliseconds.
    pub(super) took: u32,
    pub(super) line: (u32, u64),
    /// For how long it has waited before.
    pub(super) waited: Option<u64>,
    /// What `$limit_req_status` would say.
    pub(super) status: Option<LimitStatus>,
}

/// What became of a request when it wanted its places.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) coming: Coming,
    /// What each rule said, by its index.
    pub(super) said: Vec<(usize, Said)>,
    pub(super) refused: bool,
}

/// All requests that hold places, or will.
#[derive(Debug, Default)]
pub(super) struct Progress {
    coming: BinaryHeap<Reverse<Timed<Coming>>>,
    held: BinaryHeap<Reverse<Timed<Permit>>>,
    number: u64,
}

/// Something that is due, in order of when, then of when it was noted.
#[derive(Debug)]
struct Timed<T> {
    at: i64,
    number: u64,
    what: T,
}

impl<T> Timed<T> {
    fn due(&self) -> (i64, u64) {
        (self.at, self.number)
    }
}

impl<T> PartialEq for Timed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.due() == other.due()
    }
}

impl<T> Eq for Timed<T> {}

impl<T> PartialOrd for Timed<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Timed<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due().cmp(&other.due())
    }
}

impl Progress {
    /// Notes a request that will want its places.
    pub(super) fn expect(&mut self, coming: Coming) {
        self.number += 1;
        self.coming.push(Reverse(Timed {
            at: coming.at,
            number: self.number,
            what: coming,
        }));
    }

    /// The next request that wants its places up to this moment, and what became of it.
    pub(super) fn next(&mut self, until: i64) -> Option<Arrived> {
        if self.coming.peek()?.0.at > until {
            return None;
        }
        let Reverse(Timed {
            at, what: coming, ..
        }) = self.coming.pop()?;
        while self.held.peek().is_some_and(|held| held.0.at <= at) {
            self.held.pop();
        }
        let now = Millis(u64::try_from(at).unwrap_or(0));
        let mut said = Vec::new();
        let permit = coming
            .spot
            .limits
            .take_places_aloud(&coming.places, now, |rule, word| {
                // Who had a place before another rule refused gives it back: nothing was said.
                if word == Said::Refuse {
                    said.clear();
                }
                said.push((rule, word));
            });
        let refused = permit.is_none();
        if let Some(permit) = permit {
            self.number += 1;
            let until = at + i64::from(coming.took);
            self.held.push(Reverse(Timed {
                at: until,
                number: self.number,
                what: permit,
            }));
        }
        Some(Arrived {
            coming,
            said,
            refused,
        })
    }
}
