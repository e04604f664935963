//! The waiting line of an upstream whose servers all have as much to do as `max_conns` allows.
//!
//! Who waits is not handed a server, it is called to try again: only it knows where it has been already. So that
//! nobody is overtaken, whoever comes while somebody waits stands in line too; and so that nobody is forgotten, every
//! arrival, departure and change at a server calls who is next.
//!
//! Who waits, and who of them goes next.
//!
//! Everybody stands in the line of a key, and the keys take turns: with `fair` one client's flood waits behind itself.
//! Without, there is one key. When no more may wait, the last of the longest line goes: with one key and the oldest
//! first that is who has just come.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::balance::{Balancer, Pick};
use super::error::{Error, QueueError};
use crate::clock::Clock;
use crate::config::plan::{QueueOrder, Template, UpstreamQueue};
use crate::message::RequestRecord;
use crate::message::variables::KeyReader;
use crate::upstream::balance::peers::TriedPeers;

/// A waiting line.
#[derive(Debug)]
pub(super) struct RequestQueue {
    line: Mutex<WaitList>,
    length: AtomicUsize,
    timeout: Duration,
    fair: Option<Template>,
    counts: QueueCounters,
}

/// How it has gone so far.
#[derive(Debug, Default)]
struct QueueCounters {
    served: AtomicU64,
    full: AtomicU64,
    late: AtomicU64,
    left: AtomicU64,
    millis: AtomicU64,
}

/// What a waiting line has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueStats {
    /// Requests that wait now.
    pub waiting: u64,
    /// Requests that waited and got a server.
    pub served: u64,
    /// Requests turned away because too many waited.
    pub full: u64,
    /// Requests turned away because they had waited long enough.
    pub late: u64,
    /// Requests whose clients went away meanwhile.
    pub left: u64,
    /// How long those who got a server had waited, in all.
    pub time: Duration,
}

/// A place in the line, given up when dropped.
struct QueueTicket<'q> {
    queue: &'q RequestQueue,
    ticket: u64,
    over: bool,
}

impl RequestQueue {
    pub(super) fn new(plan: &UpstreamQueue) -> Self {
        let size = usize::try_from(plan.size).unwrap_or(usize::MAX);
        Self {
            line: Mutex::new(WaitList::new(size, plan.order)),
            length: AtomicUsize::new(0),
            timeout: plan.timeout,
            fair: plan.fair.clone(),
            counts: QueueCounters::default(),
        }
    }

    /// A backend to ask, waited for if need be. None if there is nobody to wait for.
    pub(super) async fn pick(
        &self,
        balance: &Balancer,
        round: &mut TriedPeers,
        record: &RequestRecord,
        clock: &Clock,
    ) -> Result<Option<Pick>, Error> {
        let came = clock.now();
        if self.is_empty() {
            if let Some(pick) = balance.pick(round, came) {
                return Ok(Some(pick));
            }
            if !balance.is_crowded(round) {
                return Ok(None);
            }
        }
        let mut place = self.join(record)?;
        let mut end = pin!(tokio::time::sleep(self.timeout));
        loop {
            let told = poll_fn(|context| match place.poll(context) {
                Poll::Ready(told) => Poll::Ready(Some(told)),
                Poll::Pending => end.as_mut().poll(context).map(|()| None),
            })
            .await;
            // Whoever is out of time tries once more: the call may have come in the same moment.
            if told != Some(WaitResult::Leave) {
                round.begin_again();
                let now = clock.now();
                if let Some(pick) = balance.pick(round, now) {
                    place.serve();
                    count(&self.counts.served, 1);
                    let waited = now.since(came).as_millis();
                    count(&self.counts.millis, u64::try_from(waited).unwrap_or(0));
                    return Ok(Some(pick));
                }
            }
            match told {
                Some(WaitResult::Leave) => {
                    place.over = true;
                    return Err(self.refuse(QueueError::Full));
                }
                None => {
                    place.leave();
                    return Err(self.refuse(QueueError::Late));
                }
                _ if !balance.is_crowded(round) => {
                    place.leave();
                    return Ok(None);
                }
                _ => {}
            }
        }
    }

