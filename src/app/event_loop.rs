//! The event loops: one thread each, its own sockets and connections, and nothing shared on the path but zones and plan.
//!
//! Which addresses a loop listens on and which stores it is connected to may change while it runs; it is told so by
//! orders, and follows them between two connections.

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

/// What a loop is told to do.
#[derive(Debug)]
pub(super) enum LoopCommand {
    /// To say that it is there.
    Answer(oneshot::Sender<()>),
    /// Stop accepting on the listener of this number, and say when that is done; its connections may finish.
    Close(usize, oneshot::Sender<()>),
    /// To connect to a store, and to stay so until it is given up.
    Join(Arc<SharedStore>, CancellationToken, oneshot::Sender<()>),
    /// To listen.
    Open(BoundSocket, Arc<ListenerHandle>),
}

/// All loops, from outside.
#[derive(Debug, Clone)]
pub(super) struct EventLoops {
    orders: Vec<mpsc::UnboundedSender<LoopCommand>>,
}

/// What all loops have in common.
#[derive(Debug, Clone)]
pub(super) struct LoopShared {
    pub(super) generation: Arc<ArcSwap<Generation>>,
    pub(super) clock: Clock,
    pub(super) stop: CancellationToken,
    pub(super) cap: Arc<ConnectionLimiter>,
}

/// What a loop's thread runs.
struct EventLoop {
    number: usize,
    common: LoopShared,
    orders: mpsc::UnboundedReceiver<LoopCommand>,
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
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.orders.len()
    }

    /// Starts as many as the plan wants.
    pub(super) fn start(
        common: &LoopShared,
    ) -> std::io::Result<(Self, Vec<JoinHandle<std::io::Result<()>>>)> {
        let mut orders = Vec::new();
        let mut threads = Vec::new();
        for number in 0..common.generation.load().plan.workers {
            let (order, obeyed) = mpsc::unbounded_channel();
            let run = EventLoop {
                number,
                common: LoopShared {
                    // A token is checked behind a lock at every wake-up: one for each loop.
                    stop: common.stop.child_token(),
                    ..common.clone()
                },
                orders: obeyed,
                connections: TaskTracker::new(),
                acceptors: TaskTracker::new(),
                open: HashMap::new(),
            };
            let thread = thread::Builder::new().name(format!("weir-{number}"));
            threads.push(thread.spawn(move || run.run())?);
            orders.push(order);
        }
        Ok((Self { orders }, threads))
    }

    /// Has every loop accept on a listener, each on its own socket, or on several where there are more.
    pub(super) fn open(&self, sockets: Vec<BoundSocket>, door: &Arc<ListenerHandle>) {
        for (order, socket) in self.orders.iter().cycle().zip(sockets) {
            // A loop that has ended wants no orders.
            drop(order.send(LoopCommand::Open(socket, Arc::clone(door))));
        }
    }

    /// Has all loops stop accepting on a listener; done when none accepts, and the address is free again.
    pub(super) async fn close(&self, door: &ListenerHandle) {
        let close = |order: &mpsc::UnboundedSender<LoopCommand>| {
            let (done, is_done) = oneshot::channel();
            drop(order.send(LoopCommand::Close(door.number(), done)));
            is_done
        };
        let closing: Vec<_> = self.orders.iter().map(close).collect();
        for is_done in closing {
            // A loop that has ended listens nowhere.
            drop(is_done.await);
        }
    }

    /// Waits until every loop has said that it is there.
    pub(super) async fn answer(&self) {
        let mut answers = Vec::new();
        for order in &self.orders {
            let (here, is_here) = oneshot::channel();
            drop(order.send(LoopCommand::Answer(here)));
            answers.push(is_here);
        }
        for is_here in answers {
            if is_here.await.is_err() {
                // It has ended, and will not answer any more.
                return std::future::pending().await;
            }
        }
    }

    /// Has every loop connect to a store; done when all have, or know that it is away.
    pub(super) async fn join(&self, store: &Arc<SharedStore>, until: &CancellationToken) {
        let mut joined = Vec::new();
        for order in &self.orders {
            let (done, is_done) = oneshot::channel();
            drop(order.send(LoopCommand::Join(Arc::clone(store), until.clone(), done)));
            joined.push(is_done);
        }
        for is_done in joined {
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
            let stop = self.common.stop.clone();
            let number = self.number;
            let watch = move || telemetry::watch_lag(number);
            tokio::spawn(supervise(BackgroundTask::Lag, watch));
            while let Some(Some(order)) = stop.run_until_cancelled(self.orders.recv()).await {
                // The sender of the order is told by its drop.
                if let Err(panic) = telemetry::catch_panic(|| self.follow(order)) {
                    BackgroundTask::Loop.note(&panic, Duration::ZERO);
                }
            }
            stop.cancelled().await;
            // Sockets that came with the last orders may have been connected to.
            while let Ok(order) = self.orders.try_recv() {
                self.follow(order);
            }
            self.acceptors.close();
            self.acceptors.wait().await;
            self.connections.close();
            let grace = self.common.generation.load().plan.shutdown_timeout;
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

    fn follow(&mut self, order: LoopCommand) {
        match order {
            LoopCommand::Answer(here) => {
                // The receiver may have given up.
                let _told = here.send(());
            }
            LoopCommand::Close(number, done) => {
                if let Some(listening) = self.open.remove(&number) {
                    listening.stop.cancel();
                    listening.acceptors.close();
                    tokio::spawn(async move {
                        listening.acceptors.wait().await;
                        // There is no receiver where the process is about to end.
                        let _told = done.send(());
                    });
                }
            }
            LoopCommand::Join(store, until, done) => {
                let clock = self.common.clock.clone();
                tokio::spawn(async move {
                    // What follows makes up for a connection that could not be had, and has to begin whatever happens here.
                    telemetry::isolated(Box::pin(store.connect(&clock)), |panic| {
                        BackgroundTask::Store.note(&panic, Duration::ZERO);
                    })
                    .await;
                    // There is no receiver where the process is about to end.
                    let _told = done.send(());
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
            LoopCommand::Open(socket, door) => self.open(socket, door),
        }
    }

    fn open(&mut self, socket: BoundSocket, door: Arc<ListenerHandle>) {
        let listening = self.open.entry(door.number());
        let listening = listening.or_insert_with(|| LoopListener {
            stop: self.common.stop.child_token(),
            acceptors: TaskTracker::new(),
        });
        let (stop, own) = (listening.stop.clone(), listening.acceptors.clone());
        let clock = self.common.clock.clone();
        let cap = Arc::clone(&self.common.cap);
        let gateway = ConnectionHandler::new(socket.address(), door, clock.clone(), cap);
        let served = stop.clone();
        let accepting = listen::accept_loop(
            socket,
            clock,
            self.connections.clone(),
            stop,
            move |stream, client| {
                let seat = gateway.admit(&client)?;
                Some(gateway.clone().serve(stream, client, seat, served.clone()))
            },
        );
        self.acceptors.spawn(own.track_future(async move {
            if let Err(error) = accepting.await {
                tracing::error!("{error}");
            }
        }));
    }
}
