//! One generation after the other, while everything runs.
//!
//! A new configuration is read, compiled and built to the point where nothing can fail any more; only then is it put in
//! force, by one pointer. Requests that began before finish by the rules they began with.
//!
//! `weir run --watch` polls the files of the configuration, and reads them again when they have changed. Polling, as for
//! certificates: files are written in place, renamed over each other, or change behind a link to a whole folder, and only
//! polling sees all of that. A change counts when the files are the same at the next poll.
//!
//! Shared stores are connected while a generation uses them.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::build::{ConfigSource, Error, GenerationDraft, ListenerChanges, Listeners};
use super::event_loop::EventLoops;
use super::signals::Systemd;
use super::upgrade::{self, NewProcess};
use crate::admin::{Admin, ReloadFailure, ReloadHandle, ReloadReport, ReloadRequest};
use crate::clock::Clock;
use crate::config::plan::Plan;
use crate::config::{ConfigFiles, Report};
use crate::listen::{BoundSocket, InheritedSockets, SharedSocket};
use crate::proxy::{Generation, RequestResources};
use crate::store::SharedStore;
use crate::telemetry::{BackgroundTask, CaughtPanic, LogWriter, blocking, supervise};
use crate::{config, limits, listen, telemetry};

/// Puts one generation after the other in force.
#[derive(Debug)]
pub(super) struct Reloader {
    pub(super) generation: Arc<ArcSwap<Generation>>,
    pub(super) source: ConfigSource,
    pub(super) writer: LogWriter,
    pub(super) clock: Clock,
    pub(super) loops: EventLoops,
    /// The same loops as listeners see them.
    pub(super) accept_shards: listen::AcceptShards,
    pub(super) listeners: Listeners,
    pub(super) stores: StoreTasks,
    pub(super) admin: Admin,
    /// Stops the admin listener where it is now.
    pub(super) admin_stop: CancellationToken,
    /// Its socket once more.
    pub(super) admin_socket: Option<std::net::TcpListener>,
    /// The process that is about to take over.
    pub(super) new_process: Option<u32>,
    pub(super) systemd: Arc<Systemd>,
}

/// Why no more generations come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    /// Another process has taken over.
    TakenOver,
    /// A signal has stopped it.
    Stopped,
}

