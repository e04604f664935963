//! The error log: tracing events as lines like nginx's, on standard error or in a file.
//!
//! ```text
//! 2026/11/16 01:58:24 [error] 4242#4243: message key=value
//! ```
//!
//! Lines are bounded and have no control characters, because clients write much of what is logged. A line about a request
//! or a connection has nginx's words in nginx's order, to the comma: tools such as fail2ban match whole lines.

use std::fmt::Write;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fmt, io};

use http::header;
use parking_lot::RwLock;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer as Line};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use super::access_log::Error;
use super::log_writer::{Destination, LogSink, LogWriter};
use crate::clock::{LogSecond, Millis};
use crate::message::{self, ClientConnection, RequestRecord};
use crate::text::escape_log;

/// Keeps the logs open; writes the lines that are left when dropped.
#[derive(Debug)]
#[must_use = "dropping it closes the logs"]
pub struct LogGuard {
    writer: LogWriter,
}

/// Starts the error log at `level`, or at the one of the variable `RUST_LOG`.
///
/// # Errors
/// When standard error is closed or no thread can be started.
pub fn start_error_log(level: Level) -> io::Result<LogGuard> {
    let writer = LogWriter::default();
    let sink = Arc::new(RwLock::new(writer.open(NAME, Destination::Stderr)?));
    let own = std::env::var("RUST_LOG").ok().filter(|own| !own.is_empty());
    let own = own.map(EnvFilter::try_new);
    let filter = match &own {
        Some(Ok(filter)) => filter.clone(),
        _ => at(level),
    };
    let (filter, handle) = reload::Layer::new(filter);
    // A subscriber that is set already stays, with its level.
    let set =
        tracing::subscriber::set_global_default(subscriber(filter, LineWriter(Arc::clone(&sink))));
    if set.is_ok() {
        drop(SINK.set(sink));
    }
    if set.is_ok() && !matches!(own, Some(Ok(_))) {
        drop(LEVEL.set(handle));
    }
    if let Some(Err(error)) = own {
        tracing::warn!("RUST_LOG is not understood and ignored: {error}");
    }
    Ok(LogGuard { writer })
}

/// Sets the level of the error log, unless `RUST_LOG` does.
pub fn set_level(level: Level) {
    if let Some(handle) = LEVEL.get()
        && let Err(error) = handle.reload(at(level))
    {
        tracing::warn!("the level of the error log stays as it is: {error}");
    }
}

/// An open destination of the error log.
#[derive(Debug)]
pub struct ErrorDestination(LogSink);

impl ErrorDestination {
    /// Opens the file, or standard error where there is none.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: Option<&Path>, writer: &LogWriter) -> Result<Self, Error> {
        let destination = match path {
            Some(path) => Destination::File(path.to_owned()),
            None => Destination::Stderr,
        };
        let opened = writer.open(NAME, destination.clone());
        opened.map(Self).map_err(|source| Error::Error {
            to: destination.to_string().into(),
            source,
        })
    }

    /// Makes this the destination of the error log.
    pub fn activate(self) {
        if let Some(sink) = SINK.get() {
            *sink.write() = self.0;
        }
    }
}

static SINK: OnceLock<Arc<RwLock<LogSink>>> = OnceLock::new();

static LEVEL: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

fn subscriber<W>(filter: impl Layer<Registry> + Send + Sync, lines: W) -> impl Subscriber
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().event_format(NginxFormat);
    Registry::default()
        .with(filter)
        .with(layer.with_writer(lines))
}

fn at(level: Level) -> EnvFilter {
    // h2 logs every frame; what matters of them is logged by weir.
    let quiet = "h2=off".parse();
    let filter = EnvFilter::default().add_directive(level.into());
    quiet.into_iter().fold(filter, EnvFilter::add_directive)
}

impl LogGuard {
    /// The writer of all logs.
    pub fn writer(&self) -> &LogWriter {
        &self.writer
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.writer.flush_and_stop(AT_EXIT);
    }
}

