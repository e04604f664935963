//! One event loop: its own sockets, its own connections, nothing shared on the path but zones and plan.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Request, Response, StatusCode};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::secure;
use crate::clock::Clock;
use crate::config::plan::{Carrier, Plan, RealIp, RealIpHeader};
use crate::listen::{self, Bound, Cap, Seat, proxy_header};
use crate::message::{Body, Incoming, NoAnswer, Peer};
use crate::proxy::{Live, Proxy};
use crate::serve::{self, Flood, Handler, Settings, Socket};
use crate::telemetry::{self, Listener, ProxyHeader};
use crate::tls::{self, Greeting};
use crate::upstream::Download;

/// What a loop's thread runs.
pub(super) struct Loop {
    pub(super) number: usize,
    pub(super) live: Arc<ArcSwap<Live>>,
    pub(super) clock: Clock,
    pub(super) stop: CancellationToken,
    /// In the order of the plan's listeners.
    pub(super) sockets: Vec<Bound>,
    pub(super) grace: Duration,
    /// Shared by all loops.
    pub(super) cap: Arc<Cap>,
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
            tokio::spawn(telemetry::watch_lag(self.number));
            // Before the first request: who comes first must not find a limit that is not there yet.
            for store in self.live.load().zones.stores.clone() {
                store.connect(&self.clock).await;
                tokio::spawn(Arc::clone(&store).tend(self.clock.clone()));
                tokio::spawn(store.follow_up(self.clock.clone()));
            }
            for (listener, bound) in self.sockets.into_iter().enumerate() {
                let address = self.live.load().plan.listeners[listener]
                    .address
                    .to_string();
                let gateway = Gateway {
                    counters: Listener::at(&address),
                    live: Arc::clone(&self.live),
                    proxy: Proxy::new(Arc::clone(&self.live), listener, self.clock.clone()),
                    listener,
                    cap: Arc::clone(&self.cap),
                };
                let stop = self.stop.clone();
                let accepting = listen::accept_loop(
                    bound,
                    self.clock.clone(),
                    connections.clone(),
                    self.stop.clone(),
                    move |stream, peer| {
                        let seat = gateway.admit(&peer)?;
                        Some(gateway.clone().serve(stream, peer, seat, stop.clone()))
                    },
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
    counters: Arc<Listener>,
    live: Arc<ArcSwap<Live>>,
    proxy: Proxy,
    listener: usize,
    cap: Arc<Cap>,
}

impl Gateway {
    /// A place for a connection, unless there are enough.
    fn admit(&self, peer: &Arc<Peer>) -> Option<Seat> {
        let plan = Arc::clone(&self.live.load().plan);
        let address = match self.rule_of_introduction(&plan, peer) {
            // It is not the proxy who connects; who does is known when its header has been read.
            Some(_) => None,
            None => peer.client.ip(),
        };
        self.cap.admit(&plan.caps, peer, address)
    }

    /// The rule by which this connection's PROXY header is believed.
    fn rule_of_introduction<'p>(&self, plan: &'p Plan, peer: &Peer) -> Option<&'p RealIp> {
        let listener = &plan.listeners[self.listener];
        let rule = plan.servers[listener.default_server].real_ip.as_ref()?;
        let asked = listener.proxy_protocol && rule.header == RealIpHeader::ProxyProtocol;
        Some(rule).filter(|rule| asked && peer.is_trusted_by(rule))
    }

    /// What holds before a request is known: its listener's default server's.
    fn settings(&self) -> Settings {
        Settings::of(&self.live.load().plan, self.listener)
    }

    async fn serve(
        self,
        mut stream: listen::Stream,
        peer: Arc<Peer>,
        mut seat: Seat,
        stop: CancellationToken,
    ) {
        let _active = self.counters.connect();
        if self.live.load().plan.listeners[self.listener].proxy_protocol {
            // Boxed: most listeners have no use for it, and every connection would keep room.
            let introduced = Box::pin(self.introduced(&mut stream, &mut seat, &stop));
            if !introduced.await {
                return;
            }
        }
        let settings = self.settings();
        let carrier = self.live.load().plan.listeners[self.listener].carrier;
        let socket = match (stream, carrier) {
            (listen::Stream::Tcp(stream), Carrier::Plain) => Socket::from(stream),
            (listen::Stream::Unix(stream), Carrier::Plain) => Socket::from(stream),
            (stream, Carrier::Tls) => {
                // Boxed: once it is over, nothing is left of it.
                let mut securing = Box::pin(self.secured(stream, &peer, &settings, &stop));
                let Some(Some(socket)) = seat.hold(securing.as_mut()).await else {
                    return;
                };
                socket
            }
        };
        // Pinned where it is made: moved, it would have room twice.
        let connection = pin!(serve::connection(socket, peer, settings, self, stop));
        seat.hold(connection).await;
    }

