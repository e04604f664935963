//! One connection, from accept to its end: connection limit, PROXY header, TLS handshake, then requests over HTTP.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tokio_util::sync::CancellationToken;

use super::Proxy;
use super::generation::{Generation, ListenerHandle};
use crate::clock::Clock;
use crate::config::plan::{Plan, RealIp, RealIpHeader, SocketAddress};
use crate::downstream::{ConnectionSettings, FloodKind, Handler};
use crate::listen::{ConnectionLimiter, ConnectionPermit};
use crate::message::{ClientConnection, CloseConnection, IncomingBody, ResponseBody, TlsInfo};
use crate::net::Stream;
use crate::telemetry::{HandshakeResult, ListenerCounters, ProxyHeaderFailure, about_connection};
use crate::tls::{HandshakeError, Socket};
use crate::upstream::UpstreamBody;
use crate::{downstream, listen, tls};

/// Serves the connections of one listener on one event loop, and hands their requests to the proxy.
#[derive(Debug, Clone)]
pub struct ConnectionHandler {
    counters: Arc<ListenerCounters>,
    proxy: Proxy,
    /// Shared by all loops.
    cap: Arc<ConnectionLimiter>,
}

impl ConnectionHandler {
    /// Serves the connections of a listener.
    pub(crate) fn new(
        address: &SocketAddress,
        listener: Arc<ListenerHandle>,
        clock: Clock,
        cap: Arc<ConnectionLimiter>,
    ) -> Self {
        Self {
            counters: ListenerCounters::at(&address.to_string()),
            proxy: Proxy { listener, clock },
            cap,
        }
    }

    /// Admits a connection, unless its address or all together have enough.
    pub(crate) fn admit(&self, client: &Arc<ClientConnection>) -> Option<ConnectionPermit> {
        let (generation, listener) = self.proxy.listener.current();
        let plan = &generation.plan;
        let address = match rule_of_introduction(plan, listener, client) {
            // The proxy in front is not the client; its address is known when the PROXY header has been read.
            Some(_) => None,
            None => client.addr.ip(),
        };
        self.cap.admit(&plan.caps, client, address)
    }

    /// Serves a connection to its end. The generation is loaded once, for all that comes before the first request.
    pub(crate) async fn serve(
        self,
        mut stream: Stream,
        client: Arc<ClientConnection>,
        mut seat: ConnectionPermit,
        stop: CancellationToken,
    ) {
        let _active = self.counters.connect();
        // What holds before a request is known: its listener's default server's.
        let (generation, index) = self.proxy.listener.current();
        let listener = &generation.plan.listeners[index];
        let settings = ConnectionSettings::of(&generation.plan, index);
        if listener.proxy_protocol {
            let timeout = settings.header_timeout;
            // Boxed: most listeners have no use for it, and every connection would keep room.
            let current = (&*generation, index);
            let introduced = self.introduced(current, &mut stream, &mut seat, timeout, &stop);
            let introduced = Box::pin(introduced);
            if !introduced.await {
                return;
            }
        }
        let socket = match listener.tls {
            false => Socket::Plain(stream),
            true => {
                // Boxed: once it is over, nothing is left of it.
                let current = (&*generation, index);
                let mut securing =
                    Box::pin(self.secured(current, stream, &client, &settings, &stop));
                let Some(Some(socket)) = seat.hold(securing.as_mut()).await else {
                    return;
                };
                socket
            }
        };
        // A connection may outlive many generations; each of its requests loads its own.
        drop(generation);
        // Pinned where it is made: moved, it would have room twice.
        let connection = pin!(downstream::connection(socket, client, settings, self, stop));
        seat.hold(connection).await;
    }

    /// The stream inside TLS, or the bare one of a client that speaks without.
    async fn secured(
        &self,
        (generation, listener): (&Generation, usize),
        stream: Stream,
        client: &ClientConnection,
        settings: &ConnectionSettings,
        stop: &CancellationToken,
    ) -> Option<Socket> {
        let choose = |name: Option<&str>| generation.secured(listener, name);
        let handshake = tls::accept_handshake(stream, choose);
        let timeout = settings.header_timeout;
        let handshake = bounded(handshake, client, &self.counters, timeout, stop);
        let (socket, info) = handshake.await?;
        if let Some(info) = info {
            client.set_tls(info);
        }
        Some(socket)
    }

