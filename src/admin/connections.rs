//! The connections of the admin listener, and which of them makes room for a new one.
//!
//! Their number is bounded, so that they cannot use up the descriptors of the proxy. When all places are taken, the
//! connection that has waited longest without a complete request is closed, or one whose client has stopped reading its
//! response: so a health probe is served however many silent connections there are. A connection whose client does not
//! finish sending a request, or does not read, times out.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

/// All connections of the admin listener.
#[derive(Debug, Clone, Default)]
pub(super) struct AdminConnections(Arc<Mutex<Vec<Arc<AdminConnection>>>>);

/// A connection of the admin listener.
#[derive(Debug)]
pub(super) struct AdminConnection {
    /// From another machine: these get fewer places, so that they cannot keep out clients on this machine.
    is_remote: bool,
    progress: Mutex<ConnectionProgress>,
    evict: CancellationToken,
}

/// What a connection is waiting for.
#[derive(Debug)]
struct ConnectionProgress {
    /// Since when for a complete request; `None` while one is served.
    idle: Option<Instant>,
    /// Since when for its client to read.
    stalled: Option<Instant>,
    /// The response is complete, and may not have left.
    responded: bool,
}

/// A connection's place, given back when dropped.
#[derive(Debug)]
pub(super) struct AdminPermit {
    all: AdminConnections,
    pub(super) connection: Arc<AdminConnection>,
}

impl AdminConnections {
    /// Admits a connection; `None` where all others are busy. Also returns whether another was evicted.
    // One pause only: connections behind it in the listener's queue wait too.
    pub(super) async fn admit(&self, remote: IpAddr) -> Option<(AdminPermit, bool)> {
        if let Some(admitted) = self.try_admit(remote, Instant::now()) {
            return Some(admitted);
        }
        tokio::time::sleep(GRACE).await;
        self.try_admit(remote, Instant::now())
    }

    fn try_admit(&self, remote: IpAddr, now: Instant) -> Option<(AdminPermit, bool)> {
        let is_remote = !remote.to_canonical().is_loopback();
        let mut all = self.0.lock();
        let remotes = all.iter().filter(|other| other.is_remote).count();
        let too_many_remotes = is_remote && remotes >= CONNECTIONS_MAX / 2;
        let full = too_many_remotes || all.len() >= CONNECTIONS_MAX;
        if full {
            let idle = all.iter().enumerate().filter_map(|(at, other)| {
                let since = other.evictable_since(now)?;
                (other.is_remote || !too_many_remotes).then_some((since, at))
            });
            let (_, longest) = idle.min()?;
            all.swap_remove(longest).evict.cancel();
        }
        let connection = Arc::new(AdminConnection {
            is_remote,
            progress: Mutex::new(ConnectionProgress {
                idle: Some(now),
                stalled: None,
                responded: false,
            }),
            evict: CancellationToken::new(),
        });
        all.push(Arc::clone(&connection));
        let all = self.clone();
        Some((AdminPermit { all, connection }, full))
    }
}

impl Drop for AdminPermit {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        all.retain(|other| !Arc::ptr_eq(other, &self.connection));
    }
}

impl AdminConnection {
    /// Ready when it has to make room for another.
    pub(super) async fn evicted(&self) {
        self.evict.cancelled().await;
    }

    /// A request has arrived; its response comes to [`AdminConnection::track`].
    pub(super) fn begin(&self) {
        let mut progress = self.progress.lock();
        progress.idle = None;
        progress.responded = false;
    }

    /// The body of the response; its end is noted.
    pub(super) fn track<B>(self: &Arc<Self>, body: B) -> ActiveBody<B> {
        ActiveBody {
            body,
            connection: Arc::clone(self),
        }
    }

    /// Whether no request is in progress.
    fn is_idle(&self) -> bool {
        self.progress.lock().idle.is_some()
    }

    /// Its client does not read.
    fn stall(&self) {
        self.progress
            .lock()
            .stalled
            .get_or_insert_with(Instant::now);
    }

    /// Its client has read something.
    fn advance(&self) {
        self.progress.lock().stalled = None;
    }

    /// All that was written has been sent. True when that was the end of a response: the next request is awaited.
    fn flushed(&self) -> bool {
        let mut progress = self.progress.lock();
        progress.stalled = None;
        let over = progress.responded && progress.idle.is_none();
        if over {
            progress.idle = Some(Instant::now());
        }
        over
    }

    /// Since when it may be evicted, if it may.
    fn evictable_since(&self, now: Instant) -> Option<Instant> {
        let progress = self.progress.lock();
        let since = |began: Option<Instant>, grace| began.filter(|began| now - *began >= grace);
        since(progress.idle, GRACE).or_else(|| since(progress.stalled, STALLED))
    }
}

/// The body of a response that its connection is busy with.
#[derive(Debug)]
pub(super) struct ActiveBody<B> {
    body: B,
    connection: Arc<AdminConnection>,
}

impl<B: Body + Unpin> Body for ActiveBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for ActiveBody<B> {
    fn drop(&mut self) {
        self.connection.progress.lock().responded = true;
    }
}

/// Far more than operators and scrapers need.
const CONNECTIONS_MAX: usize = 128;

/// How long a new connection is safe, however many others there are: a client on a busy machine sends its request some
/// time after it has connected.
const GRACE: Duration = Duration::from_millis(50);

/// How long a client may not read before it can be evicted.
const STALLED: Duration = Duration::from_secs(1);

