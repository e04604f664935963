//! What is counted for each address that clients connect to: connections, handshakes, requests by version, and what was
//! no HTTP.
//!
//! A listener is known by its address, and so goes on counting where it was when the configuration is read again.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use http::{StatusCode, Version};
use parking_lot::Mutex;

use super::Exposition;
use super::cells::{PerLoop, count};

/// Counts of one listener. Those that nobody holds any more are forgotten.
#[derive(Debug)]
pub struct ListenerCounters {
    name: Box<str>,
    cells: PerLoop<ListenerCell>,
}

/// An open connection; counted as active until dropped.
// Not `Clone`: a connection closes once.
#[derive(Debug)]
pub struct ActiveConnection(Arc<ListenerCounters>);

#[derive(Debug, Default)]
struct ListenerCell {
    accepted: AtomicU64,
    closed: AtomicU64,
    requests: [AtomicU64; VERSIONS.len()],
    refused_heads: [AtomicU64; REFUSALS.len()],
    handshakes: [AtomicU64; HANDSHAKES.len()],
    floods: [AtomicU64; FLOODS.len()],
    refused_proxy_headers: [AtomicU64; PROXY_HEADERS.len()],
}

/// Why a connection was closed for want of a PROXY header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHeaderFailure {
    /// It ended first.
    Broken = 0,
    /// Something else came.
    Malformed = 1,
    /// It did not come in time.
    TimedOut = 2,
}

/// How a TLS handshake with a client ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeResult {
    /// Without an agreement.
    Failed = 0,
    /// With a new session.
    Full = 1,
    /// With an earlier session taken up again.
    Resumed = 2,
}

impl ListenerCounters {
    /// The one at this address, which goes on where it was if it is known.
    #[must_use]
    pub fn at(address: &str) -> Arc<Self> {
        let mut known = KNOWN.lock();
        if let Some(listener) = known.iter().find(|listener| *listener.name == *address) {
            return Arc::clone(listener);
        }
        let listener = Arc::new(Self {
            name: address.into(),
            cells: PerLoop::new(),
        });
        known.push(Arc::clone(&listener));
        listener
    }

    /// Counts a connection, accepted now and active until what is returned is dropped.
    #[must_use]
    pub fn connect(self: &Arc<Self>) -> ActiveConnection {
        count(&self.cells.mine().accepted);
        ActiveConnection(Arc::clone(self))
    }

    /// Counts a request whose head was read.
    #[inline]
    pub fn request(&self, version: Version) {
        let index = match version {
            Version::HTTP_2 => 2,
            Version::HTTP_11 => 1,
            _ => 0,
        };
        count(&self.cells.mine().requests[index]);
    }

    /// Counts a head that never became a request: 408 (it did not come in time), 431 (too large), or 400 (not HTTP).
    pub fn refuse_head(&self, status: StatusCode) {
        let refusal = REFUSALS
            .iter()
            .position(|(code, _)| *code == status.as_u16());
        count(&self.cells.mine().refused_heads[refusal.unwrap_or(0)]);
    }

    /// Counts a TLS handshake with a client.
    pub fn handshake(&self, handshake: HandshakeResult) {
        count(&self.cells.mine().handshakes[handshake as usize]);
    }

    /// Counts an HTTP/2 connection that was closed because its client went too far with this.
    pub fn flood(&self, kind: &str) {
        if let Some(kind) = FLOODS.iter().position(|known| *known == kind) {
            count(&self.cells.mine().floods[kind]);
        }
    }

    /// Counts a connection that did not begin with the PROXY header it has to begin with.
    pub fn refuse_proxy_header(&self, why: ProxyHeaderFailure) {
        count(&self.cells.mine().refused_proxy_headers[why as usize]);
    }

    /// Writes those of all listeners.
    pub fn describe_all(page: &mut Exposition) {
        let mut known = KNOWN.lock();
        known.retain(|listener| Arc::strong_count(listener) > 1);
        for listener in known.iter() {
            listener.describe(page);
        }
    }

    /// Connections of all listeners: accepted so far, and open now.
    #[must_use]
    pub fn connections() -> (u64, u64) {
        let known = KNOWN.lock();
        let each = known.iter().map(|it| (it.accepted(), it.active()));
        each.fold((0, 0), |(all, open), (accepted, active)| {
            (all + accepted, open + active)
        })
    }

    /// Connections accepted so far.
    fn accepted(&self) -> u64 {
        self.cells.sum(|cell| &cell.accepted)
    }

