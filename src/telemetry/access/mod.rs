//! The access log: one line for every request, when its last byte has left.
//!
//! A format is taken apart when the configuration is read; writing a line appends to two buffers of the
//! thread's own that keep their memory, and hands the result to the writer. Whatever a client has sent is
//! escaped, so that a line is always one line.

pub(super) mod escape;
mod json;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;

use http::header::{REFERER, USER_AGENT};

use super::writer::{Destination, LogSink, LogWriter};
use crate::config::plan::{self, LogFormat, LogPath, Part, Template, Variable};
use crate::message::{RequestRecord, vars};

/// An access log, open.
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
        /// Where it should go.
        to: Box<str>,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The access log's file could not be opened: usually its folder is missing, or belongs to somebody else.
    #[error("cannot open the access log {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Standard output could not be had.
    #[error("cannot write the access log to standard output")]
    Stdout(#[source] io::Error),
}

impl AccessLog {
    /// Opens it.
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

    /// Writes the line of an exchange that is over.
    pub fn write(&self, exchange: &RequestRecord) {
        thread_local! {
            static SCRATCH: RefCell<Scratch> = RefCell::default();
        }
        let written = SCRATCH.try_with(|scratch| {
            self.write_with(exchange, &mut scratch.borrow_mut());
        });
        if written.is_err() {
            // The thread is ending and has lost its scratch already.
            self.write_with(exchange, &mut Scratch::default());
        }
    }

    /// Whether lines show the answer's header fields, so that somebody has to keep them.
    #[must_use]
    pub fn needs_sent_headers(&self) -> bool {
        self.shows(|variable| matches!(variable, Variable::SentHttp(_)))
    }

    /// Whether lines show those of the upstream's answer.
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

    fn write_with(&self, exchange: &RequestRecord, scratch: &mut Scratch) {
        scratch.line.clear();
        match &self.format {
            AccessLogFormat::Json => json::render(exchange, scratch),
            AccessLogFormat::Text(template) => render(template, exchange, scratch),
        }
        scratch.line.push(b'\n');
        self.sink.push(&scratch.line);
    }
}

/// Memory that lines are made in.
#[derive(Debug, Default)]
struct Scratch {
    line: Vec<u8>,
    value: Vec<u8>,
}

impl Scratch {
    /// Finds the variable's value and leaves it in `value`; `false` if it has none.
    fn find(&mut self, variable: &Variable, exchange: &RequestRecord) -> bool {
        self.value.clear();
        vars::append(variable, exchange, &mut self.value)
    }
}

fn render(template: &Template, exchange: &RequestRecord, scratch: &mut Scratch) {
    for part in &template.parts {
        match part {
            Part::Text(text) => scratch.line.extend_from_slice(text.as_bytes()),
            Part::Variable(variable) => {
                if scratch.find(variable, exchange) {
                    escape::text(&scratch.value, &mut scratch.line);
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
