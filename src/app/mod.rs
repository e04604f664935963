//! The composition root: builds a running gateway from a plan.
//!
//! Sockets are bound and names resolved before anything starts, so that what cannot work fails at once and
//! in one place. Then one event loop per core runs until told to stop.

mod background;
mod build;
mod demo;
mod event_loop;
mod reload;
mod signals;
mod upgrade;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::build::{GenerationDraft, Listeners};
use self::event_loop::{EventLoops, LoopShared};
use self::reload::{Reloader, StopReason, StoreTasks};
use self::signals::{Signals, Systemd};
use self::upgrade::OldProcess;
use crate::admin::{Admin, ReloadHandle};
use crate::clock::Clock;
use crate::config::ConfigFiles;
use crate::config::plan::Plan;
use crate::listen::{self, BoundSocket, ConnectionLimiter, InheritedSockets};
use crate::proxy::Generation;
use crate::telemetry::{BackgroundTask, LogWriter, supervise, traces};

pub use self::build::{ConfigSource, Error};
pub use self::demo::start_demo;

/// A gateway, built and not yet running.
#[derive(Debug)]
pub struct App {
    runtime: Runtime,
    signals: Signals,
    generation: Arc<ArcSwap<Generation>>,
    start: StartOptions,
    berths: listen::AcceptShards,
    sockets: Vec<Vec<BoundSocket>>,
    admin: Option<std::net::TcpListener>,
    writer: LogWriter,
}

/// How a gateway is started.
#[derive(Debug)]
pub struct StartOptions {
    /// Where its configuration comes from.
    pub source: ConfigSource,
    /// The files of that, if they are to be looked at for changes.
    pub watch: Option<ConfigFiles>,
    heritage: InheritedSockets,
    predecessor: Option<OldProcess>,
}

impl StartOptions {
    /// With what this process was handed: sockets from systemd, or from the weir it takes over from. First of all,
    /// before there are threads.
    ///
    /// # Errors
    /// When a weir wants to hand over, and cannot.
    pub fn new(source: impl FnOnce() -> Result<ConfigSource, Error>) -> Result<Self, Error> {
        let (predecessor, heritage) = match OldProcess::from_env().map_err(Error::TakeOver)? {
            Some((predecessor, heritage)) => (Some(predecessor), heritage),
            None => (None, InheritedSockets::of_systemd()),
        };
        Ok(Self {
            source: source()?,
            watch: None,
            heritage,
            predecessor,
        })
    }
}

