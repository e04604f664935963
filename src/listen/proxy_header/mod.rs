//! The PROXY protocol, versions 1 and 2: a proxy that passes a connection on says first whose it was.
//!
//! The header is read before anything else looks at the socket, and not a byte beyond it, so that nothing has to be
//! given back to whoever reads next, be it TLS or HTTP: the parser says how many bytes more belong to the header for
//! certain, and only those are asked for. Of version 2 that is all of it at once, of a line of version 1 what its
//! fields come to at least.

mod checksum;
mod parse;
#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::Stream;
use crate::message::ProxyHeader;
pub use parse::{ParseOutcome, ProxyHeaderError, parse};

/// Why a connection did not begin with a PROXY header.
#[derive(Debug, thiserror::Error)]
pub enum ProxyReadError {
    /// The connection broke, or ended before the header did.
    #[error("the connection ended before its PROXY header did")]
    Broken(#[source] io::Error),
    /// Something else came; usually from a client that speaks HTTP to a listener meant for a proxy.
    #[error("broken PROXY header: {0}")]
    Malformed(#[from] ProxyHeaderError),
    /// It took longer than a request's head may.
    #[error("no whole PROXY header in time")]
    TimedOut,
}

/// Reads the header a connection begins with, within `timeout` in all; `None` where it names nobody.
///
/// # Errors
/// When there is none, and the connection is of no use.
pub async fn read(
    stream: &mut Stream,
    timeout: Duration,
) -> Result<Option<ProxyHeader>, ProxyReadError> {
    let reading = async {
        match stream {
            Stream::Tcp(stream) => read_from(stream).await,
            Stream::Unix(stream) => read_from(stream).await,
        }
    };
    tokio::time::timeout(timeout, reading)
        .await
        .unwrap_or(Err(ProxyReadError::TimedOut))
}

async fn read_from(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<ProxyHeader>, ProxyReadError> {
    let mut header = Vec::new();
    loop {
        let wanted = match parse(&header)? {
            ParseOutcome::Whole { says, .. } => return Ok(says),
            ParseOutcome::Part { wanted } => wanted,
        };
        let read = header.len();
        header.resize(wanted, 0);
        let count = stream.read(&mut header[read..]).await;
        match count.map_err(ProxyReadError::Broken)? {
            0 => return Err(ProxyReadError::Broken(io::ErrorKind::UnexpectedEof.into())),
            count => header.truncate(read + count),
        }
    }
}