    /// Something has changed at a server: whoever is next tries.
    pub(super) fn call(&self) {
        // Either who changes something sees who waits, or who waits sees what was changed.
        fence(Ordering::SeqCst);
        if self.is_empty() {
            return;
        }
        let waker = self.line.lock().call();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// How it has gone so far.
    pub(super) fn waits(&self) -> QueueStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        QueueStats {
            waiting: self.length.load(Ordering::Relaxed) as u64,
            served: read(&self.counts.served),
            full: read(&self.counts.full),
            late: read(&self.counts.late),
            left: read(&self.counts.left),
            time: Duration::from_millis(read(&self.counts.millis)),
        }
    }

    fn is_empty(&self) -> bool {
        self.length.load(Ordering::Relaxed) == 0
    }

    fn join(&self, record: &RequestRecord) -> Result<QueueTicket<'_>, Error> {
        let mut key = Vec::new();
        if let Some(fair) = &self.fair
            && KeyReader::default().render(fair, record, &mut key).is_err()
        {
            // All of these stand in one line: who gives two values has no line of its own for each pair.
            key.clear();
        }
        let mut line = self.line.lock();
        let joined = line.join(&key);
        self.length.store(line.len(), Ordering::Relaxed);
        drop(line);
        let Some((ticket, loser)) = joined else {
            return Err(self.refuse(QueueError::Full));
        };
        if let Some(loser) = loser {
            loser.wake();
        }
        // A server may have come free between the look and the line, or by the passing of time.
        self.call();
        Ok(QueueTicket {
            queue: self,
            ticket,
            over: false,
        })
    }

    fn refuse(&self, why: QueueError) -> Error {
        count(
            match why {
                QueueError::Full => &self.counts.full,
                QueueError::Late => &self.counts.late,
            },
            1,
        );
        Error::Crowded {
            why,
            retry_after: self.timeout,
        }
    }
}

impl QueueTicket<'_> {
    fn poll(&self, context: &Context<'_>) -> Poll<WaitResult> {
        match self.queue.line.lock().ask(self.ticket, context.waker()) {
            WaitResult::Wait => Poll::Pending,
            told => Poll::Ready(told),
        }
    }

    fn serve(&mut self) {
        self.go(WaitList::serve);
    }

    fn leave(&mut self) {
        self.go(|line, ticket| {
            line.leave(ticket);
        });
    }

    fn go(&mut self, how: impl FnOnce(&mut WaitList, u64)) {
        self.over = true;
        let mut line = self.queue.line.lock();
        how(&mut line, self.ticket);
        self.queue.length.store(line.len(), Ordering::Relaxed);
        drop(line);
        // It may have been called in vain.
        self.queue.call();
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        if !self.over {
            count(&self.queue.counts.left, 1);
            self.leave();
        }
    }
}

fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// Those who wait.
#[derive(Debug)]
struct WaitList {
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
enum WaitResult {
    /// To try.
    Go,
    /// That its place was given to another.
    Leave,
    /// Nothing yet.
    Wait,
}

impl WaitList {
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

    fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Comes in and gets a ticket, unless it is its own place that has to be given up. Whoever else loses its place is
    /// to be woken.
    fn join(&mut self, key: &[u8]) -> Option<(u64, Option<Waker>)> {
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
    fn leave(&mut self, ticket: u64) -> bool {
        self.remove(ticket).is_some()
    }

    /// Goes because it was served: the turn of its key is over.
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

    /// Calls whoever is next; it is to be woken.
    fn call(&mut self) -> Option<Waker> {
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
    fn ask(&mut self, ticket: u64, waker: &Waker) -> WaitResult {
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
