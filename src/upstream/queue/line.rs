//! Who waits, and who of them goes next.
//!
//! Everybody stands in the line of a key, and the keys take turns: with `fair` one client's flood waits behind itself.
//! Without, there is one key. When no more may wait, the last of the longest line goes: with one key and the oldest
//! first that is who has just come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::Waker;

use crate::config::plan::QueueOrder;

/// Those who wait.
#[derive(Debug)]
pub(super) struct WaitList {
    size: usize,
    order: QueueOrder,
    next_ticket: u64,
    next_turn: u64,
    waiting: BTreeMap<u64, WaitEntry>,
    keys: BTreeMap<Arc<[u8]>, KeyQueue>,
    /// By turn.
    turns: BTreeMap<u64, Arc<[u8]>>,
    /// How long the line of each key is.
    lengths: BTreeSet<(usize, Arc<[u8]>)>,
}

#[derive(Debug)]
struct WaitEntry {
    key: Arc<[u8]>,
    called: bool,
    waker: Option<Waker>,
}

/// The line of one key.
#[derive(Debug)]
struct KeyQueue {
    turn: u64,
    tickets: BTreeSet<u64>,
}

/// What somebody who waits is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitResult {
    /// To try.
    Go,
    /// That its place was given to another.
    Leave,
    /// Nothing yet.
    Wait,
}

