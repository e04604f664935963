//! Is a server well? Asked beside the requests, so that they need not find out.
//!
//! One task for each server does the asking, for the whole process; what it finds out bars the server from being
//! picked, or lets it back.
//!
//! One check of one server: a connection, a question, and whether the answer is fine.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use parking_lot::Mutex;

use super::backend::{
    Backend, BackendAddress, CheckStreak, HealthChange, RetiredFlag, UnavailableReason,
};
use super::connection::UpstreamConnection;
use super::error::{Error, InvalidResponse};
use super::http1::{BodyChunk, HeadReader};
use super::http2::stream;
use super::{RequestHeadForm, connection};
use crate::config::plan::{CheckKind, HealthCheck, HttpCheck, HttpVersion};
use crate::telemetry::{self, CaughtPanic};
use crate::tls::Socket;

/// What is known of a server's health.
#[derive(Debug)]
pub struct Health {
    check: HealthCheck,
    tally: Mutex<CheckStreak>,
    healthy: AtomicBool,
    passed: AtomicU64,
    failed: AtomicU64,
}

impl Health {
    /// What is known of a server that was never checked, or goes on from what was found out by checks of another kind.
    pub(super) fn new(check: &HealthCheck, known: Option<&Self>) -> Self {
        let tally = known.map_or_else(
            || CheckStreak::new(check),
            |known| known.tally.lock().under(check),
        );
        let counted = |of: fn(&Self) -> u64| AtomicU64::new(known.map_or(0, of));
        Self {
            check: check.clone(),
            healthy: AtomicBool::new(tally.is_healthy()),
            tally: Mutex::new(tally),
            passed: counted(Self::passed),
            failed: counted(Self::failed),
        }
    }

    /// Whether it counts as healthy.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// How many checks went well.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// How many did not.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// From one check to the next, as a rule.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.check.interval
    }

    /// How long to wait until the next check, somewhat different each time.
    #[must_use]
    pub fn pause(&self) -> Duration {
        let spread = self.check.interval * self.check.jitter.0 / 1000;
        let early = self.check.interval.saturating_sub(spread);
        early + (2 * spread).mul_f64(fastrand::f64())
    }
}

/// Checks a server once; nothing happens to one that is not to be checked.
pub async fn check_health(upstream: &str, backend: &Backend) {
    let Some(health) = &backend.health else {
        return;
    };
    let timeout = health.check.timeout;
    let found = {
        let asking = tokio::time::timeout(timeout, ask(backend, &health.check));
        let mut asking = pin!(asking);
        let failed = |panic| Ok(Err(CheckFailure::Panicked(panic)));
        let asked =
            poll_fn(|context| telemetry::poll_catching_panic(asking.as_mut(), context, failed))
                .await;
        asked.unwrap_or(Err(CheckFailure::Timeout))
    };
    if let Err(CheckFailure::Panicked(panic)) = &found {
        let server = &*backend.name;
        tracing::error!(upstream, server, "health check panicked: {panic}");
    }
    let counter = match found {
        Ok(()) => &health.passed,
        Err(_) => &health.failed,
    };
    counter.fetch_add(1, Ordering::Relaxed);
    let change = health.tally.lock().note(found.is_ok());
    let server = &*backend.name;
    match (change, found) {
        (Some(HealthChange::Rise), _) => {
            health.healthy.store(true, Ordering::Relaxed);
            backend.unbar(UnavailableReason::Unhealthy);
            tracing::info!(upstream, server, "upstream server is healthy");
        }
        (Some(HealthChange::Fall), Err(reason)) => {
            health.healthy.store(false, Ordering::Relaxed);
            backend.bar(UnavailableReason::Unhealthy);
            tracing::warn!(upstream, server, "upstream server is unhealthy: {reason}");
        }
        (_, Err(reason)) => {
            tracing::debug!(upstream, server, "health check failed: {reason}");
        }
        (_, Ok(())) => {}
    }
}

