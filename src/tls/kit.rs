//! Everything a plan needs for TLS, read from its files.

use std::path::PathBuf;
use std::sync::Arc;

use super::{Error, ReloadResult, TlsAcceptor, TlsConnector};
use crate::config::plan::{self, Plan};

/// What clients are met with, and how servers of upstreams are.
#[derive(Debug, Clone, Default)]
pub struct TlsContexts {
    servers: Vec<Option<Arc<TlsAcceptor>>>,
    clients: Arc<[Arc<TlsConnector>]>,
}

impl TlsContexts {
    /// Reads all files. Where nothing has changed since the plan `before`, sessions that were agreed on go on.
    ///
    /// # Errors
    /// When one of them cannot be used.
    pub fn build(plan: &Plan, before: Option<(&Plan, &Self)>) -> Result<Self, Error> {
        let servers = plan.servers.iter().enumerate().map(|(index, server)| {
            let Some(tls) = &server.tls else {
                return Ok(None);
            };
            // Of several that look the same, each goes on from its own: no session is shown to another server.
            let same = |old: &&plan::Server| old.name == server.name && old.tls == server.tls;
            let nth = plan.servers[..index].iter().filter(same).count();
            let old = before.and_then(|(plan, kit)| {
                let mut all = plan.servers.iter().zip(&kit.servers);
                let alike = all.by_ref().filter(|(old, _)| same(old));
                alike.map(|(_, kept)| kept).nth(nth)?.as_deref()
            });
            TlsAcceptor::build(tls, old).map(Arc::new).map(Some)
        });
        Ok(Self {
            servers: servers.collect::<Result<_, _>>()?,
            clients: clients(plan, before)?,
        })
    }

    /// What clients of the plan's server with this index are met with.
    #[must_use]
    pub fn server(&self, index: usize) -> Option<Arc<TlsAcceptor>> {
        self.servers.get(index)?.clone()
    }

    /// How servers of upstreams are met, in the plan's order.
    #[must_use]
    pub fn clients(&self) -> Arc<[Arc<TlsConnector>]> {
        Arc::clone(&self.clients)
    }

    /// Looks at all files again; tells what came of those that have changed.
    pub fn refresh(&self, mut tell: impl FnMut(PathBuf, ReloadResult)) {
        for server in self.servers.iter().flatten() {
            tell(server.file(), server.refresh());
        }
        for client in self.clients.iter() {
            tell(client.file(), client.refresh());
        }
    }
}

/// How servers of upstreams are met; as before, where that is said as before.
fn clients(
    plan: &Plan,
    before: Option<(&Plan, &TlsContexts)>,
) -> Result<Arc<[Arc<TlsConnector>]>, Error> {
    if let Some((old, kit)) = before
        && old.upstream_tls == plan.upstream_tls
    {
        return Ok(kit.clients());
    }
    let clients = plan.upstream_tls.iter().map(|tls| {
        let known = before.and_then(|(old, kit)| {
            let index = old.upstream_tls.iter().position(|old| old == tls)?;
            kit.clients.get(index).map(Arc::clone)
        });
        known.map_or_else(|| TlsConnector::build(tls).map(Arc::new), Ok)
    });
    clients.collect()
}
