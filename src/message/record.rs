//! The record of one request: written by all folders that handle it, read by the log.

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
    /// The client's connection.
    pub connection: Arc<ClientConnection>,
    /// The request's headers as they came. Never changed: what goes upstream is made from them.
    pub head: Parts,
    /// Host and path in the form that routing and keys use.
    pub target: Target,
    /// When its headers had been read.
    pub started: Millis,
    /// `$connection_requests`
    pub number: u64,
    /// Bytes of the request's body read so far, framing not counted.
    pub body_received: u64,
    /// What the connection had sent before this response: for `$bytes_sent`.
    pub sent_before: u64,
    /// The result of `limit_req`.
    pub limit_req: Option<LimitStatus>,
    /// The result of `limit_conn`.
    pub limit_conn: Option<LimitStatus>,
    /// The zone that delayed or refused it; of several, the last to do so.
    pub limit_zone: Option<Arc<str>>,
    /// Its place in a trace, where traces are exported.
    pub trace: Option<Box<Trace>>,
    /// How it is sent on, where it is.
    pub proxy_pass: Option<Arc<ProxyPass>>,
    /// What came was not a request: nothing of the headers is known.
    pub unparsed: bool,
    /// Every upstream server tried; mostly one.
    pub attempts: SmallVec<[Attempt; 1]>,
    /// The response's status; `None` until there is one.
    pub status: Option<StatusCode>,
    /// The response's headers, where the log needs them.
    // Boxed, like all that few requests need: every one of them carries the room for it.
    pub sent_headers: Option<Box<HeaderMap>>,
    /// The headers of the upstream's response: there, if empty, where they are needed.
    pub upstream_headers: Option<Box<HeaderMap>>,
    /// Bytes of the response's body handed to the connection.
    pub body_sent: u64,
    /// When it was over.
    pub ended: Option<Millis>,
    request_id: OnceLock<Box<str>>,
    // The client that a trusted proxy named; else the client is the connection's.
    named: Option<Arc<ClientAddr>>,
    /// Whether the connection's other end is trusted to describe the client.
    pub trusted: bool,
}

/// The result of a limit, in nginx's words.
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
    /// When it was begun; `None` where no server was available.
    pub started: Option<Millis>,
    /// The response's status, or the one its error stands for.
    pub status: Option<StatusCode>,
    /// Until connected; zero for a kept connection.
    pub connect: Option<Duration>,
    /// Until the response's headers.
    pub header: Option<Duration>,
    /// Until the response's last byte.
    pub response: Option<Duration>,
}

/// The connection is to be closed without a response: nginx's 444.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("closed without an answer")]
pub struct CloseConnection;

impl RequestRecord {
    /// A request whose headers have just been read.
    #[inline]
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

    /// Takes the client's address from a proxy, if `rule` trusts it and no client was named before.
    pub fn identify(&mut self, rule: &RealIp) {
        let found = self.connection.find_client(rule, &self.head.headers);
        // Of two rules the location's decides what else is trusted.
        self.trusted = found.is_some();
        if self.named.is_none() {
            let address = found.flatten();
            self.named = address.map(|address| self.connection.named_client(address));
        }
    }

    /// Sets the client, where requests are read from a log instead of received.
    pub fn set_client(&mut self, client: ClientAddr) {
        match self.named.as_mut().and_then(Arc::get_mut) {
            Some(named) => *named = client,
            None => self.named = Some(Arc::new(client)),
        }
    }

    /// The client, for keys, rules and logs.
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

    /// Its virtual server.
    pub fn server(&self) -> &Server {
        &self.plan.servers[self.server]
    }

    /// `$request_length`: the request line and the fields as a plain spelling of them would be long, and
    /// the body received so far.
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
    pub fn request_id(&self) -> &str {
        self.request_id
            .get_or_init(|| format!("{:032x}", fastrand::u128(..)).into())
    }
}
