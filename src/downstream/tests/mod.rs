//! Real sockets, raw bytes and a toy handler.
//!
//! Client and server share one event loop, so time can stand still: it moves on only when neither has
//! anything left to do, and an hour of waiting takes no time.

mod closing;

mod heads;

mod idle;

mod parked;

mod requests;

mod timeouts;

mod tunnels;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Empty};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{ConnectionSettings, Handler, connection};
use crate::clock::Millis;
use crate::config::plan::ClientSettings;
use crate::message::{
    ClientConnection, CloseConnection, ConnectionState, IncomingBody, InterimResponse, RemoteAddr,
    ResponseBody, ResponseEnd, ResponseGuard, drain,
};
use crate::net::Stream;
use crate::tls::Socket;

/// A server with a toy handler.
struct Rig {
    address: SocketAddr,
    toy: Toy,
    stop: CancellationToken,
    connections: TaskTracker,
}

impl Rig {
    async fn start() -> Self {
        Self::with(settings()).await
    }

    async fn with(settings: ConnectionSettings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let rig = Self {
            address: listener.local_addr().unwrap(),
            toy: Toy::default(),
            stop: CancellationToken::new(),
            connections: TaskTracker::new(),
        };
        let (toy, stop, connections) = (rig.toy.clone(), rig.stop.clone(), rig.connections.clone());
        tokio::spawn(async move {
            loop {
                let (stream, remote) = listener.accept().await.unwrap();
                let peer = Arc::new(ClientConnection::new(
                    RemoteAddr::Ip(remote),
                    None,
                    1,
                    Millis(0),
                ));
                *toy.peer.lock() = Some(Arc::clone(&peer));
                let (toy, stop) = (toy.clone(), stop.clone());
                let socket = Socket::Plain(Stream::Tcp(stream));
                connections.spawn(connection(socket, peer, settings, toy, stop));
            }
        });
        rig
    }

    async fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).await.unwrap();
        // The kernel would hold small writes back by its own clock, which does not stand still.
        stream.set_nodelay(true).unwrap();
        Client(stream)
    }

    async fn all_closed(&self) {
        self.connections.close();
        self.connections.wait().await;
    }
}

fn interim(status: u16, link: Option<&'static str>) -> InterimResponse {
    let link = link.map(|link| (header::LINK, header::HeaderValue::from_static(link)));
    InterimResponse {
        status: http::StatusCode::from_u16(status).unwrap(),
        headers: link.into_iter().collect(),
    }
}

fn settings() -> ConnectionSettings {
    ConnectionSettings {
        resets: 256,
        client: ClientSettings::default(),
        header_timeout: Duration::from_secs(60),
        max_head: 32 * 1024,
        streams: NonZeroU16::new(128),
    }
}

struct Client(TcpStream);

impl Client {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Reads a head, blank line included.
    async fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match self.0.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&head)),
            }
        }
        String::from_utf8(head).unwrap()
    }

    /// Reads an answer with a length; gives its head and its body.
    async fn answer(&mut self) -> (String, String) {
        let head = self.head().await;
        let length = head
            .lines()
            .find_map(|state| state.strip_prefix("content-length: "))
            .map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.unwrap();
        (head, String::from_utf8(body).unwrap())
    }

    /// Reads until the server closes.
    async fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).await.unwrap();
        String::from_utf8(rest).unwrap()
    }
}

/// A handler whose answer depends on the path.
#[derive(Clone, Default)]
struct Toy {
    peer: Arc<Mutex<Option<Arc<ClientConnection>>>>,
    refused: Arc<Mutex<Vec<u16>>>,
    endings: Arc<Mutex<Vec<ResponseEnd>>>,
    abandoned: Arc<Mutex<u32>>,
}

impl Toy {
    fn peer(&self) -> Arc<ClientConnection> {
        self.peer.lock().clone().unwrap()
    }

    /// Waits until the connection's line is as it should be.
    async fn wait_for_state(&self, condition: impl Fn(&ConnectionState) -> bool) {
        until(|| {
            self.peer
                .lock()
                .as_ref()
                .is_some_and(|peer| condition(&peer.state))
        })
        .await;
    }

    fn text(
        &self,
        peer: &Arc<ClientConnection>,
        text: impl Into<Bytes>,
    ) -> Response<ResponseBody<Empty<Bytes>>> {
        let mut body = ResponseBody::whole(text.into());
        let guard = Ended(Arc::clone(&self.endings));
        body.set_guard(Box::new(guard), Arc::clone(peer));
        Response::new(body)
    }
}

impl Handler for Toy {
    type Body = ResponseBody<Empty<Bytes>>;

    async fn handle(
        &self,
        peer: Arc<ClientConnection>,
        request: Request<IncomingBody>,
    ) -> Result<Response<Self::Body>, CloseConnection> {
        match request.uri().path() {
            "/big" => Ok(self.text(&peer, vec![b'x'; 64 * 1024 * 1024])),
            "/closed" => Err(CloseConnection),
            "/early" => {
                peer.state.send_interim(interim(103, Some("</style.css>")));
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(self.text(&peer, "late"))
            }
            "/early-at-once" => {
                peer.state.send_interim(interim(103, None));
                Ok(self.text(&peer, "at once"))
            }
            "/echo" => match request.into_body().collect().await {
                Ok(body) => Ok(self.text(&peer, body.to_bytes())),
                Err(_) => Err(CloseConnection),
            },
            "/hold" => {
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(10)).await;
                    request.into_body().collect().await
                });
                Ok(self.text(&peer, "held"))
            }
            "/park" => {
                let _abandoned = Abandoned(Arc::clone(&self.abandoned));
                std::future::pending::<Infallible>().await;
                drop(request);
                Err(CloseConnection)
            }
            "/refuse" => {
                let expects = request.headers().contains_key(header::EXPECT);
                let keep = drain(&peer, request.into_body(), expects);
                let mut answer = self.text(&peer, "too large");
                *answer.status_mut() = http::StatusCode::PAYLOAD_TOO_LARGE;
                if !keep {
                    let close = header::HeaderValue::from_static("close");
                    answer.headers_mut().insert(header::CONNECTION, close);
                }
                Ok(answer)
            }
            "/slow" => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(self.text(&peer, "slow"))
            }
            // The body has no tail here.
            "/untold" => Ok(Response::new(ResponseBody::whole("untold".into()))),
            path => Ok(self.text(&peer, path.to_owned())),
        }
    }

    fn refused_head(&self, _peer: &Arc<ClientConnection>, status: u16) {
        self.refused.lock().push(status);
    }
}

struct Abandoned(Arc<Mutex<u32>>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        *self.0.lock() += 1;
    }
}

struct Ended(Arc<Mutex<Vec<ResponseEnd>>>);

impl std::fmt::Debug for Ended {
    fn fmt(&self, text: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        text.write_str("Ended")
    }
}

impl ResponseGuard for Ended {
    fn sent(&mut self, _bytes: usize) {}

    fn finish(self: Box<Self>, ending: ResponseEnd) {
        self.0.lock().push(ending);
    }
}

/// Waits, in whatever time the test lives in, until `condition` holds.
async fn until(condition: impl Fn() -> bool) {
    for _ in 0..5000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("waited in vain");
}
