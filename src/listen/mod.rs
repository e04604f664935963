//! Listening sockets, and the connections accepted on them.
//!
//! Accepting outlives everything that can go wrong around it: no descriptors left, a client that is gone again, a
//! connection that panics. So an error is waited out rather than returned, and every connection is a task of its own.

mod connection_limit;
pub mod proxy_protocol;
mod socket;
#[cfg(test)]
mod tests;

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::connection_limit::OncePerSecond;
use self::socket::{Accepted, LoopHandoff, LoopLoad};
use crate::clock::{Clock, Deadline};
use crate::message::{ClientConnection, RemoteAddr};
use crate::net::{Listener, Stream};
use crate::telemetry::{self, BackgroundTask};

pub use self::connection_limit::{ConnectionLimiter, ConnectionPermit};
pub use self::proxy_protocol::{ProxyReadError, read_proxy_header};
pub use self::socket::{AcceptShards, BoundSocket, Error, InheritedSockets, SharedSocket};

/// Accepts connections on one event loop until `stop` is cancelled. Each becomes a task in `connections`, by which its
/// end can be awaited, unless `on_connection` refuses it.
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
    let (mut handoff, address) = (bound.handoff, bound.address);
    let listener =
        BoundListener::new(bound.socket).map_err(|source| Error::new(&address, source))?;
    let logged = OncePerSecond::default();
    let log = |error| {
        if logged.is_due(clock.now()) {
            tracing::error!(%address, %error, "connections cannot be accepted; trying again");
        }
    };
    let serve = |accepted: Accepted, load| {
        let serial = CONNECTIONS.fetch_add(1, Ordering::Relaxed) + 1;
        let client = Arc::new(ClientConnection::new(
            accepted.remote,
            accepted.local,
            serial,
            clock.now(),
        ));
        if let Some(connection) = on_connection(accepted.stream, client) {
            // Boxed: an `async fn` keeps room for its argument beside what it makes of it.
            connections.spawn(isolated(serial, load, Box::pin(connection)));
        }
    };
    let mut pause = None;
    let mut accept = |context: &mut Context<'_>| {
        let polled = poll_connection(&listener, &mut handoff, &mut pause, &clock, context);
        match ready!(polled) {
            Ok(Some((accepted, load))) => serve(accepted, load),
            Ok(None) => {}
            Err(error) if is_client_error(&error) => {}
            Err(error) => {
                log(error);
                // The connection stays in the kernel's queue, so asking again at once would spin.
                pause.insert(Deadline::default()).start(RETRY_PAUSE);
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
                BackgroundTask::Accept.note(&panic, RETRY_PAUSE);
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    };
    stop.run_until_cancelled(accepting).await;
    // The kernel has accepted these connections before the stop, and they may have sent requests. Closing the socket
    // would reset them.
    let waiting = std::iter::from_fn(|| listener.accept_now());
    let waiting = waiting.take(MAX_WAITING);
    waiting.for_each(|accepted| serve(accepted, handoff.own_load()));
    while let Some(connection) = handoff.drain_transferred().await {
        match connection.adopt() {
            Ok((accepted, load)) => serve(accepted, load),
            Err(error) => log(error),
        }
    }
    Ok(())
}

/// Ready with a connection of this event loop, accepted here or handed over by another; with `None` where one was handed on.
fn poll_connection(
    listener: &BoundListener,
    handoff: &mut LoopHandoff,
    pause: &mut Option<Deadline>,
    clock: &Clock,
    context: &mut Context<'_>,
) -> Poll<io::Result<Option<(Accepted, LoopLoad)>>> {
    if let Poll::Ready(connection) = handoff.poll_transferred(context) {
        return Poll::Ready(connection.adopt().map(Some));
    }
    if let Some(limit) = pause {
        ready!(limit.poll_passed(context));
        *pause = None;
    }
    let accepted = ready!(listener.poll_accept(context));
    Poll::Ready(accepted.and_then(|accepted| handoff.assign(accepted, clock.now())))
}

/// A listening socket, and the address that its connections arrive at.
struct BoundListener {
    listener: Listener,
    // `None` on a wildcard, where each connection has to be asked, and on a unix socket.
    local: Option<SocketAddr>,
}

impl BoundListener {
    fn new(socket: socket2::Socket) -> io::Result<Self> {
        let local = socket.local_addr()?.as_socket();
        Ok(Self {
            local: local.filter(|local| !local.ip().is_unspecified()),
            listener: Listener::new(socket)?,
        })
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        let accepted = ready!(self.listener.poll_accept(context));
        Poll::Ready(accepted.and_then(|accepted| self.with_addresses(accepted)))
    }

    /// A connection that waits to be accepted at this moment.
    fn accept_now(&self) -> Option<Accepted> {
        loop {
            match self.listener.accept_now() {
                Err(error) if is_client_error(&error) => {}
                accepted => return self.with_addresses(accepted.ok()?).ok(),
            }
        }
    }

    fn with_addresses(
        &self,
        (stream, remote): (Stream, Option<SocketAddr>),
    ) -> io::Result<Accepted> {
        let local = match (&stream, self.local) {
            (Stream::Tcp(stream), None) => Some(stream.local_addr()?),
            (_, local) => local,
        };
        Ok(Accepted {
            stream,
            remote: remote.map_or(RemoteAddr::Unix, RemoteAddr::Ip),
            local,
        })
    }
}

/// Runs a connection; a panic ends only that connection.
async fn isolated<C>(serial: u64, _load: LoopLoad, connection: Pin<Box<C>>)
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

fn is_client_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
            | io::ErrorKind::NotConnected
    )
}

/// `$connection` of the last connection: one series for all event loops.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// The pause when there is no descriptor, or no memory, for another connection.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// How many connections are still accepted after a stop: more than any backlog holds, and an end to a flood.
const MAX_WAITING: usize = 65_536;
