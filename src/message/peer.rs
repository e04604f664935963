//! Who is calling: everything known of a connection's two ends before it says a word.
//!
//! Made once per connection, so that no request formats an address or builds a key again.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

use super::Line;
use super::doubt::Doubts;
use crate::clock::Millis;

/// A client's connection.
#[derive(Debug)]
pub struct Peer {
    /// The other end.
    pub remote: Remote,
    /// Our end; `None` on a unix socket.
    pub local: Option<SocketAddr>,
    /// `$connection`: its serial number.
    pub connection: u64,
    /// When it was accepted.
    pub opened: Millis,
    /// What the road and the connection tell each other.
    pub line: Line,
    /// Which of its requests must not be believed.
    pub doubts: Doubts,
    text: Box<str>,
    binary: ([u8; 16], u8),
    requests: AtomicU64,
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remote {
    /// An address; one of IPv4 mapped into IPv6 is kept as IPv4.
    Ip(SocketAddr),
    /// Somebody on a unix socket.
    Unix,
}

impl Peer {
    /// A connection that has just been accepted.
    #[must_use]
    pub fn new(remote: Remote, local: Option<SocketAddr>, connection: u64, opened: Millis) -> Self {
        let remote = match remote {
            Remote::Ip(address) => {
                Remote::Ip(SocketAddr::new(address.ip().to_canonical(), address.port()))
            }
            Remote::Unix => Remote::Unix,
        };
        let (text, binary): (Box<str>, _) = match remote {
            Remote::Ip(address) => (address.ip().to_string().into(), binary(address.ip())),
            // nginx's text for both variables: all who come over a unix socket share one key.
            Remote::Unix => ("unix:".into(), padded(b"unix:")),
        };
        Self {
            remote,
            local,
            connection,
            opened,
            line: Line::new(),
            doubts: Doubts::default(),
            text,
            binary,
            requests: AtomicU64::new(0),
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

    /// The client's address, if it has one.
    pub fn ip(&self) -> Option<IpAddr> {
        match self.remote {
            Remote::Ip(address) => Some(address.ip()),
            Remote::Unix => None,
        }
    }

    /// `$remote_addr`
    pub fn text(&self) -> &str {
        &self.text
    }

    /// `$binary_remote_addr`
    pub fn binary(&self) -> &[u8] {
        &self.binary.0[..usize::from(self.binary.1)]
    }
}

fn binary(address: IpAddr) -> ([u8; 16], u8) {
    match address {
        IpAddr::V4(v4) => padded(&v4.octets()),
        IpAddr::V6(v6) => (v6.octets(), 16),
    }
}

fn padded(short: &[u8]) -> ([u8; 16], u8) {
    let mut bytes = [0; 16];
    bytes[..short.len()].copy_from_slice(short);
    (bytes, u8::try_from(short.len()).unwrap_or(16))
}
