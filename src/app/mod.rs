//! The composition root: a plan becomes a running gateway.
//!
//! Sockets are bound and names resolved before anything starts, so that what cannot work fails at once and
//! in one place. Then one event loop per core runs until told to stop.

mod build;
mod checks;
pub mod demo;
mod doors;
mod gateway;
mod loops;
mod names;
mod reload;
mod secure;
mod source;
mod stop;
mod stores;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

pub use self::source::Source;

use self::build::Draft;
use self::doors::Doors;
use self::loops::{Common, Loops};
use self::reload::Succession;
use self::stop::Signals;
use self::stores::Stores;
use crate::admin::{Admin, Reloads};
use crate::clock::Clock;
use crate::config::plan::Plan;
use crate::listen::{self, Bound, Cap};
use crate::proxy::Live;
use crate::telemetry::{self, Writer, traces};
use crate::{store, tls, upstream};

/// A gateway, built and not yet running.
#[derive(Debug)]
pub struct App {
    runtime: Runtime,
    signals: Signals,
    live: Arc<ArcSwap<Live>>,
    source: Source,
    berths: listen::Loops,
    sockets: Vec<Vec<Bound>>,
    admin: Option<std::net::TcpListener>,
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
    /// Builds everything a plan asks for; `source` is where it came from, and where the next one will.
    ///
    /// # Errors
    /// When an address cannot be bound, a name not be resolved or a log not be opened.
    pub fn build(plan: Plan, source: Source, writer: Writer) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::Start)?;
        // Before anything can be connected to: a signal that comes then must not find us unprepared.
        let signals = {
            let _context = runtime.enter();
            Signals::catch().map_err(Error::Start)?
        };
        let berths = listen::Loops::new(plan.workers);
        let mut draft = Draft::new(plan, &writer, &berths, None)?;
        let sockets = std::mem::take(&mut draft.sockets);
        let admin = draft.admin.take();
        let doors = doors::first(&draft.plan);
        Ok(Self {
            runtime,
            signals,
            live: Arc::new(ArcSwap::from_pointee(draft.build(doors, None))),
            source,
            berths,
            sockets,
            admin,
            writer,
        })
    }

    /// Runs until a signal says stop and what was in flight is done, or its time is up.
    ///
    /// # Errors
    /// When a thread, a runtime or a signal handler cannot be had.
    pub fn run(mut self) -> Result<(), Error> {
        let common = Common {
            live: Arc::clone(&self.live),
            clock: Clock::machine(),
            stop: CancellationToken::new(),
            cap: Arc::new(Cap::default()),
        };
        let workers = self.live.load().plan.workers;
        let (loops, threads) = Loops::start(workers, &common).map_err(Error::Start)?;
        let (reloads, asked) = Reloads::new();
        let admin = Admin::new(
            Arc::clone(&self.live),
            self.writer.clone(),
            common.clock.clone(),
            Arc::clone(&reloads),
        );
        self.runtime.block_on(async {
            let mut succession = Succession {
                live: Arc::clone(&self.live),
                source: self.source,
                writer: self.writer.clone(),
                clock: common.clock.clone(),
                loops,
                berths: self.berths,
                doors: Doors::default(),
                stores: Stores::default(),
                admin: admin.clone(),
                reception: CancellationToken::new(),
            };
            let reception = self.admin.map(reload::listener).transpose()?;
            succession.begin(self.sockets, reception).await;
            tokio::spawn(checks::run(Arc::clone(&self.live)));
            tokio::spawn(secure::refresh(Arc::clone(&self.live)));
            tokio::spawn(names::refresh(Arc::clone(&self.live), common.clock.clone()));
            admin.set_ready(true);
            tracing::info!("weir {} is running", env!("CARGO_PKG_VERSION"));
            let stopping = self.signals.stop(&self.writer, &reloads);
            let succession = succession.serve_until(asked, stopping).await;
            admin.set_ready(false);
            common.stop.cancel();
            let grace = self.live.load().plan.shutdown_timeout;
            self.signals.drained(threads, grace).await;
            succession.stores.leave().await;
            Ok::<_, Error>(())
        })?;
        // Admin connections may linger; nobody waits for those.
        self.runtime.shutdown_timeout(Duration::from_millis(100));
        traces::flush(LAST_SPANS);
        // What the event loops had to say comes first; each has lines of its own that are still to be written.
        self.writer.flush(LAST_LINES);
        tracing::info!("weir has stopped");
        Ok(())
    }
}

/// How long the last spans may take to their collector.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// How long the last line of the error log waits for those before it.
const LAST_LINES: Duration = Duration::from_secs(1);
