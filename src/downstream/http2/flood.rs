//! Bounds on what an HTTP/2 client may send besides requests: so many frames a second of every kind that cost us work and it
//! nothing.
//!
//! h2 bounds what would cost memory (streams at once, the size and the frames of headers, resets that were not handled yet,
//! data in small pieces). What is left costs time only, and is bounded here. The numbers are far above what browsers and gRPC
//! clients send, and far below what an attack needs.
//!
//! [`StreamTable`] joins the frames on the socket and the streams of the requests by their numbers. h2 reports to neither when
//! the last byte of a response has left; the frames show it.

use std::collections::BTreeMap;
use std::sync::Arc;

use h2::Reason;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::message::{ClientConnection, FrameHeader, FrameType};

/// What a client sent too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloodKind {
    /// Data without data.
    EmptyData,
    /// Headers that are too large, or in too many pieces.
    Headers,
    /// PING.
    Pings,
    /// PRIORITY, and frames of unknown types.
    Priorities,
    /// Streams reset by the client, or by us because it broke the rules on them.
    Resets,
    /// SETTINGS.
    Settings,
    /// WINDOW_UPDATE.
    WindowUpdates,
}

/// All budgets of a connection.
#[derive(Debug)]
pub(super) struct FloodBudgets {
    empty_data: FloodBudget,
    pings: FloodBudget,
    priorities: FloodBudget,
    resets: FloodBudget,
    settings: FloodBudget,
    window_updates: FloodBudget,
    // PINGs of ours that it may acknowledge.
    pings_sent: u32,
    responses: u32,
}

#[derive(Debug)]
struct FloodBudget {
    left: u32,
    most: u32,
    per_second: u32,
    since: Instant,
}

impl FloodKind {
    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::EmptyData => "empty_data",
            Self::Headers => "headers",
            Self::Pings => "ping",
            Self::Priorities => "priority",
            Self::Resets => "reset",
            Self::Settings => "settings",
            Self::WindowUpdates => "window_update",
        }
    }
}

impl FloodBudgets {
    /// Those of a new connection that may reset so many streams at once.
    pub(super) fn new(resets: u32, now: Instant) -> Self {
        let budget = |most, per_second| FloodBudget {
            left: most,
            most,
            per_second,
            since: now,
        };
        Self {
            empty_data: budget(100, 10),
            pings: budget(1000, 100),
            priorities: budget(1000, 100),
            resets: budget(resets, (resets / 10).max(1)),
            settings: budget(100, 10),
            window_updates: budget(2000, 200),
            pings_sent: 0,
            responses: 0,
        }
    }

    /// Charges what the client has sent. The clock is asked only for what is charged.
    pub(super) fn receive(&mut self, frame: FrameHeader) -> Result<(), FloodKind> {
        let (budget, flood) = match frame.kind {
            FrameType::Data if frame.is_empty_data() => {
                (&mut self.empty_data, FloodKind::EmptyData)
            }
            FrameType::Ping if frame.acknowledges() && self.pings_sent > 0 => {
                self.pings_sent -= 1;
                return Ok(());
            }
            FrameType::Ping => (&mut self.pings, FloodKind::Pings),
            FrameType::Priority | FrameType::Other | FrameType::GoAway => {
                (&mut self.priorities, FloodKind::Priorities)
            }
            FrameType::Reset => (&mut self.resets, FloodKind::Resets),
            FrameType::Settings if !frame.acknowledges() => {
                (&mut self.settings, FloodKind::Settings)
            }
            FrameType::WindowUpdate => (&mut self.window_updates, FloodKind::WindowUpdates),
            _ => return Ok(()),
        };
        budget.spend(Instant::now()).ok_or(flood)
    }

