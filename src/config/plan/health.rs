//! How it is found out whether a server is well before requests find out.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::{HeaderValue, Method};
use regex::bytes::Regex;

use super::{CallShare, HttpVersion};

/// `health_check`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is asked, and what is expected.
    pub kind: CheckKind,
    /// From the end of one check to the beginning of the next.
    pub interval: Duration,
    /// How much of it is left to chance, so that not all are checked at once.
    pub jitter: CallShare,
    /// How long a check may take, connecting included.
    pub timeout: Duration,
    /// How many have to go well in a row until a server counts as healthy.
    pub rise: u32,
    /// How many have to fail in a row until it does not.
    pub fall: u32,
    /// What it counts as before the first.
    pub initial: InitialHealth,
    /// Where it is asked, if not where requests go.
    pub port: Option<u16>,
    /// Inside TLS: index of how the upstream's servers are met.
    pub tls: Option<usize>,
    /// What is spoken.
    pub version: HttpVersion,
}

/// `type`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckKind {
    /// `grpc.health.v1.Health/Check` about this service; about the whole server where it is empty.
    Grpc {
        /// Its name.
        service: Box<str>,
        /// What `:authority` says.
        host: HeaderValue,
    },
    /// A request.
    Http(HttpCheck),
    /// Somebody accepts connections.
    Tcp,
}

/// A request, and what its answer has to be like.
#[derive(Debug, Clone)]
pub struct HttpCheck {
    /// Its method.
    pub method: Method,
    /// Its path, and what may follow.
    pub path: Box<str>,
    /// What `Host` says.
    pub host: HeaderValue,
    /// Its statuses that are fine.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// What has to be in its body.
    pub body: Option<Regex>,
}

impl PartialEq for HttpCheck {
    // An expression is the same where it is written the same.
    fn eq(&self, other: &Self) -> bool {
        let body = |check: &Self| check.body.as_ref().map(|body| body.as_str().to_owned());
        self.method == other.method
            && self.path == other.path
            && self.host == other.host
            && self.statuses == other.statuses
            && body(self) == body(other)
    }
}

impl Eq for HttpCheck {}

/// What a server counts as before it was checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InitialHealth {
    /// Unhealthy, until the first check goes well.
    Down,
    /// Healthy.
    #[default]
    Up,
}
