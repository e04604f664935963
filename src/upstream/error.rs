//! What can go wrong between us and a backend, told apart as far as somebody above acts on it.
//!
//! The words are nginx's: operators search their logs for them. The status a failure stands for, in the log and in
//! the response to the client, is said here and nowhere else.

use std::time::Duration;
use std::{fmt, io};

use h2::Reason;
use http::StatusCode;

use crate::telemetry::{COUNTERS, CaughtPanic, SlowPart};
use crate::tls::ServerCertError;
use crate::{message, tls};

/// Why there is no answer, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection ended before a whole head had come. Usually a backend that crashed or restarts.
    #[error("{} while reading response header from upstream", ended(.0))]
    Broken(#[source] io::Error),
    /// The backend has ended a connection that many share, because one of them asked too much.
    #[error(
        "upstream closed a shared connection that it was asked too much over while reading response header from upstream"
    )]
    Calmed,
    /// The request's body could not be read from the client; the backend is not to blame.
    #[error("client's request body could not be read while sending request to upstream")]
    Client(#[source] message::RequestBodyError),
    /// No connection could be made. Usually nobody listens there.
    #[error("connect() failed ({}) while connecting to upstream", os(.0))]
    Connect(#[source] io::Error),
    /// Every backend has as much to do as `max_conns` allows, and waiting did not help.
    #[error("{why} while waiting for upstream")]
    Crowded {
        /// Why not.
        why: QueueError,
        /// When it may be better.
        retry_after: Duration,
    },
    /// The server could not be agreed with, or is not who it should be.
    #[error("{} while SSL handshaking to upstream", disagreed(.source, name))]
    Handshake {
        /// Whom it should have been.
        name: Box<str>,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// What came was not the head of an answer, or one whose end cannot be told for sure.
    #[error("upstream sent {0} while reading response header from upstream")]
    InvalidHeader(#[source] InvalidResponse),
    /// Every backend is down, left alone after failures, has been tried or has enough to do.
    #[error("no live upstreams while connecting to upstream")]
    NoLiveBackend,
    /// weir, or a library of it, panicked while it spoke to the backend. What was asked of this one may be asked of another.
    #[error("panicked ({panic}) while {stage}")]
    Panicked {
        /// What was said, and where.
        #[source]
        panic: CaughtPanic,
        /// How far the attempt had come.
        stage: Stage,
    },
    /// The backend has reset the stream, or gone away, before it answered.
    #[error("upstream rejected request with error {} while reading response header from upstream", code(.0))]
    Rejected(#[source] h2::Error),
    /// A backend's name has no address.
    #[error("host not found in upstream \"{host}\"")]
    Resolve {
        /// The name.
        host: Box<str>,
        /// What the resolver said.
        #[source]
        source: io::Error,
    },
    /// The request's head is larger than the backend takes; it is not to blame.
    #[error("client's request header is larger than upstream takes")]
    TooLarge,
    /// Nothing happened for too long.
    #[error("upstream timed out (110: Connection timed out) while {0}")]
    Timeout(Stage),
    /// The answer's body ended before its end, or was not well-formed. The client has its head already and
    /// must see that the rest is missing.
    #[error("{} while reading upstream", ended(.0))]
    Truncated(#[source] io::Error),
    /// Nobody is asked for a while: every backend is unhealthy, or failed so often that its breaker is open.
    #[error("no healthy upstreams while connecting to upstream")]
    Unavailable {
        /// When it may be worth another try.
        retry_after: Duration,
    },
}

/// Why waiting for a backend did not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueError {
    /// As many waited as may.
    Full,
    /// It took too long.
    Late,
}

/// Where in an exchange with a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The answer's body is being read.
    Body,
    /// The connection is being made.
    Connect,
    /// The answer's head is awaited.
    Head,
    /// The two agree on TLS.
    Handshake,
    /// The request is being sent.
    Send,
}

/// What is wrong with the head of an answer.
#[derive(Debug, thiserror::Error)]
pub enum InvalidResponse {
    /// Both lengths at once: whoever reads the other one sees another message.
    #[error("\"Content-Length\" and \"Transfer-Encoding\" headers at the same time")]
    BothLengths,
    /// Not one number: several, or none.
    #[error("invalid \"Content-Length\" header")]
    ContentLength,
    /// More than we are ready to hold.
    #[error("too big header")]
    TooLarge,
    /// Not `chunked`, or to somebody who cannot know it.
    #[error("unknown \"Transfer-Encoding\" header")]
    TransferEncoding,
    /// Not HTTP.
    #[error("invalid header")]
    Unreadable(#[source] httparse::Error),
    /// 101, which nobody asked for, or to something else than was asked for.
    #[error("unrequested 101 status")]
    Upgrade,
}

impl Error {
    /// Whether this machine could not even try: out of descriptors, ports or memory. The backend is as well as before.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        const EXHAUSTED: [i32; 5] = [
            12,  // ENOMEM
            23,  // ENFILE
            24,  // EMFILE
            99,  // EADDRNOTAVAIL: no local port is free
            105, // ENOBUFS
        ];
        let Self::Connect(source) = self else {
            return false;
        };
        source
            .raw_os_error()
            .is_some_and(|code| EXHAUSTED.contains(&code))
    }

    /// Whether the request itself is what is wrong: another backend would do the same with it, and this one is well.
    pub(super) fn is_requests_own(&self) -> bool {
        match self {
            Self::Client(_) | Self::TooLarge => true,
            Self::Rejected(rejected) => {
                let reason = rejected.reason();
                rejected.is_remote()
                    && rejected.is_reset()
                    && [Reason::ENHANCE_YOUR_CALM, Reason::PROTOCOL_ERROR]
                        .map(Some)
                        .contains(&reason)
            }
            _ => false,
        }
    }

    /// Counts a client that was given up because it was too slow.
    pub(super) fn count(&self) {
        if let Self::Client(message::RequestBodyError::Slow) = self {
            COUNTERS.give_up(SlowPart::Body);
        }
    }

    /// The status of an attempt that ended so, as nginx shows it in `$upstream_status`; none for what the client did.
    #[must_use]
    pub fn attempt_status(&self) -> Option<StatusCode> {
        match self {
            Self::Client(_) | Self::TooLarge => None,
            Self::Crowded { .. } | Self::Unavailable { .. } => {
                Some(StatusCode::SERVICE_UNAVAILABLE)
            }
            Self::Timeout(_) => Some(StatusCode::GATEWAY_TIMEOUT),
            Self::Broken(_)
            | Self::Calmed
            | Self::Connect(_)
            | Self::Handshake { .. }
            | Self::InvalidHeader(_)
            | Self::NoLiveBackend
            | Self::Panicked { .. }
            | Self::Rejected(_)
            | Self::Resolve { .. }
            | Self::Truncated(_) => Some(StatusCode::BAD_GATEWAY),
        }
    }

    /// The status of the response to the client: that of the attempt, but for what is not the upstream's fault.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Client(error) => error.status(),
            Self::TooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            ours if ours.is_ours() => StatusCode::INTERNAL_SERVER_ERROR,
            other => other.attempt_status().unwrap_or(StatusCode::BAD_GATEWAY),
        }
    }

    /// What the client did, where the failure was its own.
    #[must_use]
    pub fn client_fault(&self) -> Option<&message::RequestBodyError> {
        match self {
            Self::Client(source) => Some(source),
            _ => None,
        }
    }
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "queue is full",
            Self::Late => "queue timed out",
        })
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Body => "reading upstream",
            Self::Connect => "connecting to upstream",
            Self::Head => "reading response header from upstream",
            Self::Handshake => "SSL handshaking to upstream",
            Self::Send => "sending request to upstream",
        })
    }
}