impl WaitList {
    pub(super) fn new(size: usize, order: QueueOrder) -> Self {
        Self {
            size,
            order,
            next_ticket: 0,
            next_turn: 0,
            waiting: BTreeMap::new(),
            keys: BTreeMap::new(),
            turns: BTreeMap::new(),
            lengths: BTreeSet::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Comes in and gets a ticket, unless it is its own place that has to be given up. Whoever else loses its place is
    /// to be woken.
    pub(super) fn join(&mut self, key: &[u8]) -> Option<(u64, Option<Waker>)> {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let key = self
            .keys
            .get_key_value(key)
            .map_or_else(|| key.into(), |(known, _)| Arc::clone(known));
        self.waiting.insert(
            ticket,
            WaitEntry {
                key: Arc::clone(&key),
                called: false,
                waker: None,
            },
        );
        let next_turn = &mut self.next_turn;
        let own = self.keys.entry(Arc::clone(&key)).or_insert_with(|| {
            *next_turn += 1;
            KeyQueue {
                turn: *next_turn,
                tickets: BTreeSet::new(),
            }
        });
        self.turns.insert(own.turn, Arc::clone(&key));
        self.lengths.remove(&(own.tickets.len(), Arc::clone(&key)));
        own.tickets.insert(ticket);
        self.lengths.insert((own.tickets.len(), key));
        if self.waiting.len() <= self.size {
            return Some((ticket, None));
        }
        let loser = self.last_of_the_longest(ticket)?;
        let gone = self.remove(loser)?;
        (loser != ticket).then_some((ticket, gone.waker))
    }

    /// Goes, for whatever reason; whether it was still there.
    pub(super) fn leave(&mut self, ticket: u64) -> bool {
        self.remove(ticket).is_some()
    }

    /// Goes because it was served: the turn of its key is over.
    pub(super) fn serve(&mut self, ticket: u64) {
        let Some(WaitEntry { key, .. }) = self.remove(ticket) else {
            return;
        };
        if let Some(own) = self.keys.get_mut(&key) {
            self.turns.remove(&own.turn);
            self.next_turn += 1;
            own.turn = self.next_turn;
            self.turns.insert(own.turn, key);
        }
    }

    /// Calls whoever is next; it is to be woken.
    pub(super) fn call(&mut self) -> Option<Waker> {
        let (_, key) = self.turns.first_key_value()?;
        let tickets = &self.keys.get(key)?.tickets;
        let next = match self.order {
            QueueOrder::NewestFirst => tickets.last(),
            QueueOrder::OldestFirst => tickets.first(),
        };
        let next = self.waiting.get_mut(next?)?;
        next.called = true;
        next.waker.take()
    }

    /// What somebody is told who asks; if it has to wait, it is woken when there is something to tell.
    pub(super) fn ask(&mut self, ticket: u64, waker: &Waker) -> WaitResult {
        let Some(waiting) = self.waiting.get_mut(&ticket) else {
            return WaitResult::Leave;
        };
        if std::mem::take(&mut waiting.called) {
            return WaitResult::Go;
        }
        waiting.waker = Some(waker.clone());
        WaitResult::Wait
    }

    /// Of equally long lines, the one that the newcomer stands in.
    fn last_of_the_longest(&self, newcomer: u64) -> Option<u64> {
        let (longest, key) = self.lengths.last()?;
        let own = &self.waiting.get(&newcomer)?.key;
        let tickets = match self.keys.get(own) {
            Some(own) if own.tickets.len() == *longest => &own.tickets,
            _ => &self.keys.get(key)?.tickets,
        };
        let last = match self.order {
            QueueOrder::NewestFirst => tickets.first(),
            QueueOrder::OldestFirst => tickets.last(),
        };
        last.copied()
    }

    fn remove(&mut self, ticket: u64) -> Option<WaitEntry> {
        let gone = self.waiting.remove(&ticket)?;
        let own = self.keys.get_mut(&gone.key)?;
        self.lengths
            .remove(&(own.tickets.len(), Arc::clone(&gone.key)));
        own.tickets.remove(&ticket);
        if own.tickets.is_empty() {
            self.turns.remove(&own.turn);
            self.keys.remove(&gone.key);
        } else {
            self.lengths
                .insert((own.tickets.len(), Arc::clone(&gone.key)));
        }
        Some(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves all in turn; who they are.
    fn drain(line: &mut WaitList) -> Vec<u64> {
        let mut served = Vec::new();
        while line.len() > 0 {
            line.call();
            let tickets: Vec<u64> = line.waiting.keys().copied().collect();
            let next = tickets
                .into_iter()
                .find(|ticket| line.ask(*ticket, Waker::noop()) == WaitResult::Go)
                .expect("somebody was called");
            line.serve(next);
            served.push(next);
        }
        served
    }

    fn line(size: usize, order: QueueOrder, keys: &[&str]) -> WaitList {
        let mut line = WaitList::new(size, order);
        for key in keys {
            line.join(key.as_bytes());
        }
        line
    }

    #[test]
    fn the_oldest_goes_first_and_a_full_line_turns_away_who_comes() {
        let mut line = line(3, QueueOrder::OldestFirst, &["", "", ""]);
        assert!(line.join(b"").is_none());
        assert_eq!(drain(&mut line), [0, 1, 2]);
    }

    #[test]
    fn the_newest_goes_first_and_a_full_line_turns_away_the_oldest() {
        let mut line = line(3, QueueOrder::NewestFirst, &["", "", ""]);
        assert!(line.join(b"").is_some());
        assert_eq!(line.ask(0, Waker::noop()), WaitResult::Leave);
        assert_eq!(drain(&mut line), [3, 2, 1]);
    }

    #[test]
    fn keys_take_turns() {
        let mut line = line(9, QueueOrder::OldestFirst, &["a", "a", "a", "b", "c", "b"]);
        assert_eq!(drain(&mut line), [0, 3, 4, 1, 5, 2]);
    }

    #[test]
    fn a_flood_cannot_fill_the_line() {
        let mut line = line(4, QueueOrder::OldestFirst, &["flood"; 10]);
        assert_eq!(line.len(), 4);
        // Those who come later take the flood's places, down to a share each.
        for key in ["a", "b", "c"] {
            assert!(line.join(key.as_bytes()).is_some(), "{key}");
        }
        assert_eq!(line.len(), 4);
        assert!(line.join(b"flood").is_none());
        assert_eq!(line.keys.len(), 4);
        let d = line.join(b"d").map(|(ticket, _)| ticket);
        assert!(d.is_none() || line.len() == 4);
    }

    #[test]
    fn whoever_leaves_takes_nothing_with_it() {
        let mut line = line(4, QueueOrder::OldestFirst, &["a", "b", "a"]);
        assert!(line.leave(0) && line.leave(1) && !line.leave(1));
        assert_eq!(drain(&mut line), [2]);
        assert!(line.keys.is_empty() && line.turns.is_empty() && line.lengths.is_empty());
    }
}
