//! The queue of an upstream whose servers all have as many requests as `max_conns` allows.
//!
//! A request that comes while others wait joins them, so that none is overtaken.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;

use super::balance::{Balancer, Pick, TriedPeers};
use super::error::{Error, QueueError};
use super::wait_list::{WaitList, WaitResult};
use crate::clock::Clock;
use crate::config::plan::{Template, UpstreamQueue};
use crate::message::RequestRecord;
use crate::message::variables::KeyReader;

/// The queue of an upstream.
#[derive(Debug)]
pub(super) struct RequestQueue {
    list: Arc<WaitList>,
    timeout: Duration,
    fair: Option<Template>,
    stats: Mutex<QueueStats>,
}

/// The counters of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Requests that wait now.
    pub waiting: u64,
    /// Requests that waited and got a server.
    pub served: u64,
    /// Requests refused because the queue was full.
    pub full: u64,
    /// Requests refused because they had waited for the timeout.
    pub late: u64,
    /// Requests whose clients left while they waited.
    pub left: u64,
    /// How long those that got a server had waited, in all.
    pub time: Duration,
}

/// A place in the queue, given up when dropped.
struct QueueTicket<'q> {
    queue: &'q RequestQueue,
    ticket: u64,
    left: bool,
}

impl RequestQueue {
    pub(super) fn new(plan: &UpstreamQueue, list: Arc<WaitList>) -> Self {
        Self {
            list,
            timeout: plan.timeout,
            fair: plan.fair.clone(),
            stats: Mutex::default(),
        }
    }

    /// The next backend to try, waited for if need be; `None` if there is none to wait for.
    pub(super) async fn pick(
        &self,
        balancer: &Balancer,
        tried: &mut TriedPeers,
        record: &RequestRecord,
        clock: &Clock,
    ) -> Result<Option<Pick>, Error> {
        let came = clock.now();
        if self.list.len() == 0 {
            if let Some(pick) = balancer.pick(tried, came) {
                return Ok(Some(pick));
            }
            if !balancer.has_full_peer(tried) {
                return Ok(None);
            }
        }
        let mut ticket = self.join(record)?;
        let mut timeout = pin!(tokio::time::sleep(self.timeout));
        loop {
            let woken = poll_fn(
                |context| match self.list.poll(ticket.ticket, context.waker()) {
                    Poll::Ready(result) => Poll::Ready(Some(result)),
                    Poll::Pending => timeout.as_mut().poll(context).map(|()| None),
                },
            )
            .await;
            if woken == Some(WaitResult::Leave) {
                ticket.left = true;
                return Err(self.refuse(QueueError::Full));
            }
            // After the timeout it tries once more: it may have been woken in the same moment.
            tried.begin_again();
            let now = clock.now();
            if let Some(pick) = balancer.pick(tried, now) {
                ticket.left = true;
                self.list.serve(ticket.ticket);
                let mut stats = self.stats.lock();
                stats.served += 1;
                stats.time += now.since(came);
                return Ok(Some(pick));
            }
            if woken.is_none() {
                ticket.leave();
                return Err(self.refuse(QueueError::Late));
            }
            if !balancer.has_full_peer(tried) {
                ticket.leave();
                return Ok(None);
            }
        }
    }

    pub(super) fn stats(&self) -> QueueStats {
        QueueStats {
            waiting: self.list.len() as u64,
            ..*self.stats.lock()
        }
    }

    fn join(&self, record: &RequestRecord) -> Result<QueueTicket<'_>, Error> {
        let mut key = Vec::new();
        if let Some(fair) = &self.fair
            && KeyReader::default().render(fair, record, &mut key).is_err()
        {
            // Requests with several values share one key, or each pair of values would be a key of its own.
            key.clear();
        }
        let ticket = self.list.join(&key);
        Ok(QueueTicket {
            queue: self,
            ticket: ticket.ok_or_else(|| self.refuse(QueueError::Full))?,
            left: false,
        })
    }

    fn refuse(&self, reason: QueueError) -> Error {
        let mut stats = self.stats.lock();
        match reason {
            QueueError::Full => stats.full += 1,
            QueueError::Late => stats.late += 1,
        }
        Error::Queue {
            reason,
            retry_after: self.timeout,
        }
    }
}

impl QueueTicket<'_> {
    fn leave(&mut self) {
        self.left = true;
        self.queue.list.leave(self.ticket);
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        if !self.left {
            self.queue.stats.lock().left += 1;
            self.leave();
        }
    }
}