    /// Reads a connection's PROXY header and counts the connection for the client it names; false if it has to end.
    async fn introduced(
        &self,
        (generation, listener): (&Generation, usize),
        stream: &mut Stream,
        seat: &mut ConnectionPermit,
        timeout: Duration,
        stop: &CancellationToken,
    ) -> bool {
        let client = Arc::clone(seat.client());
        let reading = pin!(introduce(stream, &client, &self.counters, timeout, stop));
        if seat.hold(reading).await != Some(true) {
            return false;
        }
        let plan = &generation.plan;
        let rule = rule_of_introduction(plan, listener, &client);
        rule.is_none_or(|rule| {
            let client = client
                .client_in_proxy_header(rule)
                .map(|client| client.ip());
            seat.counts_for(&plan.caps, client)
        })
    }
}

/// The rule by which a connection's PROXY header is believed.
fn rule_of_introduction<'p>(
    plan: &'p Plan,
    listener: usize,
    client: &ClientConnection,
) -> Option<&'p RealIp> {
    let listener = &plan.listeners[listener];
    let rule = plan.servers[listener.default_server].real_ip.as_ref()?;
    let asked = listener.proxy_protocol && rule.header == RealIpHeader::ProxyProtocol;
    Some(rule).filter(|rule| asked && client.is_trusted_by(rule))
}

/// Reads the PROXY header that a connection has to begin with; false if it does not, and has to end.
async fn introduce(
    stream: &mut Stream,
    client: &ClientConnection,
    counters: &ListenerCounters,
    timeout: Duration,
    stop: &CancellationToken,
) -> bool {
    let stopped = async {
        stop.cancelled().await;
        tokio::time::sleep(downstream::LAST_CALL).await;
    };
    let read = tokio::select! {
        biased;
        read = listen::read_proxy_header(stream, timeout) => read,
        () = stopped => return false,
    };
    match read {
        Ok(says) => {
            if let Some(says) = says {
                client.set_proxy_header(says);
            }
            true
        }
        Err(error) => {
            counters.refuse_proxy_header(match error {
                listen::ProxyReadError::Broken(_) => ProxyHeaderFailure::Broken,
                listen::ProxyReadError::Malformed(_) => ProxyHeaderFailure::Malformed,
                listen::ProxyReadError::TimedOut => ProxyHeaderFailure::TimedOut,
            });
            let message = format_args!("{error} while reading PROXY protocol");
            tracing::info!("{}", about_connection(message, client));
            false
        }
    }
}

impl Handler for ConnectionHandler {
    type Body = ResponseBody<UpstreamBody>;

    // Always: the future it gives is large, and would be moved.
    #[inline(always)]
    fn handle(
        &self,
        client: Arc<ClientConnection>,
        request: Request<IncomingBody>,
    ) -> impl Future<Output = Result<Response<Self::Body>, CloseConnection>> + Send {
        self.counters.request(request.version());
        self.proxy.handle(client, request)
    }

    fn flooded(&self, client: &ClientConnection, flood: FloodKind) {
        let kind = flood.name();
        self.counters.flood(kind);
        let message = format_args!("http2 flood detected ({kind}): connection closed");
        tracing::warn!("{}", about_connection(message, client));
    }

    fn refused_head(&self, client: &Arc<ClientConnection>, status: u16) {
        if let Ok(status) = StatusCode::from_u16(status) {
            self.counters.refuse_head(status);
            self.proxy.log_unparsed(client, status);
        }
    }
}

/// A handshake within its time, counted; what went wrong is logged.
async fn bounded(
    handshake: impl Future<Output = Result<(Socket, Option<TlsInfo>), HandshakeError>>,
    client: &ClientConnection,
    counters: &ListenerCounters,
    timeout: Duration,
    stop: &CancellationToken,
) -> Option<(Socket, Option<TlsInfo>)> {
    let too_late = async {
        tokio::select! {
            () = tokio::time::sleep(timeout) => {}
            () = async {
                stop.cancelled().await;
                tokio::time::sleep(LAST_CALL).await;
            } => {}
        }
    };
    let failed = tokio::select! {
        biased;
        done = handshake => match done {
            Ok((socket, info)) => {
                if let Some(info) = &info {
                    counters.handshake(match info.resumed {
                        true => HandshakeResult::Resumed,
                        false => HandshakeResult::Full,
                    });
                }
                return Some((socket, info));
            }
            Err(failure) => format!("SSL_do_handshake() failed (SSL: {failure})"),
        },
        () = too_late => "client timed out (110: Connection timed out)".to_owned(),
    };
    counters.handshake(HandshakeResult::Failed);
    let message = format_args!("{failed} while SSL handshaking");
    tracing::info!("{}", about_connection(message, client));
    None
}

/// For how long a handshake may go on when told to stop.
const LAST_CALL: Duration = Duration::from_secs(1);
