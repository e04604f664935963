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
    accept_shards: listen::AcceptShards,
    sockets: Vec<Vec<BoundSocket>>,
    admin: Option<std::net::TcpListener>,
    writer: LogWriter,
}

/// How a gateway is started.
#[derive(Debug)]
pub struct StartOptions {
    /// Where its configuration comes from.
    pub source: ConfigSource,
    /// The files of that, if they are watched for changes.
    pub watch: Option<ConfigFiles>,
    inherited: InheritedSockets,
    old_process: Option<OldProcess>,
}

impl StartOptions {
    /// With what this process was handed: sockets from systemd, or from the weir it takes over from. First of all,
    /// before there are threads.
    ///
    /// # Errors
    /// When a weir wants to hand over, and cannot.
    pub fn new(source: impl FnOnce() -> Result<ConfigSource, Error>) -> Result<Self, Error> {
        let (old_process, inherited) = match OldProcess::from_env().map_err(Error::TakeOver)? {
            Some((old_process, inherited)) => (Some(old_process), inherited),
            None => (None, InheritedSockets::from_systemd()),
        };
        Ok(Self {
            source: source()?,
            watch: None,
            inherited,
            old_process,
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
        let accept_shards = listen::AcceptShards::new(plan.workers);
        let mut draft =
            GenerationDraft::new(plan, &writer, &accept_shards, &mut start.inherited, None)?;
        std::mem::take(&mut start.inherited).close();
        let sockets = std::mem::take(&mut draft.sockets);
        let admin = draft.admin.take();
        // The first handles are numbered in the order of the plan.
        let listener_indices = (0..draft.plan.listeners.len()).map(Some).collect();
        Ok(Self {
            runtime,
            signals,
            generation: Arc::new(ArcSwap::from_pointee(draft.build(listener_indices, None))),
            start,
            accept_shards,
            sockets,
            admin,
            writer,
        })
    }

    /// Runs until a signal stops it and requests in flight are done, or their time is up.
    ///
    /// # Errors
    /// When a thread, a runtime or a signal handler cannot be had.
    pub fn run(mut self) -> Result<(), Error> {
        let shared = LoopShared {
            generation: Arc::clone(&self.generation),
            clock: Clock::machine(),
            stop: CancellationToken::new(),
            limiter: Arc::new(ConnectionLimiter::default()),
        };
        let (loops, threads) = EventLoops::start(&shared).map_err(Error::Start)?;
        let (reloads, asked) = ReloadHandle::new();
        let admin = Admin::new(
            Arc::clone(&self.generation),
            self.writer.clone(),
            shared.clock.clone(),
            Arc::clone(&reloads),
        );
        let systemd = Arc::new(Systemd::from_env());
        self.runtime.block_on(async {
            let mut reloader = Reloader {
                generation: Arc::clone(&self.generation),
                source: self.start.source.clone(),
                writer: self.writer.clone(),
                clock: shared.clock.clone(),
                loops,
                accept_shards: self.accept_shards,
                listeners: Listeners::default(),
                stores: StoreTasks::default(),
                admin: admin.clone(),
                admin_stop: CancellationToken::new(),
                admin_socket: None,
                new_process: None,
                systemd: Arc::clone(&systemd),
            };
            reloader.begin(self.sockets, self.admin).await?;
            if let Some(old_process) = self.start.old_process {
                old_process.confirm();
            }
            if let Some(watch) = self.start.watch {
                watch_files(self.start.source, watch, Arc::clone(&reloads));
            }
            spawn_background(&shared, &systemd, &reloader.loops);
            admin.set_ready(true);
            tracing::info!("weir {} is running", env!("CARGO_PKG_VERSION"));
            let upgrade = Notify::new();
            let stopping = self.signals.stop(&self.writer, &reloads, &upgrade);
            let (mut reloader, end) = reloader.serve_until(asked, &upgrade, stopping).await;
            admin.set_ready(false);
            if end == StopReason::Stopped {
                systemd.notify("STOPPING=1\nSTATUS=stopping");
            }
            // Or the kernel would go on accepting connections that are never served.
            reloader.listeners.shared_sockets.clear();
            shared.stop.cancel();
            let grace = self.generation.load().plan.shutdown_timeout;
            self.signals.drained(threads, grace).await;
            reloader.stores.leave().await;
            Ok::<_, Error>(())
        })?;
        // Admin connections may linger; they are not waited for.
        self.runtime.shutdown_timeout(Duration::from_millis(100));
        traces::flush(LAST_SPANS);
        // Lines of the event loops come first; each has a buffer of its own.
        self.writer.flush(LAST_LINES);
        tracing::info!("weir has stopped");
        Ok(())
    }
}

/// Starts to watch the configuration's files.
fn watch_files(source: ConfigSource, watch: ConfigFiles, reloads: Arc<ReloadHandle>) {
    let look = move || reload::run(source.clone(), watch.clone(), Arc::clone(&reloads));
    tokio::spawn(supervise(BackgroundTask::Configuration, look));
}

/// Starts the background tasks: health checks, names, certificates, and the watchdog.
fn spawn_background(shared: &LoopShared, systemd: &Arc<Systemd>, loops: &EventLoops) {
    let generation = || Arc::clone(&shared.generation);
    if let Some(every) = signals::watchdog_interval() {
        let (loops, stop) = (loops.clone(), shared.stop.clone());
        let systemd = Arc::clone(systemd);
        let run_watchdog =
            move || run_watchdog(Arc::clone(&systemd), every, loops.clone(), stop.clone());
        tokio::spawn(supervise(BackgroundTask::Heartbeat, run_watchdog));
    }
    let own = generation();
    let check = move || background::run(Arc::clone(&own));
    tokio::spawn(supervise(BackgroundTask::HealthChecks, check));
    let own = generation();
    let refresh = move || background::refresh_certificates(Arc::clone(&own));
    tokio::spawn(supervise(BackgroundTask::Certificates, refresh));
    let (own, clock) = (generation(), shared.clock.clone());
    let look_up = move || background::refresh_names(Arc::clone(&own), clock.clone());
    tokio::spawn(supervise(BackgroundTask::Resolver, look_up));
}

/// Notifies systemd's watchdog for as long as every event loop responds. Stopping has its own deadline.
async fn run_watchdog(
    systemd: Arc<Systemd>,
    every: Duration,
    loops: EventLoops,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            () = loops.ping() => {}
            () = stop.cancelled() => {}
        }
        systemd.notify("WATCHDOG=1");
        tokio::time::sleep(every).await;
    }
}

/// How long the last spans may take to their collector.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// How long the last line of the error log waits for those before it.
const LAST_LINES: Duration = Duration::from_secs(1);
