//! Everything a plan needs for TLS, read from its files.

use std::path::PathBuf;
use std::sync::Arc;

use super::{Client, Error, Refreshed, Server};
use crate::config::plan::Plan;

/// What clients are met with, and how servers of upstreams are.
#[derive(Debug, Default)]
pub struct Kit {
    servers: Vec<Option<Arc<Server>>>,
    clients: Arc<[Arc<Client>]>,
}

impl Kit {
    /// Reads all files.
    ///
    /// # Errors
    /// When one of them cannot be used.
    pub fn build(plan: &Plan) -> Result<Self, Error> {
        let servers = plan.servers.iter().map(|server| {
            let tls = server.tls.as_ref();
            tls.map(|tls| Server::build(tls).map(Arc::new)).transpose()
        });
        let clients = plan.upstream_tls.iter();
        Ok(Self {
            servers: servers.collect::<Result<_, _>>()?,
            clients: clients
                .map(|tls| Client::build(tls).map(Arc::new))
                .collect::<Result<_, _>>()?,
        })
    }

    /// What clients of the plan's server with this index are met with.
    #[must_use]
    pub fn server(&self, index: usize) -> Option<Arc<Server>> {
        self.servers.get(index)?.clone()
    }

    /// How servers of upstreams are met, in the plan's order.
    #[must_use]
    pub fn clients(&self) -> Arc<[Arc<Client>]> {
        Arc::clone(&self.clients)
    }

    /// Looks at all files again; tells what came of those that have changed.
    pub fn refresh(&self, mut tell: impl FnMut(PathBuf, Refreshed)) {
        for server in self.servers.iter().flatten() {
            tell(server.file(), server.refresh());
        }
        for client in self.clients.iter() {
            tell(client.file(), client.refresh());
        }
    }
}