impl App {
    /// Builds everything a plan asks for; `start` is how it came to that.
    ///
    /// # Errors
    /// When an address cannot be bound, a name not be resolved or a log not be opened.
    pub fn build(plan: Plan, mut start: StartOptions, writer: LogWriter) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::Start)?;
        // Before anything can be connected to: a signal that comes then must not find us unprepared.
        let signals = {
            let _context = runtime.enter();
            Signals::catch().map_err(Error::Start)?
        };
        crate::downstream::check_prebuilt();
        let berths = listen::AcceptShards::new(plan.workers);
        let mut draft = GenerationDraft::new(plan, &writer, &berths, &mut start.heritage, None)?;
        std::mem::take(&mut start.heritage).close();
        let sockets = std::mem::take(&mut draft.sockets);
        let admin = draft.admin.take();
        let doors = build::first(&draft.plan);
        Ok(Self {
            runtime,
            signals,
            generation: Arc::new(ArcSwap::from_pointee(draft.build(doors, None))),
            start,
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
        let common = LoopShared {
            generation: Arc::clone(&self.generation),
            clock: Clock::machine(),
            stop: CancellationToken::new(),
            cap: Arc::new(ConnectionLimiter::default()),
        };
        let (loops, threads) = EventLoops::start(&common).map_err(Error::Start)?;
        let (reloads, asked) = ReloadHandle::new();
        let admin = Admin::new(
            Arc::clone(&self.generation),
            self.writer.clone(),
            common.clock.clone(),
            Arc::clone(&reloads),
        );
        let systemd = Arc::new(Systemd::from_env());
        self.runtime.block_on(async {
            let mut succession = Reloader {
                generation: Arc::clone(&self.generation),
                source: self.start.source.clone(),
                writer: self.writer.clone(),
                clock: common.clock.clone(),
                loops,
                berths: self.berths,
                doors: Listeners::default(),
                stores: StoreTasks::default(),
                admin: admin.clone(),
                admin_stop: CancellationToken::new(),
                admin_socket: None,
                successor: None,
                systemd: Arc::clone(&systemd),
            };
            succession.begin(self.sockets, self.admin).await?;
            if let Some(predecessor) = self.start.predecessor {
                predecessor.relieve();
            }
            if let Some(watch) = self.start.watch {
                look_for_changes(self.start.source, watch, Arc::clone(&reloads));
            }
            accompany(&common, &systemd, &succession.loops);
            admin.set_ready(true);
            tracing::info!("weir {} is running", env!("CARGO_PKG_VERSION"));
            let upgrade = Notify::new();
            let stopping = self.signals.stop(&self.writer, &reloads, &upgrade);
            let (mut succession, end) = succession.serve_until(asked, &upgrade, stopping).await;
            admin.set_ready(false);
            if end == StopReason::Wanted {
                systemd.stopping();
            }
            // Or the kernel would go on accepting connections that are never served.
            succession.doors.keep_nothing();
            common.stop.cancel();
            let grace = self.generation.load().plan.shutdown_timeout;
            self.signals.drained(threads, grace).await;
            succession.stores.leave().await;
            Ok::<_, Error>(())
        })?;
        // Admin connections may linger; they are not waited for.
        self.runtime.shutdown_timeout(Duration::from_millis(100));
        traces::flush(LAST_SPANS);
        // What the event loops had to say comes first; each has lines of its own that are still to be written.
        self.writer.flush(LAST_LINES);
        tracing::info!("weir has stopped");
        Ok(())
    }
}

/// Starts to look for changes of the configuration's files.
fn look_for_changes(source: ConfigSource, watch: ConfigFiles, reloads: Arc<ReloadHandle>) {
    let look = move || reload::run(source.clone(), watch.clone(), Arc::clone(&reloads));
    tokio::spawn(supervise(BackgroundTask::Configuration, look));
}

/// Starts what goes on beside the event loops: checks, names, certificates, and word to systemd.
fn accompany(common: &LoopShared, systemd: &Arc<Systemd>, loops: &EventLoops) {
    let generation = || Arc::clone(&common.generation);
    if let Some(every) = signals::heartbeat() {
        let (loops, stop) = (loops.clone(), common.stop.clone());
        let systemd = Arc::clone(systemd);
        let beat = move || beat(Arc::clone(&systemd), every, loops.clone(), stop.clone());
        tokio::spawn(supervise(BackgroundTask::Heartbeat, beat));
    }
    let own = generation();
    let check = move || background::run(Arc::clone(&own));
    tokio::spawn(supervise(BackgroundTask::HealthChecks, check));
    let own = generation();
    let refresh = move || background::refresh_certificates(Arc::clone(&own));
    tokio::spawn(supervise(BackgroundTask::Certificates, refresh));
    let (own, clock) = (generation(), common.clock.clone());
    let look_up = move || background::refresh_names(Arc::clone(&own), clock.clone());
    tokio::spawn(supervise(BackgroundTask::Resolver, look_up));
}

/// Tells systemd again and again that all is well, as long as every event loop says so. Stopping has its own deadline.
async fn beat(systemd: Arc<Systemd>, every: Duration, loops: EventLoops, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = loops.answer() => {}
            () = stop.cancelled() => {}
        }
        systemd.alive();
        tokio::time::sleep(every).await;
    }
}

/// How long the last spans may take to their collector.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// How long the last line of the error log waits for those before it.
const LAST_LINES: Duration = Duration::from_secs(1);