/// Writes each line to the sink whole.
#[derive(Debug)]
struct LineWriter(Arc<RwLock<LogSink>>);

impl<'a> MakeWriter<'a> for LineWriter {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl io::Write for &LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.0.read().push(line) {
            return Ok(line.len());
        }
        // The process is ending and has closed its logs.
        io::stderr().write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Formats an event as a line like nginx's.
#[derive(Debug)]
struct NginxFormat;

impl<S, N> FormatEvent<S, N> for NginxFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut line: Line<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        let (process, thread) = (std::process::id(), thread_number());
        write!(
            line,
            "{} [{level}] {process}#{thread}:",
            LogSecond::now().0.slashed
        )?;
        let mut fields = FieldWriter {
            out: Plain {
                out: &mut line,
                left: MAX_LINE,
            },
            result: Ok(()),
        };
        event.record(&mut fields);
        fields.result?;
        writeln!(line)
    }
}

/// The system's number of this thread; the process's where that is unknown.
fn thread_number() -> u32 {
    thread_local! {
        static NUMBER: u32 = std::fs::read_link("/proc/thread-self")
            .ok()
            .and_then(|link| link.file_name()?.to_str()?.parse().ok())
            .unwrap_or_else(std::process::id);
    }
    NUMBER
        .try_with(|number| *number)
        .unwrap_or_else(|_| std::process::id())
}

/// Writes ` message key=value`.
struct FieldWriter<'a, W> {
    out: Plain<'a, W>,
    result: fmt::Result,
}

impl<W: Write> FieldWriter<'_, W> {
    fn field(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        if self.result.is_ok() {
            self.result = match field.name() {
                "message" => write!(self.out, " {value}"),
                name => write!(self.out, " {name}={value}"),
            };
        }
    }
}

impl<W: Write> Visit for FieldWriter<'_, W> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let bare = field.name() == "message"
            || !value.is_empty() && !value.contains([' ', '"', '=', '\\']);
        if bare {
            self.field(field, format_args!("{value}"));
        } else {
            self.field(field, format_args!("{value:?}"));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.field(field, format_args!("{value:?}"));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.field(field, format_args!("{value}"));
        let mut cause = value.source();
        while let Some(error) = cause {
            if self.result.is_ok() {
                self.result = write!(self.out, ": {error}");
            }
            cause = error.source();
        }
    }
}

/// Writes text without control characters, and no more than `left` bytes of it.
struct Plain<'a, W> {
    out: &'a mut W,
    left: usize,
}

impl<W: Write> Write for Plain<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let length = if character.is_control() {
                4
            } else {
                character.len_utf8()
            };
            let Some(left) = self.left.checked_sub(length) else {
                self.left = 0;
                break;
            };
            self.left = left;
            if character.is_control() {
                write!(self.out, "\\x{:02X}", u32::from(character))?;
            } else {
                self.out.write_char(character)?;
            }
        }
        Ok(())
    }
}

const NAME: &str = "error";

/// How long writing the last lines may take at exit.
const AT_EXIT: Duration = Duration::from_secs(2);

/// The longest message, in bytes: nginx's number, less the prefix.
const MAX_LINE: usize = 2048 - 64;

/// Counts events of one kind and limits the lines about them to one a minute.
#[derive(Debug, Default)]
pub struct RateLimitedLog {
    total: AtomicU64,
    logged: AtomicU64,
    next: AtomicU64,
}

