//! Who is calling: everything known of a connection's two ends before it says a word.
//!
//! Made once per connection. Who a request comes from may be somebody else: where a trusted proxy holds the other end,
//! it carries the requests of many.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::proxied::Proxied;
use super::{Client, Line, Remote};
use crate::clock::Millis;

/// A client's connection.
#[derive(Debug)]
pub struct Peer {
    /// The other end.
    pub client: Client,
    /// Our end; `None` on a unix socket.
    pub local: Option<SocketAddr>,
    /// `$connection`: its serial number.
    pub connection: u64,
    /// When it was accepted.
    pub opened: Millis,
    /// What the road and the connection tell each other.
    pub line: Line,
    requests: AtomicU64,
    // What its PROXY header said.
    proxied: OnceLock<Box<Proxied>>,
    // Whom a trusted proxy named last: it often is the same again.
    named: Mutex<Option<Arc<Client>>>,
}

/// Who asks.
#[derive(Debug, Clone)]
pub enum Caller {
    /// Who holds the connection.
    Direct(Arc<Peer>),
    /// Somebody it speaks for.
    Named(Arc<Client>),
}

impl Caller {
    /// `$remote_addr`
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Direct(peer) => peer.text(),
            Self::Named(client) => client.text(),
        }
    }
}

impl Peer {
    /// A connection that has just been accepted.
    #[must_use]
    pub fn new(remote: Remote, local: Option<SocketAddr>, connection: u64, opened: Millis) -> Self {
        Self {
            client: Client::new(remote),
            local,
            connection,
            opened,
            line: Line::new(),
            requests: AtomicU64::new(0),
            proxied: OnceLock::new(),
            named: Mutex::new(None),
        }
    }

    /// Counts one more request and says how many that makes.
    pub fn count_request(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// `$connection_requests`
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// What stands before its first byte: a PROXY header.
    pub fn set_proxied(&self, proxied: Proxied) {
        // A connection begins once.
        let _first = self.proxied.set(Box::new(proxied));
    }

    /// What its PROXY header said, if it had one that says anything.
    pub fn proxied(&self) -> Option<&Proxied> {
        self.proxied.get().map(|proxied| &**proxied)
    }

    /// Somebody else whose request comes over this connection.
    pub(super) fn speaks_for(&self, address: SocketAddr) -> Arc<Client> {
        let mut named = self.named.lock();
        match &*named {
            // Only the very same address: nothing of one client is ever shown as another's.
            Some(last) if last.remote() == Remote::Ip(address) => Arc::clone(last),
            _ => Arc::clone(named.insert(Arc::new(Client::new(Remote::Ip(address))))),
        }
    }

    /// The other end's address, whoever it speaks for.
    pub fn text(&self) -> &str {
        self.client.text()
    }
}
