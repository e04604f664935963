//! The admin listener's connections, and which of them makes room for a new one.
//!
//! There are few, so that nobody can use up the descriptors of the proxy over them. A connection that asks for nothing is worth
//! less than a new one: when all are taken, the one that has waited longest without a complete request is closed, and so is
//! one whose client has stopped reading its response. A health probe is answered however many connections are silent.
//!
//! A connection that is given up when its other end does not send what it began, or does not take what it asked for.

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

/// One of them.
#[derive(Debug)]
pub(super) struct AdminConnection {
    /// From another machine: of these there are fewer, so that they cannot keep those on this machine out.
    afar: bool,
    progress: Mutex<ConnectionProgress>,
    leave: CancellationToken,
}

/// What a connection is waiting for.
#[derive(Debug)]
struct ConnectionProgress {
    /// Since when for a complete request; `None` while one is being answered.
    idle: Option<Instant>,
    /// Since when for its client to read.
    stalled: Option<Instant>,
    /// The response is complete, and may not have left.
    answered: bool,
}

/// A connection's place, given back when dropped.
#[derive(Debug)]
pub(super) struct AdminPermit {
    all: AdminConnections,
    connection: Arc<AdminConnection>,
}

impl AdminConnections {
    /// Admits a connection; `None` where every other is busy. Says whether another had to leave.
    // Once, and not for longer: those who wait behind it in the listener's queue wait too.
    pub(super) async fn admit(&self, remote: IpAddr) -> Option<(AdminPermit, bool)> {
        if let Some(admitted) = self.try_admit(remote, Instant::now()) {
            return Some(admitted);
        }
        tokio::time::sleep(GRACE).await;
        self.try_admit(remote, Instant::now())
    }

    fn try_admit(&self, remote: IpAddr, now: Instant) -> Option<(AdminPermit, bool)> {
        let afar = !remote.to_canonical().is_loopback();
        let mut all = self.0.lock();
        let from_afar = all.iter().filter(|other| other.afar).count();
        let too_many_afar = afar && from_afar >= MOST / 2;
        let full = too_many_afar || all.len() >= MOST;
        if full {
            let idle = all.iter().enumerate().filter_map(|(at, other)| {
                let since = other.may_leave_since(now)?;
                (other.afar || !too_many_afar).then_some((since, at))
            });
            let (_, longest) = idle.min()?;
            all.swap_remove(longest).leave.cancel();
        }
        let connection = Arc::new(AdminConnection {
            afar,
            progress: Mutex::new(ConnectionProgress {
                idle: Some(now),
                stalled: None,
                answered: false,
            }),
            leave: CancellationToken::new(),
        });
        all.push(Arc::clone(&connection));
        let all = self.clone();
        Some((AdminPermit { all, connection }, full))
    }
}

impl AdminPermit {
    /// The connection that has the place.
    pub(super) fn connection(&self) -> &Arc<AdminConnection> {
        &self.connection
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
    pub(super) async fn leaves(&self) {
        self.leave.cancelled().await;
    }

    /// A request has come, and [`AdminConnection::answered_by`] is told of its response.
    pub(super) fn begin(&self) {
        let mut progress = self.progress.lock();
        progress.idle = None;
        progress.answered = false;
    }

    /// The body of the response to its request.
    pub(super) fn answered_by<B>(self: &Arc<Self>, body: B) -> ActiveBody<B> {
        ActiveBody {
            body,
            connection: Arc::clone(self),
        }
    }

    /// Whether no request is being answered.
    pub(super) fn is_idle(&self) -> bool {
        self.progress.lock().idle.is_some()
    }

    /// Its client does not read.
    pub(super) fn stall(&self) {
        self.progress
            .lock()
            .stalled
            .get_or_insert_with(Instant::now);
    }

    /// Its client has read something.
    pub(super) fn advance(&self) {
        self.progress.lock().stalled = None;
    }

    /// All that was written has left. True when that was the end of a response: the next request is awaited.
    pub(super) fn flushed(&self) -> bool {
        let mut progress = self.progress.lock();
        progress.stalled = None;
        let over = progress.answered && progress.idle.is_none();
        if over {
            progress.idle = Some(Instant::now());
        }
        over
    }

    /// Since when it could make room for another, if it could.
    fn may_leave_since(&self, now: Instant) -> Option<Instant> {
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
        self.connection.progress.lock().answered = true;
    }
}

/// Nobody needs more to look in.
const MOST: usize = 128;

/// How long a connection is waited for, however many others there are: a client on a busy machine sends its request some
/// time after it has connected.
const GRACE: Duration = Duration::from_millis(50);

/// How long a client may not read before it makes room.
const STALLED: Duration = Duration::from_secs(1);

/// A socket whose other end may be slow, and not dead.
#[derive(Debug)]
pub(super) struct TimeoutIo {
    stream: TcpStream,
    connection: Arc<AdminConnection>,
    /// Until when something has to leave; set while nothing does.
    until: Pin<Box<Sleep>>,
    waiting: bool,
    /// Until when the head has to be complete; set from its first byte on, for the first head from the beginning.
    head: Pin<Box<Sleep>>,
    in_head: bool,
}

impl TimeoutIo {
    pub(super) fn new(stream: TcpStream, connection: Arc<AdminConnection>) -> Self {
        Self {
            stream,
            connection,
            until: Box::pin(tokio::time::sleep(PATIENCE)),
            waiting: false,
            head: Box::pin(tokio::time::sleep(HEAD)),
            in_head: true,
        }
    }