impl RateLimitedLog {
    /// No event yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            total: AtomicU64::new(0),
            logged: AtomicU64::new(0),
            next: AtomicU64::new(0),
        }
    }

    /// Adds events that were logged elsewhere.
    pub fn add(&self, times: u64) {
        self.total.fetch_add(times, Ordering::Relaxed);
        self.logged.fetch_add(times, Ordering::Relaxed);
    }

    /// Counts an event; `Some` with the number of events since the last line, when one is due.
    pub fn note(&self, now: Millis) -> Option<u64> {
        let total = self.total.fetch_add(1, Ordering::Relaxed) + 1;
        let next = self.next.load(Ordering::Relaxed);
        if now.0 < next {
            return None;
        }
        // Of all threads that come here at the same time, one logs.
        self.next
            .compare_exchange(
                next,
                now.0.saturating_add(PAUSE),
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .ok()?;
        let logged = self.logged.swap(total, Ordering::Relaxed);
        Some(total.saturating_sub(logged))
    }

    /// All events.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}

/// Between two lines, in milliseconds.
const PAUSE: u64 = 60_000;

/// A line about a request: `*CONNECTION message, client: …, server: …, request: "…", upstream: "…", host: "…"`, with the
/// upstream's address or name where there is one.
#[must_use]
pub fn about(
    message: fmt::Arguments<'_>,
    record: &RequestRecord,
    upstream: Option<&str>,
) -> String {
    let mut line = Vec::with_capacity(256);
    let head = &record.head;
    // Writing to memory cannot fail.
    let _written = write!(
        line,
        "*{} {message}, client: {}, server: {}",
        record.connection.serial,
        record.client().text(),
        record.server().name,
    );
    if !record.unparsed {
        line.extend_from_slice(b", request: \"");
        let version = head.version;
        let _written = write!(
            EscapedText(&mut line),
            "{} {} {version:?}",
            head.method,
            head.uri
        );
        line.push(b'"');
    }
    if let (Some(upstream), Some(proxy_pass)) = (upstream, &record.proxy_pass) {
        let scheme = proxy_pass.tls.map_or("http", |_| "https");
        // nginx writes a colon behind the path of a socket.
        let end = if upstream.starts_with("unix:") {
            ":"
        } else {
            ""
        };
        let _written = write!(line, ", upstream: \"{scheme}://{upstream}{end}");
        escape_log(
            &message::target_sent(head, &record.target, proxy_pass),
            &mut line,
        );
        line.push(b'"');
    }
    for (name, field) in [("host", header::HOST), ("referrer", header::REFERER)] {
        if let Some(value) = head.headers.get(field) {
            let _written = write!(line, ", {name}: \"");
            escape_log(value.as_bytes(), &mut line);
            line.push(b'"');
        }
    }
    let mut line = String::from_utf8(line).expect("text was written, and the rest is escaped");
    line.truncate(line.floor_char_boundary(MAX_CONTEXT));
    line
}

/// A line about a connection without a request: `*CONNECTION message, client: …, server: …`, with the local address as the
/// server.
#[must_use]
pub fn about_connection(message: fmt::Arguments<'_>, client: &ClientConnection) -> String {
    let (number, address) = (client.serial, client.latest_client());
    match client.local {
        Some(local) => format!("*{number} {message}, client: {address}, server: {local}"),
        None => format!("*{number} {message}, client: {address}, server: unix:"),
    }
}

/// Escapes text from outside, so that it can neither end a line nor control a terminal.
struct EscapedText<'a>(&'a mut Vec<u8>);

impl io::Write for EscapedText<'_> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        escape_log(text, self.0);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where nginx cuts a line, in bytes.
const MAX_CONTEXT: usize = 2048;

