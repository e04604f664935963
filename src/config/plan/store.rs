//! Stores: where zones count that several gateways share.

use std::time::Duration;

use super::{TlsFile, UpstreamAddress};
use crate::config::Secret;

/// A store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// Its name.
    pub name: Box<str>,
    /// What the names of its keys begin with.
    pub prefix: Box<str>,
    /// How its servers stand to each other.
    pub shape: StoreTopology,
    /// One server, or those of a cluster or the sentinels that are known from the start.
    pub servers: Vec<UpstreamAddress>,
    /// What they are spoken to as; where they are sentinels, what the master is.
    pub login: Login,
    /// What sentinels are spoken to as.
    pub sentinel_login: Login,
    /// How they are met over TLS; `None` for plain connections.
    pub tls: Option<StoreTls>,
    /// How long a decision may wait for an answer.
    pub timeout: Duration,
    /// What decides while there is none.
    pub on_outage: OnOutage,
    /// How it is asked.
    pub mode: StoreMode,
    /// Beyond which multiple of its limit a key is not asked about any more; `None` for never.
    pub local_above: Option<u32>,
    /// How many gateways share it at least; `None` for as many as were heard of lately.
    pub gateways: Option<u32>,
}

/// How the servers of a store stand to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreTopology {
    /// They share the keys among each other.
    Cluster,
    /// They know which server is the master of this name.
    Sentinel(Box<str>),
    /// There is one.
    Single,
}

/// What a server is told when it is connected to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// An ACL user; `None` for the default one.
    pub user: Option<Box<str>>,
    /// Its password.
    pub password: Option<Secret>,
    /// The number of the database.
    pub database: u16,
}

/// How a store is met over TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreTls {
    /// Whom to trust; `None` for the system's roots.
    pub trusted: Option<TlsFile>,
    /// What to show: a certificate and its key.
    pub own: Option<(TlsFile, TlsFile)>,
}

/// What decides while a store does not answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnOutage {
    /// Nobody: all pass.
    Allow,
    /// Each gateway for itself, with its share of the rate.
    #[default]
    Local,
    /// Nobody: all are refused.
    Refuse,
}

/// How a store is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StoreMode {
    /// About every request.
    #[default]
    Exact,
    /// Now and then, for as many requests as are likely to come.
    Leased,
}
