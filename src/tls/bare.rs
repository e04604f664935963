//! What is asked of a socket beyond reading and writing: whether something waits, and whether the other end is still there.

use std::io;
use std::mem::MaybeUninit;
use std::pin::pin;
use std::task::{Context, Poll, Waker, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A socket.
pub trait Bare: AsyncRead + AsyncWrite + Unpin {
    /// Ready with true once there is something to read, with false where nothing will come any more.
    // The event loop calls a new socket readable before anything has come, so it is tried here: one look for each
    // connection, and whoever stays silent costs no buffers.
    fn poll_waiting(&self, context: &mut Context<'_>) -> Poll<io::Result<bool>>;

    /// Whether the other end has ended its side, even with bytes before that end still unread.
    // The event loop notes the hang-up when the kernel reports it; asking makes no system call.
    fn is_hung_up(&self) -> bool;

    /// The byte that waits, where it can be seen without taking it.
    fn first(&self) -> Option<u8> {
        None
    }
}

macro_rules! bare {
    () => {
        fn poll_waiting(&self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
            loop {
                ready!(self.poll_read_ready(context))?;
                let mut byte = [MaybeUninit::uninit()];
                let peek = || SockRef::from(self).peek(&mut byte);
                match self.try_io(Interest::READABLE, peek) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    peeked => return Poll::Ready(peeked.map(|count| count > 0)),
                }
            }
        }

        fn is_hung_up(&self) -> bool {
            let mut context = Context::from_waker(Waker::noop());
            let ready = pin!(self.ready(Interest::READABLE)).poll(&mut context);
            matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
        }
    };
}

impl Bare for TcpStream {
    bare!();

    fn first(&self) -> Option<u8> {
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        match self.poll_peek(&mut Context::from_waker(Waker::noop()), &mut buffer) {
            Poll::Ready(Ok(_)) => buffer.filled().first().copied(),
            _ => None,
        }
    }
}

impl Bare for UnixStream {
    bare!();
}