#[cfg(test)]
mod tests {

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Caught(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Caught {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn caught(level: Level, log: impl FnOnce()) -> String {
        let caught = Caught::default();
        let lines = caught.clone();
        let subscriber = subscriber(at(level), move || lines.clone());
        tracing::subscriber::with_default(subscriber, log);
        String::from_utf8(caught.0.lock().clone()).unwrap()
    }

    /// The line without its time, whose shape is checked, and without its process and thread.
    fn after_time(line: &str) -> String {
        let (time, rest) = line.split_at_checked(20).unwrap();
        let shape: String = (time.chars())
            .map(|c| if c.is_ascii_digit() { '0' } else { c })
            .collect();
        assert_eq!(shape, "0000/00/00 00:00:00 ");
        let writer = format!(" {}#{}:", std::process::id(), thread_number());
        assert!(rest.contains(&writer), "{rest}");
        rest.replacen(&writer, "", 1)
    }

    #[test]
    fn an_event_is_a_line_like_nginxs() {
        let text = caught(Level::INFO, || {
            tracing::error!(port = 80, path = "/a b", name = "x", "cannot listen");
        });
        assert_eq!(
            after_time(&text),
            "[error] cannot listen port=80 path=\"/a b\" name=x\n"
        );
    }

    #[test]
    fn an_event_without_a_message_is_a_line_too() {
        let text = caught(Level::INFO, || tracing::warn!(left = 3));
        assert_eq!(after_time(&text), "[warn] left=3\n");
    }

    #[test]
    fn control_characters_of_clients_are_escaped() {
        let text = caught(Level::INFO, || {
            tracing::info!(agent = %"x\n2026/01/01 00:00:00 [error] y\x1b[2J", "a\r\nb\u{9b}c");
        });
        assert_eq!(
            after_time(&text),
            "[info] a\\x0D\\x0Ab\\x9Bc agent=x\\x0A2026/01/01 00:00:00 [error] y\\x1B[2J\n"
        );
    }

    #[test]
    fn a_line_is_bounded() {
        let text = caught(Level::INFO, || tracing::info!("{}", "é\n".repeat(2000)));
        assert!(text.len() <= 2048 && text.len() > 1950, "{}", text.len());
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn an_error_is_written_with_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot connect")]
        struct Outer(#[source] io::Error);

        let text = caught(Level::INFO, || {
            let error = Outer(io::Error::other("no route"));
            tracing::error!(error = &error as &dyn std::error::Error, "no answer");
        });
        assert_eq!(
            after_time(&text),
            "[error] no answer error=cannot connect: no route\n"
        );
    }

    #[test]
    fn events_below_the_level_are_not_written() {
        let text = caught(Level::WARN, || {
            tracing::info!("quiet");
            tracing::debug!(target: "hyper::proto", "quieter");
            tracing::warn!("loud");
        });
        assert_eq!(after_time(&text), "[warn] loud\n");
    }
}

#[cfg(test)]
mod warning_tests {

    use super::*;

    #[test]
    fn a_line_is_due_at_once_and_then_once_a_minute() {
        let warning = RateLimitedLog::default();
        assert_eq!(warning.note(Millis(5)), Some(1));
        assert_eq!(warning.note(Millis(6)), None);
        assert_eq!(warning.note(Millis(60_004)), None);
        assert_eq!(warning.note(Millis(60_005)), Some(3));
        assert_eq!(warning.total(), 4);
    }
}

#[cfg(test)]
mod context_tests {

    use std::sync::Arc;

    use super::*;
    use crate::config::plan::ProxyPass;

    #[test]
    fn a_line_about_a_request_is_nginxs() {
        let fields = [("host", "localhost"), ("referer", "http://a/\"b")];
        let mut record = message::testing::request("GET", "/one/a?b", &fields);
        let server = record.server().name.clone();
        assert_eq!(
            about(format_args!("something happened"), &record, None),
            format!(
                "*17 something happened, client: 192.0.2.7, server: {server}, request: \"GET /one/a?b HTTP/1.1\", \
                host: \"localhost\", referrer: \"http://a/\\x22b\""
            )
        );
        record.proxy_pass = Some(Arc::new(ProxyPass {
            uri: Some("/two/".into()),
            replaces: 5,
            ..message::testing::proxy_pass()
        }));
        let line = about(format_args!("x"), &record, Some("127.0.0.1:1"));
        let upstream = ", upstream: \"http://127.0.0.1:1/two/a?b\", host: \"localhost\"";
        assert!(line.contains(upstream), "{line}");
        let line = about(format_args!("x"), &record, Some("unix:/run/a"));
        assert!(line.contains("\"http://unix:/run/a:/two/a?b\""), "{line}");
    }

    #[test]
    fn a_long_line_is_cut() {
        let host = "h".repeat(5_000);
        let record = message::testing::request("GET", "/", &[("host", &host)]);
        assert_eq!(about(format_args!("x"), &record, None).len(), MAX_CONTEXT);
    }
}
