//! Connections that do not speak what was agreed on, or what is spoken here.

use std::future::poll_fn;
use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;

use super::canned::refusal;
use super::linger::LingeringClose;
use super::{DownstreamSocket, Handler};
use crate::message::ClientConnection;

/// Why a connection ends before its first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProtocolMismatch {
    /// HTTP/2 was agreed on, or begun, and its preface did not come.
    Preface,
    /// It speaks HTTP/2, which is not spoken here, or not what was agreed on.
    Version,
}

impl ProtocolMismatch {
    /// Tells the client and closes the connection.
    pub(super) async fn refuse<H: Handler>(
        self,
        mut socket: DownstreamSocket,
        peer: &Arc<ClientConnection>,
        handler: &H,
    ) {
        let (status, told) = match self {
            Self::Preface => (400, Some(GOAWAY)),
            Self::Version => (505, refusal(505)),
        };
        handler.refused_head(peer, status);
        let told = told.unwrap_or_default();
        let telling = async {
            socket.write_all(told).await?;
            peer.line.add_sent(told.len());
            socket.shutdown().await
        };
        let pause = peer.line.lingering_timeout();
        if let Ok(Ok(())) = tokio::time::timeout(pause, telling).await {
            let mut linger = LingeringClose::new(pause);
            poll_fn(|context| linger.poll_over(&mut socket, context)).await;
        }
    }
}

/// The server's preface, which is a SETTINGS frame without any, and a GOAWAY frame: no stream was looked at,
/// PROTOCOL_ERROR.
const GOAWAY: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01";
