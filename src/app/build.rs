//! From a plan to the living things of a generation.
//!
//! In two steps. All that can fail comes first and changes nothing: files are read, names looked up, logs opened, sockets
//! bound. What is left then cannot fail: what the generation before has counted and learned is handed on.

use std::net::SocketAddr;
use std::sync::Arc;

use super::Error;
use crate::config::plan::{Plan, SocketAddress};
use crate::limits::Zones;
use crate::listen::{self, BoundSocket, InheritedSockets};
use crate::proxy::{Generation, GenerationParts};
use crate::store::SharedStore;
use crate::telemetry::{AccessLog, ErrorDestination, LogWriter};
use crate::tls::TlsContexts;
use crate::upstream::Upstream;

/// All that a generation needs and may not be had.
#[derive(Debug)]
pub(super) struct GenerationDraft {
    pub(super) plan: Arc<Plan>,
    pub(super) stores: Vec<Arc<SharedStore>>,
    /// For each address that is new, in the plan's order, a socket for each loop.
    pub(super) sockets: Vec<Vec<BoundSocket>>,
    /// Where the admin listener has to be bound anew.
    pub(super) admin: Option<std::net::TcpListener>,
    upstreams: Vec<Arc<Upstream>>,
    tls: TlsContexts,
    access: Option<AccessLog>,
    error: ErrorDestination,
}

impl GenerationDraft {
    /// Gets everything together. Blocks while names are looked up.
    pub(super) fn new(
        plan: Plan,
        writer: &LogWriter,
        loops: &listen::AcceptShards,
        heritage: &mut InheritedSockets,
        before: Option<&Generation>,
    ) -> Result<Self, Error> {
        let ours: Vec<&SocketAddress> = addresses(before.map(|before| &*before.plan));
        let new: Vec<&SocketAddress> = addresses(Some(&plan))
            .into_iter()
            .filter(|address| !ours.contains(address))
            .collect();
        let error = ErrorDestination::open(plan.log.error.as_deref(), writer)?;
        let access = plan.log.access.as_ref();
        let access = access.map(|log| AccessLog::open(log, writer)).transpose()?;
        let tls = TlsContexts::build(&plan, before.map(|before| (&*before.plan, &before.tls)))?;
        let upstreams = plan.upstreams.iter().map(|upstream| {
            let kept = before.and_then(|before| kept(upstream, &plan, before));
            let changed = || {
                let old = before.and_then(|before| namesake(upstream, before));
                Upstream::build(upstream, tls.clients(), old).map(Arc::new)
            };
            kept.map_or_else(changed, Ok)
        });
        let upstreams = upstreams.collect::<Result<_, _>>()?;
        let stores = plan.stores.iter().map(|store| {
            let known = before.and_then(|before| {
                let index = before.plan.stores.iter().position(|old| old == store)?;
                before.zones.stores.get(index).cloned()
            });
            known.map_or_else(|| SharedStore::new(store), Ok)
        });
        let stores = stores.collect::<Result<_, _>>()?;
        // Last, so that nobody connects to what does not come to run. First the admin listener: who sees the others may
        // expect it.
        let admin = admin(&plan, heritage, before.map(|before| &*before.plan))?;
        let sockets = loops.bind_all(&new, &ours, heritage)?;
        Ok(Self {
            admin,
            plan: Arc::new(plan),
            stores,
            sockets,
            upstreams,
            tls,
            access,
            error,
        })
    }

    /// The generation.
    pub(super) fn build(
        self,
        doors: Box<[Option<usize>]>,
        before: Option<&Generation>,
    ) -> Generation {
        let inherited = before.map(|before| (&*before.plan, &before.zones));
        self.error.use_from_now_on();
        let parts = GenerationParts {
            zones: Zones::build_after(&self.plan, &self.stores, inherited),
            upstreams: self.upstreams,
            tls: self.tls,
            access: self.access,
            doors,
        };
        Generation::build(self.plan, parts, before)
    }
}

fn addresses(plan: Option<&Plan>) -> Vec<&SocketAddress> {
    let listeners = plan.map_or(&[][..], |plan| &plan.listeners);
    listeners.iter().map(|listener| &listener.address).collect()
}

/// The upstream of the generation before, where nothing has changed about it. Blocks while names are looked up.
fn kept(
    upstream: &crate::config::plan::Upstream,
    plan: &Plan,
    before: &Generation,
) -> Option<Arc<Upstream>> {
    let mut planned = before.plan.upstreams.iter();
    let index = planned.position(|old| plan.keeps(upstream, &before.plan, old))?;
    let kept = before.upstreams.get(index)?;
    kept.is_where_it_was(upstream).then(|| Arc::clone(kept))
}

/// The upstream of the generation before that was called the same.
fn namesake<'l>(
    upstream: &crate::config::plan::Upstream,
    before: &'l Generation,
) -> Option<&'l Upstream> {
    let mut all = before.upstreams.iter();
    let old = all.find(|old| *old.name() == *upstream.name)?;
    Some(old)
}

/// A socket for the admin listener, where it is not where it was.
fn admin(
    plan: &Plan,
    heritage: &mut InheritedSockets,
    before: Option<&Plan>,
) -> Result<Option<std::net::TcpListener>, Error> {
    let address = |plan: &Plan| plan.admin.as_ref().map(|admin| admin.listen);
    let wanted = address(plan);
    match wanted {
        Some(wanted) if before.and_then(address) != Some(wanted) => {
            let inherited = heritage.take_tcp(wanted);
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
