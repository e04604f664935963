//! Names to addresses: once at the start, and again while running where `resolve` says so.
//!
//! A name with several addresses is several backends. New addresses join the group; those that are gone get no new
//! request and finish those they have. A name that cannot be looked up, or has no address any more, keeps those it had:
//! a resolver that is away for a while must not take the servers with it. Names without `resolve` are looked up with the
//! configuration, each time that is read.
//!
//! Here it is only said what to look up and when, and what comes of it; who runs the tasks has it done.

#[cfg(test)]
#[path = "tests/resolve.rs"]
mod tests;

use std::collections::HashSet;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;

use super::backend::{BackendAddress, GroupSettings};
use super::error::Error;
use super::{Upstream, dns, usable};
use crate::clock::Millis;
use crate::config::plan;

/// A name to look up.
#[derive(Debug, Clone)]
pub struct NameLookup {
    /// Whose it is: the server's place in the plan.
    pub server: usize,
    host: Box<str>,
    port: u16,
    resolver: Option<Arc<plan::Resolver>>,
}

/// What a look-up has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookupResult {
    /// At least one, in an order that depends on nothing else, so that several gateways have the same.
    pub addresses: Vec<SocketAddr>,
    /// For how long they hold, where that is known.
    pub holds: Option<Duration>,
}

/// How a name that is looked up again fares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameStatus {
    /// The name.
    pub host: Box<str>,
    /// How many addresses it has now.
    pub addresses: usize,
    /// How many look-ups went well.
    pub found: u64,
    /// How many did not.
    pub failed: u64,
}

/// The names of an upstream that are looked up again, and what their backends are made of.
#[derive(Debug)]
pub(super) struct ResolvedNames {
    pub(super) common: GroupSettings,
    list: Mutex<Vec<ResolvedName>>,
}

#[derive(Debug)]
struct ResolvedName {
    lookup: NameLookup,
    /// The longest from one look-up to the next.
    every: Duration,
    /// None while it is looked up.
    due: Option<Millis>,
    failing: bool,
    view: NameStatus,
}

/// Who has come and gone with a look-up.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MembershipChange {
    pub(super) joined: Vec<Arc<str>>,
    pub(super) left: Vec<Arc<str>>,
}

impl Upstream {
    /// The names whose time has come to be looked up again. What came of each has to be [told](Self::resolved).
    #[must_use]
    pub fn lookups(&self, now: Millis) -> Vec<NameLookup> {
        let names = self.names.as_ref();
        names.map_or_else(Vec::new, |names| names.due(now))
    }

    /// When the next name's time comes.
    #[must_use]
    pub fn next_lookup(&self) -> Option<Millis> {
        self.names.as_ref()?.next()
    }

    /// The name of a server was looked up: new addresses join, those that are gone finish what they have.
    pub fn resolved(&self, server: usize, found: io::Result<LookupResult>, now: Millis) {
        let Some(names) = &self.names else { return };
        let Some(found) = names.note(server, found, now) else {
            return;
        };
        let change = self
            .balance
            .resettle(&names.common, server, &found.addresses, now);
        let upstream = &*self.name;
        for server in &change.joined {
            tracing::info!(upstream, server = &**server, "upstream server has come");
        }
        for server in &change.left {
            tracing::info!(upstream, server = &**server, "upstream server has gone");
        }
        let usable = usable(&self.balance.backends());
        self.tries.store(usable, Ordering::Relaxed);
    }

    /// How those of its names fare that are looked up again.
    #[must_use]
    pub fn names(&self) -> Vec<NameStatus> {
        let names = self.names.as_ref();
        names.map_or_else(Vec::new, |names| names.views())
    }
}

