//! What is left of a request once both sides have agreed to speak something else: two connections, and bytes that go
//! from one to the other.
//!
//! The road finds the backend's end, `serve` has the client's. They meet at the connection's
//! [`Line`](super::Line): the road leaves the far end there, and `serve` takes it up when the 101 has left.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use super::{ResponseEnd, ResponseGuard};

/// A connection, whatever it is made of.
pub trait Duplex: AsyncRead + AsyncWrite + std::fmt::Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + std::fmt::Debug + Send + Unpin> Duplex for T {}

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
    pub tail: Box<dyn ResponseGuard>,
}

impl Tunnel {
    /// It is over.
    pub fn finish(self, ending: ResponseEnd) {
        // First, so that whoever is told finds the backend free.
        drop(self.far);
        self.tail.finish(ending);
    }
}