/// Why there is no new generation.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error(transparent)]
    Build(#[from] Error),
    #[error(transparent)]
    Config(#[from] Report),
    #[error("it could not be built: weir panicked")]
    Panicked(#[source] CaughtPanic),
    #[error("weir is about to end")]
    Stopping,
}

impl Reloader {
    /// Opens what the first generation asks for: its listeners, its stores and the admin listener.
    pub(super) async fn begin(
        &mut self,
        sockets: Vec<Vec<BoundSocket>>,
        admin: Option<std::net::TcpListener>,
    ) -> Result<(), Error> {
        let admin = admin.map(listener).transpose()?;
        let generation = self.generation.load_full();
        self.join(&generation.zones.stores).await;
        let change = self.listeners.plan(&generation.plan, &self.generation);
        self.change_listeners(change, sockets).await;
        self.serve_admin(admin);
        self.systemd.ready(self.admin.reloads().generation());
        Ok(())
    }

    /// Serves requests for a reload, one after the other, until it is time to
    /// stop. One that has begun then is cancelled, or done.
    pub(super) async fn serve_until(
        mut self,
        asked: mpsc::UnboundedReceiver<ReloadRequest>,
        upgrade: &Notify,
        stopping: impl Future<Output = ()>,
    ) -> (Self, StopReason) {
        let end = tokio::select! {
            biased;
            () = stopping => StopReason::Stopped,
            () = self.serve(asked, upgrade) => StopReason::TakenOver,
        };
        // A weir that is stopped must not leave another one running.
        if let Some(process) = self.new_process.take() {
            upgrade::end(process);
        }
        (self, end)
    }

    /// Until another process has taken over.
    async fn serve(&mut self, mut asked: mpsc::UnboundedReceiver<ReloadRequest>, upgrade: &Notify) {
        loop {
            let first = tokio::select! {
                () = upgrade.notified() => match self.hand_over().await {
                    true => return,
                    false => continue,
                },
                first = asked.recv() => first.flatten(),
            };
            // One reload serves all requests so far.
            let mut waiting = vec![first];
            while let Ok(another) = asked.try_recv() {
                waiting.push(another);
            }
            self.systemd.reloading();
            let result = self.reload().await;
            self.systemd.ready(self.admin.reloads().generation());
            for asked in waiting.into_iter().flatten() {
                // The receiver may have gone away meanwhile.
                drop(asked.send(result.clone()));
            }
        }
    }

    /// Has the binary that is there by now take over; whether it has.
    async fn hand_over(&mut self) -> bool {
        let admin = self.admin_socket.as_ref().map(|admin| admin.try_clone());
        let sockets = self.listeners.shared_sockets.values().flatten();
        let sockets: io::Result<Vec<OwnedFd>> = sockets
            .map(SharedSocket::copy)
            .chain(admin.map(|admin| admin.map(OwnedFd::from)))
            .collect();
        let started = match sockets.and_then(|sockets| NewProcess::start(&sockets)) {
            Ok(new_process) => {
                let process = new_process.child.id();
                self.new_process = Some(process);
                let waiting = tokio::task::spawn_blocking(|| new_process.wait());
                let waited = waiting.await.map_err(io::Error::other);
                self.new_process = None;
                waited.and_then(|waited| waited).map(|()| process)
            }
            Err(error) => Err(error),
        };
        match started {
            Ok(process) => {
                let sockets = self.listeners.shared_sockets.values().flatten();
                sockets.for_each(SharedSocket::give_away);
                self.systemd.notify(&format!(
                    "MAINPID={process}\nSTATUS=handed over to {process}"
                ));
                tracing::info!(process, "the new binary runs and has taken over");
                true
            }
            Err(error) => {
                tracing::error!("the new binary has not taken over: {error}; this one goes on");
                false
            }
        }
    }

    /// Reads the configuration again and puts it in force; where that fails, nothing changes.
    async fn reload(&mut self) -> Result<ReloadReport, ReloadFailure> {
        let reloaded = {
            let mut reloading = Box::pin(self.try_reload());
            let failed = |panic| Err(ReloadError::Panicked(panic));
            poll_fn(|context| telemetry::poll_catching_panic(reloading.as_mut(), context, failed))
                .await
        };
        match reloaded {
            Ok((report, changes)) => {
                let reloaded = self.admin.reloads().succeeded(&report, changes);
                for warning in &reloaded.warnings {
                    tracing::warn!("{warning}");
                }
                let generation = reloaded.generation;
                tracing::info!(
                    generation,
                    "the configuration was read again and is in force"
                );
                Ok(reloaded)
            }
            Err(failed) => {
                let refused = match failed {
                    ReloadError::Config(report) => ReloadFailure::of(&report),
                    failed => ReloadFailure::because(&failed),
                };
                for problem in &refused.problems {
                    tracing::error!("reload failed: {problem}");
                }
                tracing::error!("everything stays as it was before the reload");
                self.admin.reloads().failed();
                Err(refused)
            }
        }
    }

    async fn try_reload(&mut self) -> Result<(Report, Vec<String>), ReloadError> {
        let before = self.generation.load_full();
        let (source, writer) = (self.source.clone(), self.writer.clone());
        let accept_shards = self.accept_shards.clone();
        // Not here: admin requests and health checks must not wait for files and names.
        let drafting = blocking(move || {
            let (plan, report) = source.load()?;
            let draft = GenerationDraft::new(
                plan,
                &writer,
                &accept_shards,
                &mut InheritedSockets::default(),
                Some(&before),
            )?;
            Ok::<_, ReloadError>((draft, report, before))
        });
        let (mut draft, report, before) = drafting.await.ok_or(ReloadError::Stopping)??;
        let admin = draft.admin.take().map(listener).transpose()?;
        // From here on nothing fails.
        let mut changes = limits::forgotten_zones(&draft.plan, &before.plan);
        let (wanted, running) = (draft.plan.workers, self.loops.commands.len());
        if wanted != running {
            changes.push(format!(
                "workers: {wanted} is for the next start; there are {running} event loops and stay so"
            ));
        }
        self.join(&draft.parts.stores).await;
        let sockets = std::mem::take(&mut draft.sockets);
        let change = self.listeners.plan(&draft.plan, &self.generation);
        let generation = Arc::new(draft.build(change.listener_indices(), Some(&before)));
        for handle in &change.closed {
            handle.close(Arc::clone(&before));
        }
        self.generation.store(Arc::clone(&generation));
        telemetry::set_level(generation.plan.log.level);
        self.change_listeners(change, sockets).await;
        let last = before.lifetime();
        self.stores.leave_others(&generation.zones.stores, &last);
        let moved = |plan: &Plan| plan.admin.as_ref().map(|admin| admin.listen);
        if moved(&generation.plan) != moved(&before.plan) {
            self.serve_admin(admin);
        }
        Ok((report, changes))
    }

    async fn join(&mut self, stores: &[Arc<SharedStore>]) {
        self.stores.join(stores, &self.loops, &self.clock).await;
    }

    /// Opens and closes what a generation that is in force has changed.
    async fn change_listeners(&mut self, changes: ListenerChanges, sockets: Vec<Vec<BoundSocket>>) {
        for (sockets, handle) in sockets.into_iter().zip(&changes.opened) {
            self.listeners.share(handle, &sockets);
            self.loops.open(sockets, handle);
        }
        for handle in self.listeners.apply(changes) {
            self.loops.close(&handle).await;
        }
    }

    /// Has the admin listener here from now on, or nowhere.
    fn serve_admin(&mut self, listener: Option<AdminSockets>) {
        std::mem::take(&mut self.admin_stop).cancel();
        self.admin_socket = None;
        if let Some((listener, again)) = listener {
            self.admin_socket = Some(again);
            let (admin, stop) = (self.admin.clone(), self.admin_stop.clone());
            let serve = async move || admin.serve(&listener, &stop).await;
            tokio::spawn(supervise(BackgroundTask::Admin, serve));
        }
    }
}

/// The admin listener's socket, and once more.
type AdminSockets = (TcpListener, std::net::TcpListener);

fn listener(socket: std::net::TcpListener) -> Result<AdminSockets, Error> {
    let again = socket.try_clone().map_err(Error::Start)?;
    let listener = TcpListener::from_std(socket).map_err(Error::Start)?;
    Ok((listener, again))
}

/// Looks for as long as the gateway runs.
pub(super) async fn run(source: ConfigSource, mut watch: ConfigFiles, reloads: Arc<ReloadHandle>) {
    let Some(mut seen) = read_stamps(&watch).await else {
        return;
    };
    loop {
        tokio::time::sleep(WATCH_INTERVAL).await;
        let Some(now) = read_stamps(&watch).await else {
            return;
        };
        let stands_still = seen == now;
        seen = now;
        if seen == *watch.used() || !stands_still {
            continue;
        }
        // Before they are read: what changes meanwhile is then noticed.
        let next = blocking({
            let source = source.clone();
            move || source.watch()
        });
        let Some(Some(next)) = next.await else { return };
        watch = next;
        seen = watch.used().clone();
        tracing::info!("the files of the configuration have changed: reading them again");
        // What came of it is in the log.
        drop(reloads.ask_and_wait().await);
    }
}

/// Elsewhere: a file system may take its time.
async fn read_stamps(watch: &ConfigFiles) -> Option<config::FileStamps> {
    let watch = watch.clone();
    blocking(move || watch.look()).await
}

/// The interval of polling files.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// The stores of the running gateway.
#[derive(Debug, Default)]
pub(super) struct StoreTasks(Vec<StoreTask>);

#[derive(Debug)]
struct StoreTask {
    store: Arc<SharedStore>,
    clock: Clock,
    until: CancellationToken,
    watch: JoinHandle<()>,
}

impl StoreTasks {
    /// Has all loops connected to those that are new. Before the first request: it must not find a limit that
    /// is not there yet.
    pub(super) async fn join(
        &mut self,
        wanted: &[Arc<SharedStore>],
        loops: &EventLoops,
        clock: &Clock,
    ) {
        for store in wanted {
            if self.0.iter().any(|known| Arc::ptr_eq(&known.store, store)) {
                continue;
            }
            let until = CancellationToken::new();
            loops.join(store, &until).await;
            let watch = tokio::spawn({
                let (store, clock) = (Arc::clone(store), clock.clone());
                supervise(BackgroundTask::Store, move || {
                    Arc::clone(&store).watch(clock.clone())
                })
            });
            self.0.push(StoreTask {
                store: Arc::clone(store),
                clock: clock.clone(),
                until,
                watch,
            });
        }
    }

    /// Disconnects those that are no longer wanted, as soon as the generation `before` is gone with its last request.
    pub(super) fn leave_others(
        &mut self,
        wanted: &[Arc<SharedStore>],
        before: &Weak<RequestResources>,
    ) {
        let is_wanted = |task: &StoreTask| wanted.iter().any(|it| Arc::ptr_eq(it, &task.store));
        let (kept, unwanted) = std::mem::take(&mut self.0).into_iter().partition(is_wanted);
        self.0 = kept;
        for task in unwanted {
            let before = Weak::clone(before);
            tokio::spawn(async move {
                while before.strong_count() > 0 {
                    tokio::time::sleep(STORES_INTERVAL).await;
                }
                task.leave().await;
            });
        }
    }

    /// Disconnects all at once: one that does not respond must not delay the end once for each of them.
    pub(super) async fn leave(self) {
        let leaving: JoinSet<()> = self.0.into_iter().map(StoreTask::leave).collect();
        leaving.join_all().await;
    }
}

impl StoreTask {
    async fn leave(self) {
        self.until.cancel();
        self.watch.abort();
        self.store.leave(&self.clock).await;
    }
}

/// How often it is checked whether requests may still use a store.
const STORES_INTERVAL: Duration = Duration::from_secs(1);