    /// Notes what we have sent: resets that the client made us send are charged like its own, and what it has done
    /// properly earns it back.
    pub(super) fn send(&mut self, frame: FrameHeader) -> Result<(), FloodKind> {
        match frame.kind {
            FrameType::Reset if is_client_error(frame.code().into()) => {
                self.resets.spend(Instant::now()).ok_or(FloodKind::Resets)?;
            }
            // A client that receives data may send updates, for the stream and for the connection.
            FrameType::Data => self.window_updates.earn(4),
            FrameType::Ping if !frame.acknowledges() => {
                self.pings_sent = self.pings_sent.saturating_add(1);
            }
            _ => {}
        }
        if frame.ends_stream() {
            // Not every response: a client that gets a cheap one for each reset could go on for ever.
            self.responses = (self.responses + 1) % RESPONSES_PER_RESET;
            self.resets.earn(u32::from(self.responses == 0));
        }
        Ok(())
    }

    /// What the client has most likely sent too much of, where h2 ended the connection.
    pub(super) fn likely_flood(&self) -> FloodKind {
        if self.empty_data.left < self.empty_data.most {
            FloodKind::EmptyData
        } else if self.resets.left < self.resets.most {
            FloodKind::Resets
        } else {
            FloodKind::Headers
        }
    }
}

impl FloodBudget {
    fn spend(&mut self, now: Instant) -> Option<()> {
        let millis = now.saturating_duration_since(self.since).as_millis();
        let due = u128::from(self.per_second) * millis / 1000;
        if due > 0 {
            self.since = now;
            self.earn(u32::try_from(due).unwrap_or(u32::MAX));
        }
        self.left = self.left.checked_sub(1)?;
        Some(())
    }

    fn earn(&mut self, more: u32) {
        self.left = self.left.saturating_add(more).min(self.most);
    }
}

/// So many complete responses make up for one reset.
const RESPONSES_PER_RESET: u32 = 4;

/// Whether a reset of ours is due to a client that broke the rules: CVE-2025-8671 makes a server reset streams that it goes on
/// working for. Errors of upstreams, and streams given up here, are reset with other codes.
fn is_client_error(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::PROTOCOL_ERROR
            | Reason::FLOW_CONTROL_ERROR
            | Reason::STREAM_CLOSED
            | Reason::FRAME_SIZE_ERROR
            | Reason::REFUSED_STREAM
    )
}

/// What the socket and the streams of a connection share. All of it stays in one event loop.
#[derive(Debug)]
pub(super) struct StreamTable(Mutex<StreamTableInner>);

#[derive(Debug)]
struct StreamTableInner {
    streams: BTreeMap<u32, Arc<ClientConnection>>,
    budgets: FloodBudgets,
    state: ConnectionSignals,
    // The client was sent a GOAWAY with an error.
    sent_error: bool,
    // Streams of which something malformed has come, and which have not begun here.
    malformed: Vec<u32>,
}

/// What the connection has to know.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ConnectionSignals {
    /// The client has gone too far.
    pub(super) flood: Option<FloodKind>,
    /// Headers have begun to come and are not complete.
    pub(super) within_head: bool,
    /// No stream is under way.
    pub(super) idle: bool,
    /// The connection is to end after the streams it has.
    pub(super) last: bool,
    /// Requests that h2 has refused itself, because their headers were too large.
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
            sent_error: false,
            malformed: Vec::new(),
        }))
    }

    /// A stream begins.
    pub(super) fn enter(&self, stream: u32, client: Arc<ClientConnection>) {
        let mut inner = self.0.lock();
        if inner.malformed.contains(&stream) {
            client.state.refuse(400);
        }
        // They begin in the order of their numbers: earlier ones never will.
        inner.malformed.retain(|malformed| *malformed > stream);
        inner.streams.insert(stream, client);
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
            Some(client) => {
                client.state.refuse(400);
                client.state.wake();
            }
            None if inner.malformed.len() < MOST_MALFORMED => inner.malformed.push(frame.stream),
            None => {
                inner.state.flood.get_or_insert(FloodKind::Resets);
            }
        }
    }

    /// Sets whether headers are incomplete.
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
            inner.sent_error |= frame.kind == FrameType::GoAway && frame.code() != 0;
            inner.state.malformed += u32::from(frame.reports_malformed());
            return;
        }
        let Some(client) = inner.streams.get(&frame.stream) else {
            inner.state.oversized += u32::from(frame.kind == FrameType::Headers);
            inner.state.malformed += u32::from(frame.reports_malformed());
            return;
        };
        client.state.sent.add(frame.size());
        let over = frame.ends_stream() || frame.kind == FrameType::Reset;
        let client = over.then(|| inner.streams.remove(&frame.stream)).flatten();
        drop(inner);
        if let Some(client) = client {
            if frame.kind == FrameType::Reset {
                client.state.closed();
            } else {
                client.state.flushed();
                client.state.wake();
            }
        }
    }

    /// The signals; counts are reset.
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

    /// Whether the client was sent a GOAWAY with an error.
    pub(super) fn has_sent_error(&self) -> bool {
        self.0.lock().sent_error
    }

    /// What h2 has most likely ended the connection for.
    pub(super) fn likely_flood(&self) -> FloodKind {
        self.0.lock().budgets.likely_flood()
    }

    /// The connection is gone, and all its streams with it.
    pub(super) fn close(&self) {
        let streams = std::mem::take(&mut self.0.lock().streams);
        for client in streams.values() {
            client.state.closed();
        }
    }
}