    /// Connections open now.
    fn active(&self) -> u64 {
        // Closed first: one that opens and closes between the two readings then counts as active, never as minus one.
        let closed = self.cells.sum(|cell| &cell.closed);
        self.accepted().saturating_sub(closed)
    }

    fn describe(&self, page: &mut Exposition) {
        let listener = ("listener", &*self.name);
        page.counter(
            "weir_connections_accepted_total",
            "Client connections accepted.",
            &[listener],
            self.accepted(),
        );
        page.gauge(
            "weir_connections_active",
            "Client connections open now.",
            &[listener],
            self.active(),
        );
        for (index, version) in VERSIONS.iter().enumerate() {
            page.counter(
                "weir_http_requests_total",
                "Requests that came, by their version of HTTP.",
                &[listener, ("version", version)],
                self.cells.sum(|cell| &cell.requests[index]),
            );
        }
        for (refusal, (_, status)) in REFUSALS.iter().enumerate() {
            page.counter(
                "weir_heads_refused_total",
                "Request heads that were malformed (400), late (408), too large (413, 414, 431) or of another version (505).",
                &[listener, ("status", status)],
                self.cells.sum(|cell| &cell.refused_heads[refusal]),
            );
        }
        for (index, result) in HANDSHAKES.iter().enumerate() {
            page.counter(
                "weir_tls_handshakes_total",
                "TLS handshakes with clients: with a new session, with one taken up again, or failed.",
                &[listener, ("result", result)],
                self.cells.sum(|cell| &cell.handshakes[index]),
            );
        }
        for (index, reason) in PROXY_HEADERS.iter().enumerate() {
            page.counter(
                "weir_proxy_headers_refused_total",
                "Connections closed because their PROXY header was malformed, late or not whole.",
                &[listener, ("reason", reason)],
                self.cells.sum(|cell| &cell.refused_proxy_headers[index]),
            );
        }
        for (index, kind) in FLOODS.iter().enumerate() {
            page.counter(
                "weir_http2_floods_total",
                "HTTP/2 connections closed because the client sent too much of what costs it nothing.",
                &[listener, ("kind", kind)],
                self.cells.sum(|cell| &cell.floods[index]),
            );
        }
    }
}

impl Drop for ActiveConnection {
    fn drop(&mut self) {
        count(&self.0.cells.mine().closed);
    }
}

static KNOWN: Mutex<Vec<Arc<ListenerCounters>>> = Mutex::new(Vec::new());

/// What requests come in; whatever is not HTTP/1.1 or HTTP/2 is served as HTTP/1.0.
const VERSIONS: [&str; 3] = ["1.0", "1.1", "2"];

/// In the order of [`HandshakeResult`].
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

/// By [`ProxyHeaderFailure`].
const PROXY_HEADERS: [&str; 3] = ["broken", "malformed", "timeout"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_active_until_dropped() {
        let listener = ListenerCounters::at("192.0.2.1:1");
        let first = listener.connect();
        let second = listener.connect();
        assert_eq!((listener.accepted(), listener.active()), (2, 2));
        drop(first);
        assert_eq!((listener.accepted(), listener.active()), (2, 1));
        drop(second);
        assert_eq!(listener.active(), 0);
    }

    #[test]
    fn a_connection_may_be_closed_by_another_thread() {
        let listener = ListenerCounters::at("192.0.2.1:2");
        let connection = listener.connect();
        std::thread::scope(|scope| {
            scope.spawn(move || drop(connection));
        });
        assert_eq!((listener.accepted(), listener.active()), (1, 0));
    }

    #[test]
    fn an_address_is_one_listener_and_forgotten_when_nobody_listens_there() {
        let listener = ListenerCounters::at("192.0.2.1:3");
        ListenerCounters::at("192.0.2.1:3").request(Version::HTTP_2);
        listener.refuse_head(StatusCode::REQUEST_TIMEOUT);
        let page = || {
            let mut page = Exposition::new();
            ListenerCounters::describe_all(&mut page);
            page.finish()
        };
        let text = page();
        for line in [
            "weir_http_requests_total{listener=\"192.0.2.1:3\",version=\"2\"} 1",
            "weir_http_requests_total{listener=\"192.0.2.1:3\",version=\"1.1\"} 0",
            "weir_heads_refused_total{listener=\"192.0.2.1:3\",status=\"400\"} 0",
            "weir_heads_refused_total{listener=\"192.0.2.1:3\",status=\"408\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        drop(listener);
        assert!(!page().contains("192.0.2.1:3"));
    }
}
