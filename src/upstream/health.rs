//! Health checks: whether a server is well, found out beside the requests.
//!
//! One task for each server runs its checks, for the whole process; their results make the server unavailable, or
//! available again.

use std::future::poll_fn;
use std::io;
use std::pin::pin;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use tokio::io::AsyncWriteExt as _;

use super::backend::{Backend, BackendAddress, HealthChange, RetiredFlag, UnavailableReason};
use super::connection::{self, UpstreamConnection};
use super::error::{Error, InvalidResponse};
use super::http1::{BodyChunk, HeadReader};
use super::http2;
use crate::config::plan::{CheckKind, HealthCheck, HttpCheck, HttpVersion};
use crate::telemetry::{self, CaughtPanic};
use crate::tls::Socket;

/// Checks a server once, if it has health checks.
pub async fn check_health(upstream: &str, backend: &Backend) {
    let Some(health) = &backend.health else {
        return;
    };
    let result = {
        let checking = check(backend, &health.check);
        let mut checking = pin!(tokio::time::timeout(health.check.timeout, checking));
        let panicked = |panic| Ok(Err(CheckFailure::Panicked(panic)));
        poll_fn(|context| telemetry::poll_catching_panic(checking.as_mut(), context, panicked))
            .await
            .unwrap_or(Err(CheckFailure::Timeout))
    };
    let server = &*backend.name;
    if let Err(CheckFailure::Panicked(panic)) = &result {
        tracing::error!(upstream, server, "health check panicked: {panic}");
    }
    match (health.record(result.is_ok()), result) {
        (Some(HealthChange::Rise), _) => {
            backend.set_unavailable(UnavailableReason::Unhealthy, false);
            tracing::info!(upstream, server, "upstream server is healthy");
        }
        (Some(HealthChange::Fall), Err(reason)) => {
            backend.set_unavailable(UnavailableReason::Unhealthy, true);
            tracing::warn!(upstream, server, "upstream server is unhealthy: {reason}");
        }
        (_, Err(reason)) => {
            tracing::debug!(upstream, server, "health check failed: {reason}");
        }
        (_, Ok(())) => {}
    }
}

/// Why a check failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckFailure {
    /// The body does not match.
    #[error("the body does not match")]
    Body,
    /// The request could not be sent, or got no valid response.
    #[error(transparent)]
    Broken(#[from] Error),
    /// The server does not know gRPC's health checks, or this service.
    #[error("the call ended with grpc-status {0}")]
    Call(Box<str>),
    /// The service reports another status than SERVING, in gRPC's numbers.
    #[error("the service is not serving (status {0})")]
    NotServing(u64),
    /// The check itself panicked.
    #[error("the check panicked: {0}")]
    Panicked(#[source] CaughtPanic),
    /// The response has another status than expected.
    #[error("unexpected status {0}")]
    Status(u16),
    /// There was no response in time.
    #[error("timed out")]
    Timeout,
}

async fn check(backend: &Backend, check: &HealthCheck) -> Result<(), CheckFailure> {
    let moved = check.port.and_then(|port| match &backend.address {
        BackendAddress::Tcp(address) => {
            let mut address = *address;
            address.set_port(port);
            Some(BackendAddress::Tcp(address))
        }
        BackendAddress::Unix(_) => None,
    });
    let address = moved.as_ref().unwrap_or(&backend.address);
    let socket =
        connection::connect_for_check(address, check.tls.and_then(|tls| backend.tls.get(tls)))
            .await?;
    match (&check.kind, check.version) {
        (CheckKind::Tcp, _) => Ok(()),
        (CheckKind::Grpc { service, host }, _) => check_grpc(socket, service, host).await,
        (CheckKind::Http(http), HttpVersion::One) => check_http1(socket, http).await,
        (CheckKind::Http(http), HttpVersion::Two) => check_http2(socket, http).await,
    }
}

async fn check_http1(socket: Socket, check: &HttpCheck) -> Result<(), CheckFailure> {
    let mut connection = UpstreamConnection::new(socket, 0, RetiredFlag::default());
    let HttpCheck { method, path, .. } = check;
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: ").into_bytes();
    text.extend_from_slice(check.host.as_bytes());
    text.extend_from_slice(b"\r\nuser-agent: weir-health-check\r\nconnection: close\r\n\r\n");
    let socket = &mut connection.socket;
    socket.write_all(&text).await.map_err(Error::Broken)?;
    socket.flush().await.map_err(Error::Broken)?;
    let mut heads = HeadReader::default();
    let mut head = loop {
        let next = heads.next(&mut connection.read, method, false, MOST_HEADERS);
        match next.map_err(Error::InvalidHeader)? {
            Some(head) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                return Err(Error::InvalidHeader(InvalidResponse::Upgrade).into());
            }
            Some(head) if head.status.is_informational() => {}
            Some(head) => break head,
            None => read(&mut connection).await?,
        }
    };
    check_status(check, head.status)?;
    let Some(expected) = &check.body else {
        return Ok(());
    };
    let mut body = Vec::new();
    while body.len() < MOST_BODY {
        match head.framing.next(&mut connection.read) {
            Ok(Some(BodyChunk::Data(data))) => body.extend_from_slice(&data),
            Ok(Some(BodyChunk::End(_))) => break,
            Ok(None) => match read(&mut connection).await {
                Err(_) if head.framing.ends_with_connection() => break,
                read => read?,
            },
            Err(malformed) => {
                let malformed = io::Error::new(io::ErrorKind::InvalidData, malformed);
                return Err(Error::Truncated(malformed).into());
            }
        }
    }
    match expected.is_match(&body) {
        true => Ok(()),
        false => Err(CheckFailure::Body),
    }
}

