//! An entry becomes a request again: found its server and location, ready to be asked about.
//!
//! One request stands for all of them, filled anew for each, so that nothing is built per line that the last line has
//! built already.

use std::net::SocketAddr;
use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Uri, Version, header};

use super::line;
use super::needs::FieldPlan;
use super::order::LogEntry;
use crate::clock::Millis;
use crate::config::plan::{self, Content, Plan, SocketAddress};
use crate::limits::{Limits, Zones};
use crate::message::target::Target;
use crate::message::{ClientAddr, ClientConnection, RemoteAddr, RequestRecord};
use crate::route::{Hosts, RouteTable};

/// What a request is judged by: the servers and locations of a plan, and its zones.
#[derive(Debug)]
pub(super) struct ReplayRouter {
    plan: Arc<Plan>,
    table: RouteTable<Arc<ReplayLocation>>,
    /// All servers by name, for a log that does not say on which port they were asked.
    hosts: Hosts,
    exchange: RequestRecord,
    needs: RequestShape,
    given_host: Option<Box<[u8]>>,
    /// The host and port of the last request, and the server they lead to.
    last: (Vec<u8>, usize),
}

/// What stands in an entry's texts.
#[derive(Debug)]
struct RequestShape {
    host: bool,
    port: bool,
    fields: Vec<http::HeaderName>,
}

/// A location, or what holds where there is none.
#[derive(Debug)]
pub(super) struct ReplayLocation {
    pub(super) limits: Limits,
    /// The zones of its `limit_req` and of its `limit_conn`, by the plan's indices.
    pub(super) req: Box<[usize]>,
    pub(super) conn: Box<[usize]>,
    forwards: bool,
}

/// What becomes of a request before its limits are asked.
#[derive(Debug)]
pub(super) enum Routed<'a> {
    /// It is answered before that: with a redirect, or because of its method.
    Early,
    /// To these limits.
    Limits(&'a Arc<ReplayLocation>, &'a mut RequestRecord),
    /// It is not one: answered with 400.
    Malformed,
}

impl ReplayRouter {
    pub(super) fn new(
        plan: Arc<Plan>,
        zones: &Zones,
        needs: &FieldPlan,
        host: Option<&str>,
    ) -> Self {
        let table = RouteTable::build(&plan, |site| Arc::new(ReplayLocation::build(site, zones)));
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
        let peer = Arc::new(ClientConnection::new(remote, None, 0, Millis(0)));
        let mut exchange = RequestRecord::begin(
            Arc::clone(&plan),
            0,
            peer,
            head,
            Target::default(),
            Millis(0),
        );
        // Not every log names the host, and this version can do without.
        exchange.head.version = Version::HTTP_10;
        Self {
            hosts: Hosts::build(names, default),
            plan,
            table,
            exchange,
            needs: RequestShape {
                host: needs.host.is_some(),
                port: needs.port.is_some(),
                fields: needs
                    .fields
                    .iter()
                    .map(|(field, _)| field.clone())
                    .collect(),
            },
            given_host: host.map(|host| host.as_bytes().into()),
            last: (Vec::new(), default),
        }
    }

    /// The way of a request that came at `now` on the limits' clock.
    pub(super) fn way(&mut self, entry: &LogEntry, texts: &[u8], now: Millis) -> Routed<'_> {
        if self.fill(entry, texts, now).is_none() {
            return Routed::Malformed;
        }
        let exchange = &mut self.exchange;
        if matches!(exchange.head.method, Method::CONNECT | Method::TRACE) {
            return Routed::Early;
        }
        let path = exchange.target.path(&exchange.head);
        let slash = self.table.redirects_to_slash(exchange.server, path);
        if slash.is_some_and(|spot| spot.forwards) {
            return Routed::Early;
        }
        let spot = self.table.find(exchange.server, path);
        Routed::Limits(spot, exchange)
    }

    fn fill(&mut self, entry: &LogEntry, texts: &[u8], now: Millis) -> Option<()> {
        let mut texts = line::texts(texts);
        let (method, target) = (texts.next()?, texts.next()?);
        let head = &mut self.exchange.head;
        head.method = match method {
            b"GET" | b"" => Method::GET,
            method => Method::from_bytes(method).ok()?,
        };
        head.uri = uri(target)?;
        let host = if self.needs.host { texts.next()? } else { b"" };
        let port = if self.needs.port { texts.next()? } else { b"" };
        let host = self.given_host.as_deref().unwrap_or(host);
        // Unset while it is not sure that they are good.
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
        for (field, value) in self.needs.fields.iter().zip(texts) {
            if value.is_empty() {
                head.headers.remove(field);
            } else {
                head.headers.insert(field, safe_value(value));
            }
        }
        self.exchange.target = Target::parse(&self.exchange.head).ok()?;
        if new {
            self.last.1 = self.server(port);
        }
        self.last.0 = last;
        self.exchange.server = self.last.1;
        let remote = match entry.client {
            Some(address) => RemoteAddr::Ip(SocketAddr::new(address, 0)),
            None => RemoteAddr::Unix,
        };
        self.exchange.set_client(ClientAddr::new(remote));
        self.exchange.started = now;
        self.exchange.limit_req = None;
        self.exchange.limit_conn = None;
        Some(())
    }

    /// The server for the host that was filled in.
    fn server(&self, port: &[u8]) -> usize {
        let host = self.exchange.target.host(&self.exchange.head);
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

impl ReplayLocation {
    fn build(site: &plan::LocationConf, zones: &Zones) -> Self {
        Self {
            limits: Limits::compile(site, zones),
            req: site.limit_req.iter().map(|rule| rule.zone).collect(),
            conn: site.limit_conn.iter().map(|rule| rule.zone).collect(),
            forwards: matches!(site.action, Content::Forward(_)),
        }
    }
}

/// A target as the head of a request has it.
fn uri(target: &[u8]) -> Option<Uri> {
    if target.first() == Some(&b'/') {
        // The ordinary form; what `Uri` would try first is spared.
        return PathAndQuery::try_from(target).ok().map(Uri::from);
    }
    Uri::try_from(target).ok()
}

/// A value that a header field can hold; what it cannot is replaced.
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
