//! The shared connections: a request joins one that has room, and another is opened only when none has.
//!
//! Each event loop has its own, as over HTTP/1. While one is being opened, other requests wait for it: a burst of requests
//! at a cold start must not become a burst of connections.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Connection, SendRequest};
use h2::{Ping, PingPong, client};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::SetOnce;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::io::InspectReader;

use crate::config::plan::ProxyPass;
use crate::message::FrameScanner;
use crate::telemetry;
use crate::tls::Socket;
use crate::upstream::backend::{Backend, RetiredFlag};
use crate::upstream::connection;
use crate::upstream::error::{Error, Stage};

/// The error of a request whose response has not begun.
pub(super) fn broken(error: h2::Error) -> Error {
    match error.is_io() {
        true => Error::Broken(into_io(error)),
        false => Error::Rejected(error),
    }
}

pub(super) fn into_io(error: h2::Error) -> io::Error {
    match error.is_io() {
        true => error
            .into_io()
            .unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()),
        false => io::Error::other(error),
    }
}

/// The state of a connection, shared by its task and its requests.
#[derive(Debug, Default)]
pub(super) struct ConnectionLoad {
    /// Requests in progress.
    active: AtomicUsize,
    /// It takes no more requests.
    closing: AtomicBool,
    /// How often something has arrived.
    reads: AtomicU64,
    /// The backend has sent ENHANCE_YOUR_CALM.
    calmed: AtomicBool,
    /// That of its backend.
    retired: RetiredFlag,
    /// The largest request headers that the backend accepts.
    // h2 keeps the setting to itself. Some backends end the connection over larger headers, and with it the requests of
    // others, so such a request is better not sent.
    largest_head: SetOnce<usize>,
}

/// A request's place on a connection, given back when dropped.
#[derive(Debug)]
pub(super) struct StreamPermit {
    pub(super) send: SendRequest<Bytes>,
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
    connections: Vec<PooledConnection>,
    // Held by the request that opens the next connection.
    opening: Arc<tokio::sync::Mutex<()>>,
}

/// The number of an upstream, and an [owner](Backend::owner) in it.
type PoolKey = (u64, usize);

fn key(backend: &Backend, proxy_pass: &ProxyPass) -> PoolKey {
    (backend.keepalive.upstream, backend.owner(proxy_pass))
}

thread_local! {
    static POOLS: RefCell<BTreeMap<PoolKey, BackendPool>> = const { RefCell::new(BTreeMap::new()) };
}

/// A place on a connection to this backend, and whether the connection is a kept one.
pub(super) async fn join(
    backend: &Backend,
    proxy_pass: &ProxyPass,
) -> Result<(StreamPermit, bool), Error> {
    if let Some(permit) = join_kept(backend, proxy_pass) {
        return Ok((permit, true));
    }
    let opening = POOLS.with_borrow_mut(|pools| {
        let pool = pools.entry(key(backend, proxy_pass)).or_default();
        Arc::clone(&pool.opening)
    });
    let joining = tokio::time::timeout(proxy_pass.settings.proxy_connect_timeout, async {
        let _turn = opening.lock().await;
        match join_kept(backend, proxy_pass) {
            Some(permit) => Ok((permit, true)),
            None => Ok((open(backend, proxy_pass).await?, false)),
        }
    });
    joining.await.unwrap_or(Err(Error::Timeout(Stage::Connect)))
}

fn join_kept(backend: &Backend, proxy_pass: &ProxyPass) -> Option<StreamPermit> {
    let permit = POOLS.with_borrow_mut(|pools| {
        let connections = &mut pools.get_mut(&key(backend, proxy_pass))?.connections;
        let kept = connections.iter_mut().find(|kept| kept.has_room(backend))?;
        kept.requests += 1;
        Some(StreamPermit::new(&kept.send, &kept.load))
    })?;
    backend.counters.reused.fetch_add(1, Ordering::Relaxed);
    Some(permit)
}

async fn open(backend: &Backend, proxy_pass: &ProxyPass) -> Result<StreamPermit, Error> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let socket = connection::socket(backend, proxy_pass).await?;
    let load = Arc::new(ConnectionLoad {
        retired: backend.retired.clone(),
        ..ConnectionLoad::default()
    });
    let handshake = handshake(socket, Arc::clone(&load)).await;
    let (send, connection) = handshake.map_err(broken)?;
    let permit = StreamPermit::new(&send, &load);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let server = Arc::clone(&backend.name);
    let key = key(backend, proxy_pass);
    let most_idle = match backend.keepalive.most {
        0 => 1,
        _ => backend.keepalive.timeout.as_secs().max(1),
    };
    let running = run(connection, Arc::clone(&load), most_idle, move || {
        forget(key, number)
    });
    tokio::spawn(telemetry::isolated(Box::pin(running), move |panic| {
        tracing::error!(
            server = &*server,
            "the task of an upstream connection panicked and was ended: {panic}"
        );
    }));
    POOLS.with_borrow_mut(|pools| {
        let pool = pools.entry(key).or_default();
        pool.connections.push(PooledConnection {
            number,
            send,
            load,
            requests: 1,
        });
    });
    Ok(permit)
}

