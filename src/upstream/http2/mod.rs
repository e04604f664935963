//! HTTP/2 as a client speaks it: many requests at once over few connections.
//!
//! h2 does the speaking. Each connection is driven by a task of its own, because it belongs to no request; what a
//! request does is otherwise the same as over HTTP/1, and so are its timeouts, its retries and what is held against
//! a backend.
//!
//! Connections that are shared: a request joins one that has room, and another is made only when none has.
//!
//! Each event loop has its own, as over HTTP/1. While one is being made, whoever else needs one waits for it: a burst
//! of requests at a cold start must not become a burst of connections.
//!
//! The task of one connection: it moves frames, notices when the other side is dead, and ends what nobody uses.
//!
//! A backend's socket as h2 sees it.
//!
//! What a backend says of itself first: how large a head it takes.
//!
//! h2 reads it and keeps it to itself. A head that is too large ends the connection with some backends, and with it the
//! requests of others, so it is better not sent.

pub(super) mod stream;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Connection, SendRequest};
use h2::{Ping, PingPong, client};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Interval, MissedTickBehavior, interval};

use self::stream::call;
use super::attempt::AttemptResponse;
use super::backend::{Backend, RetiredFlag};
use super::connection;
use super::error::{Error, Stage};
use super::pool::KeepaliveSettings;
use super::send::{AttemptError, ConnectionKind, RetryState};
use crate::clock::{Clock, Millis};
use crate::config::plan::ProxyPass;
use crate::message::{FrameScanner, RequestRecord};
use crate::telemetry;
use crate::tls::Socket;

/// Asks a backend, and once more over another connection where it has said that it did nothing about it.
pub(super) async fn attempt(
    backend: &Backend,
    errand: &mut RetryState<'_>,
    record: &mut RequestRecord,
    proxy_pass: &ProxyPass,
    clock: &Clock,
    now: Millis,
) -> Result<AttemptResponse, AttemptError> {
    let mut refused = false;
    loop {
        let (ride, over) = join(backend, proxy_pass)
            .await
            .map_err(|error| AttemptError::new(error, ConnectionKind::Fresh, true))?;
        over.note(record, clock, now);
        let unanswered = match call(ride, errand, record, proxy_pass, now).await {
            Ok(answer) => return Ok(answer),
            Err(unanswered) => unanswered,
        };
        if let Some(cargo) = unanswered.unsent {
            errand.unload(cargo);
            if !std::mem::replace(&mut refused, true) {
                continue;
            }
        }
        return Err(AttemptError::new(unanswered.error, over, unanswered.silent));
    }
}

/// What befell a request whose answer has not begun.
fn broken(error: h2::Error) -> Error {
    match error.is_io() {
        true => Error::Broken(into_io(error)),
        false => Error::Rejected(error),
    }
}

/// What befell an answer that has begun.
fn truncated(error: h2::Error) -> Error {
    Error::Truncated(into_io(error))
}

fn into_io(error: h2::Error) -> io::Error {
    match error.is_io() {
        true => error
            .into_io()
            .unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()),
        false => io::Error::other(error),
    }
}

/// What is known of a connection while its task has it.
#[derive(Debug, Default)]
struct ConnectionLoad {
    active: AtomicUsize,
    gone: AtomicBool,
    heard: AtomicU64,
    calmed: AtomicBool,
    /// How long its backend belongs to those that are asked.
    tenure: RetiredFlag,
    /// What the backend has said of itself first.
    spec: PeerSettings,
}

/// A place on a connection, given back when dropped.
#[derive(Debug)]
pub(super) struct StreamPermit {
    send: SendRequest<Bytes>,
    load: Arc<ConnectionLoad>,
}

#[derive(Debug)]
struct PooledConnection {
    number: u64,
    send: SendRequest<Bytes>,
    load: Arc<ConnectionLoad>,
    requests: u64,
}

#[derive(Debug, Default)]
struct BackendPool {
    shared: Vec<PooledConnection>,
    // Held by who makes the next.
    gate: Arc<tokio::sync::Mutex<()>>,
}

/// Which backend of which upstream, met in which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PoolKey(u64, usize);

fn key(backend: &Backend, proxy_pass: &ProxyPass) -> PoolKey {
    PoolKey(backend.keep.upstream(), backend.owner(proxy_pass))
}

thread_local! {
    static GROUPS: RefCell<BTreeMap<PoolKey, BackendPool>> = const { RefCell::new(BTreeMap::new()) };
}

