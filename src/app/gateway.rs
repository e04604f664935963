//! One event loop: its own sockets, its own connections, nothing shared on the path but zones and plan.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::listen::{self, Bound};
use crate::message::{Body, NoAnswer, Peer};
use crate::proxy::{Live, Proxy};
use crate::serve::{self, Handler, Settings};
use crate::telemetry::COUNTERS;
use crate::upstream::Download;

/// What a loop's thread runs.
pub(super) struct Loop {
    pub(super) live: Arc<ArcSwap<Live>>,
    pub(super) clock: Clock,
    pub(super) stop: CancellationToken,
    /// In the order of the plan's listeners.
    pub(super) sockets: Vec<Bound>,
    pub(super) grace: Duration,
}

impl Loop {
    /// Runs until stopped and drained.
    pub(super) fn run(self) -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let connections = TaskTracker::new();
            let acceptors = TaskTracker::new();
            for (listener, bound) in self.sockets.into_iter().enumerate() {
                let gateway = Gateway {
                    live: Arc::clone(&self.live),
                    proxy: Proxy::new(Arc::clone(&self.live), listener, self.clock.clone()),
                    listener,
                };
                let stop = self.stop.clone();
                let accepting = listen::accept_loop(
                    bound,
                    self.clock.clone(),
                    connections.clone(),
                    self.stop.clone(),
                    move |stream, peer| gateway.clone().serve(stream, peer, stop.clone()),
                );
                acceptors.spawn(async move {
                    if let Err(error) = accepting.await {
                        tracing::error!("{error}");
                    }
                });
            }
            self.stop.cancelled().await;
            acceptors.close();
            acceptors.wait().await;
            connections.close();
            if tokio::time::timeout(self.grace, connections.wait())
                .await
                .is_err()
            {
                tracing::warn!(
                    connections = connections.len(),
                    "shutdown_timeout is over: closing what is left"
                );
            }
        });
        Ok(())
    }
}

/// Joins what `serve` reads to the road: the two do not know each other.
#[derive(Debug, Clone)]
struct Gateway {
    live: Arc<ArcSwap<Live>>,
    proxy: Proxy,
    listener: usize,
}

impl Gateway {
    async fn serve(self, stream: listen::Stream, peer: Arc<Peer>, stop: CancellationToken) {
        let settings = {
            let live = self.live.load();
            let listener = &live.plan.listeners[self.listener];
            Settings::new(
                &live.plan.servers[listener.default_server],
                live.plan.shutdown_timeout,
            )
        };
        let _active = COUNTERS.connect();
        match stream {
            listen::Stream::Tcp(stream) => {
                serve::connection(stream, peer, settings, self, stop).await
            }
            listen::Stream::Unix(stream) => {
                serve::connection(stream, peer, settings, self, stop).await
            }
        }
    }
}

impl Handler for Gateway {
    type Body = Body<Download>;

    fn handle(
        &self,
        peer: Arc<Peer>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Self::Body>, NoAnswer>> + Send {
        self.proxy.handle(peer, request)
    }

    fn refused_head(&self, peer: &Peer, status: u16) {
        if let Ok(status) = StatusCode::from_u16(status) {
            COUNTERS.refuse_head(status);
        }
        tracing::info!(
            client = peer.text(),
            status,
            "what a client sent was not a request"
        );
    }
}