    fn within<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = false;
            self.connection.advance();
            return written;
        }
        if !std::mem::replace(&mut self.waiting, true) {
            self.until.as_mut().reset(Instant::now() + PATIENCE);
            self.connection.stall();
        }
        ready!(self.until.as_mut().poll(context));
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
            // What is read is a body, or comes too early.
            self.in_head = false;
            return read;
        }
        if read.is_ready() && !std::mem::replace(&mut self.in_head, true) {
            self.head.as_mut().reset(Instant::now() + HEAD);
        }
        if read.is_pending() && self.in_head {
            ready!(self.head.as_mut().poll(context));
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
        self.within(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() && self.connection.flushed() {
            self.in_head = false;
        }
        self.within(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// How long nothing may leave.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {

    use super::*;

    const NEAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const FAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn leaves(admitted: &AdminPermit) -> bool {
        admitted.connection.leave.is_cancelled()
    }

    /// So many admitted at this moment.
    fn admit(all: &AdminConnections, from: IpAddr, count: usize, at: Instant) -> Vec<AdminPermit> {
        let admitted = (0..count).map(|_| all.try_admit(from, at));
        admitted.map_while(|one| Some(one?.0)).collect()
    }

    #[test]
    fn the_one_that_waits_longest_makes_room() {
        let all = AdminConnections::default();
        let start = Instant::now();
        let busy = admit(&all, NEAR, 1, start);
        busy[0].connection.begin();
        let first = admit(&all, NEAR, 1, start + Duration::from_millis(1));
        let others = admit(&all, NEAR, MOST - 2, start + Duration::from_millis(2));
        assert_eq!(others.len(), MOST - 2);
        // Nobody has waited for long enough.
        let soon = start + Duration::from_millis(3);
        assert!(all.try_admit(NEAR, soon).is_none());
        let late = start + Duration::from_secs(1);
        let (_new, made_room) = all.try_admit(NEAR, late).unwrap();
        assert!(made_room && leaves(&first[0]));
        assert!(!leaves(&busy[0]) && !others.iter().any(leaves));
    }

    #[test]
    fn a_place_that_was_given_up_is_free() {
        let all = AdminConnections::default();
        let now = Instant::now();
        let mut admitted = admit(&all, NEAR, MOST + 1, now);
        assert_eq!(admitted.len(), MOST);
        admitted.pop();
        let (_new, made_room) = all.try_admit(NEAR, now).unwrap();
        assert!(!made_room);
    }

    #[test]
    fn those_from_elsewhere_make_room_for_each_other_only() {
        let all = AdminConnections::default();
        let start = Instant::now();
        let near = admit(&all, NEAR, 1, start);
        let far = admit(&all, FAR, MOST, start + Duration::from_millis(1));
        assert_eq!(far.len(), MOST / 2);
        let late = start + Duration::from_secs(1);
        let more = admit(&all, FAR, MOST / 2, late);
        assert_eq!(more.len(), MOST / 2);
        assert!(far.iter().all(leaves) && !leaves(&near[0]));
        assert!(all.try_admit(NEAR, late).is_some());
    }

    #[test]
    fn who_does_not_read_makes_room_too() {
        let all = AdminConnections::default();
        let admitted = admit(&all, NEAR, MOST, Instant::now());
        for other in &admitted {
            other.connection.begin();
        }
        let later = Instant::now() + Duration::from_secs(5);
        assert!(all.try_admit(NEAR, later).is_none());
        admitted[7].connection.stall();
        admitted[8].connection.stall();
        admitted[8].connection.advance();
        assert!(all.try_admit(NEAR, Instant::now()).is_none());
        assert!(all.try_admit(NEAR, later).is_some());
        assert!(leaves(&admitted[7]) && !leaves(&admitted[8]));
    }

    #[test]
    fn a_request_is_over_when_its_response_has_left() {
        let all = AdminConnections::default();
        let admitted = admit(&all, NEAR, 1, Instant::now());
        let connection = admitted[0].connection();
        connection.begin();
        let body = connection.answered_by(());
        assert!(!connection.flushed());
        drop(body);
        assert!(!connection.is_idle());
        assert!(connection.flushed() && connection.is_idle());
        assert!(!connection.flushed());
    }
}
