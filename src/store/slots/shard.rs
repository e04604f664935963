//! A part of a zone's keys, behind one lock: how many requests each has in progress, and who waits.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::Place;
use crate::store::Counts;
use crate::store::key::{Key, Seeds};
use crate::store::table::Table;

/// Some of a zone's keys, behind one lock.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) table: Table<Active>,
    pub(super) counts: Counts,
    pub(super) next_ticket: u64,
}

/// A key with requests in progress; one without has no entry.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) places: u32,
    // Boxed: nearly no key ever has a line, and a zone's memory is counted in these.
    line: Option<Box<Line>>,
}

/// Those who wait for a place, in the order they came.
#[derive(Debug, Default)]
pub(super) struct Line(VecDeque<Waiting>);

/// Somebody in line.
#[derive(Debug)]
pub(super) struct Waiting {
    ticket: u64,
    limit: u32,
    pub(super) hand: oneshot::Sender<Place>,
}

/// Whether there was a place.
pub(super) enum Taken {
    No,
    NoRoom,
    /// In this slot.
    Yes(usize),
}

impl Shard {
    pub(super) fn new(bound: usize) -> Self {
        Self {
            table: Table::new(bound),
            counts: Counts::default(),
            next_ticket: 0,
        }
    }

    pub(super) fn take(&mut self, key: &Key, limit: u32, seeds: &Seeds) -> Taken {
        let Some(slot) = self.table.slot(key) else {
            if self.table.is_full() {
                return Taken::NoRoom;
            }
            let first = Active {
                places: 1,
                line: None,
            };
            return Taken::Yes(self.table.insert(key, first, seeds));
        };
        let active = self.table.value_mut(slot);
        if active.places >= limit {
            return Taken::No;
        }
        active.places += 1;
        Taken::Yes(slot)
    }

    /// Joins the line of a key, unless `longest` stand in it.
    pub(super) fn queue(
        &mut self,
        key: &Key,
        limit: u32,
        longest: u32,
    ) -> Option<(u64, oneshot::Receiver<Place>)> {
        let slot = self.table.slot(key)?;
        let Line(line) = &mut **self.table.value_mut(slot).line.get_or_insert_default();
        if line.len() >= usize::try_from(longest).unwrap_or(usize::MAX) {
            return None;
        }
        let (hand, handed) = oneshot::channel();
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        line.push_back(Waiting {
            ticket,
            limit,
            hand,
        });
        Some((ticket, handed))
    }

    pub(super) fn leave(&mut self, key: &Key, ticket: u64) {
        let Some(slot) = self.table.slot(key) else {
            return;
        };
        let active = self.table.value_mut(slot);
        if let Some(Line(line)) = active.line.as_deref_mut() {
            line.retain(|waiting| waiting.ticket != ticket);
        }
    }

    /// One place less; or, if somebody in line may have it, as many as before.
    pub(super) fn give_back(&mut self, key: &Key, seeds: &Seeds) -> Option<Waiting> {
        let slot = self.table.slot_again(key)?;
        let active = self.table.value_mut(slot);
        active.places -= 1;
        if let Some(Line(line)) = active.line.as_deref_mut() {
            // Limits of several locations may meet in one zone: the first who may, not the first of all.
            let first = line
                .iter()
                .position(|waiting| waiting.limit > active.places);
            if let Some(next) = first.and_then(|at| line.remove(at)) {
                active.places += 1;
                return Some(next);
            }
        }
        if active.places == 0 {
            self.table.remove(key, slot, seeds);
        }
        None
    }
}