/// A socket with timeouts: the client may be slow, but not dead.
#[derive(Debug)]
pub(super) struct TimeoutIo {
    stream: TcpStream,
    connection: Arc<AdminConnection>,
    /// When writing times out; set while nothing can be written.
    write_timeout: Pin<Box<Sleep>>,
    is_blocked: bool,
    /// When the headers of a request time out: from their first byte, for the first request from the beginning.
    header_timeout: Pin<Box<Sleep>>,
    in_headers: bool,
}

impl TimeoutIo {
    pub(super) fn new(stream: TcpStream, connection: Arc<AdminConnection>) -> Self {
        Self {
            stream,
            connection,
            write_timeout: Box::pin(tokio::time::sleep(WRITE_TIMEOUT)),
            is_blocked: false,
            header_timeout: Box::pin(tokio::time::sleep(HEADER_TIMEOUT)),
            in_headers: true,
        }
    }

    fn with_timeout<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_blocked = false;
            self.connection.advance();
            return written;
        }
        if !std::mem::replace(&mut self.is_blocked, true) {
            self.write_timeout
                .as_mut()
                .reset(Instant::now() + WRITE_TIMEOUT);
            self.connection.stall();
        }
        ready!(self.write_timeout.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for TimeoutIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if !self.connection.is_idle() {
            // A body, or a request that comes too early.
            self.in_headers = false;
            return read;
        }
        if read.is_ready() && !std::mem::replace(&mut self.in_headers, true) {
            self.header_timeout
                .as_mut()
                .reset(Instant::now() + HEADER_TIMEOUT);
        }
        if read.is_pending() && self.in_headers {
            ready!(self.header_timeout.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for TimeoutIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.with_timeout(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() && self.connection.flushed() {
            self.in_headers = false;
        }
        self.with_timeout(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// How long nothing can be written.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the headers of a request may take.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {

    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const REMOTE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn is_evicted(permit: &AdminPermit) -> bool {
        permit.connection.evict.is_cancelled()
    }

    /// Admits this number of connections at once.
    fn admit(all: &AdminConnections, from: IpAddr, count: usize, at: Instant) -> Vec<AdminPermit> {
        let admitted = (0..count).map(|_| all.try_admit(from, at));
        admitted.map_while(|one| Some(one?.0)).collect()
    }

    #[test]
    fn the_connection_that_waits_longest_makes_room() {
        let all = AdminConnections::default();
        let start = Instant::now();
        let busy = admit(&all, LOCAL, 1, start);
        busy[0].connection.begin();
        let first = admit(&all, LOCAL, 1, start + Duration::from_millis(1));
        let others = admit(
            &all,
            LOCAL,
            CONNECTIONS_MAX - 2,
            start + Duration::from_millis(2),
        );
        assert_eq!(others.len(), CONNECTIONS_MAX - 2);
        // None has waited for long enough.
        let soon = start + Duration::from_millis(3);
        assert!(all.try_admit(LOCAL, soon).is_none());
        let late = start + Duration::from_secs(1);
        let (_new, made_room) = all.try_admit(LOCAL, late).unwrap();
        assert!(made_room && is_evicted(&first[0]));
        assert!(!is_evicted(&busy[0]) && !others.iter().any(is_evicted));
    }

    #[test]
    fn a_dropped_permit_frees_its_place() {
        let all = AdminConnections::default();
        let now = Instant::now();
        let mut admitted = admit(&all, LOCAL, CONNECTIONS_MAX + 1, now);
        assert_eq!(admitted.len(), CONNECTIONS_MAX);
        admitted.pop();
        let (_new, made_room) = all.try_admit(LOCAL, now).unwrap();
        assert!(!made_room);
    }

    #[test]
    fn remote_connections_make_room_for_each_other_only() {
        let all = AdminConnections::default();
        let start = Instant::now();
        let near = admit(&all, LOCAL, 1, start);
        let far = admit(
            &all,
            REMOTE,
            CONNECTIONS_MAX,
            start + Duration::from_millis(1),
        );
        assert_eq!(far.len(), CONNECTIONS_MAX / 2);
        let late = start + Duration::from_secs(1);
        let more = admit(&all, REMOTE, CONNECTIONS_MAX / 2, late);
        assert_eq!(more.len(), CONNECTIONS_MAX / 2);
        assert!(far.iter().all(is_evicted) && !is_evicted(&near[0]));
        assert!(all.try_admit(LOCAL, late).is_some());
    }

    #[test]
    fn a_client_that_does_not_read_makes_room_too() {
        let all = AdminConnections::default();
        let admitted = admit(&all, LOCAL, CONNECTIONS_MAX, Instant::now());
        for other in &admitted {
            other.connection.begin();
        }
        let later = Instant::now() + Duration::from_secs(5);
        assert!(all.try_admit(LOCAL, later).is_none());
        admitted[7].connection.stall();
        admitted[8].connection.stall();
        admitted[8].connection.advance();
        assert!(all.try_admit(LOCAL, Instant::now()).is_none());
        assert!(all.try_admit(LOCAL, later).is_some());
        assert!(is_evicted(&admitted[7]) && !is_evicted(&admitted[8]));
    }

    #[test]
    fn a_request_ends_when_its_response_is_sent() {
        let all = AdminConnections::default();
        let admitted = admit(&all, LOCAL, 1, Instant::now());
        let connection = &admitted[0].connection;
        connection.begin();
        let body = connection.track(());
        assert!(!connection.flushed());
        drop(body);
        assert!(!connection.is_idle());
        assert!(connection.flushed() && connection.is_idle());
        assert!(!connection.flushed());
    }
}
