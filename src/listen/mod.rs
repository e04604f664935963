//! A socket becomes a stream we can name the other end of.
//!
//! Accepting must outlive everything that can go wrong around it: no descriptors left, a client gone
//! before it was greeted, a connection that panics. So an error is waited out rather than returned, and
//! every connection is a task of its own.

mod connection_limit;
pub mod proxy_protocol;
mod socket;
#[cfg(test)]
mod tests;

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, io};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::socket::{HandedConnection, ListenSocket, LoopHandoff, LoopSlot};
use crate::clock::{Clock, Deadline};
use crate::config::plan::SocketAddress;
use crate::message::{ClientConnection, RemoteAddr};
use crate::telemetry::{self, BackgroundTask};

pub use self::connection_limit::{ConnectionLimiter, ConnectionPermit};
pub use self::proxy_protocol::{ProxyReadError, read_proxy_header};
pub use self::socket::{AcceptShards, BoundSocket, InheritedSockets, SharedSocket};

/// An accepted connection.
#[derive(Debug)]
pub enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a unix socket.
    Unix(UnixStream),
}

/// An address could not be listened on.
#[derive(Debug)]
pub struct Error {
    address: SocketAddress,
    source: io::Error,
}

impl Error {
    fn new(address: SocketAddress, source: io::Error) -> Self {
        Self { address, source }
    }

    /// The address.
    #[must_use]
    pub fn address(&self) -> &SocketAddress {
        &self.address
    }

    /// Why.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(text, "cannot listen on {}: ", self.address)?;
        match (self.source.kind(), &self.address) {
            (io::ErrorKind::AddrInUse, _) => text.write_str("address in use"),
            (io::ErrorKind::AddrNotAvailable, _) => {
                text.write_str("this machine does not have that address")
            }
            (io::ErrorKind::PermissionDenied, SocketAddress::Tcp(_)) => {
                text.write_str("permission denied (ports below 1024 need a privilege)")
            }
            _ => self.source.fmt(text),
        }
    }
}

// Without a source: what the system said is told, or told better, above.
impl std::error::Error for Error {}

/// Accepts connections on one event loop until `stop` is cancelled. Each becomes a task in `connections`, by which its
/// end can be awaited, unless `on_connection` does not want it.
///
/// # Errors
/// When the socket cannot be given to this event loop.
pub async fn accept_loop<F, C>(
    bound: BoundSocket,
    clock: Clock,
    connections: TaskTracker,
    stop: CancellationToken,
    on_connection: F,
) -> Result<(), Error>
where
    F: Fn(Stream, Arc<ClientConnection>) -> Option<C>,
    C: Future<Output = ()> + Send + 'static,
{
    let (mut lane, address) = (bound.lane, bound.address);
    let listener =
        BoundListener::new(bound.socket).map_err(|source| Error::new(address.clone(), source))?;
    let mut grievance = AcceptErrorLog::default();
    let welcome = |(stream, remote, local): Accepted, place| {
        let serial = CONNECTIONS.fetch_add(1, Ordering::Relaxed) + 1;
        let peer = Arc::new(ClientConnection::new(remote, local, serial, clock.now()));
        if let Some(connection) = on_connection(stream, peer) {
            // Boxed: an `async fn` keeps room for its argument beside what it makes of it.
            connections.spawn(isolated(serial, place, Box::pin(connection)));
        }
    };
    let mut pause = None;
    let mut accept = |context: &mut Context<'_>| {
        let arrival = ready!(poll_arrival(&listener, &mut lane, &mut pause, context));
        let placed = match arrival {
            AcceptEvent::Accepted(accepted) => lane.place(accepted, clock.now()),
            AcceptEvent::Failed(error) => Err(error),
            AcceptEvent::Handed(handed) => handed.settle().map(Some),
        };
        match placed {
            Ok(Some((accepted, place))) => welcome(accepted, place),
            Ok(None) => {}
            Err(error) if is_clients_doing(&error) => {}
            Err(error) => {
                grievance.tell(&address, &error);
                // The connection stays in the kernel's queue, so asking again at once would spin.
                pause.insert(Deadline::default()).start(PATIENCE);
            }
        }
        Poll::Ready(())
    };
    let accepting = async {
        loop {
            let accepted = poll_fn(|context| match telemetry::catch_panic(|| accept(context)) {
                Ok(polled) => polled.map(Ok),
                Err(panic) => Poll::Ready(Err(panic)),
            });
            // The panic has cost one connection, and must not cost those that come after it.
            if let Err(panic) = accepted.await {
                BackgroundTask::Accept.note(&panic, PATIENCE);
                tokio::time::sleep(PATIENCE).await;
            }
        }
    };
    stop.run_until_cancelled(accepting).await;
    // Who connected before the stop has been greeted by the kernel and may have asked already. Closing
    // the socket would reset them.
    for accepted in listener.accept_waiting() {
        welcome(accepted, lane.own_place());
    }
    while let Some(handed) = lane.last_handed().await {
        match handed.settle() {
            Ok((accepted, place)) => welcome(accepted, place),
            Err(error) => grievance.tell(&address, &error),
        }
    }
    Ok(())
}

