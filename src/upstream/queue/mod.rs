//! The waiting line of an upstream whose servers all have as much to do as `max_conns` allows.
//!
//! Who waits is not handed a server, it is called to try again: only it knows where it has been already. So that
//! nobody is overtaken, whoever comes while somebody waits stands in line too; and so that nobody is forgotten, every
//! arrival, departure and change at a server calls who is next.

mod line;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;

use self::line::{WaitList, WaitResult};
use super::balance::{Balancer, Pick, TriedPeers};
use super::error::{Error, QueueError};
use crate::clock::Clock;
use crate::config::plan::{Template, UpstreamQueue};
use crate::message::RequestRecord;
use crate::message::vars::KeyReader;

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
        exchange: &RequestRecord,
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
        let mut place = self.join(exchange)?;
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

    fn join(&self, exchange: &RequestRecord) -> Result<QueueTicket<'_>, Error> {
        let mut key = Vec::new();
        if let Some(fair) = &self.fair
            && KeyReader::default()
                .render(fair, exchange, &mut key)
                .is_err()
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
