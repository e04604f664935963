//! The requests that wait for a server, and the order in which they are served.
//!
//! Each waits under a key, and the keys take turns: with `fair` one client's flood waits behind itself. Without it there
//! is one key. When the list is full, the last request of the longest key loses its place: with one key and the oldest
//! first, that is the request that has just come.
//!
//! A waiting request is not handed a server. It is woken to try again, because only it knows which servers it has been
//! sent to. Each arrival, departure and change of a server wakes the next one, so that none is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::task::{Poll, Waker};

use parking_lot::Mutex;

use crate::config::plan::QueueOrder;

/// The waiting requests of an upstream. Its queue adds them; changes of its backends wake them.
#[derive(Debug)]
pub(super) struct WaitList {
    length: AtomicUsize,
    entries: Mutex<WaitEntries>,
}

/// The list itself.
#[derive(Debug)]
struct WaitEntries {
    size: usize,
    order: QueueOrder,
    next_ticket: u64,
    next_turn: u64,
    waiting: BTreeMap<u64, WaitEntry>,
    keys: BTreeMap<Arc<[u8]>, KeyQueue>,
    /// The keys by turn.
    turns: BTreeMap<u64, Arc<[u8]>>,
    /// The keys by the number of their requests.
    lengths: BTreeSet<(usize, Arc<[u8]>)>,
}

#[derive(Debug)]
struct WaitEntry {
    key: Arc<[u8]>,
    woken: bool,
    waker: Option<Waker>,
}

/// The requests of one key.
#[derive(Debug)]
struct KeyQueue {
    turn: u64,
    tickets: BTreeSet<u64>,
}

/// What a waiting request does when it is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitResult {
    /// It fails: its place was given to another.
    Leave,
    /// It tries again.
    Try,
}

