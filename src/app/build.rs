//! From the configuration to a generation.
//!
//! [`ConfigSource`] loads the configuration, at start and at each reload. A generation is built from it in two steps. All
//! that can fail comes first and changes nothing: [`GenerationDraft::new`] reads files, looks names up, opens logs and binds
//! sockets. [`GenerationDraft::build`] cannot fail and hands on what the generation before has counted and learned.
//! [`Listeners`] knows which addresses are listened on.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;

use super::demo;
use crate::config::plan::{Plan, SocketAddress};
use crate::config::{ConfigFiles, Report, Severity, plan};
use crate::listen::{BoundSocket, InheritedSockets, SharedSocket};
use crate::proxy::{Generation, GenerationParts, ListenerHandle};
use crate::store::SharedStore;
use crate::telemetry::{AccessLog, ErrorDestination, LogWriter};
use crate::tls::TlsContexts;
use crate::upstream::Upstream;
use crate::{config, listen, spool, store, telemetry, tls, upstream};

/// Why a gateway could not be started, or did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The access log could not be opened; usually a missing folder or a lack of rights.
    #[error(transparent)]
    AccessLog(#[from] telemetry::Error),
    /// The admin listener's address is taken, or not ours to take.
    #[error("cannot listen on {address} for admin")]
    Admin {
        /// The address.
        address: SocketAddr,
        #[source]
        /// Why.
        source: std::io::Error,
    },
    /// An address to listen on is taken, or not ours to take.
    #[error(transparent)]
    Listen(#[from] listen::Error),
    /// The machine would not give us a thread, a runtime or a signal.
    #[error("cannot start")]
    Start(#[source] std::io::Error),
    /// The settings of a store of counters cannot be used.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The weir that this one was started by, to take over from it, has not handed over what it should.
    #[error("cannot take over from the weir that runs")]
    TakeOver(#[source] std::io::Error),
    /// A certificate, a key or a list cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// An upstream's name could not be resolved.
    #[error(transparent)]
    Upstream(#[from] upstream::Error),
}

/// All that a generation needs and that may fail.
#[derive(Debug)]
pub(super) struct GenerationDraft {
    pub(super) plan: Arc<Plan>,
    pub(super) parts: GenerationParts,
    /// For each address that is new, in the plan's order, a socket for each loop.
    pub(super) sockets: Vec<Vec<BoundSocket>>,
    /// Where the admin listener has to be bound anew.
    pub(super) admin: Option<std::net::TcpListener>,
    error_log: ErrorDestination,
}

impl GenerationDraft {
    /// Prepares all of it. Blocks while names are looked up.
    pub(super) fn new(
        plan: Plan,
        writer: &LogWriter,
        loops: &listen::AcceptShards,
        inherited: &mut InheritedSockets,
        before: Option<&Generation>,
    ) -> Result<Self, Error> {
        let ours: Vec<&SocketAddress> = addresses(before.map(|before| &*before.plan));
        let new: Vec<&SocketAddress> = addresses(Some(&plan))
            .into_iter()
            .filter(|address| !ours.contains(address))
            .collect();
        let error_log = ErrorDestination::open(plan.log.error.as_deref(), writer)?;
        let access = plan.log.access.as_ref();
        let access_log = access.map(|log| AccessLog::open(log, writer)).transpose()?;
        let tls = TlsContexts::build(&plan, before.map(|before| (&*before.plan, &before.tls)))?;
        let upstreams = plan.upstreams.iter().map(|upstream| {
            let unchanged = before.and_then(|before| unchanged_upstream(upstream, &plan, before));
            if let Some(unchanged) = unchanged {
                return Ok(unchanged);
            }
            let mut old = before.iter().flat_map(|before| &before.upstreams);
            let old = old.find(|old| *old.name() == *upstream.name);
            Upstream::build(upstream, tls.clients(), old.map(|old| &**old)).map(Arc::new)
        });
        let upstreams = upstreams.collect::<Result<_, upstream::Error>>()?;
        let stores = plan.stores.iter().map(|store| {
            let known = before.and_then(|before| {
                let index = before.plan.stores.iter().position(|old| old == store)?;
                before.zones.stores.get(index).cloned()
            });
            known.map_or_else(|| SharedStore::new(store), Ok)
        });
        let stores = stores.collect::<Result<_, _>>()?;
        // Last, so that no client connects to what does not come to run. The admin listener first: a client that sees the
        // others may expect it.
        let admin = admin(&plan, inherited, before.map(|before| &*before.plan))?;
        let sockets = loops.bind_all(&new, &ours, inherited)?;
        Ok(Self {
            admin,
            plan: Arc::new(plan),
            parts: GenerationParts {
                stores,
                upstreams,
                tls,
                access_log,
            },
            sockets,
            error_log,
        })
    }

    /// The generation.
    pub(super) fn build(
        self,
        listener_indices: Box<[Option<usize>]>,
        before: Option<&Generation>,
    ) -> Generation {
        self.error_log.activate();
        Generation::build(self.plan, self.parts, listener_indices, before)
    }
}

fn addresses(plan: Option<&Plan>) -> Vec<&SocketAddress> {
    let listeners = plan.map_or(&[][..], |plan| &plan.listeners);
    listeners.iter().map(|listener| &listener.address).collect()
}

/// The upstream of the generation before, where it has not changed. Blocks while names are looked up.
fn unchanged_upstream(
    upstream: &plan::Upstream,
    plan: &Plan,
    before: &Generation,
) -> Option<Arc<Upstream>> {
    let mut planned = before.plan.upstreams.iter();
    let index = planned.position(|old| plan.keeps(upstream, &before.plan, old))?;
    let old = before.upstreams.get(index)?;
    old.has_same_addresses(upstream).then(|| Arc::clone(old))
}

/// A socket for the admin listener, where it is not where it was.
fn admin(
    plan: &Plan,
    inherited: &mut InheritedSockets,
    before: Option<&Plan>,
) -> Result<Option<std::net::TcpListener>, Error> {
    let address = |plan: &Plan| plan.admin.as_ref().map(|admin| admin.listen);
    let wanted = address(plan);
    match wanted {
        Some(wanted) if before.and_then(address) != Some(wanted) => {
            let inherited = inherited.take_tcp(wanted);
            inherited.map_or_else(|| bind_admin(wanted), Ok).map(Some)
        }
        _ => Ok(None),
    }
}

fn bind_admin(address: SocketAddr) -> Result<std::net::TcpListener, Error> {
    let failed = |source| Error::Admin { address, source };
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// The listeners of the running gateway.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    open: Vec<(SocketAddress, Arc<ListenerHandle>)>,
    /// Copies of the sockets of each open listener, by its number.
    pub(super) shared_sockets: HashMap<usize, Vec<SharedSocket>>,
    /// By number. A handle whose last connection has ended is gone, and its number free.
    all: Vec<Weak<ListenerHandle>>,
}

/// The changes of a new plan to the listeners.
#[derive(Debug)]
pub(super) struct ListenerChanges {
    /// For each listener of the plan its handle.
    wanted: Vec<(SocketAddress, Arc<ListenerHandle>)>,
    /// Those that are new, in the plan's order.
    pub(super) opened: Vec<Arc<ListenerHandle>>,
    /// Those that the new plan no longer has.
    pub(super) closed: Vec<Arc<ListenerHandle>>,
}

impl Listeners {
    /// The changes that a plan needs; nothing is changed yet.
    pub(super) fn plan(
        &mut self,
        plan: &Plan,
        generation: &Arc<ArcSwap<Generation>>,
    ) -> ListenerChanges {
        let mut opened = Vec::new();
        let mut wanted = Vec::new();
        for listener in &plan.listeners {
            let address = &listener.address;
            let known = self.open.iter().find(|(open, _)| open == address);
            let handle = match known {
                Some((_, handle)) => Arc::clone(handle),
                None => {
                    let handle = self.new_handle(generation);
                    opened.push(Arc::clone(&handle));
                    handle
                }
            };
            wanted.push((address.clone(), handle));
        }
        let is_wanted =
            |address: &SocketAddress| wanted.iter().any(|(wanted, _)| wanted == address);
        let closed = self.open.iter().filter(|(address, _)| !is_wanted(address));
        ListenerChanges {
            closed: closed.map(|(_, handle)| Arc::clone(handle)).collect(),
            wanted,
            opened,
        }
    }

    /// Takes over the changes that were made; gives the listeners that were closed.
    pub(super) fn apply(&mut self, changes: ListenerChanges) -> Vec<Arc<ListenerHandle>> {
        for handle in &changes.closed {
            self.shared_sockets.remove(&handle.number);
        }
        self.open = changes.wanted;
        changes.closed
    }

    /// Keeps a copy of a listener's sockets, for a process that may take over.
    pub(super) fn share(&mut self, handle: &ListenerHandle, sockets: &[BoundSocket]) {
        let sockets = sockets.iter().filter_map(|socket| socket.share().ok());
        self.shared_sockets.insert(handle.number, sockets.collect());
    }

    fn new_handle(&mut self, generation: &Arc<ArcSwap<Generation>>) -> Arc<ListenerHandle> {
        let free = self
            .all
            .iter()
            .position(|handle| handle.strong_count() == 0);
        let number = free.unwrap_or(self.all.len());
        let handle = Arc::new(ListenerHandle::new(number, Arc::clone(generation)));
        let weak = Arc::downgrade(&handle);
        match self.all.get_mut(number) {
            Some(place) => *place = weak,
            None => self.all.push(weak),
        }
        handle
    }
}

impl ListenerChanges {
    /// The plan's listener of each handle, by the handle's number.
    pub(super) fn listener_indices(&self) -> Box<[Option<usize>]> {
        let numbers = self.wanted.iter().map(|(_, handle)| handle.number);
        let mut listener_indices = vec![None; numbers.clone().max().map_or(0, |most| most + 1)];
        for (listener, number) in numbers.enumerate() {
            listener_indices[number] = Some(listener);
        }
        listener_indices.into()
    }
}

/// Where the configuration comes from.
#[derive(Debug, Clone)]
pub enum ConfigSource {
    /// The embedded demo, before an echo at this address.
    Demo(SocketAddr),
    /// A file, and what it includes.
    File(PathBuf),
}

impl ConfigSource {
    /// The files it is made of, if it is.
    #[must_use]
    pub fn watch(&self) -> Option<ConfigFiles> {
        match self {
            Self::Demo(_) => None,
            Self::File(path) => Some(config::watch(path)),
        }
    }

    /// Reads and compiles it, and checks the files it names. Warnings come with the plan.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load(&self) -> Result<(Plan, Report), Report> {
        let (plan, mut report) = match self {
            Self::Demo(echo) => config::load_text("demo.yaml", demo::CONFIGURATION, |name| {
                (name == "ECHO").then(|| echo.to_string())
            }),
            Self::File(path) => config::load(path),
        }?;
        // An expired certificate must not keep a gateway from starting again.
        tls::check(&plan, &mut report, Severity::Warning);
        spool::check_buffers(&plan, &mut report);
        match report.errors() {
            0 => Ok((plan, report)),
            _ => Err(report),
        }
    }
}
