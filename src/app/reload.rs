//! One generation after the other, while everything runs.
//!
//! A new configuration is read, compiled and built to the point where nothing can fail any more; only then is it put in
//! force, by one pointer. Requests that began before finish by the rules they began with.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::Error;
use super::build::GenerationDraft;
use super::doors::{ListenerChanges, Listeners};
use super::loops::EventLoops;
use super::source::ConfigSource;
use super::stores::StoreTasks;
use super::systemd::Systemd;
use super::upgrade::{self, NewProcess};
use crate::admin::{Admin, ReloadFailure, ReloadReport, ReloadRequest};
use crate::clock::Clock;
use crate::config::{Plan, Report};
use crate::limits;
use crate::listen::{self, BoundSocket, InheritedSockets, SharedSocket};
use crate::proxy::Generation;
use crate::store::SharedStore;
use crate::telemetry::background::blocking;
use crate::telemetry::panics::{self, CaughtPanic};
use crate::telemetry::{self, BackgroundTask, LogWriter, supervise};

/// Puts one generation after the other in force.
#[derive(Debug)]
pub(super) struct Reloader {
    pub(super) live: Arc<ArcSwap<Generation>>,
    pub(super) source: ConfigSource,
    pub(super) writer: LogWriter,
    pub(super) clock: Clock,
    pub(super) loops: EventLoops,
    /// The same loops as listeners see them.
    pub(super) berths: listen::AcceptShards,
    pub(super) doors: Listeners,
    pub(super) stores: StoreTasks,
    pub(super) admin: Admin,
    /// Stops the admin listener where it is now.
    pub(super) admin_stop: CancellationToken,
    /// Its socket once more.
    pub(super) admin_socket: Option<std::net::TcpListener>,
    /// The process that is about to take over.
    pub(super) successor: Option<u32>,
    pub(super) systemd: Arc<Systemd>,
}