/// What speaks against a server.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckFailure {
    /// What was expected is not in its answer.
    #[error("the body is not as expected")]
    Body,
    /// It could not be asked, or did not answer.
    #[error(transparent)]
    Broken(#[from] Error),
    /// It knows nothing of gRPC's health checks, or not of this service.
    #[error("the call ended with grpc-status {0}")]
    Call(Box<str>),
    /// It says itself that it is not well, in gRPC's numbers.
    #[error("it is not serving (status {0})")]
    NotServing(u64),
    /// weir panicked while it asked.
    #[error("the check panicked: {0}")]
    Panicked(#[source] CaughtPanic),
    /// It answers with a status that is not expected.
    #[error("status {0} is not expected")]
    Status(u16),
    /// It took too long.
    #[error("it took too long")]
    Timeout,
}

/// Asks a server how it is.
pub(super) async fn ask(backend: &Backend, check: &HealthCheck) -> Result<(), CheckFailure> {
    let moved = check.port.and_then(|port| match &backend.address {
        BackendAddress::Tcp(address) => {
            let mut address = *address;
            address.set_port(port);
            Some(BackendAddress::Tcp(address))
        }
        BackendAddress::Unix(_) => None,
    });
    let address = moved.as_ref().unwrap_or(&backend.address);
    let socket = connection::reach(address, check.tls.and_then(|tls| backend.tls_at(tls))).await?;
    match (&check.kind, check.version) {
        (CheckKind::Tcp, _) => Ok(()),
        (CheckKind::Grpc { service, host }, _) => call(socket, service, host).await,
        (CheckKind::Http(http), HttpVersion::One) => request(socket, http).await,
        (CheckKind::Http(http), HttpVersion::Two) => stream(socket, http).await,
    }
}

/// Over HTTP/1.1.
async fn request(socket: Socket, check: &HttpCheck) -> Result<(), CheckFailure> {
    let mut wire = UpstreamConnection::new(socket, 0, RetiredFlag::default());
    let HttpCheck { method, path, .. } = check;
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: ").into_bytes();
    text.extend_from_slice(check.host.as_bytes());
    text.extend_from_slice(b"\r\nuser-agent: weir-health-check\r\nconnection: close\r\n\r\n");
    let mut unsent = &text[..];
    while !unsent.is_empty() {
        let sent = poll_fn(|context| wire.poll_write(context, unsent)).await;
        unsent = unsent.split_at(sent.map_err(Error::Broken)?).1;
    }
    let flushed = poll_fn(|context| wire.poll_flush(context)).await;
    flushed.map_err(Error::Broken)?;
    let mut heads = HeadReader::default();
    let mut head = loop {
        let next = heads.next(
            &mut wire.read,
            method,
            RequestHeadForm::Fields,
            MOST_HEADERS,
        );
        match next.map_err(Error::InvalidHeader)? {
            Some(head) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                return Err(Error::InvalidHeader(InvalidResponse::Upgrade).into());
            }
            Some(head) if head.status.is_informational() => {}
            Some(head) => break head,
            None => read(&mut wire).await?,
        }
    };
    judge(check, head.status)?;
    let Some(expected) = &check.body else {
        return Ok(());
    };
    let mut body = Vec::new();
    while body.len() < MOST {
        match head.reading.next(&mut wire.read) {
            Ok(Some(BodyChunk::Data(data))) => body.extend_from_slice(&data),
            Ok(Some(BodyChunk::End(_))) => break,
            Ok(None) => match read(&mut wire).await {
                Err(_) if head.reading.ends_with_connection() => break,
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

async fn read(wire: &mut UpstreamConnection) -> Result<(), Error> {
    match poll_fn(|context| wire.poll_read(context)).await {
        Ok(0) => Err(Error::Broken(io::ErrorKind::UnexpectedEof.into())),
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Broken(error)),
    }
}

/// Over HTTP/2.
async fn stream(socket: Socket, check: &HttpCheck) -> Result<(), CheckFailure> {
    let asked = ready(&socket, &check.method, &check.host, &check.path);
    let whole = stream::once(socket, asked, Bytes::new(), MOST).await?;
    judge(check, whole.head.status)?;
    match &check.body {
        Some(expected) if !expected.is_match(&whole.body) => Err(CheckFailure::Body),
        _ => Ok(()),
    }
}

fn judge(check: &HttpCheck, status: StatusCode) -> Result<(), CheckFailure> {
    let status = status.as_u16();
    match check.statuses.iter().any(|range| range.contains(&status)) {
        true => Ok(()),
        false => Err(CheckFailure::Status(status)),
    }
}

/// `grpc.health.v1.Health/Check`
async fn call(socket: Socket, service: &str, host: &HeaderValue) -> Result<(), CheckFailure> {
    let mut asked = ready(&socket, &Method::POST, host, "/grpc.health.v1.Health/Check");
    let headers = asked.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    let whole = stream::once(socket, asked, question(service), MOST).await?;
    if whole.head.status != StatusCode::OK {
        return Err(CheckFailure::Status(whole.head.status.as_u16()));
    }
    let status = |headers: &HeaderMap| headers.get("grpc-status").cloned();
    let ended = whole.trailers.as_ref().and_then(status);
    let ended = ended.or_else(|| status(&whole.head.headers));
    match ended {
        Some(ended) if ended == "0" => {}
        Some(ended) => {
            let ended = String::from_utf8_lossy(ended.as_bytes()).into();
            return Err(CheckFailure::Call(ended));
        }
        None => return Err(CheckFailure::Call("none".into())),
    }
    match answer(&whole.body) {
        Some(SERVING) => Ok(()),
        other => Err(CheckFailure::NotServing(other.unwrap_or(0))),
    }
}

/// `HealthCheckRequest { string service = 1; }`, uncompressed and with its length before it.
fn question(service: &str) -> Bytes {
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
fn answer(body: &[u8]) -> Option<u64> {
    let (prefix, message) = body.split_at_checked(5)?;
    let length = u32::from_be_bytes(prefix.get(1..)?.try_into().ok()?);
    let message = message.get(..length as usize)?;
    match message {
        [] => Some(0),
        [0x08, status] if *status < 0x80 => Some(u64::from(*status)),
        _ => None,
    }
}

/// A request but for its body.
fn ready(socket: &Socket, method: &Method, host: &HeaderValue, path: &str) -> Request<()> {
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
    // Both were looked at when the configuration was read.
    *request.uri_mut() = uri.build().unwrap_or_default();
    let headers = request.headers_mut();
    headers.insert(
        header::USER_AGENT,
        HeaderValue::from_static("weir-health-check"),
    );
    request
}

/// How much of a body is looked at.
const MOST: usize = 64 * 1024;
/// How many header fields an answer may have.
const MOST_HEADERS: usize = 1000;
const SERVING: u64 = 1;

#[cfg(test)]
mod tests {

    use super::*;
    use crate::config::plan::{CallShare, CheckKind, HttpVersion, InitialHealth};

    #[test]
    fn pauses_differ_by_no_more_than_they_may() {
        let check = HealthCheck {
            kind: CheckKind::Tcp,
            port: None,
            tls: None,
            version: HttpVersion::One,
            interval: Duration::from_secs(10),
            jitter: CallShare(200),
            timeout: Duration::from_secs(1),
            rise: 2,
            fall: 3,
            initial: InitialHealth::Up,
        };
        let health = Health::new(&check, None);
        let pauses: Vec<_> = (0..1_000).map(|_| health.pause()).collect();
        let within = Duration::from_secs(8)..=Duration::from_secs(12);
        assert!(pauses.iter().all(|pause| within.contains(pause)));
        let (least, most) = (pauses.iter().min(), pauses.iter().max());
        assert!(least < Some(&Duration::from_secs(9)) && most > Some(&Duration::from_secs(11)));
    }
}

#[cfg(test)]
mod probe_tests {

    use super::*;

    #[test]
    fn a_call_is_written_as_protobuf_has_it() {
        assert_eq!(&question("")[..], b"\0\0\0\0\0");
        assert_eq!(&question("a.B")[..], b"\0\0\0\0\x05\x0a\x03a.B");
        let long = question(&"x".repeat(300));
        assert_eq!(&long[..8], b"\0\0\0\x01\x2f\x0a\xac\x02");
    }

    #[test]
    fn an_answer_is_read_as_protobuf_has_it() {
        assert_eq!(answer(b"\0\0\0\0\x02\x08\x01"), Some(1));
        assert_eq!(answer(b"\0\0\0\0\x02\x08\x02"), Some(2));
        assert_eq!(answer(b"\0\0\0\0\0"), Some(0));
        for broken in [
            &b""[..],
            b"\0\0\0\0\x09\x08\x01",
            b"\0\0\0\0\x02\x10\x01",
            // A number that goes on.
            b"\0\0\0\0\x02\x08\x80",
            b"\0\0\0\0\x02\x08\x81",
        ] {
            assert_eq!(answer(broken), None);
        }
    }
}