/// Lets no more requests join a connection; it closes when those it has are over.
fn forget(key: PoolKey, number: u64) {
    // Dropped after the borrow: it runs code of other crates.
    let _connection = POOLS.with_borrow_mut(|pools| {
        let connections = &mut pools.get_mut(&key)?.connections;
        let at = connections.iter().position(|kept| kept.number == number)?;
        Some(connections.swap_remove(at))
    });
}

/// Begins a connection. What arrives on it is noted in `load`.
pub(super) async fn handshake(
    socket: Socket,
    load: Arc<ConnectionLoad>,
) -> Result<
    (
        SendRequest<Bytes>,
        Connection<impl AsyncRead + AsyncWrite + Unpin, Bytes>,
    ),
    h2::Error,
> {
    let mut settings = Some(SettingsReader::default());
    let mut frames = FrameScanner::from_server();
    let socket = InspectReader::new(socket, move |mut bytes: &[u8]| {
        load.reads.fetch_add(1, Ordering::Relaxed);
        if let Some(reader) = &mut settings
            && let Some(largest_head) = reader.read(bytes)
        {
            load.set_largest_head(largest_head);
            settings = None;
        }
        while let Some(frame) = frames.next(&mut bytes) {
            if frame.asks_for_calm() {
                load.calmed.store(true, Ordering::Relaxed);
            }
        }
    });
    client::Builder::new()
        .enable_push(false)
        .max_header_list_size(LARGEST_HEAD)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .handshake(socket)
        .await
}

impl PooledConnection {
    fn has_room(&self, backend: &Backend) -> bool {
        !self.load.closing.load(Ordering::Relaxed)
            && !self.load.retired.is_set()
            && self.requests < backend.keepalive.requests
            && self.load.active() < self.send.current_max_send_streams().min(MOST_STREAMS)
    }
}

