//! A connection to a store, whatever shape the store has.
//!
//! The connection of one event loop to a store: all its requests share it, and no other loop's do.
//!
//! When a store is given up for a while, and when it is trusted again.
//!
//! A late answer costs points and a timely one gives some back, so that a server that is late now and then is kept,
//! and one that is late with every request is left alone after a handful. What will not heal by waiting, such as a
//! refused connection or a wrong password, ends it at once. Coming back is not decided by requests: one probe at a
//! time asks, and all others go on without. A store is back after several probes in a row that were answered in time, and one
//! that goes again soon after is left alone for longer.
//!
//! Notices that many answers of a store come too late, so that its operator can be told once.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, ResponsePolicy, RoutingInfo};
use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo,
    IntoConnectionInfo, RedisConnectionInfo, RedisError, TlsCertificates, TlsMode, Value,
};
use tokio::sync::Notify;

use crate::clock::Millis;
use crate::config::plan::{Login, Store, StoreTls, StoreTopology, TlsFile, UpstreamAddress};

/// Why a store cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of its TLS settings cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Its settings contradict each other, or what stands in a file is no certificate.
    #[error("the store \"{store}\" cannot be used")]
    Store {
        /// Its name.
        store: Box<str>,
        /// Why.
        #[source]
        source: RedisError,
    },
}

/// Makes connections.
pub(super) enum RedisConnector {
    Cluster(Box<ClusterClient>),
    /// A sentinel's answer changes with every failover: its client is made anew for every connection.
    Sentinel(Box<SentinelConfig>),
    Single(Box<Client>),
}

/// The sentinels that know the master.
#[derive(Clone)]
pub(super) struct SentinelConfig {
    addresses: Vec<ConnectionAddr>,
    master: Box<str>,
    login: Login,
    /// What they are asked as.
    own_login: Login,
    certificates: Option<TlsCertificates>,
}

/// A connection that many requests share; clones are the same one.
#[derive(Clone)]
pub(super) enum RedisConnection {
    Cluster(ClusterConnection),
    Server(MultiplexedConnection),
}

impl RedisConnector {
    pub(super) fn new(store: &Store) -> Result<Self, Error> {
        let certificates = store.tls.as_ref().map(certificates).transpose()?;
        let wrong = |source| Error::Store {
            store: store.name.clone(),
            source,
        };
        let addresses = store
            .servers
            .iter()
            .map(|server| address(server, store.tls.is_some()));
        let infos = addresses
            .clone()
            .map(|address| info(address, &store.login))
            .collect::<Result<Vec<_>, _>>()
            .map_err(wrong)?;
        Ok(match (&store.shape, infos.into_iter().next()) {
            (StoreTopology::Single, Some(info)) => {
                let client = match certificates {
                    Some(certificates) => Client::build_with_tls(info, certificates),
                    None => Client::open(info),
                };
                Self::Single(Box::new(client.map_err(wrong)?))
            }
            (StoreTopology::Sentinel(master), _) => Self::Sentinel(Box::new(SentinelConfig {
                addresses: addresses.collect(),
                master: master.clone(),
                login: store.login.clone(),
                own_login: store.sentinel_login.clone(),
                certificates,
            })),
            (StoreTopology::Cluster | StoreTopology::Single, _) => {
                let infos = addresses.filter_map(|address| info(address, &store.login).ok());
                let builder = ClusterClient::builder(infos)
                    // A slot that moves takes several: where it is now, whether this key has moved already, and a script that
                    // the new node does not know.
                    .retries(RETRIES)
                    .min_retry_wait(1)
                    .max_retry_wait(20)
                    .connection_timeout(CONNECT)
                    .response_timeout(RESPONSE)
                    .tcp_settings(tcp());
                let builder = match certificates {
                    Some(certificates) => builder.tls(TlsMode::Secure).certs(certificates),
                    None => builder,
                };
                Self::Cluster(Box::new(builder.build().map_err(wrong)?))
            }
        })
    }