impl WaitList {
    pub(super) fn new(size: usize, order: QueueOrder) -> Self {
        Self {
            length: AtomicUsize::new(0),
            entries: Mutex::new(WaitEntries::new(size, order)),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    /// Adds a request and returns its ticket, unless it is the one that has to leave a full list.
    pub(super) fn join(&self, key: &[u8]) -> Option<u64> {
        let (ticket, loser) = self.change(|entries| entries.join(key))?;
        if let Some(loser) = loser {
            loser.wake();
        }
        // A server may have become free since the request looked, or by the passing of time.
        self.wake_next();
        Some(ticket)
    }

    /// Removes a request that gives up, or that had to leave.
    pub(super) fn leave(&self, ticket: u64) {
        self.change(|entries| drop(entries.remove(ticket)));
        // It may have been woken in vain.
        self.wake_next();
    }

    /// Removes a request that has got a server.
    pub(super) fn serve(&self, ticket: u64) {
        self.change(|entries| entries.serve(ticket));
        self.wake_next();
    }

    /// Ready when the request has been woken.
    pub(super) fn poll(&self, ticket: u64, waker: &Waker) -> Poll<WaitResult> {
        self.entries.lock().poll(ticket, waker)
    }

    /// Wakes the next request.
    pub(super) fn wake_next(&self) {
        // Either the change is made first and a new request sees it, or the request is added first and is seen here.
        fence(Ordering::SeqCst);
        if self.len() > 0
            && let Some(waker) = { self.entries.lock().wake_next() }
        {
            waker.wake();
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut WaitEntries) -> T) -> T {
        let mut entries = self.entries.lock();
        let result = change(&mut entries);
        self.length.store(entries.waiting.len(), Ordering::Relaxed);
        result
    }
}

impl WaitEntries {
    fn new(size: usize, order: QueueOrder) -> Self {
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

    /// Also the waker of another request that has lost its place.
    fn join(&mut self, key: &[u8]) -> Option<(u64, Option<Waker>)> {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let known = self.keys.get_key_value(key);
        let key = known.map_or_else(|| key.into(), |(known, _)| Arc::clone(known));
        self.waiting.insert(
            ticket,
            WaitEntry {
                key: Arc::clone(&key),
                woken: false,
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
        let loser = self.last_of_longest(ticket)?;
        let removed = self.remove(loser)?;
        (loser != ticket).then_some((ticket, removed.waker))
    }

    /// Removes a request that was served: the turn of its key is over.
    fn serve(&mut self, ticket: u64) {
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

    /// The waker of the next request, which may try.
    fn wake_next(&mut self) -> Option<Waker> {
        let (_, key) = self.turns.first_key_value()?;
        let tickets = &self.keys.get(key)?.tickets;
        let next = match self.order {
            QueueOrder::NewestFirst => tickets.last(),
            QueueOrder::OldestFirst => tickets.first(),
        };
        let next = self.waiting.get_mut(next?)?;
        next.woken = true;
        next.waker.take()
    }

    fn poll(&mut self, ticket: u64, waker: &Waker) -> Poll<WaitResult> {
        let Some(waiting) = self.waiting.get_mut(&ticket) else {
            return Poll::Ready(WaitResult::Leave);
        };
        if std::mem::take(&mut waiting.woken) {
            return Poll::Ready(WaitResult::Try);
        }
        waiting.waker = Some(waker.clone());
        Poll::Pending
    }

    /// The last request of the longest key; of several as long, that of the newcomer.
    fn last_of_longest(&self, newcomer: u64) -> Option<u64> {
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
        let removed = self.waiting.remove(&ticket)?;
        let own = self.keys.get_mut(&removed.key)?;
        self.lengths
            .remove(&(own.tickets.len(), Arc::clone(&removed.key)));
        own.tickets.remove(&ticket);
        if own.tickets.is_empty() {
            self.turns.remove(&own.turn);
            self.keys.remove(&removed.key);
        } else {
            self.lengths
                .insert((own.tickets.len(), Arc::clone(&removed.key)));
        }
        Some(removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves all in turn and returns their tickets.
    fn drain(entries: &mut WaitEntries) -> Vec<u64> {
        let mut served = Vec::new();
        while !entries.waiting.is_empty() {
            entries.wake_next();
            let tickets: Vec<u64> = entries.waiting.keys().copied().collect();
            let next = tickets
                .into_iter()
                .find(|ticket| entries.poll(*ticket, Waker::noop()).is_ready())
                .expect("one was woken");
            entries.serve(next);
            served.push(next);
        }
        served
    }

    fn entries(size: usize, order: QueueOrder, keys: &[&str]) -> WaitEntries {
        let mut entries = WaitEntries::new(size, order);
        for key in keys {
            entries.join(key.as_bytes());
        }
        entries
    }

    #[test]
    fn the_oldest_goes_first_and_a_full_list_refuses_the_newcomer() {
        let mut entries = entries(3, QueueOrder::OldestFirst, &["", "", ""]);
        assert!(entries.join(b"").is_none());
        assert_eq!(drain(&mut entries), [0, 1, 2]);
    }

    #[test]
    fn the_newest_goes_first_and_a_full_list_drops_the_oldest() {
        let mut entries = entries(3, QueueOrder::NewestFirst, &["", "", ""]);
        assert!(entries.join(b"").is_some());
        let dropped = entries.poll(0, Waker::noop());
        assert_eq!(dropped, Poll::Ready(WaitResult::Leave));
        assert_eq!(drain(&mut entries), [3, 2, 1]);
    }

    #[test]
    fn keys_take_turns() {
        let keys = ["a", "a", "a", "b", "c", "b"];
        let mut entries = entries(9, QueueOrder::OldestFirst, &keys);
        assert_eq!(drain(&mut entries), [0, 3, 4, 1, 5, 2]);
    }

    #[test]
    fn a_flood_cannot_fill_the_list() {
        let mut entries = entries(4, QueueOrder::OldestFirst, &["flood"; 10]);
        assert_eq!(entries.waiting.len(), 4);
        // Later keys take the flood's places, down to a share each.
        for key in ["a", "b", "c"] {
            assert!(entries.join(key.as_bytes()).is_some(), "{key}");
        }
        assert_eq!(entries.waiting.len(), 4);
        assert!(entries.join(b"flood").is_none());
        assert_eq!(entries.keys.len(), 4);
        let d = entries.join(b"d").map(|(ticket, _)| ticket);
        assert!(d.is_none() || entries.waiting.len() == 4);
    }

    #[test]
    fn a_request_that_leaves_takes_its_key_along() {
        let mut entries = entries(4, QueueOrder::OldestFirst, &["a", "b", "a"]);
        assert!(entries.remove(0).is_some());
        assert!(entries.remove(1).is_some());
        assert!(entries.remove(1).is_none());
        assert_eq!(drain(&mut entries), [2]);
        assert!(entries.keys.is_empty() && entries.turns.is_empty() && entries.lengths.is_empty());
    }
}
