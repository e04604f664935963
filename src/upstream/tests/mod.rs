//! All of an upstream against origins that misbehave, over real sockets.

mod again;
mod answers;
mod breakers;
mod connections;
mod differential;
mod faults;
mod flow;
mod http2;
mod names;
mod origin;
mod retries;

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncWriteExt, DuplexStream};

use super::http1::request::PendingBody;
use super::request::OutgoingHead;
use super::*;
use crate::clock::MinRate;
use crate::config::plan::{MaxTries, NextUpstream, UpstreamServer};
use crate::message::{IncomingBody, RequestBody};
use crate::upstream::tests::origin::Origin;

/// A client's request on its way through an upstream.
struct Road {
    upstream: Upstream,
    proxy_pass: plan::ProxyPass,
    record: RequestRecord,
    clock: Clock,
}

impl Road {
    /// To these origins, in this order.
    fn to(origins: &[&Origin]) -> Self {
        Self::with(&plan_to(origins))
    }

    fn with(plan: &plan::Upstream) -> Self {
        Self {
            upstream: Upstream::build(plan, Arc::default(), None).unwrap(),
            proxy_pass: proxy_pass(),
            record: record(),
            clock: Clock::machine(),
        }
    }

    async fn send(&mut self, outgoing: OutgoingRequest) -> Result<Response<UpstreamBody>, Error> {
        let Self {
            upstream,
            proxy_pass,
            record,
            clock,
        } = self;
        upstream.send(record, proxy_pass, outgoing, clock).await
    }

    async fn get(&mut self) -> Result<Response<UpstreamBody>, Error> {
        self.send(outgoing(Method::GET)).await
    }

    /// A GET and all of its answer.
    async fn get_text(&mut self) -> String {
        text(self.get().await.unwrap()).await.unwrap()
    }

    fn statuses(&self) -> Vec<u16> {
        let attempts = self.record.attempts.iter();
        attempts
            .map(|attempt| attempt.status.map_or(0, |status| status.as_u16()))
            .collect()
    }

    fn kept(&self) -> usize {
        pool::kept(&self.upstream.backends()[0])
    }
}

async fn text(response: Response<UpstreamBody>) -> Result<String, Error> {
    let bytes = response.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub(super) fn outgoing(method: Method) -> OutgoingRequest {
    outgoing_with(method, RequestBody::none())
}

fn outgoing_with(method: Method, body: RequestBody) -> OutgoingRequest {
    let head = format!("{method} /path?query HTTP/1.1\r\nhost: origin\r\n");
    OutgoingRequest {
        head: OutgoingHead::http1(&method, head.into_bytes(), &body),
        method,
        body: PendingBody::new(body),
        upgrade: None,
        raw_headers: false,
    }
}

/// A body as a client sends it: what is written to the other end arrives in it.
async fn upload(framing: &str, first: &str) -> (RequestBody, DuplexStream) {
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    let (found, request) = tokio::sync::oneshot::channel();
    let found = Mutex::new(Some(found));
    let service = service_fn(move |request| {
        let found = found.lock().take();
        async move {
            if let Some(found) = found {
                drop(found.send(request));
            }
            std::future::pending::<Result<Response<http_body_util::Empty<Bytes>>, Error>>().await
        }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(server), service);
    tokio::spawn(async move { drop(connection.await) });
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n{first}");
    client.write_all(head.as_bytes()).await.unwrap();
    let request: Request<hyper::body::Incoming> = request.await.unwrap();
    let body = IncomingBody::Http1(request.into_body());
    let upload = RequestBody::new(body, None, Duration::from_secs(5), MinRate(0));
    (upload, client)
}

async fn post(length: usize, first: &str) -> (OutgoingRequest, DuplexStream) {
    let (upload, client) = upload(&format!("content-length: {length}"), first).await;
    (outgoing_with(Method::POST, upload), client)
}

pub(super) fn next_upstream() -> NextUpstream {
    NextUpstream {
        error: true,
        timeout: true,
        invalid_header: false,
        non_idempotent: false,
        statuses: Vec::new(),
        tries: MaxTries::Each,
        within: None,
    }
}

fn plan_to(origins: &[&Origin]) -> plan::Upstream {
    let servers = origins.iter().map(|origin| server(origin.address));
    plan::Upstream {
        keepalive: 8,
        ..plan::Upstream::of("app", servers.collect())
    }
}

fn server(address: std::net::SocketAddr) -> UpstreamServer {
    UpstreamServer::at(plan::UpstreamAddress::Tcp {
        host: address.ip().to_string().into(),
        port: address.port(),
    })
}

fn proxy_pass() -> plan::ProxyPass {
    plan::ProxyPass {
        upstream: 0,
        tls: None,
        host: "app".into(),
        uri: None,
        replaces: 0,
        set_headers: Vec::new(),
        redirects: Box::default(),
        settings: plan::ProxySettings {
            proxy_connect_timeout: Duration::from_secs(5),
            proxy_send_timeout: Duration::from_secs(5),
            proxy_read_timeout: Duration::from_secs(5),
            via: false,
            ..plan::ProxySettings::default()
        },
        version: plan::HttpVersion::One,
        proxy_protocol: plan::ProxyProtocolVersion::Off,
        next_upstream: next_upstream(),
        buffering: crate::message::testing::proxy_pass().buffering,
    }
}

fn record() -> RequestRecord {
    crate::message::testing::request("GET", "/asked", &[])
}

/// An answer that is read with its head.
const SHORT: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A request whose body is read on demand.
const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
