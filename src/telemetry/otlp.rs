//! Exports spans to a collector, by OTLP over HTTP/1.1 in JSON.
//!
//! Spans wait in a bounded queue for a thread that sends them, so that an event loop never waits for a collector. Spans
//! without room in it, and those that the collector refuses, are dropped and counted.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc as blocking};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout, timeout_at};

use super::background::{BackgroundTask, supervise};
use super::spans::{SPAN_COUNTERS, Spans, push_text};
use crate::config::plan::Tracing;
use crate::net::Stream;
use crate::text::Append as _;
use crate::tls;

/// The queue to a collector.
#[derive(Debug)]
pub(super) struct Exporter {
    plan: Tracing,
    queue: Sender<ExportCommand>,
}

#[derive(Debug)]
enum ExportCommand {
    /// Replied to when all spans before it are exported.
    Flush(blocking::Sender<()>),
    Spans(Spans),
}

impl Exporter {
    /// The exporter for this configuration; the running one if nothing has changed.
    pub(super) fn get(plan: &Tracing) -> Option<Arc<Self>> {
        let mut current = CURRENT.lock();
        if let Some(known) = current.as_ref().filter(|known| known.plan == *plan) {
            return Some(Arc::clone(known));
        }
        match Self::start(plan) {
            Ok(exporter) => {
                let exporter = Arc::new(exporter);
                *current = Some(Arc::clone(&exporter));
                Some(exporter)
            }
            Err(error) => {
                tracing::error!("no traces are exported: {error}");
                None
            }
        }
    }

    fn start(plan: &Tracing) -> io::Result<Self> {
        let (queue, mut spans) = mpsc::channel(QUEUE_SIZE);
        let mut collector = Collector::new(plan)?;
        let (interval, size) = (plan.interval, u64::from(plan.batch_size));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new()
            .name("weir-traces".to_owned())
            .spawn(move || {
                let run = async || run(&mut spans, &mut collector, interval, size).await;
                runtime.block_on(supervise(BackgroundTask::Traces, run));
            })?;
        Ok(Self {
            plan: plan.clone(),
            queue,
        })
    }

    /// Queues spans; never waits.
    pub(super) fn send(&self, count: u64, json: Vec<u8>) {
        let spans = Spans { count, json };
        if self.queue.try_send(ExportCommand::Spans(spans)).is_err() {
            SPAN_COUNTERS.dropped.fetch_add(count, Ordering::Relaxed);
        }
    }
}

/// Waits until the queued spans are exported, at most for this long; no attempt is repeated.
pub fn flush(within: Duration) {
    let Some(exporter) = CURRENT.lock().clone() else {
        return;
    };
    let deadline = Instant::now() + within;
    ENDING.notify_one();
    let (done, flushed) = blocking::channel();
    let mut command = ExportCommand::Flush(done);
    while let Err(TrySendError::Full(returned)) = exporter.queue.try_send(command) {
        if Instant::now() >= deadline {
            return;
        }
        command = returned;
        std::thread::sleep(Duration::from_millis(5));
    }
    if flushed
        .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        .is_err()
    {
        tracing::warn!("the last spans have not reached the collector");
    }
}

/// Sends spans in batches, until no more can come.
async fn run(
    queue: &mut Receiver<ExportCommand>,
    collector: &mut Collector,
    interval: Duration,
    size: u64,
) {
    let mut open = true;
    while open {
        let Some(first) = queue.recv().await else {
            return;
        };
        let due = Instant::now() + interval;
        let mut batch = Vec::new();
        let mut count = 0;
        let mut flushed = None;
        let mut next = Some(first);
        loop {
            match next.take() {
                Some(ExportCommand::Spans(spans)) => {
                    if count > 0 {
                        batch.push(b',');
                    }
                    count += spans.count;
                    batch.extend_from_slice(&spans.json);
                }
                Some(ExportCommand::Flush(done)) => {
                    flushed = Some(done);
                    break;
                }
                None => open = false,
            }
            if count >= size || !open {
                break;
            }
            match timeout_at(due, queue.recv()).await {
                Ok(more) => next = more,
                Err(_) => break,
            }
        }
        if count > 0 {
            collector.deliver(&batch, count).await;
        }
        // The flush may have timed out.
        if let Some(done) = flushed {
            done.send(()).ok();
        }
    }
}

/// A collector of spans.
struct Collector {
    host: Box<str>,
    port: u16,
    tls: Option<tls::TlsConnector>,
    /// The request up to the number of `Content-Length`.
    head: Vec<u8>,
    /// The body before the spans.
    body_start: Vec<u8>,
    /// Whether the last request failed.
    failing: bool,
}

/// Why spans were not exported.
struct ExportError {
    reason: String,
    /// Whether a later attempt may succeed.
    is_temporary: bool,
    /// When the collector wants the next attempt.
    retry_after: Option<Duration>,
}

impl Collector {
    fn new(plan: &Tracing) -> io::Result<Self> {
        let client = plan.tls.as_ref().map(tls::TlsConnector::build).transpose();
        Ok(Self {
            host: plan.host.clone(),
            port: plan.port,
            tls: client.map_err(io::Error::other)?,
            head: request_head(plan),
            body_start: body_start(&plan.service_name),
            failing: false,
        })
    }