/// A place on a connection to this backend.
async fn join(
    backend: &Backend,
    proxy_pass: &ProxyPass,
) -> Result<(StreamPermit, ConnectionKind), Error> {
    if let Some(ride) = board(backend, proxy_pass) {
        return Ok((ride, ConnectionKind::Kept));
    }
    let gate = GROUPS.with_borrow_mut(|groups| {
        let group = groups.entry(key(backend, proxy_pass)).or_default();
        Arc::clone(&group.gate)
    });
    let made = tokio::time::timeout(proxy_pass.settings.proxy_connect_timeout, async {
        let _turn = gate.lock().await;
        if let Some(ride) = board(backend, proxy_pass) {
            return Ok((ride, ConnectionKind::Kept));
        }
        let ride = open(backend, proxy_pass).await?;
        Ok((ride, ConnectionKind::Fresh))
    });
    made.await.unwrap_or(Err(Error::Timeout(Stage::Connect)))
}

/// A place on a connection that has one.
fn board(backend: &Backend, proxy_pass: &ProxyPass) -> Option<StreamPermit> {
    let ride = GROUPS.with_borrow_mut(|groups| {
        let shared = &mut groups.get_mut(&key(backend, proxy_pass))?.shared;
        let shared = shared.iter_mut().find(|shared| shared.has_room(backend))?;
        shared.requests += 1;
        Some(StreamPermit::new(&shared.send, &shared.load))
    })?;
    backend.counts.count_reused();
    Some(ride)
}

async fn open(backend: &Backend, proxy_pass: &ProxyPass) -> Result<StreamPermit, Error> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let socket = connection::socket(backend, proxy_pass).await?;
    let load = Arc::new(ConnectionLoad {
        tenure: backend.tenure.clone(),
        ..ConnectionLoad::default()
    });
    let io = UpstreamHttp2Io::new(socket, Arc::clone(&load));
    let handshake = builder().handshake(io).await;
    let (send, connection) = handshake.map_err(broken)?;
    let ride = StreamPermit::new(&send, &load);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let server = Arc::clone(&backend.name);
    let driving = run(connection, Arc::clone(&load), backend.keep, {
        let backend = key(backend, proxy_pass);
        move || forget(backend, number)
    });
    tokio::spawn(telemetry::isolated(Box::pin(driving), move |panic| {
        tracing::error!(
            server = &*server,
            "upstream connection's task panicked and was ended: {panic}"
        );
    }));
    GROUPS.with_borrow_mut(|groups| {
        let group = groups.entry(key(backend, proxy_pass)).or_default();
        group.shared.push(PooledConnection {
            number,
            send,
            load,
            requests: 1,
        });
    });
    Ok(ride)
}

/// Nobody else joins this connection; it closes when those who have are done.
fn forget(backend: PoolKey, number: u64) {
    // Dropped after the borrow: it runs code that is not ours.
    let _gone = GROUPS.with_borrow_mut(|groups| {
        let group = groups.get_mut(&backend)?;
        let at = group.shared.iter().position(|one| one.number == number)?;
        Some(group.shared.swap_remove(at))
    });
}

fn builder() -> client::Builder {
    let mut builder = client::Builder::new();
    builder
        .enable_push(false)
        .max_header_list_size(LARGEST_HEAD)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER);
    builder
}

impl PooledConnection {
    fn has_room(&self, backend: &Backend) -> bool {
        !self.load.is_gone()
            && !self.load.has_left()
            && self.requests < backend.keep.requests()
            && self.load.active() < self.send.current_max_send_streams().min(MOST_STREAMS)
    }
}

impl ConnectionLoad {
    /// Requests under way.
    fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Something has come.
    fn hear(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
    }

    /// How often something has come.
    fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Somebody has asked too much, and the backend says so.
    fn calm(&self) {
        self.calmed.store(true, Ordering::Relaxed);
    }

    /// It takes no more requests.
    fn retire(&self) {
        self.gone.store(true, Ordering::Relaxed);
        // Whoever waits to hear of it hears that nothing will come.
        self.spec.agree(usize::MAX);
    }

