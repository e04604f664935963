//! Who is calling: everything known of a connection's two ends before it says a word.
//!
//! Made once per connection. Who a request comes from may be somebody else: where a trusted proxy holds the other end,
//! it carries the requests of many.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use parking_lot::Mutex;

use super::doubt::AmbiguityFlag;
use super::proxied::ProxyHeader;
use super::real_ip;
use super::{ClientAddr, ConnectionPhase, ConnectionState, RemoteAddr, TlsInfo};
use crate::clock::Millis;
use crate::config::plan::{RealIp, RealIpHeader};

/// A client's connection.
#[derive(Debug)]
pub struct ClientConnection {
    /// The other end.
    pub client: ClientAddr,
    /// Our end; `None` on a unix socket.
    pub local: Option<SocketAddr>,
    /// `$connection`: its serial number.
    pub connection: u64,
    /// When it was accepted.
    pub opened: Millis,
    /// What the road and the connection tell each other.
    pub line: ConnectionState,
    // Boxed: a connection without TLS has no room for it.
    tls: OnceLock<Box<TlsInfo>>,
    /// Which of its requests must not be believed.
    pub doubts: AmbiguityFlag,
    // Where this is one of many on a connection.
    stream_of: Option<Arc<Self>>,
    requests: AtomicU64,
    // When its last request came.
    asked: AtomicU64,
    leaving: AtomicBool,
    // What its PROXY header said.
    proxied: OnceLock<Box<ProxyHeader>>,
    // Whom a trusted proxy named last: it often is the same again.
    named: Mutex<Option<Arc<ClientAddr>>>,
}

impl ClientConnection {
    /// A connection that has just been accepted.
    #[must_use]
    pub fn new(
        remote: RemoteAddr,
        local: Option<SocketAddr>,
        connection: u64,
        opened: Millis,
    ) -> Self {
        Self {
            client: ClientAddr::new(remote),
            local,
            connection,
            opened,
            line: ConnectionState::new(),
            tls: OnceLock::new(),
            doubts: AmbiguityFlag::default(),
            stream_of: None,
            requests: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            proxied: OnceLock::new(),
            named: Mutex::new(None),
        }
    }

    /// Notes that it came inside TLS; once, before its first request.
    pub fn secured(&self, tls: TlsInfo) {
        // A second handshake on one connection does not exist.
        let _first = self.tls.set(Box::new(tls));
    }

    /// What is known of its TLS, if it came inside any.
    pub fn tls(&self) -> Option<&TlsInfo> {
        match &self.stream_of {
            Some(connection) => connection.tls(),
            None => self.tls.get().map(|tls| &**tls),
        }
    }

    /// The same client on one of the streams of its connection: as if it had made a connection for this one request,
    /// except for what is known of the whole.
    #[must_use]
    pub fn stream(connection: &Arc<Self>) -> Self {
        let stream = Self {
            client: connection.client,
            stream_of: Some(Arc::clone(connection)),
            ..Self::new(
                connection.client.remote(),
                connection.local,
                connection.connection,
                connection.opened,
            )
        };
        stream.line.adopt_timeouts(&connection.line);
        stream
    }

    /// Counts one more request and says how many that makes.
    pub fn count_request(&self, now: Millis) -> u64 {
        if let Some(connection) = &self.stream_of {
            return connection.count_request(now);
        }
        self.asked.store(now.0, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// `$connection_requests`
    pub fn requests(&self) -> u64 {
        match &self.stream_of {
            Some(connection) => connection.requests(),
            None => self.requests.load(Ordering::Relaxed),
        }
    }

    /// When a connection that has nothing to do had something to do last; `None` while it has.
    pub fn idle_since(&self) -> Option<Millis> {
        let asked = Millis(self.asked.load(Ordering::Relaxed));
        match self.line.phase() {
            ConnectionPhase::Idle => Some(asked),
            // It has asked nothing yet: a word or two do not keep a place.
            ConnectionPhase::Head => Some(self.opened.max(asked)),
            ConnectionPhase::Busy => None,
        }
    }

    /// Asks it to close if it is idle: somebody else needs the place.
    pub fn ask_to_leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        self.line.wake();
    }

    /// Whether it was asked to leave.
    pub fn is_asked_to_leave(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// It does not leave; whether it had been asked to.
    pub fn stay(&self) -> bool {
        self.leaving.swap(false, Ordering::Relaxed)
    }

    /// What stands before its first byte: a PROXY header.
    pub fn set_proxied(&self, proxied: ProxyHeader) {
        // A connection begins once.
        let _first = self.proxied.set(Box::new(proxied));
    }

    /// What its PROXY header said, if it had one that says anything.
    pub fn proxied(&self) -> Option<&ProxyHeader> {
        match &self.stream_of {
            Some(connection) => connection.proxied(),
            None => self.proxied.get().map(|proxied| &**proxied),
        }
    }

    /// Whom its PROXY header names, if `rule` wants to know it from there and trusts the other end.
    pub fn introduced_by(&self, rule: &RealIp) -> Option<SocketAddr> {
        let asked = rule.header == RealIpHeader::ProxyProtocol;
        real_ip::find(rule, self, &HeaderMap::new())
            .flatten()
            .filter(|_| asked)
    }

    /// Whether `rule` trusts the other end to name others.
    pub fn is_trusted_by(&self, rule: &RealIp) -> bool {
        real_ip::trusts(rule, self.client.ip())
    }

    /// Somebody else whose request comes over this connection.
    pub(super) fn speaks_for(&self, address: SocketAddr) -> Arc<ClientAddr> {
        if let Some(connection) = &self.stream_of {
            let client = connection.speaks_for(address);
            *self.named.lock() = Some(Arc::clone(&client));
            return client;
        }
        let mut named = self.named.lock();
        match &*named {
            // Only the very same address: nothing of one client is ever shown as another's.
            Some(last) if last.remote() == RemoteAddr::Ip(address) => Arc::clone(last),
            _ => Arc::clone(named.insert(Arc::new(ClientAddr::new(RemoteAddr::Ip(address))))),
        }
    }

    /// Whom its latest request came from, as far as anybody has said; for the log.
    pub fn caller(&self) -> Box<str> {
        match &*self.named.lock() {
            Some(client) => client.text().into(),
            None => self.text().into(),
        }
    }

    /// The other end's address, whoever it speaks for.
    pub fn text(&self) -> &str {
        self.client.text()
    }
}