    /// Connects and logs in.
    pub(super) async fn connect(&self) -> Result<RedisConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            // Each query has a deadline of its own.
            .set_response_timeout(None);
        let connection = match self {
            Self::Cluster(client) => {
                return client
                    .get_async_connection()
                    .await
                    .map(RedisConnection::Cluster);
            }
            Self::Sentinel(sentinels) => {
                let mut client = sentinels.client()?;
                client.get_async_connection_with_config(&config).await
            }
            Self::Single(client) => {
                client
                    .get_multiplexed_async_connection_with_config(&config)
                    .await
            }
        };
        connection.map(RedisConnection::Server)
    }

    /// Whether keys may lie on several servers.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}

impl SentinelConfig {
    fn client(&self) -> Result<SentinelClient, RedisError> {
        let sentinels = self.addresses.iter().cloned();
        let mut builder =
            SentinelClientBuilder::new(sentinels, &self.master, SentinelServerType::Master)?
                .set_client_to_redis_db(self.login.database.into())
                .set_client_to_redis_tcp_settings(tcp());
        if let Some(user) = &self.login.user {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = &self.login.password {
            builder = builder.set_client_to_redis_password(password.expose());
        }
        if let Some(user) = &self.own_login.user {
            builder = builder.set_client_to_sentinel_username(user);
        }
        if let Some(password) = &self.own_login.password {
            builder = builder.set_client_to_sentinel_password(password.expose());
        }
        if let Some(certificates) = &self.certificates {
            builder = builder
                .set_client_to_redis_tls_mode(TlsMode::Secure)
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_tls_mode(TlsMode::Secure)
                .set_client_to_sentinel_certificates(certificates.clone());
        }
        builder.build()
    }
}

impl RedisConnection {
    /// Sends a command and waits for its answer.
    pub(super) async fn send(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        match self {
            Self::Cluster(connection) => connection.req_packed_command(command).await,
            Self::Server(connection) => connection.send_packed_command(command).await,
        }?
        .extract_error()
    }

    /// Whether every server that has keys is there.
    pub(super) async fn ping_masters(&mut self) -> Result<(), RedisError> {
        if let Self::Cluster(connection) = self {
            let masters = (
                MultipleNodeRoutingInfo::AllMasters,
                Some(ResponsePolicy::AllSucceeded),
            );
            let ping = redis::cmd("PING");
            connection
                .route_command(ping, RoutingInfo::MultiNode(masters))
                .await?
                .extract_error()?;
        }
        Ok(())
    }

