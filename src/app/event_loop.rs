//! The event loops: one thread each, its own sockets and connections, and nothing shared on the path but zones and plan.
//!
//! The addresses a loop listens on and the stores it is connected to may change while it runs; commands tell it, and it
//! executes them between two connections.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::listen::{BoundSocket, ConnectionLimiter};
use crate::proxy::{ConnectionHandler, Generation, ListenerHandle};
use crate::store::SharedStore;
use crate::telemetry::{BackgroundTask, supervise};
use crate::{listen, telemetry};

/// A command to an event loop.
#[derive(Debug)]
pub(super) enum LoopCommand {
    /// Respond.
    Ping(oneshot::Sender<()>),
    /// Stop accepting on the listener of this number; its connections may finish.
    Close(usize, oneshot::Sender<()>),
    /// Connect to a store, and stay connected until that is cancelled.
    Join(Arc<SharedStore>, CancellationToken, oneshot::Sender<()>),
    /// Listen on a socket.
    Open(BoundSocket, Arc<ListenerHandle>),
}

/// Sends commands to all loops.
#[derive(Debug, Clone)]
pub(super) struct EventLoops {
    pub(super) commands: Vec<mpsc::UnboundedSender<LoopCommand>>,
}

/// What all loops have in common.
#[derive(Debug, Clone)]
pub(super) struct LoopShared {
    pub(super) generation: Arc<ArcSwap<Generation>>,
    pub(super) clock: Clock,
    pub(super) stop: CancellationToken,
    pub(super) limiter: Arc<ConnectionLimiter>,
}

/// What a loop's thread runs.
struct EventLoop {
    number: usize,
    shared: LoopShared,
    commands: mpsc::UnboundedReceiver<LoopCommand>,
    connections: TaskTracker,
    acceptors: TaskTracker,
    open: HashMap<usize, LoopListener>,
}

/// A listener of one loop.
struct LoopListener {
    stop: CancellationToken,
    acceptors: TaskTracker,
}

impl EventLoops {
    /// Starts as many as the plan wants.
    pub(super) fn start(
        shared: &LoopShared,
    ) -> std::io::Result<(Self, Vec<JoinHandle<std::io::Result<()>>>)> {
        let mut commands = Vec::new();
        let mut threads = Vec::new();
        for number in 0..shared.generation.load().plan.workers {
            let (command, receiver) = mpsc::unbounded_channel();
            let run = EventLoop {
                number,
                shared: LoopShared {
                    // A token is checked behind a lock at every wake-up: one for each loop.
                    stop: shared.stop.child_token(),
                    ..shared.clone()
                },
                commands: receiver,
                connections: TaskTracker::new(),
                acceptors: TaskTracker::new(),
                open: HashMap::new(),
            };
            let thread = thread::Builder::new().name(format!("weir-{number}"));
            threads.push(thread.spawn(move || run.run())?);
            commands.push(command);
        }
        Ok((Self { commands }, threads))
    }

    /// Has every loop accept on a listener, each on its own socket, or on several where there are more.
    pub(super) fn open(&self, sockets: Vec<BoundSocket>, listener: &Arc<ListenerHandle>) {
        for (command, socket) in self.commands.iter().cycle().zip(sockets) {
            // A loop that has ended takes no commands.
            drop(command.send(LoopCommand::Open(socket, Arc::clone(listener))));
        }
    }

    /// Sends a command to every loop, and gives the receivers of their confirmations.
    fn send(
        &self,
        command: impl Fn(oneshot::Sender<()>) -> LoopCommand,
    ) -> Vec<oneshot::Receiver<()>> {
        let sent = self.commands.iter().map(|commands| {
            let (done, is_done) = oneshot::channel();
            // A loop that has ended takes no commands, and drops the sender.
            drop(commands.send(command(done)));
            is_done
        });
        sent.collect()
    }

    /// Has all loops stop accepting on a listener; done when none accepts, and the address is free again.
    pub(super) async fn close(&self, listener: &ListenerHandle) {
        for is_done in self.send(|done| LoopCommand::Close(listener.number, done)) {
            // A loop that has ended listens nowhere.
            drop(is_done.await);
        }
    }

    /// Waits until every loop has responded.
    pub(super) async fn ping(&self) {
        for is_here in self.send(LoopCommand::Ping) {
            if is_here.await.is_err() {
                // It has ended, and will not respond any more.
                return std::future::pending().await;
            }
        }
    }

