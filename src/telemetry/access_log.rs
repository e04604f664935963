//! The access log: one line for every request, when its last byte has left.
//!
//! A format is compiled with the configuration. Writing a line appends to two buffers of the thread, which keep their
//! memory, and passes the result to the log writer. Text from clients is escaped, so that a line is always one line.
//!
//! In JSON every field always has the same type, because programs take the type from the first line they read. So where
//! nginx's text lists every upstream server tried, status and time are those of the last one.

#[cfg(test)]
#[path = "tests/access_log.rs"]
mod tests;

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

use http::header::{REFERER, USER_AGENT};

use super::log_writer::{Destination, LogSink, LogWriter};
use crate::clock::LogSecond;
use crate::config::plan::{
    self, LimitVariable, LogFormat, LogPath, Part, Template, TraceVariable, Variable,
};
use crate::message::{RequestRecord, variables};
use crate::text::{Append as _, escape_json, escape_log};

/// An open access log.
#[derive(Debug, Clone)]
pub struct AccessLog {
    format: AccessLogFormat,
    sink: LogSink,
}

#[derive(Debug, Clone)]
enum AccessLogFormat {
    Json,
    Text(Template),
}

/// A log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The error log's file could not be opened.
    #[error("cannot open the error log {to}")]
    Error {
        /// The destination.
        to: Box<str>,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The access log's file could not be opened: usually its folder is missing or not writable.
    #[error("cannot open the access log {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Standard output could not be opened.
    #[error("cannot write the access log to standard output")]
    Stdout(#[source] io::Error),
}

impl AccessLog {
    /// Opens the log.
    ///
    /// # Errors
    /// When its file cannot be opened.
    pub fn open(plan: &plan::AccessLog, writer: &LogWriter) -> Result<Self, Error> {
        let sink = match &plan.path {
            LogPath::File(path) => {
                writer
                    .open(NAME, Destination::File(path.clone()))
                    .map_err(|source| Error::File {
                        path: path.clone(),
                        source,
                    })
            }
            LogPath::Stdout => writer
                .open(NAME, Destination::Stdout)
                .map_err(Error::Stdout),
        }?;
        let format = match &plan.format {
            LogFormat::Combined => AccessLogFormat::Text(combined()),
            LogFormat::Json => AccessLogFormat::Json,
            LogFormat::Text(template) => AccessLogFormat::Text(template.clone()),
        };
        Ok(Self { format, sink })
    }

    /// Writes the line of a finished request.
    pub fn write(&self, record: &RequestRecord) {
        thread_local! {
            static SCRATCH: RefCell<Scratch> = RefCell::default();
        }
        let written = SCRATCH.try_with(|scratch| {
            self.write_with(record, &mut scratch.borrow_mut());
        });
        if written.is_err() {
            // The thread is ending and has lost its scratch already.
            self.write_with(record, &mut Scratch::default());
        }
    }

    /// Whether lines have headers of the response, which then have to be kept.
    #[must_use]
    pub fn needs_sent_headers(&self) -> bool {
        self.shows(|variable| matches!(variable, Variable::SentHttp(_)))
    }

    /// Whether lines have headers of the upstream's response.
    #[must_use]
    pub fn needs_upstream_headers(&self) -> bool {
        self.shows(|variable| matches!(variable, Variable::UpstreamHttp(_)))
    }

    fn shows(&self, like: impl Fn(&Variable) -> bool) -> bool {
        match &self.format {
            AccessLogFormat::Json => false,
            AccessLogFormat::Text(template) => template.may_use(like),
        }
    }

    fn write_with(&self, record: &RequestRecord, scratch: &mut Scratch) {
        scratch.line.clear();
        match &self.format {
            AccessLogFormat::Json => render_json(record, scratch),
            AccessLogFormat::Text(template) => render(template, record, scratch),
        }
        scratch.line.push(b'\n');
        self.sink.push(&scratch.line);
    }
}

/// The buffers of a thread.
#[derive(Debug, Default)]
struct Scratch {
    line: Vec<u8>,
    value: Vec<u8>,
}

impl Scratch {
    /// Puts the value of a variable into `value`; `false` if it has none.
    fn find(&mut self, variable: &Variable, record: &RequestRecord) -> bool {
        self.value.clear();
        variables::append(variable, record, &mut self.value)
    }
}

fn render(template: &Template, record: &RequestRecord, scratch: &mut Scratch) {
    for part in &template.parts {
        match part {
            Part::Text(text) => scratch.line.extend_from_slice(text.as_bytes()),
            Part::Variable(variable) => {
                if scratch.find(variable, record) {
                    escape_log(&scratch.value, &mut scratch.line);
                } else {
                    scratch.line.push(b'-');
                }
            }
        }
    }
}

/// `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"`
fn combined() -> Template {
    let text = |text: &str| Part::Text(text.into());
    Template {
        parts: Box::new([
            Part::Variable(Variable::RemoteAddr),
            text(" - "),
            Part::Variable(Variable::RemoteUser),
            text(" ["),
            Part::Variable(Variable::TimeLocal),
            text("] \""),
            Part::Variable(Variable::Request),
            text("\" "),
            Part::Variable(Variable::Status),
            text(" "),
            Part::Variable(Variable::BodyBytesSent),
            text(" \""),
            Part::Variable(Variable::Http(REFERER)),
            text("\" \""),
            Part::Variable(Variable::Http(USER_AGENT)),
            text("\""),
        ]),
    }
}

const NAME: &str = "access";

/// Appends the object to the line.
fn render_json(record: &RequestRecord, scratch: &mut Scratch) {
    let last = record.attempts.last();
    let mut object = JsonLine { record, scratch };
    object.time();
    object.text("remote_addr", &Variable::RemoteAddr);
    object.text("method", &Variable::RequestMethod);
    object.text("uri", &Variable::RequestUri);
    object.text("host", &Variable::Host);
    object.value("status", record.status.map(|status| status.as_u16()));
    object.number("request_time", &Variable::RequestTime);
    object.number("body_bytes_sent", &Variable::BodyBytesSent);
    object.number("bytes_sent", &Variable::BytesSent);
    object.number("request_length", &Variable::RequestLength);
    object.text("referer", &Variable::Http(REFERER));
    object.text("user_agent", &Variable::Http(USER_AGENT));
    object.text("server_name", &Variable::ServerName);
    object.text("upstream_addr", &Variable::UpstreamAddr);
    let status = last.and_then(|attempt| attempt.status);
    object.value("upstream_status", status.map(|status| status.as_u16()));
    let taken = last.and_then(|attempt| attempt.response);
    object.value("upstream_response_time", taken.map(seconds));
    object.text(
        "limit_req_status",
        &Variable::Limit(LimitVariable::ReqStatus),
    );
    object.text(
        "limit_conn_status",
        &Variable::Limit(LimitVariable::ConnStatus),
    );
    object.text("limit_verdict", &Variable::Limit(LimitVariable::Verdict));
    object.text("limit_zone", &Variable::Limit(LimitVariable::Zone));
    object.text("request_id", &Variable::RequestId);
    object.text("trace_id", &Variable::Trace(TraceVariable::Id));
    object.text("span_id", &Variable::Trace(TraceVariable::Span));
    object.scratch.line.push(b'}');
}

struct JsonLine<'a> {
    record: &'a RequestRecord,
    scratch: &'a mut Scratch,
}

