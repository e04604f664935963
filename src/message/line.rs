//! What the road and the connection it runs on tell each other.
//!
//! hyper stands between the two: the road sees requests, `serve` sees bytes. Some things need both: a
//! timeout depends on where in a request we are, and an answer is over when its last byte has left the
//! socket, not when hyper has taken it. They meet here. All of it stays on one event loop, so the
//! atomics are never contended; they only make the type shareable.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::{Ending, Tail};

/// The state of one client connection.
#[derive(Debug)]
pub struct Line {
    phase: AtomicU8,
    keepalive_millis: AtomicU64,
    send_millis: AtomicU64,
    lingering_millis: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    linger: AtomicBool,
    interim: Mutex<Vec<u8>>,
    finishing: Mutex<Option<Box<dyn Tail>>>,
}

/// Where a connection is between two requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// A request is on the road.
    Busy = 0,
    /// A request's head is being read.
    Head = 1,
    /// Nothing of the next request has come yet.
    Idle = 2,
}

impl Line {
    /// A new connection: its first head is awaited.
    pub(super) fn new() -> Self {
        Self {
            phase: AtomicU8::new(Phase::Head as u8),
            keepalive_millis: AtomicU64::new(75_000),
            send_millis: AtomicU64::new(60_000),
            lingering_millis: AtomicU64::new(5_000),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            linger: AtomicBool::new(false),
            interim: Mutex::new(Vec::new()),
            finishing: Mutex::new(None),
        }
    }

    /// Where the connection is.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Busy,
            1 => Phase::Head,
            _ => Phase::Idle,
        }
    }

    /// Says where it is now.
    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Sets the timeouts that hold from now on.
    pub fn set_timeouts(&self, keepalive: Duration, send: Duration, lingering: Duration) {
        self.keepalive_millis
            .store(millis(keepalive), Ordering::Relaxed);
        self.send_millis.store(millis(send), Ordering::Relaxed);
        self.lingering_millis
            .store(millis(lingering), Ordering::Relaxed);
    }

    /// How long the next request may be waited for.
    pub fn keepalive_timeout(&self) -> Duration {
        Duration::from_millis(self.keepalive_millis.load(Ordering::Relaxed))
    }

    /// How long the client may take to accept more.
    pub fn send_timeout(&self) -> Duration {
        Duration::from_millis(self.send_millis.load(Ordering::Relaxed))
    }

    /// How long more of what the client sends is awaited after the answer.
    pub fn lingering_timeout(&self) -> Duration {
        Duration::from_millis(self.lingering_millis.load(Ordering::Relaxed))
    }

    /// Counts bytes read from the socket.
    pub fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes written to the socket.
    pub fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes read so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Bytes written so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// The client may still be sending what nobody will read: on close, wait for it, or the kernel's
    /// reset would take the answer away from a client that has not read it yet.
    pub fn linger_on_close(&self) {
        self.linger.store(true, Ordering::Relaxed);
    }

    /// Whether [`Line::linger_on_close`] was asked for.
    pub fn lingers(&self) -> bool {
        self.linger.load(Ordering::Relaxed)
    }

    /// Hands over an interim (1xx) answer, encoded, to go out before the final one.
    // hyper's server cannot send these; `serve` writes them between two of hyper's messages.
    pub fn send_interim(&self, head: &[u8]) {
        self.interim.lock().extend_from_slice(head);
    }

    /// Takes the interim answers that have not gone out yet.
    pub fn take_interim(&self) -> Vec<u8> {
        std::mem::take(&mut *self.interim.lock())
    }

    /// The answer's body has ended: its tail waits here for the last byte to leave the socket.
    pub fn finish_when_flushed(&self, tail: Box<dyn Tail>) {
        // A tail still here belongs to a pipelined answer that hyper has not flushed on its own; it
        // leaves with this one's bytes at the latest, and its request is over.
        let earlier = self.finishing.lock().replace(tail);
        if let Some(earlier) = earlier {
            earlier.finish(Ending::Complete);
        }
    }

    /// All that was written has left.
    pub fn flushed(&self) {
        let tail = self.finishing.lock().take();
        if let Some(tail) = tail {
            self.enter(Phase::Idle);
            tail.finish(Ending::Complete);
        }
    }

    /// The connection is gone.
    pub fn closed(&self) {
        let tail = self.finishing.lock().take();
        if let Some(tail) = tail {
            tail.finish(Ending::Aborted);
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
