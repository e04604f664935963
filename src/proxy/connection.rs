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
use crate::message::{ClientConnection, CloseConnection, IncomingBody, ResponseBody};
use crate::net::Stream;
use crate::telemetry::{HandshakeResult, ListenerCounters, ProxyHeaderFailure, about_connection};
use crate::tls::Socket;
use crate::upstream::UpstreamBody;
use crate::{downstream, listen, tls};

/// Serves the connections of one listener on one event loop, and hands their requests to the proxy.
#[derive(Debug, Clone)]
pub struct ConnectionHandler {
    counters: Arc<ListenerCounters>,
    proxy: Proxy,
    /// Shared by all loops.
    limiter: Arc<ConnectionLimiter>,
}

impl ConnectionHandler {
    /// Serves the connections of a listener.
    pub(crate) fn new(
        address: &SocketAddress,
        listener: Arc<ListenerHandle>,
        clock: Clock,
        limiter: Arc<ConnectionLimiter>,
    ) -> Self {
        Self {
            counters: ListenerCounters::at(&address.to_string()),
            proxy: Proxy { listener, clock },
            limiter,
        }
    }

    /// Admits a connection, unless its address or all together have enough.
    pub(crate) fn admit(&self, client: &Arc<ClientConnection>) -> Option<ConnectionPermit> {
        let (generation, listener) = self.proxy.listener.current();
        let plan = &generation.plan;
        let address = match real_ip_rule(plan, listener, client) {
            // The proxy in front is not the client; its address is known when the PROXY header has been read.
            Some(_) => None,
            None => client.addr.ip(),
        };
        self.limiter.admit(&plan.caps, client, address)
    }

    /// Serves a connection to its end. The generation is loaded once, for all that comes before the first request.
    pub(crate) async fn serve(
        self,
        mut stream: Stream,
        client: Arc<ClientConnection>,
        mut permit: ConnectionPermit,
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
            let accepting =
                self.accept_proxy_header(current, &mut stream, &mut permit, timeout, &stop);
            if !Box::pin(accepting).await {
                return;
            }
        }
        let socket = match listener.tls {
            false => Socket::Plain(stream),
            true => {
                // Boxed: once it is over, nothing is left of it.
                let current = (&*generation, index);
                let timeout = settings.header_timeout;
                let handshake = self.accept_tls(current, stream, &client, timeout, &stop);
                let mut handshake = Box::pin(handshake);
                let Some(Some(socket)) = permit.run(handshake.as_mut()).await else {
                    return;
                };
                socket
            }
        };
        // A connection may outlive many generations; each of its requests loads its own.
        drop(generation);
        // Pinned where it is made: moved, it would have room twice.
        let connection = pin!(downstream::connection(socket, client, settings, self, stop));
        permit.run(connection).await;
    }

    /// Completes a handshake in time, and counts it: the stream inside TLS, or the bare one of a client that speaks without.
    async fn accept_tls(
        &self,
        (generation, listener): (&Generation, usize),
        stream: Stream,
        client: &ClientConnection,
        timeout: Duration,
        stop: &CancellationToken,
    ) -> Option<Socket> {
        let choose = |name: Option<&str>| generation.tls_settings(listener, name);
        let timed_out = async {
            tokio::select! {
                () = tokio::time::sleep(timeout) => {}
                () = async {
                    stop.cancelled().await;
                    tokio::time::sleep(HANDSHAKE_GRACE).await;
                } => {}
            }
        };
        let failed = tokio::select! {
            biased;
            done = tls::accept_handshake(stream, choose) => match done {
                Ok((socket, info)) => {
                    if let Some(info) = info {
                        self.counters.handshake(match info.resumed {
                            true => HandshakeResult::Resumed,
                            false => HandshakeResult::Full,
                        });
                        client.set_tls(info);
                    }
                    return Some(socket);
                }
                Err(failure) => format!("SSL_do_handshake() failed (SSL: {failure})"),
            },
            () = timed_out => "client timed out (110: Connection timed out)".to_owned(),
        };
        self.counters.handshake(HandshakeResult::Failed);
        let message = format_args!("{failed} while SSL handshaking");
        tracing::info!("{}", about_connection(message, client));
        None
    }

    /// Reads a connection's PROXY header and counts the connection for the client it names; false if it has to end.
    async fn accept_proxy_header(
        &self,
        (generation, listener): (&Generation, usize),
        stream: &mut Stream,
        permit: &mut ConnectionPermit,
        timeout: Duration,
        stop: &CancellationToken,
    ) -> bool {
        let client = Arc::clone(permit.client());
        let reading = pin!(read_proxy_header(
            stream,
            &client,
            &self.counters,
            timeout,
            stop
        ));
        if permit.run(reading).await != Some(true) {
            return false;
        }
        let plan = &generation.plan;
        let rule = real_ip_rule(plan, listener, &client);
        rule.is_none_or(|rule| {
            let client = client
                .client_in_proxy_header(rule)
                .map(|client| client.ip());
            permit.count_address(&plan.caps, client)
        })
    }
}

/// The rule by which a connection's PROXY header is believed.
fn real_ip_rule<'p>(
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
async fn read_proxy_header(
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
        Ok(header) => {
            if let Some(header) = header {
                client.set_proxy_header(header);
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

/// For how long a handshake may go on after a stop.
const HANDSHAKE_GRACE: Duration = Duration::from_secs(1);