    /// Has every loop connect to a store; done when all have, or know that it is away.
    pub(super) async fn join(&self, store: &Arc<SharedStore>, until: &CancellationToken) {
        let join = |done| LoopCommand::Join(Arc::clone(store), until.clone(), done);
        for is_done in self.send(join) {
            // A loop that has ended is as well connected as it will ever be.
            drop(is_done.await);
        }
    }
}

impl EventLoop {
    /// Runs until stopped and drained.
    fn run(mut self) -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let stop = self.shared.stop.clone();
            let number = self.number;
            let watch = move || telemetry::watch_lag(number);
            tokio::spawn(supervise(BackgroundTask::Lag, watch));
            while let Some(Some(command)) = stop.run_until_cancelled(self.commands.recv()).await {
                // The sender of the command sees its drop.
                if let Err(panic) = telemetry::catch_panic(|| self.execute(command)) {
                    BackgroundTask::Loop.note(&panic, Duration::ZERO);
                }
            }
            stop.cancelled().await;
            // Clients may have connected to sockets of the last commands.
            while let Ok(command) = self.commands.try_recv() {
                self.execute(command);
            }
            self.acceptors.close();
            self.acceptors.wait().await;
            self.connections.close();
            let grace = self.shared.generation.load().plan.shutdown_timeout;
            if tokio::time::timeout(grace, self.connections.wait())
                .await
                .is_err()
            {
                tracing::warn!(
                    connections = self.connections.len(),
                    "shutdown_timeout is over: closing what is left"
                );
            }
        });
        Ok(())
    }

    fn execute(&mut self, command: LoopCommand) {
        match command {
            LoopCommand::Ping(here) => {
                // The receiver may have given up.
                let _sent = here.send(());
            }
            LoopCommand::Close(number, done) => {
                if let Some(listening) = self.open.remove(&number) {
                    listening.stop.cancel();
                    listening.acceptors.close();
                    tokio::spawn(async move {
                        listening.acceptors.wait().await;
                        // There is no receiver where the process is about to end.
                        let _sent = done.send(());
                    });
                }
            }
            LoopCommand::Join(store, until, done) => {
                let clock = self.shared.clock.clone();
                tokio::spawn(async move {
                    // What follows makes up for a connection that could not be had, and has to begin whatever happens here.
                    telemetry::isolated(Box::pin(store.connect(&clock)), |panic| {
                        BackgroundTask::Store.note(&panic, Duration::ZERO);
                    })
                    .await;
                    // There is no receiver where the process is about to end.
                    let _sent = done.send(());
                    let follow_up = {
                        let (store, clock) = (Arc::clone(&store), clock.clone());
                        move || Arc::clone(&store).follow_up(clock.clone())
                    };
                    let rest = supervise(BackgroundTask::Store, follow_up);
                    tokio::spawn(until.clone().run_until_cancelled_owned(rest));
                    let tend = {
                        let store = Arc::clone(&store);
                        move || Arc::clone(&store).tend(clock.clone())
                    };
                    let tending = supervise(BackgroundTask::Store, tend);
                    until.run_until_cancelled(tending).await;
                    store.part();
                });
            }
            LoopCommand::Open(socket, listener) => self.open(socket, listener),
        }
    }

    fn open(&mut self, socket: BoundSocket, listener: Arc<ListenerHandle>) {
        let listening = self.open.entry(listener.number);
        let listening = listening.or_insert_with(|| LoopListener {
            stop: self.shared.stop.child_token(),
            acceptors: TaskTracker::new(),
        });
        let (stop, own) = (listening.stop.clone(), listening.acceptors.clone());
        let clock = self.shared.clock.clone();
        let limiter = Arc::clone(&self.shared.limiter);
        let handler = ConnectionHandler::new(socket.address(), listener, clock.clone(), limiter);
        let connection_stop = stop.clone();
        let accepting = listen::accept_loop(
            socket,
            clock,
            self.connections.clone(),
            stop,
            move |stream, client| {
                let permit = handler.admit(&client)?;
                Some(
                    handler
                        .clone()
                        .serve(stream, client, permit, connection_stop.clone()),
                )
            },
        );
        self.acceptors.spawn(own.track_future(async move {
            if let Err(error) = accepting.await {
                tracing::error!("{error}");
            }
        }));
    }
}