enum AcceptEvent {
    Accepted(Accepted),
    Failed(io::Error),
    Handed(HandedConnection),
}

fn poll_arrival(
    listener: &BoundListener,
    lane: &mut LoopHandoff,
    pause: &mut Option<Deadline>,
    context: &mut Context<'_>,
) -> Poll<AcceptEvent> {
    if let Poll::Ready(handed) = lane.poll_handed(context) {
        return Poll::Ready(AcceptEvent::Handed(handed));
    }
    if let Some(limit) = pause {
        ready!(limit.poll_passed(context));
        *pause = None;
    }
    Poll::Ready(match ready!(listener.poll_accept(context)) {
        Ok(accepted) => AcceptEvent::Accepted(accepted),
        Err(error) => AcceptEvent::Failed(error),
    })
}

type Accepted = (Stream, RemoteAddr, Option<SocketAddr>);

enum BoundListener {
    Tcp(TcpListener, Option<SocketAddr>),
    Unix(UnixListener),
}

impl BoundListener {
    fn new(socket: ListenSocket) -> io::Result<Self> {
        Ok(match socket {
            ListenSocket::Tcp(socket) => {
                // Only on a wildcard does each connection have to be asked where it arrived.
                let fixed = Some(socket.local_addr()?).filter(|local| !local.ip().is_unspecified());
                Self::Tcp(TcpListener::from_std(socket)?, fixed)
            }
            ListenSocket::Unix(socket) => Self::Unix(UnixListener::from_std(socket)?),
        })
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        Poll::Ready(match self {
            Self::Tcp(listener, fixed) => ready!(listener.poll_accept(context))
                .and_then(|(stream, remote)| named(stream, remote, *fixed)),
            Self::Unix(listener) => ready!(listener.poll_accept(context))
                .map(|(stream, _)| (Stream::Unix(stream), RemoteAddr::Unix, None)),
        })
    }

    /// Those who wait to be accepted at this moment.
    // The system is asked: the event loop may not have heard of the last ones yet.
    fn accept_waiting(self) -> impl Iterator<Item = Accepted> {
        let listening = match self {
            Self::Tcp(listener, fixed) => listener
                .into_std()
                .map(|socket| (ListenSocket::Tcp(socket), fixed)),
            Self::Unix(listener) => listener
                .into_std()
                .map(|socket| (ListenSocket::Unix(socket), None)),
        };
        let accept = move || {
            let (listening, fixed) = listening.as_ref().ok()?;
            loop {
                match listening.accept_now(*fixed) {
                    Err(error) if is_clients_doing(&error) => {}
                    accepted => return accepted.ok(),
                }
            }
        };
        std::iter::from_fn(accept).take(MOST_WAITING)
    }
}

impl ListenSocket {
    fn accept_now(&self, fixed: Option<SocketAddr>) -> io::Result<Accepted> {
        match self {
            Self::Tcp(socket) => {
                let (stream, remote) = socket.accept()?;
                stream.set_nonblocking(true)?;
                named(TcpStream::from_std(stream)?, remote, fixed)
            }
            Self::Unix(socket) => {
                let (stream, _) = socket.accept()?;
                stream.set_nonblocking(true)?;
                let stream = UnixStream::from_std(stream)?;
                Ok((Stream::Unix(stream), RemoteAddr::Unix, None))
            }
        }
    }
}

fn named(stream: TcpStream, remote: SocketAddr, fixed: Option<SocketAddr>) -> io::Result<Accepted> {
    let local = match fixed {
        Some(local) => local,
        None => stream.local_addr()?,
    };
    Ok((Stream::Tcp(stream), RemoteAddr::Ip(remote), Some(local)))
}

/// Runs a connection; a panic ends only that connection.
async fn isolated<C>(serial: u64, _place: LoopSlot, connection: Pin<Box<C>>)
where
    C: Future<Output = ()>,
{
    telemetry::isolated(connection, |panic| {
        let connection = serial;
        tracing::error!(
            connection,
            "a connection's task panicked and was ended: {panic}"
        );
    })
    .await;
}

fn is_clients_doing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
            | io::ErrorKind::NotConnected
    )
}

/// A complaint that is not repeated more than once a second.
#[derive(Default)]
struct AcceptErrorLog(Option<Instant>);

impl AcceptErrorLog {
    fn tell(&mut self, address: &SocketAddress, error: &io::Error) {
        if self
            .0
            .is_some_and(|told| told.elapsed() < Duration::from_secs(1))
        {
            return;
        }
        self.0 = Some(Instant::now());
        tracing::error!(%address, %error, "connections cannot be accepted; trying again");
    }
}

/// `$connection` of the last connection: one series for all event loops.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// How long is waited when there is no descriptor, or no memory, for another connection.
const PATIENCE: Duration = Duration::from_millis(100);

/// How many are still let in when told to stop: more than any backlog holds, and an end to a flood.
const MOST_WAITING: usize = 65_536;