/// How many of them may be waited for.
const MOST_MALFORMED: usize = 256;

#[cfg(test)]
mod tests {

    use std::time::Duration;

    use super::*;
    use crate::message::FrameScanner;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> FrameHeader {
        let mut bytes = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, 1];
        bytes.extend(payload);
        FrameScanner::from_server().next(&mut &bytes[..]).unwrap()
    }

    fn reset(code: u8) -> FrameHeader {
        frame(3, 0, &[0, 0, 0, code])
    }

    fn budgets() -> FloodBudgets {
        FloodBudgets::new(256, Instant::now())
    }

    /// How many of a frame pass at once.
    fn most(frame: FrameHeader) -> usize {
        let mut budgets = budgets();
        (0..10_000)
            .take_while(|_| budgets.receive(frame).is_ok())
            .count()
    }

    #[tokio::test(start_paused = true)]
    async fn everything_that_costs_nothing_to_send_has_an_end() {
        for (frame, bound) in [
            (frame(0, 0, b""), 100),
            (frame(2, 0, b"12345"), 1000),
            (reset(8), 256),
            (frame(4, 0, b""), 100),
            (frame(6, 0, b"12345678"), 1000),
            (frame(8, 0, b"1234"), 2000),
            (frame(99, 0, b""), 1000),
        ] {
            assert_eq!(most(frame), bound, "{frame:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_we_asked_for_and_what_carries_something_is_free() {
        for frame in [
            frame(0, 0, b"x"),
            frame(0, 1, b""),
            frame(1, 4, b""),
            frame(4, 1, b""),
        ] {
            assert_eq!(most(frame), 10_000, "{frame:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn resets_that_we_are_made_to_send_count_as_the_clients_own() {
        for (code, bound) in [
            (0, 1000),
            (1, 256),
            (2, 1000),
            (3, 256),
            (7, 256),
            (8, 1000),
        ] {
            let mut budgets = budgets();
            let sent = (0..1000).take_while(|_| budgets.send(reset(code)).is_ok());
            assert_eq!(sent.count(), bound, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_four_answers_may_reset_one_more() {
        for (responses, goes_on) in [(1, false), (3, false), (4, true)] {
            let mut budgets = budgets();
            let going_on = (0..10_000).all(|_| {
                let answered = (0..responses).all(|_| budgets.send(frame(1, 5, b"")).is_ok());
                answered && budgets.receive(reset(8)).is_ok()
            });
            assert_eq!(going_on, goes_on, "{responses}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unsolicited_ping_acks_count_as_pings() {
        let answer = frame(6, 1, b"12345678");
        assert_eq!(most(answer), 1000);
        let mut budgets = budgets();
        for _ in 0..10_000 {
            assert_eq!(budgets.send(frame(6, 0, b"12345678")), Ok(()));
            assert_eq!(budgets.receive(answer), Ok(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_heals() {
        let mut budgets = budgets();
        while budgets.receive(reset(8)).is_ok() {}
        tokio::time::advance(Duration::from_millis(500)).await;
        let more = (0..100).take_while(|_| budgets.receive(reset(8)).is_ok());
        assert_eq!(more.count(), 12);
    }
}
