//! What a request and the connection it came on tell each other.
//!
//! hyper stands between the two: `proxy` sees requests, `downstream` sees bytes. A timeout depends on where in a request the
//! connection is, and a response is over when its last byte has left the socket, not when hyper has taken it; interim
//! responses, prebuilt responses and tunnels are handed over here, too. All of it stays on one event loop, so the atomics are
//! never contended; they only make the types `Sync`.

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

use super::prebuilt::{self, Prebuilt};
use crate::config::plan::ClientSettings;

/// A flag shared by the tasks of one event loop.
#[derive(Debug, Default)]
pub struct LoopFlag(AtomicBool);

impl LoopFlag {
    /// Whether it is set.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets or clears it.
    pub fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }

    /// Clears it; whether it was set.
    // Two plain accesses: a swap would lock the bus.
    pub fn take(&self) -> bool {
        let was_set = self.get();
        if was_set {
            self.set(false);
        }
        was_set
    }
}

/// A number shared by the tasks of one event loop.
#[derive(Debug, Default)]
pub struct LoopCounter(AtomicU64);

impl LoopCounter {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds a number of bytes, without locking the bus.
    pub fn add(&self, bytes: usize) {
        self.set(self.get() + bytes as u64);
    }
}

/// A duration shared by the tasks of one event loop, in whole milliseconds.
#[derive(Debug, Default)]
pub struct LoopDuration(LoopCounter);

impl LoopDuration {
    /// Its value.
    pub fn get(&self) -> Duration {
        Duration::from_millis(self.0.get())
    }

    fn set(&self, duration: Duration) {
        self.0
            .set(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
    }
}

/// The state of one client connection.
#[derive(Debug, Default)]
pub struct ConnectionState {
    phase: AtomicU8,
    /// How long the next request may be waited for.
    pub keepalive_timeout: LoopDuration,
    /// How long the client may take to accept more.
    pub send_timeout: LoopDuration,
    /// How many bytes a second the client has to accept, on average.
    pub send_rate: LoopCounter,
    /// How long more of what the client sends is awaited after the response.
    pub lingering_timeout: LoopDuration,
    /// Bytes read from the socket so far.
    pub received: LoopCounter,
    /// Bytes written to the socket so far.
    pub sent: LoopCounter,
    /// The client may still be sending what is not going to be read. On close its end is awaited, or the kernel's reset
    /// would take the response away from a client that has not read it yet.
    pub lingers: LoopFlag,
    /// The connection carries no request after the one it has, or the one on its way.
    pub closes_after_response: LoopFlag,
    /// The connection outlives hyper's work on it.
    pub parking: LoopFlag,
    /// Something that was written has not left yet.
    pub unsent: LoopFlag,
    /// The prebuilt response that leaves next.
    pub prebuilt: PrebuiltSlot,
    // A request is under way and its final response is not there: only then have interim responses a place.
    accepts_interim: LoopFlag,
    /// The connection has taken all of the response's body; the request is over with the next flush.
    pub body_taken: LoopFlag,
    gone: LoopFlag,
    refused: AtomicU16,
    drains: AtomicU32,
    // Whether there is anything in the lock below each: a load instead of a lock for every flush.
    /// There may be interim responses to take.
    pub has_interim: LoopFlag,
    interim: Mutex<Vec<InterimResponse>>,
    is_finishing: LoopFlag,
    finishing: Mutex<Option<Box<dyn ResponseGuard>>>,
    // What is read of the response while the client accepts nothing.
    read_ahead: Mutex<Option<Arc<dyn ReadAhead>>>,
    tunnel: Mutex<Option<Box<Tunnel>>>,
    waker: Mutex<Option<Waker>>,
}

/// Where a connection is between two requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ConnectionPhase {
    /// The headers of a request are awaited or being read. A new connection begins here.
    Head = 0,
    /// A request is under way.
    Busy = 1,
    /// Nothing of the next request has come yet.
    Idle = 2,
}

impl ConnectionState {
    /// Where the connection is.
    pub fn phase(&self) -> ConnectionPhase {
        match self.phase.load(Ordering::Relaxed) {
            0 => ConnectionPhase::Head,
            1 => ConnectionPhase::Busy,
            _ => ConnectionPhase::Idle,
        }
    }