async fn read(connection: &mut UpstreamConnection) -> Result<(), Error> {
    match poll_fn(|context| connection.poll_read(context)).await {
        Ok(0) => Err(Error::Broken(io::ErrorKind::UnexpectedEof.into())),
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Broken(error)),
    }
}

async fn check_http2(socket: Socket, check: &HttpCheck) -> Result<(), CheckFailure> {
    let request = request(&socket, &check.method, &check.host, &check.path);
    let response = http2::once(socket, request, Bytes::new(), MOST_BODY).await?;
    check_status(check, response.head.status)?;
    match &check.body {
        Some(expected) if !expected.is_match(&response.body) => Err(CheckFailure::Body),
        _ => Ok(()),
    }
}

fn check_status(check: &HttpCheck, status: StatusCode) -> Result<(), CheckFailure> {
    let status = status.as_u16();
    match check.statuses.iter().any(|range| range.contains(&status)) {
        true => Ok(()),
        false => Err(CheckFailure::Status(status)),
    }
}

/// `grpc.health.v1.Health/Check`
async fn check_grpc(socket: Socket, service: &str, host: &HeaderValue) -> Result<(), CheckFailure> {
    let mut request = request(&socket, &Method::POST, host, "/grpc.health.v1.Health/Check");
    let headers = request.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    let response = http2::once(socket, request, encode_request(service), MOST_BODY).await?;
    if response.head.status != StatusCode::OK {
        return Err(CheckFailure::Status(response.head.status.as_u16()));
    }
    let status = |headers: &HeaderMap| headers.get("grpc-status").cloned();
    let ended = response.trailers.as_ref().and_then(status);
    let ended = ended.or_else(|| status(&response.head.headers));
    match ended {
        Some(ended) if ended == "0" => {}
        Some(ended) => {
            let ended = String::from_utf8_lossy(ended.as_bytes()).into();
            return Err(CheckFailure::Call(ended));
        }
        None => return Err(CheckFailure::Call("none".into())),
    }
    match decode_status(&response.body) {
        Some(SERVING) => Ok(()),
        other => Err(CheckFailure::NotServing(other.unwrap_or(0))),
    }
}

/// `HealthCheckRequest { string service = 1; }`, uncompressed and with its length before it.
fn encode_request(service: &str) -> Bytes {
    let mut message = BytesMut::new();
    if !service.is_empty() {
        message.put_u8(1 << 3 | 2);
        let mut length = service.len();
        while length >= 0x80 {
            message.put_u8((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        message.put_u8(length as u8);
        message.put_slice(service.as_bytes());
    }
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(&message);
    framed.freeze()
}

/// `HealthCheckResponse { ServingStatus status = 1; }`; what is left out is 0, unknown.
fn decode_status(body: &[u8]) -> Option<u64> {
    let (prefix, message) = body.split_at_checked(5)?;
    let length = u32::from_be_bytes(prefix.get(1..)?.try_into().ok()?);
    let message = message.get(..length as usize)?;
    match message {
        [] => Some(0),
        [0x08, status] if *status < 0x80 => Some(u64::from(*status)),
        _ => None,
    }
}

/// A request without its body.
fn request(socket: &Socket, method: &Method, host: &HeaderValue, path: &str) -> Request<()> {
    let scheme = match socket.is_tls() {
        true => "https",
        false => "http",
    };
    let uri = http::Uri::builder()
        .scheme(scheme)
        .authority(host.as_bytes())
        .path_and_query(path);
    let mut request = Request::new(());
    *request.method_mut() = method.clone();
    // Both were checked when the configuration was read.
    *request.uri_mut() = uri.build().unwrap_or_default();
    let agent = HeaderValue::from_static("weir-health-check");
    request.headers_mut().insert(header::USER_AGENT, agent);
    request
}

/// Bytes of a body that are read.
const MOST_BODY: usize = 64 * 1024;
/// Header fields that a response may have.
const MOST_HEADERS: usize = 1000;
const SERVING: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_encoded_as_protobuf() {
        assert_eq!(&encode_request("")[..], b"\0\0\0\0\0");
        assert_eq!(&encode_request("a.B")[..], b"\0\0\0\0\x05\x0a\x03a.B");
        let long = encode_request(&"x".repeat(300));
        assert_eq!(&long[..8], b"\0\0\0\x01\x2f\x0a\xac\x02");
    }

    #[test]
    fn a_status_is_decoded_as_protobuf() {
        assert_eq!(decode_status(b"\0\0\0\0\x02\x08\x01"), Some(1));
        assert_eq!(decode_status(b"\0\0\0\0\x02\x08\x02"), Some(2));
        assert_eq!(decode_status(b"\0\0\0\0\0"), Some(0));
        for broken in [
            &b""[..],
            b"\0\0\0\0\x09\x08\x01",
            b"\0\0\0\0\x02\x10\x01",
            // A number that goes on.
            b"\0\0\0\0\x02\x08\x80",
            b"\0\0\0\0\x02\x08\x81",
        ] {
            assert_eq!(decode_status(broken), None);
        }
    }
}