/// Why no more generations come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    /// Another process has taken over.
    Relieved,
    /// Somebody wants it.
    Wanted,
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
    /// Opens what the first generation asks for: its doors, its stores and the admin listener.
    pub(super) async fn begin(
        &mut self,
        sockets: Vec<Vec<BoundSocket>>,
        admin: Option<std::net::TcpListener>,
    ) -> Result<(), Error> {
        let admin = admin.map(listener).transpose()?;
        let live = self.live.load_full();
        self.join(&live.zones.stores).await;
        let change = self.doors.plan(&live.plan, &self.live);
        self.rearrange(change, sockets).await;
        self.receive(admin);
        self.systemd.ready(self.admin.reloads().generation());
        Ok(())
    }

    /// Answers whoever asks for the configuration to be read again, one reload after the other, until it is time to
    /// stop. One that has begun then is given up, or done.
    pub(super) async fn serve_until(
        mut self,
        asked: mpsc::UnboundedReceiver<ReloadRequest>,
        upgrade: &Notify,
        stopping: impl Future<Output = ()>,
    ) -> (Self, StopReason) {
        let end = tokio::select! {
            biased;
            () = stopping => StopReason::Wanted,
            () = self.serve(asked, upgrade) => StopReason::Relieved,
        };
        // Who stops weir does not want to find another one.
        if let Some(process) = self.successor.take() {
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
            // All who have asked by now are served by one.
            let mut waiting = vec![first];
            while let Ok(another) = asked.try_recv() {
                waiting.push(another);
            }
            let answer = self.reload().await;
            for asked in waiting.into_iter().flatten() {
                // Who has gone away meanwhile does not want to know.
                drop(asked.send(answer.clone()));
            }
        }
    }

    /// Has the binary that is there by now take over; whether it has.
    async fn hand_over(&mut self) -> bool {
        let admin = self.admin_socket.as_ref().map(|admin| admin.try_clone());
        let sockets = self.doors.lent().map(SharedSocket::copy);
        let sockets: io::Result<Vec<OwnedFd>> = sockets
            .chain(admin.map(|admin| admin.map(OwnedFd::from)))
            .collect();
        let started = match sockets.and_then(|sockets| NewProcess::start(&sockets)) {
            Ok(successor) => {
                let process = successor.process();
                self.successor = Some(process);
                let waiting = tokio::task::spawn_blocking(|| successor.wait());
                let waited = waiting.await.map_err(io::Error::other);
                self.successor = None;
                waited.and_then(|waited| waited).map(|()| process)
            }
            Err(error) => Err(error),
        };
        match started {
            Ok(process) => {
                self.doors.lent().for_each(SharedSocket::give_away);
                self.systemd.succeeded_by(process);
                tracing::info!(process, "the new binary runs and has taken over");
                true
            }
            Err(error) => {
                tracing::error!("the new binary has not taken over: {error}; this one goes on");
                false
            }
        }
    }

    /// Reads the configuration again and puts it in force, or says why not and changes nothing.
    async fn reload(&mut self) -> Result<ReloadReport, ReloadFailure> {
        self.systemd.reloading();
        let answer = self.reload_or_not().await;
        self.systemd.ready(self.admin.reloads().generation());
        answer
    }

    async fn reload_or_not(&mut self) -> Result<ReloadReport, ReloadFailure> {
        let reloaded = {
            let mut reloading = Box::pin(self.try_reload());
            let failed = |panic| Err(ReloadError::Panicked(panic));
            poll_fn(|context| panics::poll(reloading.as_mut(), context, failed)).await
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
        let before = self.live.load_full();
        let (source, writer) = (self.source.clone(), self.writer.clone());
        let berths = self.berths.clone();
        // Not here: whoever asks the admin listener meanwhile, or is checked, must not wait for files and names.
        let drafting = blocking(move || {
            let (plan, report) = source.load()?;
            let draft = GenerationDraft::new(
                plan,
                &writer,
                &berths,
                &mut InheritedSockets::default(),
                Some(&before),
            )?;
            Ok::<_, ReloadError>((draft, report, before))
        });
        let (mut draft, report, before) = drafting.await.ok_or(ReloadError::Stopping)??;
        let admin = draft.admin.take().map(listener).transpose()?;
        // From here on nothing fails.
        let mut changes = limits::forgotten(&draft.plan, &before.plan);
        changes.extend(self.what_stays(&draft.plan));
        self.join(&draft.stores).await;
        let sockets = std::mem::take(&mut draft.sockets);
        let change = self.doors.plan(&draft.plan, &self.live);
        let live = Arc::new(draft.build(change.table(), Some(&before)));
        for door in &change.closed {
            door.close(Arc::clone(&before));
        }
        self.live.store(Arc::clone(&live));
        telemetry::set_level(live.plan.log.level);
        self.rearrange(change, sockets).await;
        let last = Arc::downgrade(&before);
        self.stores.leave_others(&live.zones.stores, &last);
        let moved = |plan: &Plan| plan.admin.as_ref().map(|admin| admin.listen);
        if moved(&live.plan) != moved(&before.plan) {
            self.receive(admin);
        }
        Ok((report, changes))
    }

    /// Some things are settled when the process starts.
    fn what_stays(&self, plan: &Plan) -> Option<String> {
        let (wanted, running) = (plan.workers, self.loops.count());
        (wanted != running).then(|| {
            format!(
                "workers: {wanted} is for the next start; there are {running} event loops and stay so"
            )
        })
    }

    async fn join(&mut self, stores: &[Arc<SharedStore>]) {
        self.stores.join(stores, &self.loops, &self.clock).await;
    }

    /// Opens and closes what a generation that is in force has changed.
    async fn rearrange(&mut self, mut change: ListenerChanges, sockets: Vec<Vec<BoundSocket>>) {
        for (sockets, door) in sockets.into_iter().zip(&change.opened) {
            self.doors.lend(door, &sockets);
            self.loops.open(sockets, door);
        }
        let closed = std::mem::take(&mut change.closed);
        self.doors.settle(change, &closed);
        for door in &closed {
            self.loops.close(door).await;
        }
    }

    /// Has the admin listener here from now on, or nowhere.
    fn receive(&mut self, listener: Option<AdminSockets>) {
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
