//! Clients' connections become requests: HTTP/1 over hyper, HTTP/2 over h2.
//!
//! hyper reads requests and writes responses. What it does not have is added around the socket it is given: how long a
//! client may take, how to close without losing the response, interim responses, a client that leaves while its request
//! waits. One connection is one task on one event loop, and never leaves it.

mod connection;
mod http1;
mod http1_io;
mod http2;
mod request_scan;
mod slow_client;
#[cfg(test)]
mod tests;
mod tunnel;

use std::future::Future;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};

use crate::config::plan::{ClientSettings, Plan};
use crate::message::{ClientConnection, CloseConnection, IncomingBody};

pub use self::connection::connection;
pub use self::http1::check_prebuilt;
pub use self::http2::flood::FloodKind;
#[cfg(any(fuzzing, test))]
pub use self::http2::fuzzing;

/// Handles requests.
pub trait Handler: Clone + Send + Sync + 'static {
    /// The body of its responses.
    type Body: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static;

    /// Handles one request; dropped when the client leaves meanwhile.
    fn handle(
        &self,
        client: Arc<ClientConnection>,
        request: Request<IncomingBody>,
    ) -> impl Future<Output = Result<Response<Self::Body>, CloseConnection>> + Send;

    /// What came was not a request, and was refused with 400, 408, 413, 414, 431 or 505; for the log.
    fn refused_head(&self, _peer: &Arc<ClientConnection>, _status: u16) {}

    /// The client flooded the connection, which ends; for the log.
    fn flooded(&self, _peer: &ClientConnection, _flood: FloodKind) {}
}

/// What holds for a connection before its first request is known.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionSettings {
    /// How long the client may take.
    pub client: ClientSettings,
    /// How long it may take for the headers of a request.
    pub header_timeout: Duration,
    /// How long a request's headers may be, in bytes.
    pub max_head: u32,
    /// How many requests a client may have under way at once over HTTP/2; `None` where that is not spoken.
    pub streams: Option<NonZeroU16>,
    /// How many of them it may reset.
    pub resets: u16,
}

impl ConnectionSettings {
    /// Those of a listener: its default server's.
    pub fn of(plan: &Plan, listener: usize) -> Self {
        let server = plan.listeners[listener].default_server;
        let http2 = plan.http2(listener, server);
        let server = &plan.servers[server];
        Self {
            client: server.client,
            header_timeout: server.header_timeout,
            max_head: u32::try_from(server.max_head).unwrap_or(u32::MAX),
            streams: NonZeroU16::new(narrow(server.max_streams)).filter(|_| http2),
            resets: narrow(server.max_resets),
        }
    }
}

/// Limits a number to two bytes: every connection keeps it, and no client needs more.
fn narrow(number: u32) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

/// How long a connection that is idle at a stop may still turn out not to be: its client may have sent a request
/// before it could know. Short enough that a stop is not felt.
pub const LAST_CALL: Duration = Duration::from_millis(100);
