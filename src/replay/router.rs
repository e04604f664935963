//! Turns an entry into a request again and finds the server and location for it.
//!
//! One request record stands for all of them and is filled anew for each, so that nothing is built again that the last line
//! has built already.

use std::net::SocketAddr;
use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Uri, Version, header};

use super::fields::{FieldPlan, texts};
use super::order::LogEntry;
use super::time::to_clock;
use crate::clock::Millis;
use crate::config::plan::{Content, Plan, SocketAddress};
use crate::limits::{Limits, Zones};
use crate::message::{ClientAddr, ClientConnection, RemoteAddr, RequestRecord, Target};
use crate::route::{Hosts, RouteTable};

/// The servers and locations of a plan.
#[derive(Debug)]
pub(super) struct ReplayRouter {
    plan: Arc<Plan>,
    table: RouteTable<Arc<ReplayLocation>>,
    /// All servers by name, for a log without the port.
    hosts: Hosts,
    record: RequestRecord,
    needs: FieldPlan,
    given_host: Option<Box<[u8]>>,
    /// The host and port of the last request, and the server they lead to.
    last: (Vec<u8>, usize),
}

/// The limits of a location, or of a server outside its locations.
#[derive(Debug)]
pub(super) struct ReplayLocation {
    pub(super) limits: Limits,
    /// The zones of its `limit_req` and of its `limit_conn`, by the plan's indices.
    pub(super) req: Box<[usize]>,
    pub(super) conn: Box<[usize]>,
    proxy_passes: bool,
}

/// The first result of a request, before its limits.
#[derive(Debug)]
pub(super) enum Routed<'a> {
    /// A response without limits: a redirect, or an error because of its method.
    Early,
    /// The limits of a location.
    Limits(&'a Arc<ReplayLocation>, &'a mut RequestRecord),
    /// Malformed; the response is 400.
    Malformed,
}

impl ReplayRouter {
    pub(super) fn new(
        plan: Arc<Plan>,
        zones: &Zones,
        needs: &FieldPlan,
        host: Option<&str>,
    ) -> Self {
        let table = RouteTable::build(&plan, |conf| {
            Arc::new(ReplayLocation {
                limits: Limits::compile(conf, zones),
                req: conf.limit_req.iter().map(|rule| rule.zone).collect(),
                conn: conf.limit_conn.iter().map(|rule| rule.zone).collect(),
                proxy_passes: matches!(conf.action, Content::ProxyPass(_)),
            })
        });
        let names = plan.servers.iter().enumerate().flat_map(|(index, server)| {
            let names = server.names.iter().cloned();
            names.map(move |name| (name, index))
        });
        let default = plan
            .listeners
            .first()
            .map_or(0, |listener| listener.default_server);
        let (head, ()) = Request::new(()).into_parts();
        let remote = RemoteAddr::Unix;
        let client = Arc::new(ClientConnection::new(remote, None, 0, Millis(0)));
        let mut record = RequestRecord::begin(
            Arc::clone(&plan),
            0,
            client,
            head,
            Target::default(),
            Millis(0),
        );
        // Not every log names the host, and this version can do without.
        record.head.version = Version::HTTP_10;
        Self {
            hosts: Hosts::build(names, default),
            plan,
            table,
            record,
            needs: needs.clone(),
            given_host: host.map(|host| host.as_bytes().into()),
            last: (Vec::new(), default),
        }
    }

    /// Finds the limits of a request.
    pub(super) fn route(&mut self, entry: &LogEntry, texts: &[u8]) -> Routed<'_> {
        if self.fill(entry, texts).is_none() {
            return Routed::Malformed;
        }
        let record = &mut self.record;
        if matches!(record.head.method, Method::CONNECT | Method::TRACE) {
            return Routed::Early;
        }
        let path = record.target.path(&record.head);
        let slash = self.table.redirects_to_slash(record.server, path);
        if slash.is_some_and(|location| location.proxy_passes) {
            return Routed::Early;
        }
        Routed::Limits(self.table.find(record.server, path), record)
    }

    /// Fills the request record; `None` for a malformed request.
    fn fill(&mut self, entry: &LogEntry, values: &[u8]) -> Option<()> {
        let mut texts = texts(values);
        let (method, target) = (texts.next()?, texts.next()?);
        let head = &mut self.record.head;
        head.method = match method {
            b"GET" | b"" => Method::GET,
            method => Method::from_bytes(method).ok()?,
        };
        head.uri = uri(target)?;
        let mut optional = |index: Option<usize>| match index {
            Some(_) => texts.next(),
            None => Some(&b""[..]),
        };
        let host = optional(self.needs.host)?;
        let port = optional(self.needs.port)?;
        let host = self.given_host.as_deref().unwrap_or(host);
        // Unset until host and port are known to be valid.
        let mut last = std::mem::take(&mut self.last.0);
        let same = last
            .strip_prefix(host)
            .and_then(|rest| rest.strip_prefix(b"\0"));
        let new = same != Some(port);
        if new {
            last.clear();
            last.extend_from_slice(host);
            last.push(0);
            last.extend_from_slice(port);
            head.headers.remove(header::HOST);
            if !host.is_empty() {
                let host = HeaderValue::from_bytes(host).ok()?;
                head.headers.insert(header::HOST, host);
            }
        }
        for ((field, _), value) in self.needs.fields.iter().zip(texts) {
            if value.is_empty() {
                head.headers.remove(field);
            } else {
                head.headers.insert(field, safe_value(value));
            }
        }
        self.record.target = Target::parse(&self.record.head).ok()?;
        if new {
            self.last.1 = self.server(port);
        }
        self.last.0 = last;
        self.record.server = self.last.1;
        let remote = match entry.client {
            Some(address) => RemoteAddr::Ip(SocketAddr::new(address, 0)),
            None => RemoteAddr::Unix,
        };
        self.record.set_client(ClientAddr::new(remote));
        self.record.started = to_clock(entry.at);
        self.record.limit_req = None;
        self.record.limit_conn = None;
        Some(())
    }

    /// The server for the host of the request record.
    fn server(&self, port: &[u8]) -> usize {
        let host = self.record.target.host(&self.record.head);
        let port: Option<u16> = std::str::from_utf8(port)
            .ok()
            .and_then(|port| port.parse().ok());
        let listener = port.and_then(|port| {
            let mut listeners = self.plan.listeners.iter();
            listeners.position(|listener| matches!(listener.address, SocketAddress::Tcp(address) if address.port() == port))
        });
        match listener {
            Some(listener) => self.table.server(listener, host),
            None => self.hosts.find(host),
        }
    }
}

/// The target of a request line.
fn uri(target: &[u8]) -> Option<Uri> {
    if target.first() == Some(&b'/') {
        // The usual form, without the ones that `Uri` tries first.
        return PathAndQuery::try_from(target).ok().map(Uri::from);
    }
    Uri::try_from(target).ok()
}

/// A header value, with bytes that none can hold replaced.
fn safe_value(value: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(value).unwrap_or_else(|_| {
        let safe: Vec<u8> = value
            .iter()
            .map(|byte| {
                if *byte < 32 || *byte == 127 {
                    b'?'
                } else {
                    *byte
                }
            })
            .collect();
        HeaderValue::from_bytes(&safe).unwrap_or(HeaderValue::from_static("?"))
    })
}
