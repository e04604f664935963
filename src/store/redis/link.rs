//! A connection to a store, whatever shape the store has.

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

use super::Error;
use crate::config::plan::{Login, Store, StoreTls, StoreTopology, TlsFile, UpstreamAddress};

/// Makes connections.
pub(super) enum RedisConnector {
    Cluster(Box<ClusterClient>),
    /// A sentinel's answer changes with every failover: its client is made anew for every connection.
    Sentinel(Box<SentinelConfig>),
    Single(Box<Client>),
}

/// Whom to ask for a master.
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

    /// Connects, and says who we are.
    pub(super) async fn connect(&self) -> Result<RedisConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            // Whoever asks has a deadline of its own.
            .set_response_timeout(None);
        match self {
            Self::Cluster(client) => client
                .get_async_connection()
                .await
                .map(RedisConnection::Cluster),
            Self::Sentinel(sentinels) => {
                let mut client = sentinels.client()?;
                let connection = client.get_async_connection_with_config(&config).await;
                connection.map(RedisConnection::Server)
            }
            Self::Single(client) => client
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .map(RedisConnection::Server),
        }
    }
}

impl RedisConnector {
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
    pub(super) async fn all_there(&mut self) -> Result<(), RedisError> {
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
