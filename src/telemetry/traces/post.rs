//! One request to a collector: OTLP over HTTP/1.1, in JSON.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::config::plan::Tracing;
use crate::net::Stream;
use crate::text::escape_json;
use crate::tls;

/// Who takes spans.
pub(super) struct Collector {
    host: Box<str>,
    port: u16,
    tls: Option<tls::TlsConnector>,
    /// The request up to the number in `Content-Length`.
    head: Vec<u8>,
    /// What comes before spans.
    before: Vec<u8>,
}

/// Why it has not taken them.
pub(super) struct ExportError {
    pub(super) why: String,
    /// Whether it may take them later.
    pub(super) passes: bool,
    /// When it wants to be asked again.
    pub(super) retry_after: Option<Duration>,
}

impl Collector {
    /// The one that is asked for.
    pub(super) fn new(plan: &Tracing) -> io::Result<Self> {
        let client = plan.tls.as_ref().map(tls::TlsConnector::build).transpose();
        Ok(Self {
            host: plan.host.clone(),
            port: plan.port,
            tls: client.map_err(io::Error::other)?,
            head: head(plan),
            before: resource(&plan.service_name),
        })
    }

    /// Sends spans and looks whether they were taken.
    pub(super) async fn post(&self, spans: &[u8]) -> Result<(), ExportError> {
        let length = self.before.len() + spans.len() + AFTER.len();
        let mut request = self.head.clone();
        request.extend_from_slice(format!("{length}\r\n\r\n").as_bytes());
        request.extend_from_slice(&self.before);
        request.extend_from_slice(spans);
        request.extend_from_slice(AFTER);
        let answer = match tokio::time::timeout(TIMEOUT, self.ask(&request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(ExportError::later(error.to_string())),
            Err(_) => return Err(ExportError::later("it took too long".to_owned())),
        };
        match answer.status {
            200..300 => Ok(()),
            status => Err(ExportError {
                why: format!("it answers {status}"),
                passes: matches!(status, 429 | 502..=504),
                retry_after: answer.retry_after,
            }),
        }
    }

    async fn ask(&self, request: &[u8]) -> io::Result<CollectorReply> {
        let stream = TcpStream::connect((&*self.host, self.port)).await?;
        match &self.tls {
            Some(tls) => talk(tls.connect(Stream::Tcp(stream)).await?, request).await,
            None => talk(stream, request).await,
        }
    }
}

impl ExportError {
    fn later(why: String) -> Self {
        Self {
            why,
            passes: true,
            retry_after: None,
        }
    }
}

struct CollectorReply {
    status: u16,
    retry_after: Option<Duration>,
}

/// Says a request and reads the head of its answer; the rest is nobody's.
async fn talk(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &[u8],
) -> io::Result<CollectorReply> {
    stream.write_all(request).await?;
    stream.flush().await?;
    let mut read = Vec::with_capacity(1024);
    loop {
        if let Some(answer) = answer(&mut read)? {
            return Ok(answer);
        }
        if stream.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The answer, if its head is whole; interim ones are taken off.
fn answer(read: &mut Vec<u8>) -> io::Result<Option<CollectorReply>> {
    loop {
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Response::new(&mut fields);
        let parsed = head.parse(read).map_err(io::Error::other)?;
        let httparse::Status::Complete(length) = parsed else {
            return match read.len() > LONGEST_HEAD {
                true => Err(io::Error::other("its answer is too long")),
                false => Ok(None),
            };
        };
        let status = head.code.unwrap_or_default();
        if status >= 200 {
            let mut fields = head.headers.iter();
            let field = fields.find(|field| field.name.eq_ignore_ascii_case("retry-after"));
            let seconds =
                field.and_then(|field| std::str::from_utf8(field.value).ok()?.parse().ok());
            return Ok(Some(CollectorReply {
                status,
                retry_after: seconds.map(Duration::from_secs),
            }));
        }
        read.drain(..length);
    }
}

fn head(plan: &Tracing) -> Vec<u8> {
    let Tracing {
        host, port, path, ..
    } = plan;
    let bracketed = match host.contains(':') {
        true => format!("[{host}]"),
        false => host.to_string(),
    };
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nhost: {bracketed}:{port}\r\nuser-agent: weir/{VERSION}\r\n\
         content-type: application/json\r\nconnection: close\r\n"
    )
    .into_bytes();
    for (name, value) in &plan.headers {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"content-length: ");
    head
}

/// Who tells.
fn resource(service: &str) -> Vec<u8> {
    let mut out = b"{\"resourceSpans\":[{\"resource\":{\"attributes\":[".to_vec();
    let attributes = [
        ("service.name", service),
        ("service.version", VERSION),
        ("telemetry.sdk.name", "weir"),
        ("telemetry.sdk.language", "rust"),
        ("telemetry.sdk.version", VERSION),
    ];
    for (index, (key, value)) in attributes.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(
            format!("{{\"key\":\"{key}\",\"value\":{{\"stringValue\":\"").as_bytes(),
        );
        escape_json(value.as_bytes(), &mut out);
        out.extend_from_slice(b"\"}}");
    }
    let scope = format!(
        "]}},\"scopeSpans\":[{{\"scope\":{{\"name\":\"weir\",\"version\":\"{VERSION}\"}},\"spans\":["
    );
    out.extend_from_slice(scope.as_bytes());
    out
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What comes after spans.
const AFTER: &[u8] = b"]}]}]}";

/// For connecting, sending and the answer together.
const TIMEOUT: Duration = Duration::from_secs(10);

const LONGEST_HEAD: usize = 16 * 1024;

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn an_answer_is_read_when_it_is_whole() {
        let mut read =
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Busy\r\nRetry-After: 7\r\n".to_vec();
        assert!(answer(&mut read).unwrap().is_none());
        read.extend_from_slice(b"\r\nrest");
        let answer = answer(&mut read).unwrap().unwrap();
        assert_eq!(answer.status, 503);
        assert_eq!(answer.retry_after, Some(Duration::from_secs(7)));
    }

    #[test]
    fn what_is_no_http_is_an_error() {
        assert!(answer(&mut b"\x00\x00\x12\x04".to_vec()).is_err());
        assert!(answer(&mut b"HTTP/1.1 200 OK\r\n".repeat(2000)).is_err());
    }
}
