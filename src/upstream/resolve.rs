//! Names to addresses: once at the start, and again while running where `resolve` says so.
//!
//! A name with several addresses is several backends. New addresses are added to the group; those that are gone receive
//! no new requests and finish those they have. A name that cannot be looked up, or has no address any more, keeps its
//! last addresses: a resolver that fails for a while must not take the servers with it. Names without `resolve` are
//! looked up each time the configuration is read.
//!
//! This file decides what is looked up and when, and takes in the results; the tasks run in `app`.

#[cfg(test)]
#[path = "tests/resolve.rs"]
mod tests;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::backend::{BackendAddress, GroupSettings};
use super::dns;
use super::error::Error;
use crate::clock::Millis;
use crate::config::plan;

/// A name to look up.
#[derive(Debug, Clone)]
pub struct NameLookup {
    /// The server's place in the plan.
    pub server: usize,
    host: Box<str>,
    port: u16,
    resolver: Option<Arc<plan::Resolver>>,
}

/// The result of a look-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookupResult {
    /// At least one, sorted, so that several gateways have the same order.
    pub addresses: Vec<SocketAddr>,
    /// How long they are valid, where that is known.
    pub ttl: Option<Duration>,
}

/// The state of a name that is looked up again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameStatus {
    /// The name.
    pub host: Box<str>,
    /// The number of its addresses.
    pub addresses: usize,
    /// Look-ups that succeeded.
    pub found: u64,
    /// Look-ups that failed.
    pub failed: u64,
}

/// The names of an upstream that are looked up again, and the settings of their backends.
#[derive(Debug)]
pub(super) struct ResolvedNames {
    pub(super) settings: GroupSettings,
    list: Mutex<Vec<ResolvedName>>,
}

#[derive(Debug)]
struct ResolvedName {
    lookup: NameLookup,
    /// The longest from one look-up to the next.
    every: Duration,
    /// When it is looked up again; none while it is.
    due: Option<Millis>,
    failing: bool,
    status: NameStatus,
}

impl NameLookup {
    /// Looks the name up. Blocks.
    ///
    /// # Errors
    ///
    /// The look-up failed, or the name has no address.
    pub fn run(&self) -> io::Result<LookupResult> {
        let (mut addresses, ttl): (Vec<SocketAddr>, _) = match &self.resolver {
            None => ((&*self.host, self.port).to_socket_addrs()?.collect(), None),
            Some(resolver) => {
                let (found, ttl) = dns::look_up(resolver, &self.host)?;
                let found = found.into_iter();
                let addresses = found.map(|address| SocketAddr::new(address, self.port));
                (addresses.collect(), Some(resolver.valid.unwrap_or(ttl)))
            }
        };
        if addresses.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the name has no address",
            ));
        }
        addresses.sort_unstable();
        addresses.dedup();
        Ok(LookupResult { addresses, ttl })
    }
}

impl ResolvedNames {
    /// The names of these settings, with the result of each at the start.
    pub(super) fn new(settings: GroupSettings, results: Vec<Option<LookupResult>>) -> Self {
        let servers = settings.upstream.servers.iter().enumerate().zip(results);
        let list = servers.filter_map(|((server, plan), result)| {
            let lookup = lookup(&settings.upstream, server)?;
            let mut name = ResolvedName {
                status: NameStatus {
                    host: lookup.host.clone(),
                    addresses: 0,
                    found: 0,
                    failed: 0,
                },
                lookup,
                every: plan.resolve?,
                due: None,
                failing: false,
            };
            name.note(result.as_ref(), Millis::default());
            Some(name)
        });
        Self {
            list: Mutex::new(list.collect()),
            settings,
        }
    }

    /// The names that are due. None is due again before its result is [noted](Self::note).
    pub(super) fn due(&self, now: Millis) -> Vec<NameLookup> {
        let mut list = self.list.lock();
        let due = list
            .iter_mut()
            .filter(|name| name.due.is_some_and(|due| due <= now));
        due.map(|name| {
            name.due = None;
            name.lookup.clone()
        })
        .collect()
    }

    /// When the next name is due.
    pub(super) fn next(&self) -> Option<Millis> {
        self.list.lock().iter().filter_map(|name| name.due).min()
    }

    /// Takes in the result of a look-up and returns it if it succeeded. The first of several errors is logged.
    pub(super) fn note(
        &self,
        server: usize,
        result: io::Result<LookupResult>,
        now: Millis,
    ) -> Option<LookupResult> {
        let mut list = self.list.lock();
        let name = list.iter_mut().find(|name| name.lookup.server == server)?;
        let (upstream, host) = (&*self.settings.upstream.name, &*name.lookup.host);
        match &result {
            Err(error) if !name.failing => {
                tracing::warn!(
                    upstream,
                    host,
                    "host not found in upstream: {error}; its last addresses stay in use"
                );
            }
            Ok(_) if name.failing => tracing::info!(upstream, host, "host is found again"),
            _ => {}
        }
        let result = result.ok();
        name.note(result.as_ref(), now);
        result
    }

    pub(super) fn statuses(&self) -> Vec<NameStatus> {
        let list = self.list.lock();
        list.iter().map(|name| name.status.clone()).collect()
    }
}

impl ResolvedName {
    fn note(&mut self, result: Option<&LookupResult>, now: Millis) {
        self.failing = result.is_none();
        let pause = match result {
            Some(found) => {
                self.status.found += 1;
                self.status.addresses = found.addresses.len();
                let ttl = found.ttl.unwrap_or(self.every);
                self.every.min(ttl.max(SHORTEST_PAUSE))
            }
            None => {
                self.status.failed += 1;
                self.every.min(AFTER_FAILURE)
            }
        };
        self.due = Some(now.after(pause));
    }
}

/// The look-up of a server of the plan that is looked up again.
fn lookup(upstream: &plan::Upstream, server: usize) -> Option<NameLookup> {
    let plan = &upstream.servers[server];
    match &plan.address {
        plan::UpstreamAddress::Tcp { host, port } if plan.resolve.is_some() => Some(NameLookup {
            server,
            host: host.clone(),
            port: *port,
            resolver: upstream.resolver.clone(),
        }),
        _ => None,
    }
}

/// The addresses of a server at the start. One that is looked up again may have none yet. Blocks.
pub(super) fn at_start(
    upstream: &plan::Upstream,
    server: usize,
) -> Result<(Vec<BackendAddress>, Option<LookupResult>), Error> {
    let (host, port) = match &upstream.servers[server].address {
        plan::UpstreamAddress::Tcp { host, port } => (host, *port),
        plan::UpstreamAddress::Unix(path) => {
            return Ok((vec![BackendAddress::Unix(path.clone())], None));
        }
    };
    if let Some(lookup) = lookup(upstream, server) {
        let found = lookup.run().inspect_err(|error| {
            let (upstream, host) = (&*upstream.name, &**host);
            tracing::warn!(upstream, host, "host not found in upstream: {error}");
        });
        let found = found.ok();
        let addresses = found.iter().flat_map(|found| &found.addresses);
        return Ok((addresses.copied().map(BackendAddress::Tcp).collect(), found));
    }
    let unresolved = |source| Error::Resolve {
        host: host.clone(),
        source,
    };
    let found = (&**host, port).to_socket_addrs().map_err(unresolved)?;
    let found: Vec<_> = found.map(BackendAddress::Tcp).collect();
    match found.is_empty() {
        true => Err(unresolved(io::ErrorKind::NotFound.into())),
        false => Ok((found, None)),
    }
}

/// The shortest time between two look-ups, whatever the TTL.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest time from a failed look-up to the next.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
