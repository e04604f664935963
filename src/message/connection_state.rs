//! What the road and the connection it runs on tell each other.
//!
//! hyper stands between the two: the road sees requests, `serve` sees bytes. Some things need both: a
//! timeout depends on where in a request we are, and an answer is over when its last byte has left the
//! socket, not when hyper has taken it. They meet here. All of it stays on one event loop, so the
//! atomics are never contended; they only make the type shareable.
//!
//! An interim (1xx) answer on its way to the client, in neither version's spelling.
//!
//! What is left of a request once both sides have agreed to speak something else: two connections, and bytes that go
//! from one to the other.
//!
//! The road finds the backend's end, `serve` has the client's. They meet at the connection's
//! [`Line`](super::Line): the road leaves the far end there, and `serve` takes it up when the 101 has left.
//!
//! Reading on while a client takes nothing.
//!
//! A response is asked for its next piece when the client can take one. One that is buffered wants to be read while the
//! client cannot, too, and who notices that is the connection, in whose task all of it happens.

#[cfg(test)]
#[path = "tests/connection_state.rs"]
mod tests;

use std::fmt;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};

use super::prebuilt::PrebuiltSlot;
use crate::clock::MinRate;
use crate::config::plan::ClientSettings;

/// The state of one client connection.
#[derive(Debug)]
pub struct ConnectionState {
    phase: AtomicU8,
    keepalive_millis: AtomicU64,
    send_millis: AtomicU64,
    send_rate: AtomicU64,
    lingering_millis: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    linger: AtomicBool,
    // The final answer is there, or there is no request: no interim answer has a place any more.
    decided: AtomicBool,
    // hyper has let go of the answer's body; the request is over with the next flush.
    answered: AtomicBool,
    unsent: AtomicBool,
    gone: AtomicBool,
    refused: AtomicU16,
    last: AtomicBool,
    parking: AtomicBool,
    drains: AtomicU32,
    // Whether there is anything in the lock below each: a load instead of a lock for every flush.
    has_interim: AtomicBool,
    interim: Mutex<Vec<InterimResponse>>,
    is_finishing: AtomicBool,
    finishing: Mutex<Option<Box<dyn ResponseGuard>>>,
    /// What completes the answer that leaves next.
    pub ready: PrebuiltSlot,
    // What is read of the response while the client takes nothing.
    read_ahead: Mutex<Option<Arc<dyn ReadAhead>>>,
    tunnel: Mutex<Option<Box<Tunnel>>>,
    waker: Mutex<Option<Waker>>,
}

/// Where a connection is between two requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ConnectionPhase {
    /// A request is on the road.
    Busy = 0,
    /// A request's head is being read.
    Head = 1,
    /// Nothing of the next request has come yet.
    Idle = 2,
}

impl ConnectionState {
    /// A new connection: its first head is awaited.
    pub(super) fn new() -> Self {
        Self {
            phase: AtomicU8::new(ConnectionPhase::Head as u8),
            keepalive_millis: AtomicU64::new(75_000),
            send_millis: AtomicU64::new(60_000),
            send_rate: AtomicU64::new(0),
            lingering_millis: AtomicU64::new(5_000),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            linger: AtomicBool::new(false),
            decided: AtomicBool::new(true),
            answered: AtomicBool::new(false),
            unsent: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            refused: AtomicU16::new(0),
            last: AtomicBool::new(false),
            parking: AtomicBool::new(false),
            drains: AtomicU32::new(0),
            has_interim: AtomicBool::new(false),
            interim: Mutex::new(Vec::new()),
            is_finishing: AtomicBool::new(false),
            finishing: Mutex::new(None),
            ready: PrebuiltSlot::default(),
            read_ahead: Mutex::new(None),
            tunnel: Mutex::new(None),
            waker: Mutex::new(None),
        }
    }

    /// Where the connection is.
    pub fn phase(&self) -> ConnectionPhase {
        match self.phase.load(Ordering::Relaxed) {
            0 => ConnectionPhase::Busy,
            1 => ConnectionPhase::Head,
            _ => ConnectionPhase::Idle,
        }
    }

