//! HTTP/2: many requests at once on one connection.
//!
//! h2 is used as it is, without hyper's server around it: weir needs the streams' numbers (to see when the last byte of a
//! response has left, and how many bytes it took), sends interim responses and trailers, and ends a stream that its client does
//! not read. Each stream is a task; all of them end with their connection.

pub(super) mod flood;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod stream;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::num::NonZeroU16;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::Connection;
use h2::{Reason, RecvStream, server};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::flood::{ConnectionSignals, StreamTable};
use self::stream::StreamGuard;
use super::slow_client::{LingeringClose, SendLimit};
use super::{ConnectionSettings, Handler, LAST_CALL};
use crate::clock::Deadline;
use crate::message::{ClientConnection, ConnectionPhase, FrameScanner};
use crate::telemetry;
use crate::tls::Socket;

/// Serves one client, of which `ahead` has been read, until it leaves, floods, is too slow, or `stop` is cancelled and its last
/// response is out.
pub(super) async fn serve<H: Handler>(
    socket: Socket,
    ahead: Bytes,
    client: &Arc<ClientConnection>,
    settings: ConnectionSettings,
    handler: &H,
    stop: &CancellationToken,
) {
    let table = Arc::new(StreamTable::new(settings.resets.into()));
    let io = Http2Io {
        socket,
        ahead,
        client: Arc::clone(client),
        table: Arc::clone(&table),
        received: FrameScanner::from_client(),
        sent: FrameScanner::from_server(),
        writing: SendLimit::default(),
        linger: None,
    };
    let handshake = builder(&settings).handshake(io);
    let Ok(Ok(h2)) = tokio::time::timeout(settings.header_timeout, handshake).await else {
        return;
    };
    let mut connection = Http2Connection {
        h2,
        table,
        client,
        settings,
        handler,
        streams: JoinSet::new(),
        goaway: GoAwayState::Open,
        has_requested: false,
        head: Deadline::default(),
        idle_deadline: Deadline::default(),
        goaway_grace: GOAWAY_GRACE,
        close: Deadline::default(),
        close_timeout: CLOSE_TIMEOUT,
    };
    let mut stopping = std::pin::pin!(stop.cancelled());
    let mut stopped = false;
    poll_fn(|context| {
        if !stopped && stopping.as_mut().poll(context).is_ready() {
            stopped = true;
            connection.stop();
        }
        connection.poll_over(context)
    })
    .await;
}

/// A connection.
struct Http2Connection<'c, H> {
    h2: Connection<Http2Io, Bytes>,
    table: Arc<StreamTable>,
    client: &'c Arc<ClientConnection>,
    settings: ConnectionSettings,
    handler: &'c H,
    streams: JoinSet<()>,
    goaway: GoAwayState,
    // Whether there has been a request.
    has_requested: bool,
    // For headers that have begun to come.
    head: Deadline,
    // For the next request.
    idle_deadline: Deadline,
    // How long it may stay idle after a GOAWAY.
    goaway_grace: Duration,
    // For the client to leave after the last GOAWAY.
    close: Deadline,
    close_timeout: Duration,
}

/// How far its end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GoAwayState {
    Open,
    /// A first GOAWAY was sent; requests that have come are served.
    Draining,
    /// The last GOAWAY was sent.
    Closing,
}

