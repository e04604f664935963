//! The streams of a connection, known by their numbers: where bytes on the socket and requests on the road meet.
//!
//! h2 stands between the two and tells neither when the last byte of an answer has left. Its frames do, so whoever
//! watches them says here which stream they were for.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::budget::{FloodBudgets, FloodKind};
use crate::message::ClientConnection;
use crate::message::frames::{FrameHeader, FrameType};

/// What the socket and the streams of a connection share. All of it stays in one event loop.
#[derive(Debug)]
pub(super) struct StreamTable(Mutex<StreamTableInner>);

#[derive(Debug)]
struct StreamTableInner {
    streams: BTreeMap<u32, Arc<ClientConnection>>,
    budgets: FloodBudgets,
    state: ConnectionSignals,
    // The client was told that it has done something wrong.
    told_off: bool,
    // Streams of which something malformed has come, and which have not begun here.
    malformed: Vec<u32>,
}

/// What the connection has to know.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ConnectionSignals {
    /// The client has gone too far.
    pub(super) flood: Option<FloodKind>,
    /// A head has begun to come and is not complete.
    pub(super) within_head: bool,
    /// No stream is under way.
    pub(super) idle: bool,
    /// The connection is to end after the streams it has.
    pub(super) last: bool,
    /// Heads that h2 has answered itself, because they were too large.
    pub(super) oversized: u32,
    /// Streams that were reset, or the connection ended, because what came was no request.
    pub(super) malformed: u32,
}

impl StreamTable {
    /// For a connection that may reset so many streams at once.
    pub(super) fn new(resets: u32) -> Self {
        Self(Mutex::new(StreamTableInner {
            streams: BTreeMap::new(),
            budgets: FloodBudgets::new(resets, Instant::now()),
            state: ConnectionSignals::default(),
            told_off: false,
            malformed: Vec::new(),
        }))
    }

    /// A stream begins.
    pub(super) fn enter(&self, stream: u32, peer: Arc<ClientConnection>) {
        let mut inner = self.0.lock();
        if inner.malformed.contains(&stream) {
            peer.line.refuse(400);
        }
        // They begin in the order of their numbers: earlier ones never will.
        inner.malformed.retain(|malformed| *malformed > stream);
        inner.streams.insert(stream, peer);
    }

    /// A stream is over; `last` if the connection is to carry no more.
    pub(super) fn leave(&self, stream: u32, last: bool) {
        let mut inner = self.0.lock();
        inner.state.last |= last;
        inner.streams.remove(&stream);
    }

    /// A frame has come.
    pub(super) fn receive(&self, frame: FrameHeader) {
        let mut inner = self.0.lock();
        if let Err(flood) = inner.budgets.receive(frame) {
            inner.state.flood.get_or_insert(flood);
        }
        if !frame.malformed {
            return;
        }
        match inner.streams.get(&frame.stream) {
            Some(peer) => {
                peer.line.refuse(400);
                peer.line.wake();
            }
            None if inner.malformed.len() < MOST_MALFORMED => inner.malformed.push(frame.stream),
            None => {
                inner.state.flood.get_or_insert(FloodKind::Resets);
            }
        }
    }

    /// Whether more of a head has to come.
    pub(super) fn set_within_head(&self, within: bool) {
        self.0.lock().state.within_head = within;
    }

    /// A frame has left.
    pub(super) fn send(&self, frame: FrameHeader) {
        let mut inner = self.0.lock();
        if let Err(flood) = inner.budgets.send(frame) {
            inner.state.flood.get_or_insert(flood);
        }
        if frame.stream == 0 {
            inner.told_off |= frame.kind == FrameType::GoAway && frame.code() != 0;
            inner.state.malformed += u32::from(frame.says_malformed());
            return;
        }
        let Some(peer) = inner.streams.get(&frame.stream) else {
            inner.state.oversized += u32::from(frame.kind == FrameType::Headers);
            inner.state.malformed += u32::from(frame.says_malformed());
            return;
        };
        peer.line.add_sent(frame.size());
        let over = frame.ends_stream() || frame.kind == FrameType::Reset;
        let peer = over.then(|| inner.streams.remove(&frame.stream)).flatten();
        drop(inner);
        if let Some(peer) = peer {
            if frame.kind == FrameType::Reset {
                peer.line.closed();
            } else {
                peer.line.flushed();
                peer.line.wake();
            }
        }
    }

    /// How things stand; what has to be told once is told once.
    pub(super) fn take_state(&self) -> ConnectionSignals {
        let mut inner = self.0.lock();
        let state = ConnectionSignals {
            idle: inner.streams.is_empty(),
            ..inner.state
        };
        inner.state.oversized = 0;
        inner.state.malformed = 0;
        state
    }

    /// Whether no stream is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.0.lock().streams.is_empty()
    }

    /// Whether the client was told that it has done something wrong.
    pub(super) fn has_told_off(&self) -> bool {
        self.0.lock().told_off
    }

    /// What h2 has had enough of.
    pub(super) fn suspect(&self) -> FloodKind {
        self.0.lock().budgets.suspect()
    }

    /// The connection is gone, and all its streams with it.
    pub(super) fn close(&self) {
        let streams = std::mem::take(&mut self.0.lock().streams);
        for peer in streams.values() {
            peer.line.closed();
        }
    }
}

/// How many of them may be waited for.
const MOST_MALFORMED: usize = 256;
