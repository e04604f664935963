//! Connections that are shared: a request joins one that has room, and another is made only when none has.
//!
//! Each event loop has its own, as over HTTP/1. While one is being made, whoever else needs one waits for it: a burst
//! of requests at a cold start must not become a burst of connections.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use h2::client::{self, SendRequest};

use super::drive;
use super::io::UpstreamHttp2Io;
use super::terms::PeerSettings;
use crate::config::plan::ProxyPass;
use crate::telemetry::panics;
use crate::upstream::backend::Backend;
use crate::upstream::connect;
use crate::upstream::error::{Error, Stage};
use crate::upstream::failed::ConnectionKind;
use crate::upstream::tenure::RetiredFlag;

/// What is known of a connection while its task has it.
#[derive(Debug, Default)]
pub(super) struct ConnectionLoad {
    active: AtomicUsize,
    gone: AtomicBool,
    heard: AtomicU64,
    calmed: AtomicBool,
    /// How long its backend belongs to those that are asked.
    tenure: RetiredFlag,
    /// What the backend has said of itself first.
    pub(super) terms: PeerSettings,
}

/// A place on a connection, given back when dropped.
#[derive(Debug)]
pub(in crate::upstream) struct StreamPermit {
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
    shared: Vec<PooledConnection>,
    // Held by who makes the next.
    gate: Arc<tokio::sync::Mutex<()>>,
}

/// Which backend of which upstream, met in which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PoolKey(u64, usize);

fn key(backend: &Backend, forward: &ProxyPass) -> PoolKey {
    PoolKey(backend.keep.upstream(), backend.owner(forward))
}

thread_local! {
    static GROUPS: RefCell<BTreeMap<PoolKey, BackendPool>> = const { RefCell::new(BTreeMap::new()) };
}

/// A place on a connection to this backend.
pub(super) async fn join(
    backend: &Backend,
    forward: &ProxyPass,
) -> Result<(StreamPermit, ConnectionKind), Error> {
    if let Some(ride) = board(backend, forward) {
        return Ok((ride, ConnectionKind::Kept));
    }
    let gate = GROUPS.with_borrow_mut(|groups| {
        let group = groups.entry(key(backend, forward)).or_default();
        Arc::clone(&group.gate)
    });
    let made = tokio::time::timeout(forward.connect_timeout, async {
        let _turn = gate.lock().await;
        if let Some(ride) = board(backend, forward) {
            return Ok((ride, ConnectionKind::Kept));
        }
        let ride = open(backend, forward).await?;
        Ok((ride, ConnectionKind::Fresh))
    });
    made.await.unwrap_or(Err(Error::Timeout(Stage::Connect)))
}

/// A place on a connection that has one.
fn board(backend: &Backend, forward: &ProxyPass) -> Option<StreamPermit> {
    let ride = GROUPS.with_borrow_mut(|groups| {
        let shared = &mut groups.get_mut(&key(backend, forward))?.shared;
        let shared = shared.iter_mut().find(|shared| shared.has_room(backend))?;
        shared.requests += 1;
        Some(StreamPermit::new(&shared.send, &shared.load))
    })?;
    backend.counts.count_reused();
    Some(ride)
}

async fn open(backend: &Backend, forward: &ProxyPass) -> Result<StreamPermit, Error> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let socket = connect::socket(backend, forward).await?;
    let load = Arc::new(ConnectionLoad {
        tenure: backend.tenure.clone(),
        ..ConnectionLoad::default()
    });
    let io = UpstreamHttp2Io::new(socket, Arc::clone(&load));
    let handshake = builder().handshake(io).await;
    let (send, connection) = handshake.map_err(super::broken)?;
    let ride = StreamPermit::new(&send, &load);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let server = Arc::clone(&backend.name);
    let driving = drive::run(connection, Arc::clone(&load), backend.keep, {
        let backend = key(backend, forward);
        move || forget(backend, number)
    });
    tokio::spawn(panics::isolated(Box::pin(driving), move |panic| {
        tracing::error!(
            server = &*server,
            "upstream connection's task panicked and was ended: {panic}"
        );
    }));
    GROUPS.with_borrow_mut(|groups| {
        let group = groups.entry(key(backend, forward)).or_default();
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

pub(super) fn builder() -> client::Builder {
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
    pub(super) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Something has come.
    pub(super) fn hear(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
    }

    /// How often something has come.
    pub(super) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Somebody has asked too much, and the backend says so.
    pub(super) fn calm(&self) {
        self.calmed.store(true, Ordering::Relaxed);
    }

    /// It takes no more requests.
    pub(super) fn retire(&self) {
        self.gone.store(true, Ordering::Relaxed);
        // Whoever waits to hear of it hears that nothing will come.
        self.terms.agree(usize::MAX);
    }

    /// Whether its backend is asked no more.
    pub(super) fn has_left(&self) -> bool {
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
    pub(super) async fn takes(&self, head: usize) -> bool {
        // What everybody takes need not wait for it to be said.
        head <= SMALL_HEAD || head <= self.load.terms.largest_head().await
    }

    /// Whether the backend has ended the connection because somebody asked too much.
    pub(super) fn is_calmed(&self) -> bool {
        self.load.calmed.load(Ordering::Relaxed)
    }

    /// The connection is of no use to others.
    pub(super) fn retire(&self) {
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
pub(super) const SMALL_HEAD: usize = 8000;

/// How many connections this thread has to a backend.
#[cfg(test)]
pub(in crate::upstream) fn connections(backend: &Backend, forward: &ProxyPass) -> usize {
    GROUPS.with_borrow(|groups| {
        groups
            .get(&key(backend, forward))
            .map_or(0, |group| group.shared.len())
    })
}