/// HTTP/2's number for what happened.
fn code(error: &h2::Error) -> u32 {
    error.reason().map_or(0, u32::from)
}

/// How a connection ended.
fn ended(cause: &io::Error) -> String {
    if cause.raw_os_error().is_some() {
        return format!("recv() failed ({})", os(cause));
    }
    match cause.kind() {
        io::ErrorKind::InvalidData => "upstream sent invalid chunked response".into(),
        _ => "upstream prematurely closed connection".into(),
    }
}

/// Why there is no agreement with a server.
fn disagreed(cause: &io::Error, name: &str) -> String {
    match tls::objection(cause) {
        Some(ServerCertError::Name) => {
            format!("upstream SSL certificate does not match \"{name}\"")
        }
        Some(ServerCertError::Certificate(reason)) => {
            format!("upstream SSL certificate verify error: ({reason})")
        }
        Some(ServerCertError::Http1) => "upstream does not speak HTTP/2 (ALPN \"h2\")".into(),
        Some(ServerCertError::Protocol(reason)) => format!("SSL_do_handshake() failed ({reason})"),
        None if cause.kind() == io::ErrorKind::UnexpectedEof => "peer closed connection".into(),
        None => format!("SSL_do_handshake() failed ({})", os(cause)),
    }
}

/// An error of the system as nginx writes it: number first.
fn os(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(code) => {
            let words = text.strip_suffix(&format!(" (os error {code})"));
            format!("{code}: {}", words.unwrap_or(&text))
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_refused_connection_reads_as_in_nginx() {
        let refused = Error::Connect(io::Error::from_raw_os_error(111));
        assert_eq!(
            refused.to_string(),
            "connect() failed (111: Connection refused) while connecting to upstream"
        );
    }

    #[test]
    fn what_this_machine_lacks_is_not_the_backends_fault() {
        let connect = |code| Error::Connect(io::Error::from_raw_os_error(code));
        assert!(connect(24).is_ours());
        assert!(!connect(111).is_ours());
        assert!(!Error::Timeout(Stage::Connect).is_ours());
    }

    #[test]
    fn a_timeout_says_what_was_waited_for() {
        assert_eq!(
            Error::Timeout(Stage::Head).to_string(),
            "upstream timed out (110: Connection timed out) while reading response header from upstream"
        );
    }
}
