//! What is counted for the whole process: whatever belongs to no zone and no upstream.
//!
//! Every event loop counts in a cell of its own, a cache line away from the others', and a scrape adds them
//! up: two loops that counted in one place would take turns owning it at every request.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use http::StatusCode;

use super::Page;

/// The process's own.
pub static COUNTERS: Counters = Counters::new();

/// Counts of connections and requests.
#[derive(Debug)]
pub struct Counters {
    cells: [Cell; CELLS],
}

/// An open connection; counted as active until dropped.
// Not `Clone`: a connection closes once.
#[derive(Debug)]
pub struct Connection<'a>(&'a Counters);

#[derive(Debug)]
#[repr(align(128))]
struct Cell {
    accepted: AtomicU64,
    closed: AtomicU64,
    requests: [AtomicU64; STATUSES.len()],
    refused_heads: [AtomicU64; REFUSALS.len()],
    handshakes: [AtomicU64; HANDSHAKES.len()],
    floods: [AtomicU64; FLOODS.len()],
    refused_proxy_headers: [AtomicU64; PROXY_HEADERS.len()],
    crowded: [AtomicU64; CROWDS.len()],
    evicted: AtomicU64,
    slow: [AtomicU64; SLOW.len()],
}

/// Why a connection was closed for want of a PROXY header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHeader {
    /// It ended first.
    Broken = 0,
    /// Something else came.
    Malformed = 1,
    /// It did not come in time.
    TimedOut = 2,
}

/// Which cap a connection was one too many for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crowd {
    /// `max_connections`
    All = 0,
    /// `max_connections_per_address`
    Address = 1,
}

/// What a client was too slow with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slow {
    /// Taking its answer.
    Answer = 0,
    /// Sending its body.
    Body = 1,
}

/// How a TLS handshake with a client ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handshake {
    /// Without an agreement.
    Failed,
    /// With a new session.
    Full,
    /// With an earlier session taken up again.
    Resumed,
}

impl Counters {
    /// All at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            cells: [const { Cell::new() }; CELLS],
        }
    }

    /// Counts a connection, accepted now and active until what is returned is dropped.
    #[must_use]
    pub fn connect(&self) -> Connection<'_> {
        count(&self.mine().accepted);
        Connection(self)
    }

    /// Counts a request that is over; `None` where it was never answered.
    pub fn answer(&self, status: Option<StatusCode>) {
        let class = status.map_or(0, |status| usize::from(status.as_u16() / 100));
        // Statuses of a class nobody has defined stand with the unanswered.
        count(&self.mine().requests[if class < STATUSES.len() { class } else { 0 }]);
    }

    /// Counts a head that never became a request: 408 (it did not come in time), 431 (too large), or 400 (not HTTP).
    pub fn refuse_head(&self, status: StatusCode) {
        let refusal = REFUSALS
            .iter()
            .position(|(code, _)| *code == status.as_u16());
        count(&self.mine().refused_heads[refusal.unwrap_or(0)]);
    }

    /// Counts an HTTP/2 connection that was closed because its client went too far with this.
    pub fn flood(&self, kind: &str) {
        if let Some(kind) = FLOODS.iter().position(|known| *known == kind) {
            count(&self.mine().floods[kind]);
        }
    }

    /// Counts a connection that did not begin with the PROXY header it has to begin with.
    pub fn refuse_proxy_header(&self, why: ProxyHeader) {
        count(&self.mine().refused_proxy_headers[why as usize]);
    }

    /// Counts a connection that was closed at once because there were enough.
    pub fn turn_away(&self, crowd: Crowd) {
        count(&self.mine().crowded[crowd as usize]);
    }

    /// Counts an idle connection that was closed to make room for another.
    pub fn evict(&self) {
        count(&self.mine().evicted);
    }

    /// Counts a client that was given up because it fell behind its least rate.
    pub fn give_up(&self, slow: Slow) {
        count(&self.mine().slow[slow as usize]);
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.sum(|cell| &cell.accepted)
    }

    /// Connections open now.
    #[must_use]
    pub fn active(&self) -> u64 {
        // Closed first: one that opens and closes between the two readings then counts as active, never as minus one.
        let closed = self.sum(|cell| &cell.closed);
        self.accepted().saturating_sub(closed)
    }

    /// Requests that are over.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.by_status().map(|(_, count)| count).sum()
    }

    /// The same by the class of the answer's status.
    pub fn by_status(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let classes = STATUSES.iter().enumerate();
        classes.map(|(class, status)| (*status, self.sum(|cell| &cell.requests[class])))
    }

    /// Writes them all.
    pub fn describe(&self, page: &mut Page) {
        page.counter(
            "weir_connections_accepted_total",
            "Client connections accepted.",
            &[],
            self.accepted(),
        );
        page.gauge(
            "weir_connections_active",
            "Client connections open now.",
            &[],
            self.active(),
        );
        for (status, count) in self.by_status() {
            page.counter(
                "weir_requests_total",
                "Requests that are over, by the class of the answer's status; none where the client got no answer.",
                &[("status", status)],
                count,
            );
        }
        for (refusal, (_, status)) in REFUSALS.iter().enumerate() {
            page.counter(
                "weir_heads_refused_total",
                "Request heads that were malformed (400), late (408), too large (413, 414, 431) or of another version (505).",
                &[("status", status)],
                self.sum(|cell| &cell.refused_heads[refusal]),
            );
        }
        for (index, result) in HANDSHAKES.iter().enumerate() {
            page.counter(
                "weir_tls_handshakes_total",
                "TLS handshakes with clients: with a new session, with one taken up again, or failed.",
                &[("result", result)],
                self.sum(|cell| &cell.handshakes[index]),
            );
        }
        self.describe_unwelcome(page);
        self.describe_floods(page);
    }

    fn describe_floods(&self, page: &mut Page) {
        for (index, kind) in FLOODS.iter().enumerate() {
            page.counter(
                "weir_http2_floods_total",
                "HTTP/2 connections closed because the client sent too much of what costs it nothing.",
                &[("kind", kind)],
                self.sum(|cell| &cell.floods[index]),
            );
        }
    }

    /// Counts a TLS handshake with a client.
    pub fn handshake(&self, handshake: Handshake) {
        count(&self.mine().handshakes[handshake as usize]);
    }

    fn describe_unwelcome(&self, page: &mut Page) {
        for (index, reason) in PROXY_HEADERS.iter().enumerate() {
            page.counter(
                "weir_proxy_headers_refused_total",
                "Connections closed because their PROXY header was malformed, late or not whole.",
                &[("reason", reason)],
                self.sum(|cell| &cell.refused_proxy_headers[index]),
            );
        }
        for (index, cap) in CROWDS.iter().enumerate() {
            page.counter(
                "weir_connections_refused_total",
                "Connections closed at once because there were as many as allowed.",
                &[("cap", cap)],
                self.sum(|cell| &cell.crowded[index]),
            );
        }
        page.counter(
            "weir_connections_evicted_total",
            "Idle connections closed to make room for others.",
            &[],
            self.sum(|cell| &cell.evicted),
        );
        for (index, what) in SLOW.iter().enumerate() {
            page.counter(
                "weir_slow_clients_total",
                "Clients given up because they fell behind the least rate for what they sent or took.",
                &[("with", what)],
                self.sum(|cell| &cell.slow[index]),
            );
        }
    }

    fn mine(&self) -> &Cell {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % CELLS;
        }
        &self.cells[MINE.try_with(|mine| *mine).unwrap_or(0)]
    }

    fn sum(&self, counter: impl Fn(&Cell) -> &AtomicU64) -> u64 {
        self.cells
            .iter()
            .map(|cell| counter(cell).load(Ordering::Relaxed))
            .sum()
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        count(&self.0.mine().closed);
    }
}

