//! A part of a zone's keys, behind one lock: how many requests each has in progress, and who waits.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::ConnSlot;
use crate::store::ZoneCounts;
use crate::store::key::{HashSeeds, Key};
use crate::store::table::Table;

/// Some of a zone's keys, behind one lock.
#[derive(Debug)]
pub(super) struct SlotShard {
    pub(super) table: Table<ActiveKey>,
    pub(super) counts: ZoneCounts,
    pub(super) next_ticket: u64,
}

/// A key with requests in progress; one without has no entry.
#[derive(Debug)]
pub(super) struct ActiveKey {
    pub(super) places: u32,
    // Boxed: nearly no key ever has a line, and a zone's memory is counted in these.
    line: Option<Box<WaitQueue>>,
}

/// Those who wait for a place, in the order they came.
#[derive(Debug, Default)]
pub(super) struct WaitQueue(VecDeque<QueuedRequest>);

/// Somebody in line.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    ticket: u64,
    limit: u32,
    pub(super) hand: oneshot::Sender<ConnSlot>,
}

/// Whether there was a place.
pub(super) enum TakeResult {
    No,
    NoRoom,
    /// In this slot.
    Yes(usize),
}

impl SlotShard {
    pub(super) fn new(bound: usize) -> Self {
        Self {
            table: Table::new(bound),
            counts: ZoneCounts::default(),
            next_ticket: 0,
        }
    }

    pub(super) fn take(&mut self, key: &Key, limit: u32, seeds: &HashSeeds) -> TakeResult {
        let Some(slot) = self.table.slot(key) else {
            if self.table.is_full() {
                return TakeResult::NoRoom;
            }
            let first = ActiveKey {
                places: 1,
                line: None,
            };
            return TakeResult::Yes(self.table.insert(key, first, seeds));
        };
        let active = self.table.value_mut(slot);
        if active.places >= limit {
            return TakeResult::No;
        }
        active.places += 1;
        TakeResult::Yes(slot)
    }

    /// Joins the line of a key, unless `longest` stand in it.
    pub(super) fn queue(
        &mut self,
        key: &Key,
        limit: u32,
        longest: u32,
    ) -> Option<(u64, oneshot::Receiver<ConnSlot>)> {
        let slot = self.table.slot(key)?;
        let WaitQueue(line) = &mut **self.table.value_mut(slot).line.get_or_insert_default();
        if line.len() >= usize::try_from(longest).unwrap_or(usize::MAX) {
            return None;
        }
        let (hand, handed) = oneshot::channel();
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        line.push_back(QueuedRequest {
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
        if let Some(WaitQueue(line)) = active.line.as_deref_mut() {
            line.retain(|waiting| waiting.ticket != ticket);
        }
    }

    /// One place less; or, if somebody in line may have it, as many as before.
    pub(super) fn give_back(&mut self, key: &Key, seeds: &HashSeeds) -> Option<QueuedRequest> {
        let slot = self.table.slot_again(key)?;
        let active = self.table.value_mut(slot);
        active.places -= 1;
        if let Some(WaitQueue(line)) = active.line.as_deref_mut() {
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