    /// Whether its backend is asked no more.
    fn has_left(&self) -> bool {
        self.tenure.is_over()
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

impl StreamPermit {
    fn new(send: &SendRequest<Bytes>, load: &Arc<ConnectionLoad>) -> Self {
        load.active.fetch_add(1, Ordering::Relaxed);
        Self {
            send: send.clone(),
            load: Arc::clone(load),
        }
    }

    /// Ready when it is known how large a head the backend takes, and with whether it takes this one.
    async fn takes(&self, head: usize) -> bool {
        // What everybody takes need not wait for it to be said.
        head <= SMALL_HEAD || head <= self.load.spec.largest_head().await
    }

    /// Whether the backend has ended the connection because somebody asked too much.
    fn is_calmed(&self) -> bool {
        self.load.calmed.load(Ordering::Relaxed)
    }

    /// The connection is of no use to others.
    fn retire(&self) {
        self.load.retire();
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.load.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many requests share a connection however many the backend would take: one that breaks takes them all along.
const MOST_STREAMS: usize = 100;
/// Bytes of an answer's head; as over HTTP/1.
const LARGEST_HEAD: u32 = 64 * 1024;
/// What a backend may send of one answer before its client has taken it in: so much memory a slow one costs.
const STREAM_WINDOW: u32 = 128 * 1024;
/// The same for all answers of a connection: enough that those who do not read stand in nobody's way.
const CONNECTION_WINDOW: u32 = 2 * MOST_STREAMS as u32 * STREAM_WINDOW;
/// What of a request may wait for the backend to take it in.
const SEND_BUFFER: usize = 64 * 1024;

/// Bytes of a request's head that no backend ends a connection over. It is what nginx takes of one field; of all together
/// it takes four times as much.
const SMALL_HEAD: usize = 8000;

/// How many connections this thread has to a backend.
#[cfg(test)]
pub(super) fn connections(backend: &Backend, proxy_pass: &ProxyPass) -> usize {
    GROUPS.with_borrow(|groups| {
        groups
            .get(&key(backend, proxy_pass))
            .map_or(0, |group| group.shared.len())
    })
}

/// Drives a connection until it is over; `forget` is called once nobody may join it any more.
async fn run(
    mut connection: Connection<UpstreamHttp2Io, Bytes>,
    load: Arc<ConnectionLoad>,
    rules: KeepaliveSettings,
    forget: impl Fn(),
) {
    let retiring = RetireGuard {
        load: &load,
        forget: &forget,
    };
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watch = ConnectionWatch {
        pings: connection.ping_pong(),
        tick,
        heard: 0,
        quiet: 0,
        patience: PING_AFTER,
        idle: 0,
        most_idle: rules.idle_seconds(),
    };
    poll_fn(|context| {
        if let Poll::Ready(ended) = Pin::new(&mut connection).poll(context) {
            if let Err(error) = ended {
                tracing::debug!(%error, "upstream connection ended");
            }
            return Poll::Ready(());
        }
        match watch.poll(&load, context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(WatchResult::Dead) => Poll::Ready(()),
            Poll::Ready(WatchResult::Unused) => {
                retiring.retire();
                // It ends by itself once nobody holds it.
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await;
}

/// Lets nobody join the connection once its task is over, however that came.
struct RetireGuard<'t, F: Fn()> {
    load: &'t ConnectionLoad,
    forget: &'t F,
}

impl<F: Fn()> RetireGuard<'_, F> {
    fn retire(&self) {
        self.load.retire();
        (self.forget)();
    }
}

impl<F: Fn()> Drop for RetireGuard<'_, F> {
    fn drop(&mut self) {
        self.retire();
    }
}

/// Looks after a connection once a second.
struct ConnectionWatch {
    pings: Option<PingPong>,
    tick: Interval,
    // What had been heard at the last look, and for how many looks nothing more was.
    heard: u64,
    quiet: u32,
    // How many of them before it is asked whether it lives.
    patience: u32,
    idle: u64,
    most_idle: u64,
}

enum WatchResult {
    /// It does not answer.
    Dead,
    /// Nobody has needed it for long enough.
    Unused,
}

impl ConnectionWatch {
    fn poll(&mut self, load: &ConnectionLoad, context: &mut Context<'_>) -> Poll<WatchResult> {
        if let Some(pings) = &mut self.pings
            && pings.poll_pong(context).is_ready()
        {
            // It lives. Backends take it ill to be asked too often: grpc's ends the connection at the third time
            // in five minutes, unless something else has come in between.
            self.heard = load.heard();
            self.quiet = 0;
            self.patience = PING_SELDOM;
        }
        while self.tick.poll_tick(context).is_ready() {
            if load.active() == 0 {
                self.idle += 1;
                self.quiet = 0;
                if self.idle == self.most_idle || load.has_left() {
                    return Poll::Ready(WatchResult::Unused);
                }
                continue;
            }
            self.idle = 0;
            if load.heard() != self.heard {
                self.heard = load.heard();
                self.quiet = 0;
                self.patience = PING_AFTER;
                continue;
            }
            self.quiet += 1;
            if self.quiet == self.patience
                && let Some(pings) = &mut self.pings
            {
                // One that is still under way will do.
                drop(pings.send_ping(Ping::opaque()));
            }
            if self.quiet >= self.patience + PONG_WITHIN {
                return Poll::Ready(WatchResult::Dead);
            }
        }
        Poll::Pending
    }
}

const TICK: Duration = Duration::from_secs(1);
/// Seconds of silence, with an answer outstanding, after which the other side is asked whether it is there.
const PING_AFTER: u32 = 10;
/// The same where it has said so, and nothing else, since.
const PING_SELDOM: u32 = 330;
/// Seconds it has to say so.
const PONG_WITHIN: u32 = 10;

/// A socket, and whom to tell that it was heard of.
#[derive(Debug)]
struct UpstreamHttp2Io {
    socket: Socket,
    load: Arc<ConnectionLoad>,
    // Its beginning, until that has been understood.
    preface: Option<SettingsReader>,
    frames: FrameScanner,
}

impl UpstreamHttp2Io {
    fn new(socket: Socket, load: Arc<ConnectionLoad>) -> Self {
        Self {
            socket,
            load,
            preface: Some(SettingsReader::default()),
            frames: FrameScanner::from_server(),
        }
    }
}

impl AsyncRead for UpstreamHttp2Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(context, buffer))?;
        self.load.hear();
        let this = &mut *self;
        let mut bytes = &buffer.filled()[before..];
        if let Some(preface) = &mut this.preface
            && let Some(largest_head) = preface.read(bytes)
        {
            this.load.spec.agree(largest_head);
            this.preface = None;
        }
        while let Some(frame) = this.frames.next(&mut bytes) {
            if frame.asks_for_calm() {
                this.load.calm();
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for UpstreamHttp2Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

/// What is known of a backend's terms.
#[derive(Debug, Default)]
struct PeerSettings {
    largest_head: OnceLock<usize>,
    known: Notify,
}

/// The first frame a backend sends, which has to be its settings.
#[derive(Debug, Default)]
struct SettingsReader(Vec<u8>);

impl PeerSettings {
    /// They have come.
    fn agree(&self, largest_head: usize) {
        // Said once.
        let _first = self.largest_head.set(largest_head);
        self.known.notify_waiters();
    }

    /// How large a head may be; waits until that is known.
    async fn largest_head(&self) -> usize {
        loop {
            let known = self.known.notified();
            if let Some(largest_head) = self.largest_head.get() {
                return *largest_head;
            }
            known.await;
        }
    }
}

impl SettingsReader {
    /// Adds what has come; how large a head may be, once it is all there.
    fn read(&mut self, bytes: &[u8]) -> Option<usize> {
        let room = LONGEST.saturating_sub(self.0.len());
        self.0.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let (head, rest) = self.0.split_at_checked(HEAD)?;
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        if head[0] != 0 || head[3] != SETTINGS || length > LONGEST - HEAD {
            // h2 will have something to say about it.
            return Some(usize::MAX);
        }
        let settings = rest.get(..length)?.chunks_exact(6);
        let largest = settings
            .rev()
            .find(|setting| setting[..2] == MAX_HEADER_LIST_SIZE)
            .map(|setting| u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]));
        Some(largest.map_or(usize::MAX, |largest| largest as usize))
    }
}

const HEAD: usize = 9;
const SETTINGS: u8 = 4;
const MAX_HEADER_LIST_SIZE: [u8; 2] = [0, 6];
/// More than anybody has to say.
const LONGEST: usize = HEAD + 6 * 64;

#[cfg(test)]
mod tests {

    use super::*;

    fn read(bytes: &[u8], piece: usize) -> Option<usize> {
        let mut preface = SettingsReader::default();
        bytes.chunks(piece).find_map(|piece| preface.read(piece))
    }

    #[test]
    fn the_largest_head_is_found_however_it_comes() {
        let settings = [
            0, 0, 12, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 128, 0, 6, 0, 0, 0x20, 0, 0, 0, 0, 4, 1,
        ];
        for piece in 1..settings.len() {
            assert_eq!(read(&settings, piece), Some(8192), "{piece}");
        }
        assert_eq!(read(&settings[..20], 5), None);
    }

    #[test]
    fn who_does_not_say_takes_anything() {
        assert_eq!(read(&[0, 0, 0, 4, 0, 0, 0, 0, 0], 9), Some(usize::MAX));
        assert_eq!(read(b"HTTP/1.1 400 Bad Request", 9), Some(usize::MAX));
        assert_eq!(read(&[0, 255, 255, 4, 0, 0, 0, 0, 0], 9), Some(usize::MAX));
    }

    #[tokio::test]
    async fn whoever_needs_them_waits() {
        let spec = Arc::new(PeerSettings::default());
        let waiting = tokio::spawn({
            let spec = Arc::clone(&spec);
            async move { spec.largest_head().await }
        });
        tokio::task::yield_now().await;
        spec.agree(5);
        assert_eq!(waiting.await.unwrap(), 5);
        assert_eq!(spec.largest_head().await, 5);
    }
}