    /// Sends spans until the collector accepts them or there is no point in another attempt.
    async fn deliver(&mut self, spans: &[u8], count: u64) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.post(spans).await {
                Ok(()) => {
                    SPAN_COUNTERS.exported.fetch_add(count, Ordering::Relaxed);
                    if std::mem::take(&mut self.failing) {
                        tracing::info!("the collector takes spans again");
                    }
                    return;
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.failing, true) {
                        tracing::warn!("the collector does not take spans: {}", error.reason);
                    }
                    if !error.wait(pause).await {
                        SPAN_COUNTERS.refused.fetch_add(count, Ordering::Relaxed);
                        return;
                    }
                    pause *= 2;
                }
            }
        }
    }

    /// Makes one request with spans.
    async fn post(&self, spans: &[u8]) -> Result<(), ExportError> {
        let length = self.body_start.len() + spans.len() + BODY_END.len();
        let mut request = self.head.clone();
        write!(request, "{length}\r\n\r\n");
        request.extend_from_slice(&self.body_start);
        request.extend_from_slice(spans);
        request.extend_from_slice(BODY_END);
        let response = match timeout(TIMEOUT, self.request(&request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(ExportError::temporary(error.to_string())),
            Err(_) => return Err(ExportError::temporary("it took too long".to_owned())),
        };
        match response.status {
            200..300 => Ok(()),
            status => Err(ExportError {
                reason: format!("it answers {status}"),
                is_temporary: matches!(status, 429 | 502..=504),
                retry_after: response.retry_after,
            }),
        }
    }

    async fn request(&self, request: &[u8]) -> io::Result<CollectorReply> {
        let stream = TcpStream::connect((&*self.host, self.port)).await?;
        match &self.tls {
            Some(tls) => exchange(tls.connect(Stream::Tcp(stream)).await?, request).await,
            None => exchange(stream, request).await,
        }
    }
}

impl ExportError {
    fn temporary(reason: String) -> Self {
        Self {
            reason,
            is_temporary: true,
            retry_after: None,
        }
    }

    /// Waits before the next attempt; false if there is none.
    async fn wait(&self, pause: Duration) -> bool {
        if !self.is_temporary || pause > LAST_PAUSE {
            return false;
        }
        let pause = self
            .retry_after
            .map_or(pause, |wanted| wanted.clamp(pause, LONGEST_PAUSE));
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            // Passed on, for others may wait.
            () = ENDING.notified() => {
                ENDING.notify_one();
                false
            }
        }
    }
}

struct CollectorReply {
    status: u16,
    retry_after: Option<Duration>,
}

/// Sends a request and reads the head of its response; the body is ignored.
async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &[u8],
) -> io::Result<CollectorReply> {
    stream.write_all(request).await?;
    stream.flush().await?;
    let mut read = Vec::with_capacity(1024);
    loop {
        if let Some(reply) = parse_reply(&mut read)? {
            return Ok(reply);
        }
        if stream.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The response, once its head is complete; interim responses are skipped.
fn parse_reply(read: &mut Vec<u8>) -> io::Result<Option<CollectorReply>> {
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

fn request_head(plan: &Tracing) -> Vec<u8> {
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
        write!(head, "{name}: ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"content-length: ");
    head
}

/// The body before the spans: the resource and the scope.
fn body_start(service: &str) -> Vec<u8> {
    let mut out = b"{\"resourceSpans\":[{\"resource\":{\"attributes\":[".to_vec();
    push_text("service.name", service.as_bytes(), &mut out);
    push_text("service.version", VERSION.as_bytes(), &mut out);
    push_text("telemetry.sdk.name", b"weir", &mut out);
    push_text("telemetry.sdk.language", b"rust", &mut out);
    push_text("telemetry.sdk.version", VERSION.as_bytes(), &mut out);
    write!(
        out,
        "]}},\"scopeSpans\":[{{\"scope\":{{\"name\":\"weir\",\"version\":\"{VERSION}\"}},\"spans\":["
    );
    out
}

/// The exporter in use; one that was replaced ends with its last request.
static CURRENT: Mutex<Option<Arc<Exporter>>> = Mutex::new(None);

/// The process stops: no attempt is repeated.
static ENDING: Notify = Notify::const_new();

/// The most requests whose spans wait: at 4 KB each, which is much, 8 MB.
const QUEUE_SIZE: usize = 2048;

/// Between two attempts, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(4);
/// The longest pause that a collector may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The body after the spans.
const BODY_END: &[u8] = b"]}]}]}";

/// For connecting, sending and the response together.
const TIMEOUT: Duration = Duration::from_secs(10);

const LONGEST_HEAD: usize = 16 * 1024;

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_response_is_read_when_its_head_is_complete() {
        let mut read =
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Busy\r\nRetry-After: 7\r\n".to_vec();
        assert!(parse_reply(&mut read).unwrap().is_none());
        read.extend_from_slice(b"\r\nrest");
        let reply = parse_reply(&mut read).unwrap().unwrap();
        assert_eq!(reply.status, 503);
        assert_eq!(reply.retry_after, Some(Duration::from_secs(7)));
    }

    #[test]
    fn other_protocols_are_an_error() {
        assert!(parse_reply(&mut b"\x00\x00\x12\x04".to_vec()).is_err());
        assert!(parse_reply(&mut b"HTTP/1.1 200 OK\r\n".repeat(2000)).is_err());
    }
}
