//! A tunnel: bytes between a client and a backend, after both have agreed on another protocol than HTTP.
//!
//! What one side does not accept is not read from the other, so a tunnel holds no more than one piece in either direction, and
//! nothing while it is idle: pieces are read into memory that all tunnels of an event loop share. The end of one side is passed
//! to the other, which may go on.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{io, mem};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::clock::Deadline;
use crate::message::{ConnectionState, ResponseEnd, Tunnel};

/// What flows in one direction.
#[derive(Debug)]
struct TunnelDirection {
    // Read from one side and not taken by the other.
    piece: Bytes,
    state: DirectionState,
    // How long it may not be taken.
    timeout: Duration,
    write_deadline: Deadline,
    // Bytes that have come since this was last reset.
    moved: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DirectionState {
    Open,
    /// One side has ended; the other is to be shut down.
    Ending,
    Over,
}

thread_local! {
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Carries bytes between the client and the far end, until both have ended, both are silent for too long, or `stopped` is
/// ready. `early` is what the client has sent already.
pub(super) async fn carry(
    near: &mut (impl AsyncRead + AsyncWrite + Unpin),
    early: Bytes,
    mut tunnel: Box<Tunnel>,
    state: &ConnectionState,
    stopped: impl Future<Output = ()>,
) {
    let mut up = TunnelDirection::new(early, tunnel.send_timeout);
    let mut down = TunnelDirection::new(Bytes::new(), state.send_timeout.get());
    let mut idle = Deadline::default();
    let mut stopped = pin!(stopped);
    tunnel.guard.received(up.piece.len());
    let carried = poll_fn(|context| {
        let mut scratch = SCRATCH.take();
        scratch.resize(PIECE, 0);
        let far = &mut tunnel.far;
        let both = (
            up.poll(near, far, &mut scratch, context),
            down.poll(far, near, &mut scratch, context),
        );
        SCRATCH.set(scratch);
        let (received, sent) = (mem::take(&mut up.moved), mem::take(&mut down.moved));
        state.received.add(received);
        state.sent.add(sent);
        tunnel.guard.received(received);
        tunnel.guard.sent(sent);
        match both {
            (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => {
                return Poll::Ready(Err(error));
            }
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => return Poll::Ready(Ok(())),
            _ => {}
        }
        if received + sent > 0 {
            idle.clear();
        }
        idle.start(tunnel.idle_timeout);
        if idle.poll_passed(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        stopped.as_mut().poll(context).map(Ok)
    })
    .await;
    close(near, &mut tunnel, &mut down).await;
    tunnel.finish(match carried {
        Ok(()) => ResponseEnd::Complete,
        Err(_) => ResponseEnd::Aborted,
    });
}

/// Shuts both ends down, without waiting.
async fn close(
    near: &mut (impl AsyncWrite + Unpin),
    tunnel: &mut Tunnel,
    down: &mut TunnelDirection,
) {
    poll_fn(|context| {
        // What was read for the client is the last it gets, if it takes it now.
        while !down.piece.is_empty() {
            let Poll::Ready(Ok(taken @ 1..)) =
                Pin::new(&mut *near).poll_write(context, &down.piece)
            else {
                break;
            };
            down.piece.advance(taken);
        }
        let _ended = (
            Pin::new(&mut *near).poll_shutdown(context),
            Pin::new(&mut tunnel.far).poll_shutdown(context),
        );
        Poll::Ready(())
    })
    .await;
}

impl TunnelDirection {
    fn new(piece: Bytes, timeout: Duration) -> Self {
        Self {
            piece,
            state: DirectionState::Open,
            timeout,
            write_deadline: Deadline::default(),
            moved: 0,
        }
    }

    /// Moves what can be moved; ready when `from` has ended and `to` is shut down.
    fn poll(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        scratch: &mut [u8],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_write(to, context))?;
            match self.state {
                DirectionState::Open => {}
                DirectionState::Ending => {
                    // An end that is gone needs no shutdown.
                    let _told = ready!(Pin::new(&mut *to).poll_shutdown(context));
                    self.state = DirectionState::Over;
                    continue;
                }
                DirectionState::Over => return Poll::Ready(Ok(())),
            }
            let mut buffer = ReadBuf::new(scratch);
            if Pin::new(&mut *from)
                .poll_read(context, &mut buffer)?
                .is_pending()
            {
                // A flush: the other end may buffer what was written.
                ready!(Pin::new(&mut *to).poll_flush(context))?;
                return Poll::Pending;
            }
            let read = buffer.filled();
            self.moved += read.len();
            if read.is_empty() {
                self.state = DirectionState::Ending;
                continue;
            }
            // Mostly all of it is taken at once, and nothing has to be kept.
            let taken = match Pin::new(&mut *to).poll_write(context, read)? {
                Poll::Ready(taken) => taken,
                Poll::Pending => 0,
            };
            if taken < read.len() {
                self.piece = Bytes::copy_from_slice(&read[taken..]);
            }
        }
    }

    /// Ready when nothing is left to be taken.
    fn poll_write(
        &mut self,
        to: &mut (impl AsyncWrite + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.piece.is_empty() {
            match Pin::new(&mut *to).poll_write(context, &self.piece)? {
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(taken) => {
                    self.piece.advance(taken);
                    self.write_deadline.clear();
                }
                Poll::Pending => {
                    self.write_deadline.start(self.timeout);
                    ready!(self.write_deadline.poll_passed(context));
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
        }
        self.piece = Bytes::new();
        Poll::Ready(Ok(()))
    }
}

/// What is read at once.
const PIECE: usize = 16 * 1024;