    /// Sets where it is.
    pub fn set_phase(&self, phase: ConnectionPhase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Sets the timeouts that apply from now on.
    pub fn set_timeouts(&self, settings: &ClientSettings) {
        let keepalive = settings.keepalive_timeout.unwrap_or_default();
        self.keepalive_timeout.set(keepalive);
        self.send_timeout.set(settings.send_timeout);
        self.lingering_timeout.set(settings.lingering_timeout);
        self.send_rate.set(settings.send_min_rate);
    }

    /// Takes over the timeouts of the connection of a stream, or of a stream of the connection.
    pub fn adopt_timeouts(&self, other: &Self) {
        for (own, other) in [
            (&self.keepalive_timeout.0, &other.keepalive_timeout.0),
            (&self.send_timeout.0, &other.send_timeout.0),
            (&self.send_rate, &other.send_rate),
            (&self.lingering_timeout.0, &other.lingering_timeout.0),
        ] {
            own.set(other.get());
        }
    }

    /// Hands over an interim (1xx) response to go out before the final one. It is left out when it comes after the final
    /// one, or when too many wait already for a client that does not read.
    // hyper's server cannot send these; `downstream` writes them between two of hyper's messages.
    pub fn send_interim(&self, interim: InterimResponse) {
        if !self.accepts_interim.get() {
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
        self.has_interim.set(true);
        // The caller need not run in the connection's task.
        self.wake();
    }

    /// Takes the interim responses that have not gone out yet.
    pub fn take_interim(&self) -> Vec<InterimResponse> {
        self.has_interim.set(false);
        std::mem::take(&mut *self.interim.lock())
    }

    /// Notes that the headers of a request have been read and the request is under way.
    pub fn begin_request(&self) {
        self.body_taken.set(false);
        self.accepts_interim.set(true);
        self.set_phase(ConnectionPhase::Busy);
    }

    /// Notes that the final response is there, and about to be written.
    pub fn final_response(&self) {
        self.accepts_interim.set(false);
        // Bytes of an earlier response are still on their way and this one's will follow in the same
        // write: what could not go out between the two has lost its place.
        if self.unsent.get() {
            self.interim.lock().clear();
        }
    }

    /// Keeps the guard of a response whose body has ended until the last byte has left the socket.
    pub fn finish_when_flushed(&self, guard: Box<dyn ResponseGuard>) {
        // A connection that breaks lets go of its socket first and of the body after it. A guard kept
        // then would never end, and it holds the connection that holds this state.
        if self.gone.get() {
            guard.finish(ResponseEnd::Aborted);
            return;
        }
        // A guard still here belongs to a pipelined response that hyper has not flushed on its own; it
        // leaves with this one's bytes at the latest, and its request is over.
        let earlier = self.finishing.lock().replace(guard);
        self.is_finishing.set(true);
        if let Some(earlier) = earlier {
            earlier.finish(ResponseEnd::Complete);
        }
    }

    /// Makes the connection the near end of a tunnel, from the last byte of the 101 on.
    pub fn open_tunnel(&self, tunnel: Box<Tunnel>) {
        // As with guards: there is no connection left to take it up.
        if self.gone.get() {
            tunnel.finish(ResponseEnd::Aborted);
            return;
        }
        *self.tunnel.lock() = Some(tunnel);
    }

    /// The tunnel to be carried from now on, if there is one.
    pub fn take_tunnel(&self) -> Option<Box<Tunnel>> {
        self.tunnel.lock().take()
    }

    /// Sets the response that is read while the client accepts nothing; `None` where it is not buffered.
    pub fn set_read_ahead(&self, response: Option<Arc<dyn ReadAhead>>) {
        *self.read_ahead.lock() = response;
    }

    /// Reads the response ahead, because the client accepts nothing at the moment.
    pub fn read_ahead(&self, context: &mut Context<'_>) {
        let response = self.read_ahead.lock().clone();
        if let Some(response) = response {
            response.refill(context);
        }
    }

    /// Notes that all that was written has left. True when that was the end of a request: the next is awaited.
    pub fn flushed(&self) -> bool {
        self.unsent.set(false);
        if self.is_finishing.take() {
            self.finish(ResponseEnd::Complete);
        }
        // While its body is still being discarded, what comes is not the next request.
        if self.drains.load(Ordering::Relaxed) > 0 || !self.body_taken.take() {
            return false;
        }
        self.set_phase(ConnectionPhase::Idle);
        true
    }

    fn finish(&self, end: ResponseEnd) {
        let guard = self.finishing.lock().take();
        if let Some(guard) = guard {
            guard.finish(end);
        }
    }

    /// Notes that what came was not a request, and was refused with this status.
    pub fn refuse(&self, status: u16) {
        self.refused.store(status, Ordering::Relaxed);
    }

    /// The status that was sent for something that was not a request.
    pub fn refused(&self) -> Option<u16> {
        Some(self.refused.load(Ordering::Relaxed)).filter(|status| *status != 0)
    }

    /// Notes that a request's body is discarded after its response, until [`ConnectionState::end_drain`].
    pub fn begin_drain(&self) {
        self.drains.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a body that was discarded has ended, or has been given up.
    pub fn end_drain(&self) {
        self.drains.fetch_sub(1, Ordering::Relaxed);
        // Only the connection's own task can begin to wait for the next request.
        self.wake();
    }

    /// Sets the task that drives the connection.
    pub fn set_waker(&self, waker: &Waker) {
        *self.waker.lock() = Some(waker.clone());
    }

    /// Notes that the connection is gone.
    pub fn closed(&self) {
        self.gone.set(true);
        *self.waker.lock() = None;
        self.finish(ResponseEnd::Aborted);
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

/// Bytes of interim responses that may wait: a backend can send them without end.
const MOST_INTERIM: usize = 64 * 1024;

/// Where a prebuilt response waits for hyper's part of it.
#[derive(Debug, Default)]
pub struct PrebuiltSlot {
    /// What waits here will be taken.
    pub is_open: LoopFlag,
    // A load instead of a lock for every write.
    is_full: LoopFlag,
    waiting: Mutex<Option<Prebuilt>>,
}

impl PrebuiltSlot {
    /// From now on what waits here is taken with the next response, unless prebuilt responses are off.
    pub fn open(&self) {
        self.is_open.set(prebuilt::ENABLED.load(Ordering::Relaxed));
    }

    /// Completes the next response, where the slot is open.
    pub fn put(&self, response: Prebuilt) {
        *self.waiting.lock() = Some(response);
        self.is_full.set(true);
    }

    /// What completes the response that leaves now.
    pub fn take(&self) -> Option<Prebuilt> {
        self.is_full
            .take()
            .then(|| self.waiting.lock().take())
            .flatten()
    }
}

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

/// An interim (1xx) response, independent of the version of HTTP it is sent over.
#[derive(Debug)]
pub struct InterimResponse {
    /// Its status.
    pub status: StatusCode,
    /// Its headers, without those of the connection it came over.
    pub headers: HeaderMap,
}

impl InterimResponse {
    /// The 100 that asks the client for the body.
    pub fn proceed() -> Self {
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
            for piece in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                out.extend_from_slice(piece);
            }
        }
        out.extend_from_slice(b"\r\n");
    }

    /// About how long it is.
    fn length(&self) -> usize {
        let fields = self.headers.iter();
        let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + 4);
        fields.sum::<usize>() + "HTTP/1.1 103 Early Hints\r\n\r\n".len()
    }
}

/// Any connection that bytes can be read from and written to.
pub trait Duplex: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> Duplex for T {}

/// A tunnel from the client to a backend, once both have agreed on another protocol.
#[derive(Debug)]
pub struct Tunnel {
    /// The connection to the backend.
    pub far: Box<dyn Duplex>,
    /// How long both sides may be silent.
    pub idle_timeout: Duration,
    /// How long the backend may take to accept more.
    pub send_timeout: Duration,
    /// How long it may go on after a stop.
    pub grace: Duration,
    /// What lasts as long as the tunnel.
    pub guard: Box<dyn ResponseGuard>,
}

impl Tunnel {
    /// Closes the connection to the backend and tells the guard.
    pub fn finish(self, ending: ResponseEnd) {
        // First, so that the guard finds the backend free.
        drop(self.far);
        self.guard.finish(ending);
    }
}

/// A buffered response that is read while its client accepts nothing.
// A response is asked for its next piece when the client can take one. A buffered one is to be read while the client cannot,
// too, and only the connection notices that, in whose task all of it happens.
pub trait ReadAhead: fmt::Debug + Send + Sync {
    /// Reads what has come, as far as there is room for it; the task is woken when there is more to do.
    fn refill(&self, context: &mut Context<'_>);
}