    /// The stream inside TLS, or the bare one of a client that speaks without.
    async fn secured(
        &self,
        stream: listen::Stream,
        peer: &Peer,
        settings: &Settings,
        stop: &CancellationToken,
    ) -> Option<Socket> {
        let timeout = settings.timeouts.header;
        let choose = |name: Option<&str>| self.live.load().secured(self.listener, name);
        Some(match stream {
            listen::Stream::Tcp(stream) => {
                let greeting = tls::greet(stream, choose);
                let greeting = secure::bounded(greeting, peer, &self.counters, timeout, stop);
                agreed(greeting.await?, peer)
            }
            listen::Stream::Unix(stream) => {
                let greeting = tls::greet(stream, choose);
                let greeting = secure::bounded(greeting, peer, &self.counters, timeout, stop);
                agreed(greeting.await?, peer)
            }
        })
    }

    /// Reads a connection's PROXY header and counts it for whom that names; false if it has to end.
    async fn introduced(
        &self,
        stream: &mut listen::Stream,
        seat: &mut Seat,
        stop: &CancellationToken,
    ) -> bool {
        let peer = Arc::clone(seat.peer());
        let timeout = self.settings().timeouts.header;
        let reading = pin!(introduce(stream, &peer, &self.counters, timeout, stop));
        if seat.hold(reading).await != Some(true) {
            return false;
        }
        let plan = Arc::clone(&self.live.load().plan);
        let rule = self.rule_of_introduction(&plan, &peer);
        rule.is_none_or(|rule| {
            let client = peer.introduced_by(rule).map(|client| client.ip());
            seat.counts_for(&plan.caps, client)
        })
    }
}

/// Notes what was agreed on.
fn agreed<IO>(greeting: Greeting<IO>, peer: &Peer) -> Socket
where
    Socket: From<IO> + From<Box<tls::Stream<IO>>>,
{
    match greeting {
        Greeting::Plain(io) => io.into(),
        Greeting::Secured(stream, known) => {
            peer.secured(known);
            stream.into()
        }
    }
}

/// Reads the PROXY header that a connection has to begin with; false if it does not, and has to end.
async fn introduce(
    stream: &mut listen::Stream,
    peer: &Peer,
    counters: &Listener,
    timeout: Duration,
    stop: &CancellationToken,
) -> bool {
    let stopped = async {
        stop.cancelled().await;
        tokio::time::sleep(serve::LAST_CALL).await;
    };
    let read = tokio::select! {
        biased;
        read = proxy_header::read(stream, timeout) => read,
        () = stopped => return false,
    };
    match read {
        Ok(says) => {
            if let Some(says) = says {
                peer.set_proxied(says);
            }
            true
        }
        Err(error) => {
            counters.refuse_proxy_header(match error {
                proxy_header::Error::Broken(_) => ProxyHeader::Broken,
                proxy_header::Error::Malformed(_) => ProxyHeader::Malformed,
                proxy_header::Error::TimedOut => ProxyHeader::TimedOut,
            });
            tracing::info!(
                connection = peer.connection,
                client = peer.text(),
                "{error}"
            );
            false
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
        self.counters.request(request.version());
        self.proxy.handle(peer, request)
    }

    fn flooded(&self, peer: &Peer, flood: Flood) {
        let kind = flood.name();
        self.counters.flood(kind);
        tracing::warn!(
            client = peer.text(),
            kind,
            "http2 flood detected: connection closed"
        );
    }

    fn refused_head(&self, peer: &Peer, status: u16) {
        if let Ok(status) = StatusCode::from_u16(status) {
            self.counters.refuse_head(status);
        }
        let plan = Arc::clone(&self.live.load().plan);
        let introduced = self
            .rule_of_introduction(&plan, peer)
            .and_then(|rule| peer.introduced_by(rule))
            .map(|client| client.ip().to_string());
        tracing::info!(
            client = introduced.as_deref().unwrap_or_else(|| peer.text()),
            status,
            "what a client sent was not a request"
        );
    }
}