    /// Whether its keys may lie on several servers.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}

fn address(server: &UpstreamAddress, tls: bool) -> ConnectionAddr {
    match server {
        UpstreamAddress::Tcp { host, port } if tls => ConnectionAddr::TcpTls {
            host: host.to_string(),
            port: *port,
            insecure: false,
            tls_params: None,
        },
        UpstreamAddress::Tcp { host, port } => ConnectionAddr::Tcp(host.to_string(), *port),
        UpstreamAddress::Unix(path) => ConnectionAddr::Unix(path.clone()),
    }
}

fn info(address: ConnectionAddr, login: &Login) -> Result<ConnectionInfo, RedisError> {
    let mut settings = RedisConnectionInfo::default().set_db(login.database.into());
    if let Some(user) = &login.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &login.password {
        settings = settings.set_password(password.expose());
    }
    let info = address.into_connection_info()?;
    Ok(info.set_redis_settings(settings).set_tcp_settings(tcp()))
}

/// A question is one small packet, and waits for nothing.
fn tcp() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

fn certificates(tls: &StoreTls) -> Result<TlsCertificates, Error> {
    let read = |file: &TlsFile| {
        std::fs::read(&file.path).map_err(|source| Error::File {
            path: file.path.clone(),
            source,
        })
    };
    Ok(TlsCertificates {
        root_cert: tls.trusted.as_ref().map(read).transpose()?,
        client_tls: match &tls.own {
            Some((certificate, key)) => Some(ClientTlsConfig {
                client_cert: read(certificate)?,
                client_key: read(key)?,
            }),
            None => None,
        },
    })
}

/// How long a connection may take to be there.
const CONNECT: Duration = Duration::from_secs(1);

/// How long a node of a cluster may be silent before its connection is taken for dead.
const RESPONSE: Duration = Duration::from_millis(500);

/// How often a command is sent again to a cluster whose slots move, or are between two masters.
const RETRIES: u32 = 6;

/// What a thread knows of one store.
#[derive(Default)]
struct LoopConnection {
    store: u64,
    connection: Option<RedisConnection>,
    /// How often the store had come back when the link was made: what was connected before an outage is not trusted
    /// after it.
    epoch: u64,
    lost: Arc<Notify>,
    /// Wakes the task that sends what requests of this thread left behind.
    pending: Arc<Notify>,
}

/// This thread's link to a store, if there is a sound one.
pub(super) fn current(store: u64, epoch: u64) -> Option<RedisConnection> {
    LOOPS.with_borrow(|loops| {
        let own = loops.iter().find(|own| own.store == store)?;
        own.connection.clone().filter(|_| own.epoch == epoch)
    })
}

/// This thread has a new one.
pub(super) fn set(store: u64, epoch: u64, connection: RedisConnection) {
    with(store, |own| {
        own.connection = Some(connection);
        own.epoch = epoch;
    });
}

/// Drops the broken connection of this thread, and notifies the task that connects it again.
pub(super) fn lose(store: u64) {
    with(store, |own| {
        if own.connection.take().is_some() {
            own.lost.notify_one();
        }
    });
}

/// What tells that this thread's link is lost.
pub(super) fn lost(store: u64) -> Arc<Notify> {
    with(store, |own| Arc::clone(&own.lost))
}

/// Wakes this thread's task that sends what requests left behind.
pub(super) fn wake(store: u64) {
    // While a thread ends, its task has ended before.
    let _gone = LOOPS.try_with(|loops| {
        let loops = loops.borrow();
        if let Some(own) = loops.iter().find(|own| own.store == store) {
            own.pending.notify_one();
        }
    });
}

/// What wakes this thread's task that sends what requests left behind.
pub(super) fn pending(store: u64) -> Arc<Notify> {
    with(store, |own| Arc::clone(&own.pending))
}

/// This thread has nothing more to do with it.
pub(super) fn part(store: u64) {
    // Dropped after the borrow: closing a connection runs code that is not ours.
    let _gone = LOOPS.with_borrow_mut(|loops| {
        let index = loops.iter().position(|own| own.store == store)?;
        Some(loops.swap_remove(index))
    });
}

fn with<T>(store: u64, act: impl FnOnce(&mut LoopConnection) -> T) -> T {
    LOOPS.with_borrow_mut(|loops| {
        let index = loops.iter().position(|own| own.store == store);
        let index = index.unwrap_or_else(|| {
            loops.push(LoopConnection {
                store,
                ..LoopConnection::default()
            });
            loops.len() - 1
        });
        act(&mut loops[index])
    })
}

thread_local! {
    static LOOPS: RefCell<Vec<LoopConnection>> = const { RefCell::new(Vec::new()) };
}

/// Whether a store is asked.
#[derive(Debug, Default)]
pub(super) struct StoreBreaker {
    /// Points against it; [`GIVEN_UP`] while it is left alone.
    points: AtomicU32,
}

impl StoreBreaker {
    /// Whether it is left alone.
    pub(super) fn is_open(&self) -> bool {
        self.points.load(Ordering::Relaxed) == GIVEN_UP
    }

    /// An answer came in time.
    pub(super) fn hit(&self) {
        // Nearly always nothing: no write, and nothing for threads to fight over.
        if self.points.load(Ordering::Relaxed) != 0 {
            self.update(|points| points.saturating_sub(1));
        }
    }