    /// Says where it is now.
    pub fn enter(&self, phase: ConnectionPhase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Sets the timeouts that hold from now on.
    pub fn set_timeouts(&self, settings: &ClientSettings) {
        let set = |cell: &AtomicU64, time| cell.store(millis(time), Ordering::Relaxed);
        set(
            &self.keepalive_millis,
            settings.keepalive_timeout.unwrap_or_default(),
        );
        set(&self.send_millis, settings.send_timeout);
        set(&self.lingering_millis, settings.lingering_timeout);
        self.send_rate
            .store(settings.send_min_rate, Ordering::Relaxed);
    }

    /// How long the next request may be waited for.
    pub fn keepalive_timeout(&self) -> Duration {
        Duration::from_millis(self.keepalive_millis.load(Ordering::Relaxed))
    }

    /// How long the client may take to accept more.
    pub fn send_timeout(&self) -> Duration {
        Duration::from_millis(self.send_millis.load(Ordering::Relaxed))
    }

    /// How fast the client has to accept more, on average.
    pub fn send_rate(&self) -> MinRate {
        MinRate(self.send_rate.load(Ordering::Relaxed))
    }

    /// The client has to accept no more than this, in bytes a second: it gets no more.
    pub fn lower_send_rate(&self, most: u64) {
        let rate = self.send_rate().0;
        self.send_rate.store(rate.min(most), Ordering::Relaxed);
    }

    /// How long more of what the client sends is awaited after the answer.
    pub fn lingering_timeout(&self) -> Duration {
        Duration::from_millis(self.lingering_millis.load(Ordering::Relaxed))
    }

    /// Takes over the timeouts of another line of the same client.
    pub fn adopt_timeouts(&self, other: &Self) {
        for (own, other) in [
            (&self.keepalive_millis, &other.keepalive_millis),
            (&self.send_millis, &other.send_millis),
            (&self.send_rate, &other.send_rate),
            (&self.lingering_millis, &other.lingering_millis),
        ] {
            own.store(other.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Counts bytes read from the socket.
    pub fn add_received(&self, bytes: usize) {
        add(&self.received, bytes);
    }

    /// Counts bytes written to the socket.
    pub fn add_sent(&self, bytes: usize) {
        add(&self.sent, bytes);
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

    /// Whether [`ConnectionState::linger_on_close`] was asked for.
    pub fn lingers(&self) -> bool {
        self.linger.load(Ordering::Relaxed)
    }

    /// We are stopping: the connection carries no request after the one it has, or the one on its way.
    pub fn close_after_answer(&self) {
        self.last.store(true, Ordering::Relaxed);
    }

    /// Whether [`ConnectionState::close_after_answer`] was asked for.
    pub fn closes_after_answer(&self) -> bool {
        self.last.load(Ordering::Relaxed)
    }

    /// Says whether the end of hyper's work is not the end of the connection.
    pub fn set_parking(&self, parking: bool) {
        self.parking.store(parking, Ordering::Relaxed);
    }

    /// Whether the connection outlives hyper's work on it.
    pub fn parks(&self) -> bool {
        self.parking.load(Ordering::Relaxed)
    }

    /// Hands over an interim (1xx) answer to go out before the final one. Nobody has to have one: it is left out when
    /// it comes after the final one, or when too many wait already for a client that does not read.
    // hyper's server cannot send these; `serve` writes them between two of hyper's messages.
    pub fn send_interim(&self, interim: InterimResponse) {
        if self.decided.load(Ordering::Relaxed) {
            return;
        }
        {
            let mut waiting = self.interim.lock();
            let length: usize = waiting.iter().map(InterimResponse::length).sum();
            if length + interim.length() > MOST_INTERIM {
                return;
            }
            waiting.push(interim);
        }
        self.has_interim.store(true, Ordering::Relaxed);
        // Who hands it over need not run in the connection's task.
        self.wake();
    }

    /// Whether there may be interim answers to take.
    pub fn has_interim(&self) -> bool {
        self.has_interim.load(Ordering::Relaxed)
    }

    /// Takes the interim answers that have not gone out yet.
    pub fn take_interim(&self) -> Vec<InterimResponse> {
        self.has_interim.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.interim.lock())
    }

    /// A request's head has been read and it goes on the road.
    pub fn begin(&self) {
        self.answered.store(false, Ordering::Relaxed);
        self.decided.store(false, Ordering::Relaxed);
        self.enter(ConnectionPhase::Busy);
    }

    /// The final answer is there, and about to be written.
    pub fn decide(&self) {
        self.decided.store(true, Ordering::Relaxed);
        // Bytes of an earlier answer are still on their way and this one's will follow in the same
        // write: what could not go out between the two has lost its place.
        if self.unsent() {
            self.interim.lock().clear();
        }
    }

    /// All of the answer has been taken by the connection.
    pub fn answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// The answer's body has ended: its tail waits here for the last byte to leave the socket.
    pub fn finish_when_flushed(&self, tail: Box<dyn ResponseGuard>) {
        // A connection that breaks lets go of its socket first and of the body after it. A tail kept
        // then would never end, and it holds the peer that holds this line.
        if self.gone.load(Ordering::Relaxed) {
            tail.finish(ResponseEnd::Aborted);
            return;
        }
        // A tail still here belongs to a pipelined answer that hyper has not flushed on its own; it
        // leaves with this one's bytes at the latest, and its request is over.
        let earlier = self.finishing.lock().replace(tail);
        self.is_finishing.store(true, Ordering::Relaxed);
        if let Some(earlier) = earlier {
            earlier.finish(ResponseEnd::Complete);
        }
    }

    /// The answer is a 101: from its last byte on, this connection is the near end of a tunnel.
    pub fn open_tunnel(&self, tunnel: Box<Tunnel>) {
        // As with tails: nobody would take it up any more.
        if self.gone.load(Ordering::Relaxed) {
            tunnel.finish(ResponseEnd::Aborted);
            return;
        }
        *self.tunnel.lock() = Some(tunnel);
    }

    /// The tunnel to be carried from now on, if there is one.
    pub fn take_tunnel(&self) -> Option<Box<Tunnel>> {
        self.tunnel.lock().take()
    }

    /// Sets the response that is read while the client takes nothing; `None` where it is not buffered.
    pub fn set_read_ahead(&self, response: Option<Arc<dyn ReadAhead>>) {
        *self.read_ahead.lock() = response;
    }

    /// The client takes nothing at the moment.
    pub fn read_ahead(&self, context: &mut Context<'_>) {
        let response = self.read_ahead.lock().clone();
        if let Some(response) = response {
            response.refill(context);
        }
    }

    /// Says whether something that was written has not left yet.
    pub fn set_unsent(&self, unsent: bool) {
        self.unsent.store(unsent, Ordering::Relaxed);
    }

    /// Whether something that was written has not left yet.
    pub fn unsent(&self) -> bool {
        self.unsent.load(Ordering::Relaxed)
    }

    /// All that was written has left. True when that was the end of a request: the next is awaited.
    pub fn flushed(&self) -> bool {
        self.set_unsent(false);
        if self.is_finishing.load(Ordering::Relaxed) {
            self.is_finishing.store(false, Ordering::Relaxed);
            let tail = self.finishing.lock().take();
            if let Some(tail) = tail {
                tail.finish(ResponseEnd::Complete);
            }
        }
        // While its body is still being discarded, what comes is not the next request.
        if self.drains.load(Ordering::Relaxed) > 0 || !self.answered.load(Ordering::Relaxed) {
            return false;
        }
        self.answered.store(false, Ordering::Relaxed);
        self.enter(ConnectionPhase::Idle);
        true
    }

    /// What came was not a request, and was answered with this status.
    pub fn refuse(&self, status: u16) {
        self.refused.store(status, Ordering::Relaxed);
    }

    /// The status something that was not a request has been answered with.
    pub fn refused(&self) -> Option<u16> {
        Some(self.refused.load(Ordering::Relaxed)).filter(|status| *status != 0)
    }

    /// A request's body is being discarded after its answer, until [`ConnectionState::drained`].
    pub fn draining(&self) {
        self.drains.fetch_add(1, Ordering::Relaxed);
    }

    /// A request's body that was discarded has ended, or has been given up.
    pub fn drained(&self) {
        self.drains.fetch_sub(1, Ordering::Relaxed);
        // Only the connection's own task can begin to wait for the next request.
        self.wake();
    }

    /// Says which task drives the connection.
    pub fn driven_by(&self, waker: &Waker) {
        *self.waker.lock() = Some(waker.clone());
    }

    /// The connection is gone.
    pub fn closed(&self) {
        self.gone.store(true, Ordering::Relaxed);
        *self.waker.lock() = None;
        let tail = self.finishing.lock().take();
        if let Some(tail) = tail {
            tail.finish(ResponseEnd::Aborted);
        }
        if let Some(tunnel) = self.take_tunnel() {
            tunnel.finish(ResponseEnd::Aborted);
        }
    }

    /// Wakes the task that drives the connection.
    pub fn wake(&self) {
        if let Some(waker) = &*self.waker.lock() {
            waker.wake_by_ref();
        }
    }
}

/// Adds without locking the bus: nobody else writes it.
fn add(counter: &AtomicU64, bytes: usize) {
    counter.store(
        counter.load(Ordering::Relaxed) + bytes as u64,
        Ordering::Relaxed,
    );
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Bytes of interim answers that may wait: a backend can send them without end.
const MOST_INTERIM: usize = 64 * 1024;

/// What has to last as long as a response.
pub trait ResponseGuard: fmt::Debug + Send {
    /// The connection was handed this many bytes of the body.
    fn sent(&mut self, bytes: usize);
    /// This many bytes came from the client, through a tunnel.
    fn received(&mut self, _bytes: usize) {}
    /// The connection has all of the response and is about to write it.
    fn taken(&mut self) {}
    /// The response is over.
    fn finish(self: Box<Self>, ending: ResponseEnd);
}

/// How a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseEnd {
    /// The client went away, or the response could not be completed.
    Aborted,
    /// The last byte has left.
    Complete,
}

/// The head of an interim answer, which is all of it.
#[derive(Debug)]
pub struct InterimResponse {
    /// Its status.
    pub status: StatusCode,
    /// Its fields, those of the connection it came over left out.
    pub headers: HeaderMap,
}

impl InterimResponse {
    /// The one that asks for the body.
    #[must_use]
    pub fn go_on() -> Self {
        Self {
            status: StatusCode::CONTINUE,
            headers: HeaderMap::new(),
        }
    }

    /// Appends it as HTTP/1.1 writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let reason = self.status.canonical_reason().unwrap_or_default();
        // Writing to memory does not fail.
        drop(write!(
            out,
            "HTTP/1.1 {} {reason}\r\n",
            self.status.as_str()
        ));
        for (name, value) in &self.headers {
            out.extend_from_slice(name.as_str().as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }

    /// How long it is, about.
    pub(super) fn length(&self) -> usize {
        let fields = self.headers.iter();
        let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + 4);
        fields.sum::<usize>() + "HTTP/1.1 103 Early Hints\r\n\r\n".len()
    }
}

/// A connection, whatever it is made of.
pub trait Duplex: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> Duplex for T {}

/// The far end of a tunnel.
#[derive(Debug)]
pub struct Tunnel {
    /// The connection to the backend.
    pub far: Box<dyn Duplex>,
    /// How long neither side may say anything.
    pub idle_timeout: Duration,
    /// How long the backend may take to accept more.
    pub send_timeout: Duration,
    /// How long it may go on when told to stop.
    pub grace: Duration,
    /// What lasts as long as the tunnel.
    pub guard: Box<dyn ResponseGuard>,
}

impl Tunnel {
    /// It is over.
    pub fn finish(self, ending: ResponseEnd) {
        // First, so that whoever is told finds the backend free.
        drop(self.far);
        self.guard.finish(ending);
    }
}

/// A response that is read while its client takes nothing.
pub trait ReadAhead: fmt::Debug + Send + Sync {
    /// Reads what has come, as far as there is room for it; the task is woken when there is more to do.
    fn refill(&self, context: &mut Context<'_>);
}