impl<H: Handler> Http2Connection<'_, H> {
    /// Ready when the connection is over.
    fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            while let Some(accepted) = match self.h2.poll_accept(context) {
                Poll::Ready(accepted) => Some(accepted),
                Poll::Pending => None,
            } {
                match accepted {
                    Some(Ok((request, respond))) => self.begin(request, respond),
                    Some(Err(error)) => {
                        self.report_error(&error);
                        return Poll::Ready(());
                    }
                    None => return Poll::Ready(()),
                }
            }
            let before = self.goaway;
            let over = self.poll_goaway(context);
            // Otherwise there is a GOAWAY to be sent.
            if over.is_ready() || self.goaway == before {
                return over;
            }
        }
    }

    /// Reports what came and was not a request.
    fn report(&self, state: &ConnectionSignals) {
        for (times, status) in [(state.malformed, 400), (state.oversized, 431)] {
            for _ in 0..times {
                self.handler.refused_head(self.client, status);
            }
        }
    }

    fn begin(&mut self, request: Request<RecvStream>, respond: server::SendResponse<Bytes>) {
        self.has_requested = true;
        while self.streams.try_join_next().is_some() {}
        let number = respond.stream_id().as_u32();
        let guard = StreamGuard {
            number,
            client: Arc::new(ClientConnection::for_stream(self.client)),
            connection: Arc::clone(self.client),
            table: Arc::clone(&self.table),
        };
        if self.goaway != GoAwayState::Open {
            guard.client.state.closes_after_response.set(true);
        }
        // Before its task runs: however soon it is over, the connection was not idle.
        self.table.enter(number, Arc::clone(&guard.client));
        let (handler, connection) = (self.handler.clone(), self.client.serial);
        self.streams.spawn(async move {
            let running = Box::pin(stream::run(guard, request, respond, handler));
            telemetry::isolated(running, |panic| {
                tracing::error!(
                    connection,
                    number,
                    "a stream's task panicked and was ended: {panic}"
                );
            })
            .await;
        });
    }

    /// Looks for reasons to end the connection; ready when it need not be ended any more.
    fn poll_goaway(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let state = self.table.take_state();
        self.report(&state);
        if self.goaway == GoAwayState::Closing {
            self.close.start(self.close_timeout);
            return self.close.poll_passed(context);
        }
        if let Some(flood) = state.flood {
            self.handler.flooded(self.client, flood);
            self.close(Reason::ENHANCE_YOUR_CALM);
            return Poll::Pending;
        }
        if state.last && self.goaway == GoAwayState::Open {
            self.drain();
        }
        self.poll_timeouts(state.within_head, state.idle, context);
        Poll::Pending
    }

    /// Ends a connection whose client keeps us waiting.
    fn poll_timeouts(&mut self, within_head: bool, idle: bool, context: &mut Context<'_>) {
        if within_head {
            self.head.start(self.settings.header_timeout);
            if self.head.poll_passed(context).is_ready() {
                self.handler.refused_head(self.client, 408);
                return self.close(Reason::NO_ERROR);
            }
        } else {
            self.head.clear();
        }
        // For other connections that need its place.
        self.client
            .state
            .set_phase(match (idle, self.has_requested) {
                (true, true) => ConnectionPhase::Idle,
                (true, false) => ConnectionPhase::Head,
                (false, _) => ConnectionPhase::Busy,
            });
        if !idle {
            return self.idle_deadline.clear();
        }
        self.idle_deadline.start(match self.goaway {
            GoAwayState::Open if self.has_requested => self.client.state.keepalive_timeout.get(),
            GoAwayState::Open => self.settings.header_timeout,
            GoAwayState::Draining | GoAwayState::Closing => self.goaway_grace,
        });
        if self.idle_deadline.poll_passed(context).is_ready() {
            self.idle_deadline.clear();
            match self.goaway {
                GoAwayState::Open => self.drain(),
                GoAwayState::Draining | GoAwayState::Closing => self.close(Reason::NO_ERROR),
            }
        }
    }

    /// Stops: requests that have come are served, and an idle client is not waited for.
    fn stop(&mut self) {
        if self.table.is_idle() {
            self.goaway_grace = LAST_CALL;
        }
        self.close_timeout = LAST_CALL;
        match self.goaway {
            GoAwayState::Open => self.drain(),
            GoAwayState::Draining => self.idle_deadline.clear(),
            GoAwayState::Closing => self.close.clear(),
        }
    }

    /// Sends a first GOAWAY; requests that have come are served.
    fn drain(&mut self) {
        self.h2.graceful_shutdown();
        self.goaway = GoAwayState::Draining;
        self.idle_deadline.clear();
    }

    fn close(&mut self, reason: Reason) {
        self.h2.abrupt_shutdown(reason);
        self.goaway = GoAwayState::Closing;
    }

    /// The connection broke, or h2 has ended it.
    fn report_error(&self, error: &h2::Error) {
        self.report(&self.table.take_state());
        if self.goaway != GoAwayState::Closing
            && error.is_library()
            && error.reason() == Some(Reason::ENHANCE_YOUR_CALM)
        {
            self.handler.flooded(self.client, self.table.likely_flood());
        }
        let (connection, client) = (self.client.serial, self.client.addr.text());
        tracing::debug!(connection, client, %error, "connection ended");
    }
}

fn builder(settings: &ConnectionSettings) -> server::Builder {
    let mut builder = server::Builder::new();
    builder
        .max_concurrent_streams(settings.streams.map_or(1, NonZeroU16::get).into())
        .max_header_list_size(settings.max_head)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        // Theirs is for what lies unread, ours for all.
        .max_pending_accept_reset_streams(settings.resets.into());
    builder
}

/// What a client may send on one stream before it is read on.
const STREAM_WINDOW: u32 = 128 * 1024;
/// The same for all of them together: this much memory a connection may cost us at most.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// How much of a response may wait for the client to accept it.
const SEND_BUFFER: usize = 64 * 1024;
/// How long an idle client may take to leave after a GOAWAY.
const GOAWAY_GRACE: Duration = Duration::from_secs(1);
/// How long the last GOAWAY may take to arrive.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A socket that carries frames.
#[derive(Debug)]
struct Http2Io {
    socket: Socket,
    // What was read from the socket before h2 was there to read it.
    ahead: Bytes,
    client: Arc<ClientConnection>,
    table: Arc<StreamTable>,
    received: FrameScanner,
    sent: FrameScanner,
    writing: SendLimit,
    linger: Option<LingeringClose>,
}

impl Http2Io {
    /// Notes what was written, which is the front of these; ends waits as over HTTP/1.
    fn written<'b>(
        &mut self,
        written: Poll<io::Result<usize>>,
        slices: impl Iterator<Item = &'b [u8]>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.writing.poll_written(&self.client, written, context));
        let mut left = *written.as_ref().unwrap_or(&0);
        for slice in slices {
            let mut bytes = &slice[..left.min(slice.len())];
            left -= bytes.len();
            while let Some(frame) = self.sent.next(&mut bytes) {
                self.table.send(frame);
            }
            if left == 0 {
                break;
            }
        }
        Poll::Ready(written)
    }
}

impl AsyncRead for Http2Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        if this.ahead.is_empty() {
            ready!(Pin::new(&mut this.socket).poll_read(context, buffer))?;
            this.client
                .state
                .received
                .add(buffer.filled().len() - before);
        } else {
            let length = this.ahead.len().min(buffer.remaining());
            buffer.put_slice(&this.ahead.split_to(length));
        }
        let mut bytes = &buffer.filled()[before..];
        while let Some(frame) = this.received.next(&mut bytes) {
            this.table.receive(frame);
        }
        this.table.set_within_head(this.received.is_within_head());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Http2Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.written(written, std::iter::once(bytes), context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.written(written, slices.iter().map(|slice| &**slice), context)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    /// Closes slowly, so that the last responses are not lost to a reset; at once where the client was sent an error.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.table.has_sent_error() {
            return Poll::Ready(Ok(()));
        }
        LingeringClose::poll_close(&mut this.linger, &mut this.socket, &this.client, context)
            .map(Ok)
    }
}

impl Drop for Http2Io {
    fn drop(&mut self) {
        self.table.close();
    }
}