impl JsonLine<'_> {
    fn time(&mut self) {
        let (second, millis) = LogSecond::now();
        self.scratch.line.extend_from_slice(b"{\"time\":\"");
        let (iso, offset) = (&second.iso, &second.offset);
        write!(self.scratch.line, "{iso}.{millis:03}{offset}\"");
    }

    /// A variable as a string; empty where it has no value.
    fn text(&mut self, name: &str, variable: &Variable) {
        self.name(name);
        self.scratch.line.push(b'"');
        if self.find(variable) {
            escape_json(&self.scratch.value, &mut self.scratch.line);
        }
        self.scratch.line.push(b'"');
    }

    /// A variable as a number; null where it has none.
    fn number(&mut self, name: &str, variable: &Variable) {
        self.name(name);
        if self.find(variable) && is_number(&self.scratch.value) {
            self.scratch.line.extend_from_slice(&self.scratch.value);
        } else {
            self.null();
        }
    }

    /// A number; null for `None`.
    fn value(&mut self, name: &str, value: Option<impl fmt::Display>) {
        self.name(name);
        match value {
            Some(value) => write!(self.scratch.line, "{value}"),
            None => self.null(),
        }
    }

    fn name(&mut self, name: &str) {
        self.scratch.line.extend_from_slice(b",\"");
        self.scratch.line.extend_from_slice(name.as_bytes());
        self.scratch.line.extend_from_slice(b"\":");
    }

    fn null(&mut self) {
        self.scratch.line.extend_from_slice(b"null");
    }

    fn find(&mut self, variable: &Variable) -> bool {
        self.scratch.find(variable, self.record)
    }
}

/// Seconds with three decimals.
fn seconds(time: Duration) -> impl fmt::Display {
    fmt::from_fn(move |f| write!(f, "{}.{:03}", time.as_secs(), time.subsec_millis()))
}

/// Whether a text is a number in JSON: digits without leading zeros, and perhaps a fraction.
fn is_number(text: &[u8]) -> bool {
    let (whole, fraction) = match text.iter().position(|byte| *byte == b'.') {
        Some(dot) => (&text[..dot], Some(&text[dot + 1..])),
        None => (text, None),
    };
    let digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits(whole) && (whole.len() == 1 || whole[0] != b'0') && fraction.is_none_or(digits)
}

#[cfg(test)]
mod json_tests {

    use super::*;

    #[test]
    fn numbers_are_those_of_json() {
        for good in ["0", "7", "120", "0.001", "10.000"] {
            assert!(is_number(good.as_bytes()), "{good}");
        }
        for bad in ["", "-", "000", "01", "1.", ".5", "1, 2", "0.1.2"] {
            assert!(!is_number(bad.as_bytes()), "{bad}");
        }
    }
}