impl Cell {
    const fn new() -> Self {
        Self {
            accepted: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            requests: [const { AtomicU64::new(0) }; STATUSES.len()],
            refused_heads: [const { AtomicU64::new(0) }; REFUSALS.len()],
            handshakes: [const { AtomicU64::new(0) }; HANDSHAKES.len()],
            floods: [const { AtomicU64::new(0) }; FLOODS.len()],
            refused_proxy_headers: [const { AtomicU64::new(0) }; PROXY_HEADERS.len()],
            crowded: [const { AtomicU64::new(0) }; CROWDS.len()],
            evicted: AtomicU64::new(0),
            slow: [const { AtomicU64::new(0) }; SLOW.len()],
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// More loops than this share cells, which is slower and still right.
const CELLS: usize = 32;

/// By class: the index is the status's first digit.
const STATUSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// In the order of [`Handshake`].
const HANDSHAKES: [&str; 3] = ["failed", "full", "resumed"];

const REFUSALS: [(u16, &str); 6] = [
    (400, "400"),
    (408, "408"),
    (413, "413"),
    (414, "414"),
    (431, "431"),
    (505, "505"),
];

/// What clients go too far with.
const FLOODS: [&str; 7] = [
    "empty_data",
    "headers",
    "ping",
    "priority",
    "reset",
    "settings",
    "window_update",
];

/// By [`ProxyHeader`].
const PROXY_HEADERS: [&str; 3] = ["broken", "malformed", "timeout"];

/// By [`Crowd`], as the configuration calls them.
const CROWDS: [&str; 2] = ["max_connections", "max_connections_per_address"];

/// By [`Slow`].
const SLOW: [&str; 2] = ["answer", "body"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_active_until_dropped() {
        let counters = Counters::new();
        let first = counters.connect();
        let second = counters.connect();
        assert_eq!((counters.accepted(), counters.active()), (2, 2));
        drop(first);
        assert_eq!((counters.accepted(), counters.active()), (2, 1));
        drop(second);
        assert_eq!(counters.active(), 0);
    }

    #[test]
    fn a_connection_may_be_closed_by_another_thread() {
        let counters = Counters::new();
        std::thread::scope(|scope| {
            let connection = counters.connect();
            scope.spawn(move || drop(connection));
        });
        assert_eq!((counters.accepted(), counters.active()), (1, 0));
    }

    #[test]
    fn requests_are_told_apart_by_class() {
        let counters = Counters::new();
        for status in [200, 204, 429, 999] {
            counters.answer(StatusCode::from_u16(status).ok());
        }
        counters.answer(None);
        counters.refuse_head(StatusCode::REQUEST_TIMEOUT);
        counters.refuse_head(StatusCode::BAD_REQUEST);
        let mut page = Page::new();
        counters.describe(&mut page);
        let text = page.finish();
        for line in [
            "weir_requests_total{status=\"none\"} 2",
            "weir_requests_total{status=\"2xx\"} 2",
            "weir_requests_total{status=\"4xx\"} 1",
            "weir_requests_total{status=\"5xx\"} 0",
            "weir_heads_refused_total{status=\"400\"} 1",
            "weir_heads_refused_total{status=\"408\"} 1",
            "weir_heads_refused_total{status=\"431\"} 0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        assert_eq!(counters.requests(), 5);
    }
}
