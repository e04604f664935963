//! The errors between weir and a backend, and the one map from errors to statuses, for the log and for the client.
//!
//! The messages are nginx's: operators search their logs for them.

use std::io;
use std::time::Duration;

use h2::Reason;
use http::StatusCode;

use crate::telemetry::{COUNTERS, CaughtPanic, SlowPart};
use crate::tls::ServerCertError;
use crate::{message, tls};

/// Why there is no response, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection ended before the response headers were complete. Usually the backend crashed or restarts.
    #[error("{} while reading response header from upstream", ended(.0))]
    Broken(#[source] io::Error),
    /// The request's body could not be read from the client; the backend is not to blame.
    #[error("client's request body could not be read while sending request to upstream")]
    Client(#[source] message::RequestBodyError),
    /// No connection could be opened. Usually no server listens there.
    #[error("connect() failed ({}) while connecting to upstream", os(.0))]
    Connect(#[source] io::Error),
    /// The backend has ended a shared connection with ENHANCE_YOUR_CALM, because of other requests on it.
    #[error(
        "upstream closed a shared connection with ENHANCE_YOUR_CALM while reading response header from upstream"
    )]
    EnhanceYourCalm,
    /// The TLS handshake failed, or the server's certificate is not valid for its name.
    #[error("{} while SSL handshaking to upstream", handshake_error(.source, name))]
    Handshake {
        /// The expected name.
        name: Box<str>,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The response headers are not valid, or do not say for sure where the response ends.
    #[error("upstream sent {0} while reading response header from upstream")]
    InvalidHeader(#[source] InvalidResponse),
    /// Every backend is down, disabled after failures, full, or was tried.
    #[error("no live upstreams while connecting to upstream")]
    NoLiveBackend,
    /// weir or one of its libraries panicked during the attempt. The request may be sent to another backend.
    #[error("panicked ({panic}) while {stage}")]
    Panicked {
        /// The message and the place.
        #[source]
        panic: CaughtPanic,
        /// The stage of the attempt.
        stage: Stage,
    },
    /// Every backend has as many requests as `max_conns` allows, and waiting did not help.
    #[error("{reason} while waiting for upstream")]
    Queue {
        /// Why not.
        reason: QueueError,
        /// When to try again.
        retry_after: Duration,
    },
    /// The backend has reset the stream, or gone away, before it responded.
    #[error("upstream rejected request with error {} while reading response header from upstream", code(.0))]
    Rejected(#[source] h2::Error),
    /// A backend's name has no address.
    #[error("host not found in upstream \"{host}\"")]
    Resolve {
        /// The name.
        host: Box<str>,
        /// The resolver's error.
        #[source]
        source: io::Error,
    },
    /// The request headers are larger than the backend accepts; it is not to blame.
    #[error("client sent larger request headers than upstream accepts")]
    TooLarge,
    /// Nothing happened for too long.
    #[error("upstream timed out (110: Connection timed out) while {0}")]
    Timeout(Stage),
    /// The response's body was cut short or malformed. The client has the headers already and must see that the rest is
    /// missing.
    #[error("{} while reading upstream", ended(.0))]
    Truncated(#[source] io::Error),
    /// Every backend is unhealthy or has an open breaker.
    #[error("no healthy upstreams while connecting to upstream")]
    Unavailable {
        /// When to try again.
        retry_after: Duration,
    },
}

/// Why waiting for a backend did not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The queue is full.
    #[error("queue is full")]
    Full,
    /// The wait timed out.
    #[error("queue timed out")]
    Late,
}

/// A stage of an exchange with a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stage {
    /// Reading the response's body.
    #[error("reading upstream")]
    Body,
    /// Connecting.
    #[error("connecting to upstream")]
    Connect,
    /// Waiting for the response headers.
    #[error("reading response header from upstream")]
    Head,
    /// The TLS handshake.
    #[error("SSL handshaking to upstream")]
    Handshake,
    /// Sending the request.
    #[error("sending request to upstream")]
    Send,
}

/// What is wrong with response headers.
#[derive(Debug, thiserror::Error)]
pub enum InvalidResponse {
    /// A length and a transfer coding: two readers would see two messages.
    #[error("\"Content-Length\" and \"Transfer-Encoding\" headers at the same time")]
    BothLengths,
    /// Not one number: several, or none.
    #[error("invalid \"Content-Length\" header")]
    ContentLength,
    /// Larger than the limit.
    #[error("too big header")]
    TooLarge,
    /// Not `chunked`.
    #[error("unknown \"Transfer-Encoding\" header")]
    TransferEncoding,
    /// Not HTTP.
    #[error("invalid header")]
    Unreadable(#[source] httparse::Error),
    /// 101 without a request for an upgrade, or to another protocol.
    #[error("unrequested 101 status")]
    Upgrade,
}

impl Error {
    /// Whether this machine is out of descriptors, ports or memory; the backend is not to blame.
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

    /// Whether the request is to blame: another backend would refuse it too.
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

    /// Counts a client that was too slow.
    pub(super) fn count(&self) {
        if let Self::Client(message::RequestBodyError::Slow) = self {
            COUNTERS.slow_client(SlowPart::Body);
        }
    }

    /// The status of an attempt with this error, as nginx shows it in `$upstream_status`; none for errors of the client.
    #[must_use]
    pub fn attempt_status(&self) -> Option<StatusCode> {
        match self {
            Self::Client(_) | Self::TooLarge => None,
            Self::Queue { .. } | Self::Unavailable { .. } => Some(StatusCode::SERVICE_UNAVAILABLE),
            Self::Timeout(_) => Some(StatusCode::GATEWAY_TIMEOUT),
            Self::Broken(_)
            | Self::Connect(_)
            | Self::EnhanceYourCalm
            | Self::Handshake { .. }
            | Self::InvalidHeader(_)
            | Self::NoLiveBackend
            | Self::Panicked { .. }
            | Self::Rejected(_)
            | Self::Resolve { .. }
            | Self::Truncated(_) => Some(StatusCode::BAD_GATEWAY),
        }
    }

    /// The status of the response to the client: that of the attempt, unless the upstream is not to blame.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Client(error) => error.status(),
            Self::TooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            ours if ours.is_ours() => StatusCode::INTERNAL_SERVER_ERROR,
            other => other.attempt_status().unwrap_or(StatusCode::BAD_GATEWAY),
        }
    }

    /// The error of the client, if it is to blame.
    #[must_use]
    pub fn client_fault(&self) -> Option<&message::RequestBodyError> {
        match self {
            Self::Client(source) => Some(source),
            _ => None,
        }
    }
}

/// HTTP/2's error code.
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

/// Why a handshake failed.
fn handshake_error(cause: &io::Error, name: &str) -> String {
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

/// A system error as nginx writes it: the number first.
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
    fn exhaustion_of_this_machine_is_not_the_backends_fault() {
        let connect = |code| Error::Connect(io::Error::from_raw_os_error(code));
        assert!(connect(24).is_ours());
        assert!(!connect(111).is_ours());
        assert!(!Error::Timeout(Stage::Connect).is_ours());
    }

    #[test]
    fn a_timeout_names_the_stage() {
        assert_eq!(
            Error::Timeout(Stage::Head).to_string(),
            "upstream timed out (110: Connection timed out) while reading response header from upstream"
        );
    }
}
