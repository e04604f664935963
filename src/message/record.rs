//! What we learn about one request while it passes; written by all rooms, read by the log.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, StatusCode};
use smallvec::SmallVec;

use super::client_addr::ClientAddr;
use super::connection::ClientConnection;
use super::target::Target;
use super::trace::{LimitWait, Trace};
use crate::clock::Millis;
use crate::config::plan::{Plan, ProxyPass, RealIp, Server};

/// One request and what became of it.
#[derive(Debug)]
pub struct RequestRecord {
    /// The configuration it lives in, from start to end.
    pub plan: Arc<Plan>,
    /// Index of its virtual server.
    pub server: usize,
    /// Who asked.
    pub connection: Arc<ClientConnection>,
    /// What was asked, as it came. Never changed: what goes upstream is made from it.
    pub head: Parts,
    /// Host and path in the form that routing and keys use.
    pub target: Target,
    /// When its head had been read.
    pub started: Millis,
    /// `$connection_requests`
    pub number: u64,
    /// Bytes of the request's body read so far, framing not counted.
    pub body_received: u64,
    /// What the connection had sent before this answer: for `$bytes_sent`.
    pub sent_before: u64,
    /// What `limit_req` said.
    pub limit_req: Option<LimitStatus>,
    /// What `limit_conn` said.
    pub limit_conn: Option<LimitStatus>,
    /// The zone that delayed or refused it; of several, the last to do so.
    pub limit_zone: Option<Arc<str>>,
    /// Its place in a trace, where traces are told.
    pub trace: Option<Box<Trace>>,
    /// How it is sent on, where it is.
    pub proxy_pass: Option<Arc<ProxyPass>>,
    /// What came was no request: nothing of the head is known.
    pub unparsed: bool,
    /// Every upstream server tried; mostly one.
    pub attempts: SmallVec<[Attempt; 1]>,
    /// The answer's status; `None` until there is one.
    pub status: Option<StatusCode>,
    /// The answer's header fields, where the log needs them.
    // Boxed, like all that few requests need: every one of them carries the room for it.
    pub sent_headers: Option<Box<HeaderMap>>,
    /// The header fields of the upstream's answer: there, if empty, where somebody will ask for them.
    pub upstream_headers: Option<Box<HeaderMap>>,
    /// Bytes of the answer's body handed to the connection.
    pub body_sent: u64,
    /// When it was over.
    pub ended: Option<Millis>,
    request_id: OnceLock<Box<[u8; 32]>>,
    // Who asked, where a trusted proxy says so; else it is who holds the connection.
    named: Option<Arc<ClientAddr>>,
    trusted: bool,
}

/// What a limit said of a request, in nginx's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitStatus {
    /// `DELAYED`
    Delay,
    /// `DELAYED_DRY_RUN`
    DelayDryRun,
    /// `PASSED`
    Pass,
    /// `PENALIZED`: nginx has no word for it.
    Penalize,
    /// `PENALIZED_DRY_RUN`
    PenalizeDryRun,
    /// `REJECTED`
    Refuse,
    /// `REJECTED_DRY_RUN`
    RefuseDryRun,
}

impl LimitStatus {
    /// nginx's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delay => "DELAYED",
            Self::DelayDryRun => "DELAYED_DRY_RUN",
            Self::Pass => "PASSED",
            Self::Penalize => "PENALIZED",
            Self::PenalizeDryRun => "PENALIZED_DRY_RUN",
            Self::Refuse => "REJECTED",
            Self::RefuseDryRun => "REJECTED_DRY_RUN",
        }
    }
}

/// One try at an upstream server.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Its address as `$upstream_addr` shows it. Shared with the backend: no text is made per request.
    pub address: Arc<str>,
    /// When it was begun; `None` where nobody could be asked.
    pub started: Option<Millis>,
    /// The status it answered with, or the one its failure stands for.
    pub status: Option<StatusCode>,
    /// Until connected; zero for a kept connection.
    pub connect: Option<Duration>,
    /// Until the answer's head.
    pub header: Option<Duration>,
    /// Until the answer's last byte.
    pub response: Option<Duration>,
}