impl Upstream {
    /// Whether the names of its plan that are looked up only once have the addresses it knows. One that cannot be looked
    /// up now keeps them. Blocks.
    #[must_use]
    pub fn is_where_it_was(&self, plan: &plan::Upstream) -> bool {
        let backends = self.backends();
        let servers = plan.servers.iter().enumerate();
        let mut once = servers.filter(|(_, server)| server.resolve.is_none());
        once.all(|(listed, _)| match at_start(plan, listed) {
            Ok((found, _)) => {
                let own = backends.iter().filter(|backend| backend.listed == listed);
                let known: HashSet<_> = own.map(|backend| &backend.address).collect();
                known == found.iter().collect()
            }
            Err(error) => {
                let upstream = &*self.name;
                tracing::warn!(upstream, "{error}; its last addresses stay in use");
                true
            }
        })
    }
}

impl NameLookup {
    /// Looks the name up. Blocks.
    ///
    /// # Errors
    ///
    /// When nobody can say, or the name has no address.
    pub fn run(&self) -> io::Result<LookupResult> {
        let (mut addresses, holds): (Vec<SocketAddr>, _) = match &self.resolver {
            None => ((&*self.host, self.port).to_socket_addrs()?.collect(), None),
            Some(resolver) => {
                let (found, holds) = dns::look_up(resolver, &self.host)?;
                let found = found.into_iter();
                (
                    found
                        .map(|address| SocketAddr::new(address, self.port))
                        .collect(),
                    Some(resolver.valid.unwrap_or(holds)),
                )
            }
        };
        if addresses.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "it has no address"));
        }
        addresses.sort_unstable();
        addresses.dedup();
        Ok(LookupResult { addresses, holds })
    }
}

impl ResolvedNames {
    /// Those that are made of this; with what was found of each at the start.
    pub(super) fn new(common: GroupSettings, found: Vec<Option<LookupResult>>) -> Self {
        let servers = common.upstream.servers.iter().enumerate().zip(found);
        let list = servers.filter_map(|((server, plan), found)| {
            let lookup = lookup(&common.upstream, server)?;
            let mut name = ResolvedName {
                view: NameStatus {
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
            name.book(found.as_ref(), Millis::default());
            Some(name)
        });
        Self {
            list: Mutex::new(list.collect()),
            common,
        }
    }

    /// Whose time has come. None of them is told again before its result is [noted](Self::note).
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

    /// When the next one's time comes.
    pub(super) fn next(&self) -> Option<Millis> {
        self.list.lock().iter().filter_map(|name| name.due).min()
    }

    /// A look-up is over. What it has found, if anything; what went wrong is logged when it begins.
    pub(super) fn note(
        &self,
        server: usize,
        found: io::Result<LookupResult>,
        now: Millis,
    ) -> Option<LookupResult> {
        let mut list = self.list.lock();
        let name = list.iter_mut().find(|name| name.lookup.server == server)?;
        let (upstream, host) = (&*self.common.upstream.name, &*name.lookup.host);
        match &found {
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
        let found = found.ok();
        name.book(found.as_ref(), now);
        found
    }

    /// How they fare.
    pub(super) fn views(&self) -> Vec<NameStatus> {
        let list = self.list.lock();
        list.iter().map(|name| name.view.clone()).collect()
    }
}

impl ResolvedName {
    fn book(&mut self, found: Option<&LookupResult>, now: Millis) {
        self.failing = found.is_none();
        let again = match found {
            Some(found) => {
                self.view.found += 1;
                self.view.addresses = found.addresses.len();
                let holds = found.holds.unwrap_or(self.every);
                self.every.min(holds.max(SOONEST))
            }
            None => {
                self.view.failed += 1;
                self.every.min(AFTER_FAILURE)
            }
        };
        self.due = Some(now.after(again));
    }
}

/// What is to be looked up of a server of the plan, again and again.
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

/// The addresses of a server, for the first time. One that is looked up again may have none yet: it will be found when
/// it is there. Blocks.
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

/// From one look-up to the next at least, whatever an answer says of how long it holds.
const SOONEST: Duration = Duration::from_secs(1);
/// From one that has failed to the next at most.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