    /// None came in time; whether that was the one too many.
    pub(super) fn miss(&self) -> bool {
        self.update(|points| match points + MISS {
            points if points >= MOST => GIVEN_UP,
            points => points,
        })
    }

    /// Something went wrong that waiting does not heal; whether this is news.
    pub(super) fn fail(&self) -> bool {
        self.update(|_| GIVEN_UP)
    }

    /// A probe was answered; whether this is news.
    pub(super) fn recover(&self) -> bool {
        self.points.swap(0, Ordering::Relaxed) == GIVEN_UP
    }

    /// Whether this gave it up; what is given up stays so.
    fn update(&self, change: impl Fn(u32) -> u32) -> bool {
        let changed = self
            .points
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |points| {
                (points != GIVEN_UP).then(|| change(points))
            });
        changed.is_ok_and(|before| change(before) == GIVEN_UP)
    }
}

/// The way back of a store that is away.
#[derive(Debug, Default)]
pub(super) struct RecoveryProbes {
    /// Probes in a row that were answered in time.
    timely: u32,
    /// When it was last back.
    back: Option<Millis>,
    /// How often it has gone again soon after.
    relapses: u32,
}

impl RecoveryProbes {
    /// It is away.
    pub(super) fn begin(&mut self, now: Millis) {
        self.timely = 0;
        self.relapses = match self.back.take() {
            Some(back) if now.since(back) < STEADY => (self.relapses + 1).min(MOST_RELAPSES),
            Some(_) | None => 0,
        };
    }

    /// Notes whether a probe was answered in time; whether the store is back.
    pub(super) fn answered(&mut self, now: Millis, in_time: bool) -> bool {
        self.timely = if in_time { self.timely + 1 } else { 0 };
        let is_back = self.timely >= TIMELY;
        if is_back {
            self.back = Some(now);
        }
        is_back
    }

    /// How long to wait for the next probe.
    pub(super) fn pause(&self) -> Duration {
        match self.timely {
            0 => PROBE * 2u32.pow(self.relapses),
            _ => AGAIN,
        }
    }
}

/// How often a store that is away is asked.
const PROBE: Duration = Duration::from_millis(400);

/// How soon after a timely answer it is asked again.
const AGAIN: Duration = Duration::from_millis(50);

/// So many timely answers in a row are needed.
const TIMELY: u32 = 3;

/// A store that is away again within this time has relapsed.
const STEADY: Duration = Duration::from_secs(60);

/// Relapses that make the pause longer: at most 6.4 seconds.
const MOST_RELAPSES: u32 = 4;

/// What a miss costs.
const MISS: u32 = 10;

/// So many points are too many: five misses in a row, or more than one in ten for long.
const MOST: u32 = 50;

const GIVEN_UP: u32 = u32::MAX;

/// How many decisions came too late lately.
#[derive(Debug, Default)]
pub(super) struct LateShare {
    /// When it was last looked, and what had been asked for and been late by then.
    looked: Option<(Millis, u64, u64)>,
    reported: bool,
}

impl LateShare {
    /// Looks at how many decisions were asked for, and how many came too late, in all. Which part of the last minute's was late, in
    /// percent, where that should be said.
    pub(super) fn look(&mut self, now: Millis, asked: u64, late: u64) -> Option<u64> {
        let (at, asked_before, late_before) = *self.looked.get_or_insert((now, asked, late));
        if now.since(at) < MINUTE {
            return None;
        }
        self.looked = Some((now, asked, late));
        let (asked, late) = (asked - asked_before, late - late_before);
        let percent = late.saturating_mul(100) / asked.max(1);
        if asked < FEW {
            return None;
        }
        let news = percent > 0 && !self.reported;
        self.reported = percent > 0;
        news.then_some(percent)
    }
}

const MINUTE: Duration = Duration::from_secs(60);

/// Fewer decisions than this say nothing.
const FEW: u64 = 20;

#[cfg(test)]
mod breaker_tests {

    use super::*;