impl ConnectionLoad {
    fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Takes no more requests.
    fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        // Requests that wait for the settings learn that none will arrive.
        self.set_largest_head(usize::MAX);
    }

    fn set_largest_head(&self, largest_head: usize) {
        // The first holds.
        let _set = self.largest_head.set(largest_head);
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

    /// Whether the backend accepts request headers of this size. Waits for its settings if need be.
    pub(super) async fn accepts(&self, head: usize) -> bool {
        head <= SMALL_HEAD || head <= *self.load.largest_head.wait().await
    }

    /// Whether the backend has ended the connection with ENHANCE_YOUR_CALM.
    pub(super) fn is_calmed(&self) -> bool {
        self.load.calmed.load(Ordering::Relaxed)
    }

    /// Keeps other requests off the connection.
    pub(super) fn close_connection(&self) {
        self.load.close();
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.load.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Requests that share a connection, however many the backend allows: one that breaks ends them all.
const MOST_STREAMS: usize = 100;
/// Bytes of response headers; as over HTTP/1.
const LARGEST_HEAD: u32 = 64 * 1024;
/// Bytes of a response that a backend may send before its client has taken them: so much memory a slow client costs.
const STREAM_WINDOW: u32 = 128 * 1024;
/// The same for all responses of a connection: enough that slow clients do not hold up the others.
const CONNECTION_WINDOW: u32 = 2 * MOST_STREAMS as u32 * STREAM_WINDOW;
/// Bytes of a request that may wait for the backend to take them.
const SEND_BUFFER: usize = 64 * 1024;

/// Bytes of request headers that no backend ends a connection over: nginx's limit for one field; for all together it is
/// four times as much.
pub(super) const SMALL_HEAD: usize = 8000;

/// How many connections this thread has to a backend.
#[cfg(test)]
pub(in crate::upstream) fn connections(backend: &Backend, proxy_pass: &ProxyPass) -> usize {
    POOLS.with_borrow(|pools| {
        pools
            .get(&key(backend, proxy_pass))
            .map_or(0, |pool| pool.connections.len())
    })
}

/// Drives a connection until it is over. Calls `forget` when no more requests may join it.
async fn run(
    mut connection: Connection<impl AsyncRead + AsyncWrite + Unpin, Bytes>,
    load: Arc<ConnectionLoad>,
    most_idle: u64,
    forget: impl Fn(),
) {
    let close = || {
        load.close();
        forget();
    };
    // However the task ends.
    let _close = OnClose(&close);
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watch = ConnectionWatch {
        pings: connection.ping_pong(),
        tick,
        reads: 0,
        quiet: 0,
        ping_after: PING_AFTER,
        idle: 0,
        most_idle,
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
                close();
                // It ends by itself when its last request is over.
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await;
}

struct OnClose<'c, F: Fn()>(&'c F);

impl<F: Fn()> Drop for OnClose<'_, F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Checks a connection once a second.
struct ConnectionWatch {
    pings: Option<PingPong>,
    tick: Interval,
    // The reads at the last check, and for how many checks there were no more.
    reads: u64,
    quiet: u32,
    // For how many checks it may be quiet before it is pinged.
    ping_after: u32,
    // Seconds without requests, and how many of them the connection is kept.
    idle: u64,
    most_idle: u64,
}

enum WatchResult {
    /// It does not respond to a ping.
    Dead,
    /// It has had no request for too long.
    Unused,
}

impl ConnectionWatch {
    fn poll(&mut self, load: &ConnectionLoad, context: &mut Context<'_>) -> Poll<WatchResult> {
        if let Some(pings) = &mut self.pings
            && pings.poll_pong(context).is_ready()
        {
            // It is alive. Backends mind frequent pings: grpc's ends the connection at the third within five minutes if
            // nothing else came in between.
            self.reads = load.reads();
            self.quiet = 0;
            self.ping_after = PING_SELDOM;
        }
        while self.tick.poll_tick(context).is_ready() {
            if load.active() == 0 {
                self.idle += 1;
                self.quiet = 0;
                if self.idle == self.most_idle || load.retired.is_set() {
                    return Poll::Ready(WatchResult::Unused);
                }
                continue;
            }
            self.idle = 0;
            if load.reads() != self.reads {
                self.reads = load.reads();
                self.quiet = 0;
                self.ping_after = PING_AFTER;
                continue;
            }
            self.quiet += 1;
            if self.quiet == self.ping_after
                && let Some(pings) = &mut self.pings
            {
                // If one is still on its way, that will do.
                drop(pings.send_ping(Ping::opaque()));
            }
            if self.quiet >= self.ping_after + PONG_WITHIN {
                return Poll::Ready(WatchResult::Dead);
            }
        }
        Poll::Pending
    }
}

const TICK: Duration = Duration::from_secs(1);
/// Seconds of silence, with a response outstanding, after which the backend is pinged.
const PING_AFTER: u32 = 10;
/// The same where it has responded to a ping, and nothing else has come since.
const PING_SELDOM: u32 = 330;
/// Seconds it has to respond.
const PONG_WITHIN: u32 = 10;

/// Reads the first frame of a backend, which has to be SETTINGS.
#[derive(Debug, Default)]
struct SettingsReader(Vec<u8>);

impl SettingsReader {
    /// Adds bytes; returns the size of the largest headers once the frame is complete.
    fn read(&mut self, bytes: &[u8]) -> Option<usize> {
        let room = LONGEST_SETTINGS.saturating_sub(self.0.len());
        self.0.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let (head, rest) = self.0.split_at_checked(FRAME_HEADER)?;
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        if head[0] != 0 || head[3] != SETTINGS || length > LONGEST_SETTINGS - FRAME_HEADER {
            // h2 will reject it.
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

const FRAME_HEADER: usize = 9;
const SETTINGS: u8 = 4;
const MAX_HEADER_LIST_SIZE: [u8; 2] = [0, 6];
/// More than any backend sends.
const LONGEST_SETTINGS: usize = FRAME_HEADER + 6 * 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], piece: usize) -> Option<usize> {
        let mut reader = SettingsReader::default();
        bytes.chunks(piece).find_map(|piece| reader.read(piece))
    }

    #[test]
    fn the_largest_head_is_read_however_the_frame_is_cut() {
        let settings = [
            0, 0, 12, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 128, 0, 6, 0, 0, 0x20, 0, 0, 0, 0, 4, 1,
        ];
        for piece in 1..settings.len() {
            assert_eq!(read(&settings, piece), Some(8192), "{piece}");
        }
        assert_eq!(read(&settings[..20], 5), None);
    }

    #[test]
    fn without_the_setting_any_size_is_accepted() {
        assert_eq!(read(&[0, 0, 0, 4, 0, 0, 0, 0, 0], 9), Some(usize::MAX));
        assert_eq!(read(b"HTTP/1.1 400 Bad Request", 9), Some(usize::MAX));
        assert_eq!(read(&[0, 255, 255, 4, 0, 0, 0, 0, 0], 9), Some(usize::MAX));
    }

    #[tokio::test]
    async fn a_request_waits_for_the_settings() {
        let load = Arc::new(ConnectionLoad::default());
        let waiting = tokio::spawn({
            let load = Arc::clone(&load);
            async move { *load.largest_head.wait().await }
        });
        tokio::task::yield_now().await;
        load.set_largest_head(5);
        load.close();
        assert_eq!(waiting.await.unwrap(), 5);
        assert_eq!(*load.largest_head.wait().await, 5);
    }
}