/// The connection is to be closed without an answer: nginx's 444.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("closed without an answer")]
pub struct CloseConnection;

impl RequestRecord {
    /// A request whose head has just been read.
    #[inline]
    #[must_use]
    pub fn begin(
        plan: Arc<Plan>,
        server: usize,
        connection: Arc<ClientConnection>,
        head: Parts,
        target: Target,
        now: Millis,
    ) -> Self {
        let number = connection.count_request(now);
        Self {
            sent_before: connection.state.sent.get(),
            body_received: 0,
            plan,
            server,
            connection,
            head,
            target,
            started: now,
            number,
            limit_req: None,
            limit_conn: None,
            limit_zone: None,
            trace: None,
            proxy_pass: None,
            unparsed: false,
            attempts: SmallVec::new(),
            status: None,
            sent_headers: None,
            upstream_headers: None,
            body_sent: 0,
            ended: None,
            request_id: OnceLock::new(),
            named: None,
            trusted: false,
        }
    }

    /// Takes the word of a proxy for who asks, if `rule` trusts it and nobody was named before.
    pub fn identify(&mut self, rule: &RealIp) {
        let found = self.connection.find_client(rule, &self.head.headers);
        // Of two rules the location's decides what else is believed.
        self.trusted = found.is_some();
        if self.named.is_none() {
            let address = found.flatten();
            self.named = address.map(|address| self.connection.named_client(address));
        }
    }

    /// Says who asks, for those who read of requests instead of receiving them.
    pub fn set_client(&mut self, client: ClientAddr) {
        match self.named.as_mut().and_then(Arc::get_mut) {
            Some(named) => *named = client,
            None => self.named = Some(Arc::new(client)),
        }
    }

    /// Who asks: for keys, rules and logs.
    #[must_use]
    pub fn client(&self) -> &ClientAddr {
        self.named.as_deref().unwrap_or(&self.connection.addr)
    }

    /// It has waited for its turn in the zone that delayed it.
    pub fn waited(&mut self, from: Millis, until: Millis) {
        if let (Some(trace), Some(zone)) = (&mut self.trace, &self.limit_zone) {
            trace.waits.push(LimitWait {
                zone: Arc::clone(zone),
                from,
                until,
            });
        }
    }

    /// `$limit_verdict`: what limits did to it in the end, in the words of the metrics; `None` where none applied.
    #[must_use]
    pub fn limit_verdict(&self) -> Option<&'static str> {
        let said = [self.limit_req, self.limit_conn];
        let refused =
            |said: LimitStatus| matches!(said, LimitStatus::Penalize | LimitStatus::Refuse);
        if said.into_iter().flatten().any(refused) {
            return Some("refuse");
        }
        match (&self.limit_zone, said) {
            (Some(_), _) => Some("delay"),
            (None, [None, None]) => None,
            (None, _) => Some("pass"),
        }
    }

    /// Whether what the connection's other end says of the client is believed.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// Its virtual server.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.plan.servers[self.server]
    }

    /// `$request_length`: the request line and the fields as a plain spelling of them would be long, and
    /// the body received so far.
    #[must_use]
    pub fn request_length(&self) -> u64 {
        let target = match self.head.uri.path_and_query() {
            Some(target) if self.head.uri.authority().is_none() => target.as_str().len(),
            _ => self.head.uri.to_string().len(),
        };
        let line = self.head.method.as_str().len() + target + "  HTTP/1.1\r\n\r\n".len();
        let fields: usize = self
            .head
            .headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len())
            .sum();
        (line + fields) as u64 + self.body_received
    }

    /// `$request_id`, made when it is first asked for.
    #[must_use]
    pub fn request_id(&self) -> &str {
        let digits = self.request_id.get_or_init(|| {
            let mut digits = Box::new([0; 32]);
            for digit in digits.iter_mut() {
                *digit = b"0123456789abcdef"[fastrand::usize(..16)];
            }
            digits
        });
        std::str::from_utf8(&**digits).unwrap_or_default()
    }
}