    #[test]
    fn five_misses_in_a_row_are_too_many() {
        let breaker = StoreBreaker::default();
        assert_eq!(
            (0..5)
                .map(|_| breaker.miss())
                .filter(|tripped| *tripped)
                .count(),
            1
        );
        assert!(breaker.is_open());
        assert!(!breaker.miss(), "it is no news");
        breaker.hit();
        assert!(
            breaker.is_open(),
            "late answers of others bring nothing back"
        );
        assert!(breaker.recover());
        assert!(!breaker.is_open());
        assert!(!breaker.recover());
    }

    #[test]
    fn one_miss_in_a_hundred_is_forgiven() {
        let breaker = StoreBreaker::default();
        for _ in 0..1_000 {
            assert!(!breaker.miss());
            (0..99).for_each(|_| breaker.hit());
        }
    }

    #[test]
    fn every_other_miss_is_too_many() {
        let breaker = StoreBreaker::default();
        let tripped = (0..10).any(|_| {
            breaker.hit();
            breaker.miss()
        });
        assert!(tripped);
    }

    #[test]
    fn the_way_back_takes_several_timely_answers_in_a_row() {
        let mut way = RecoveryProbes::default();
        way.begin(Millis(0));
        for in_time in [true, true, false, true, true] {
            assert!(!way.answered(Millis(100), in_time));
        }
        assert!(!way.answered(Millis(100), false));
        assert!(!way.answered(Millis(100), true));
        assert!(!way.answered(Millis(100), true));
        assert!(way.answered(Millis(100), true));
    }

    #[test]
    fn a_store_that_fails_again_soon_is_probed_less_often() {
        let mut way = RecoveryProbes::default();
        let mut pauses = Vec::new();
        for outage in 0..7 {
            way.begin(Millis(outage * 10_000));
            pauses.push(way.pause().as_millis());
            while !way.answered(Millis(outage * 10_000 + 5_000), true) {}
        }
        assert_eq!(pauses, [400, 800, 1_600, 3_200, 6_400, 6_400, 6_400]);
        way.begin(Millis(200_000));
        assert_eq!(way.pause().as_millis(), 400, "it was well for a minute");
    }

    #[test]
    fn an_error_is_one_too_many() {
        let breaker = StoreBreaker::default();
        assert!(breaker.fail());
        assert!(!breaker.fail());
        assert!(breaker.is_open());
    }
}

#[cfg(test)]
mod lateness_tests {

    use super::*;

    #[test]
    fn lateness_is_said_once_until_it_is_over() {
        let mut lateness = LateShare::default();
        let mut look =
            |minute: u64, asked, late| lateness.look(Millis(minute * 60_000), asked, late);
        assert_eq!(look(0, 1_000, 900), None, "nothing is known yet");
        assert_eq!(look(1, 2_000, 1_100), Some(20));
        assert_eq!(look(2, 3_000, 1_500), None, "it is no news");
        assert_eq!(look(3, 4_000, 1_505), None, "less than one in a hundred");
        assert_eq!(look(4, 5_000, 1_515), Some(1));
        assert_eq!(look(5, 5_010, 1_525), None, "too few");
    }

    #[test]
    fn a_store_that_is_in_time_is_not_mentioned() {
        let mut lateness = LateShare::default();
        for minute in 0..5 {
            let look = lateness.look(Millis(minute * 60_000), minute * 1_000, 0);
            assert_eq!(look, None, "in minute {minute}");
        }
        assert_eq!(lateness.look(Millis(5 * 60_000), 5_000, 1_000), Some(100));
    }

    #[test]
    fn a_minute_that_is_not_over_is_looked_at_when_it_is() {
        let mut lateness = LateShare::default();
        assert_eq!(lateness.look(Millis(0), 0, 0), None);
        assert_eq!(lateness.look(Millis(30_000), 1_000, 500), None);
        assert_eq!(lateness.look(Millis(90_000), 2_000, 500), Some(25));
    }
}
