//! The composition root: a plan becomes a running gateway.
//!
//! Sockets are bound and names resolved before anything starts, so that what cannot work fails at once and
//! in one place. Then one event loop per core runs until told to stop.

mod checks;
pub mod demo;
mod gateway;
mod names;
mod secure;
mod stop;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use self::stop::Signals;
use crate::admin::Admin;
use crate::clock::Clock;
use crate::config::plan::Plan;
use crate::limits::Zones;
use crate::listen::{self, Bound, Cap};
use crate::proxy::Live;
use crate::store::{self, Shared};
use crate::telemetry::{self, AccessLog, Writer};
use crate::tls::{self, Kit};
use crate::upstream::{self, Upstream};

/// A gateway, built and not yet running.
#[derive(Debug)]
pub struct App {
    runtime: Runtime,
    signals: Signals,
    live: Arc<ArcSwap<Live>>,
    sockets: Vec<Vec<Bound>>,
    admin: Option<std::net::TcpListener>,
    clock: Clock,
    writer: Writer,
}

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
    /// A store of counters cannot be used, whatever its server says.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A certificate, a key or a list cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// An upstream's name could not be resolved.
    #[error(transparent)]
    Upstream(#[from] upstream::Error),
}

impl App {
    /// Builds everything a plan asks for.
    ///
    /// # Errors
    /// When an address cannot be bound, a name not be resolved or a log not be opened.
    pub fn build(plan: Plan, writer: Writer) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::Start)?;
        // Before anything can be connected to: a signal that comes then must not find us unprepared.
        let signals = {
            let _context = runtime.enter();
            Signals::catch().map_err(Error::Start)?
        };
        let plan = Arc::new(plan);
        let sockets = bind(&plan)?;
        let admin = plan
            .admin
            .as_ref()
            .map(|admin| bind_admin(admin.listen))
            .transpose()?;
        let access = plan
            .log
            .access
            .as_ref()
            .map(|log| AccessLog::open(log, &writer))
            .transpose()?;
        let tls = Kit::build(&plan)?;
        let upstreams = plan
            .upstreams
            .iter()
            .map(|upstream| Upstream::build(upstream, tls.clients()).map(Arc::new))
            .collect::<Result<_, _>>()?;
        let stores = plan
            .stores
            .iter()
            .map(Shared::new)
            .collect::<Result<Vec<_>, _>>()?;
        let zones = Zones::build_with(&plan, &stores);
        let live = Live::build(plan, zones, upstreams, tls, access);
        Ok(Self {
            runtime,
            signals,
            live: Arc::new(ArcSwap::from_pointee(live)),
            sockets,
            admin,
            clock: Clock::machine(),
            writer,
        })
    }

    /// Runs until a signal says stop and what was in flight is done, or its time is up.
    ///
    /// # Errors
    /// When a thread, a runtime or a signal handler cannot be had.
    pub fn run(mut self) -> Result<(), Error> {
        let stop = CancellationToken::new();
        let grace = self.live.load().plan.shutdown_timeout;
        let admin = Admin::new(
            Arc::clone(&self.live),
            self.writer.clone(),
            self.clock.clone(),
        );
        let cap = Arc::new(Cap::default());
        let loops = self
            .sockets
            .into_iter()
            .enumerate()
            .map(|(number, sockets)| {
                let run = gateway::Loop {
                    number,
                    live: Arc::clone(&self.live),
                    clock: self.clock.clone(),
                    // A token is checked behind a lock at every wake-up: one for each loop.
                    stop: stop.child_token(),
                    sockets,
                    grace,
                    cap: Arc::clone(&cap),
                };
                thread::Builder::new()
                    .name(format!("weir-{number}"))
                    .spawn(move || run.run())
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(Error::Start)?;

        self.runtime.block_on(async {
            if let Some(listener) = self.admin {
                let listener = tokio::net::TcpListener::from_std(listener).map_err(Error::Start)?;
                tokio::spawn(admin.clone().serve(listener, CancellationToken::new()));
            }
            let stores = self.live.load().zones.stores.clone();
            let watches: Vec<_> = stores
                .iter()
                .map(|store| tokio::spawn(Arc::clone(store).watch(self.clock.clone())))
                .collect();
            tokio::spawn(checks::run(Arc::clone(&self.live)));
            tokio::spawn(secure::refresh(Arc::clone(&self.live)));
            tokio::spawn(names::refresh(Arc::clone(&self.live), self.clock.clone()));
            admin.set_ready(true);
            tracing::info!("weir {} is running", env!("CARGO_PKG_VERSION"));
            self.signals.stop(&self.writer).await;
            admin.set_ready(false);
            stop.cancel();
            self.signals.drained(loops, grace).await;
            for (store, watch) in stores.iter().zip(watches) {
                watch.abort();
                store.leave().await;
            }
            Ok::<_, Error>(())
        })?;
        // Admin connections may linger; nobody waits for those.
        self.runtime.shutdown_timeout(Duration::from_millis(100));
        // What the event loops had to say comes first; each has lines of its own that are still to be written.
        self.writer.flush(LAST_LINES);
        tracing::info!("weir has stopped");
        Ok(())
    }
}

/// How long the last line of the error log waits for those before it.
const LAST_LINES: Duration = Duration::from_secs(1);

/// For every loop its own socket on every address, in the order of the plan's listeners.
fn bind(plan: &Plan) -> Result<Vec<Vec<Bound>>, Error> {
    let addresses = plan.listeners.iter().map(|listener| &listener.address);
    let mut loops: Vec<Vec<Bound>> = (0..plan.workers).map(|_| Vec::new()).collect();
    for bound in listen::bind_all(addresses, plan.workers)? {
        for (sockets, socket) in loops.iter_mut().zip(bound) {
            sockets.push(socket);
        }
    }
    Ok(loops)
}

fn bind_admin(address: SocketAddr) -> Result<std::net::TcpListener, Error> {
    let failed = |source| Error::Admin { address, source };
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}
