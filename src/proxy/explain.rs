//! What would happen to a request, without sending it.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{Method, Request};

use super::content::Content;
use super::generation::Generation;
use super::location::Location;
use crate::clock::Millis;
use crate::config::plan::{DegradeMode, ServerName};
use crate::limits::RuleExplanation;
use crate::message::{ClientConnection, Error, RemoteAddr, RequestRecord, Target};
use crate::upstream::breaker::BreakerState;

/// Where a request would be sent, and what limits would do with it.
#[derive(Debug)]
pub struct Explanation {
    /// The server's first name, or nothing.
    pub server: Box<str>,
    /// Where it would have come in.
    pub listen: String,
    /// The location as it is written, or nothing where none matches.
    pub location: Box<str>,
    /// The client it would be counted for.
    pub client: String,
    /// Where the response would come from.
    pub action: String,
    /// What each limit would decide.
    pub rules: Vec<RuleExplanation>,
    /// What else would keep it from its upstream.
    pub obstacles: Vec<String>,
}

impl Generation {
    /// What would happen to this request from there; `listener` is the plan's, or the first that knows its host.
    ///
    /// # Errors
    /// It is no request that could be understood.
    pub fn explain(
        &self,
        request: Request<()>,
        remote: SocketAddr,
        listener: Option<usize>,
        now: Millis,
    ) -> Result<Explanation, Error> {
        let (head, ()) = request.into_parts();
        let target = Target::parse(&head)?;
        let listener = listener.unwrap_or_else(|| self.listener_of_host(target.host(&head)));
        let server = self.routes.server(listener, target.host(&head));
        let client = Arc::new(ClientConnection::new(RemoteAddr::Ip(remote), None, 0, now));
        let mut record =
            RequestRecord::begin(Arc::clone(&self.plan), server, client, head, target, now);
        let location = self.locate(&mut record);
        let slash = self.lacks_slash(&record);
        Ok(Explanation {
            server: record.server().name.clone(),
            listen: self.plan.listeners[listener].address.to_string(),
            location: self.location_path(server, location).into(),
            client: record.client().text().to_owned(),
            action: match &location.content {
                _ if slash => "redirect to the same path with a slash at its end".to_owned(),
                Content::NotFound => "nothing is configured here".to_owned(),
                Content::ProxyPass(pass) => format!("forward to {}", pass.upstream.name()),
                Content::Return(fixed) => format!("return {}", fixed.status),
            },
            // A request that is redirected to another path is not limited.
            rules: match &location.filters.limits {
                Some(limits) if !slash => limits.explain(&record, now),
                _ => Vec::new(),
            },
            obstacles: obstacles(location, &record, now),
        })
    }

    /// The first listener with a server of this name, else the first.
    fn listener_of_host(&self, host: &[u8]) -> usize {
        let listeners = self.plan.listeners.iter().enumerate();
        let mut known = listeners.filter(|(index, listener)| {
            let server = self.routes.server(*index, host);
            let mut names = self.plan.servers[server].names.iter();
            // The default server may have this name, too.
            server != listener.default_server
                || names.any(|name| matches!(name, ServerName::Exact(it) if it.as_bytes() == host))
        });
        known.next().map_or(0, |(index, _)| index)
    }

    /// A location as it is written.
    fn location_path(&self, server: usize, location: &Location) -> &str {
        // Locations are numbered in the order of the plan: those of a server, then the one for the rest.
        let before = self.plan.servers[..server].iter();
        let before: usize = before.map(|server| server.locations.len() + 1).sum();
        let own = location.number.checked_sub(before);
        let locations = &self.plan.servers[server].locations;
        let location = own.and_then(|own| locations.get(own));
        location.map_or("", |location| &location.path.text)
    }
}

fn obstacles(location: &Location, record: &RequestRecord, now: Millis) -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |what: &str| found.push(what.to_owned());
    if matches!(record.head.method, Method::CONNECT | Method::TRACE) {
        add("its method is not allowed");
    }
    if location.filters.degrade_mode() == DegradeMode::On {
        add("its location is degraded: no server is asked");
    }
    if !location.filters.admits(record.client()) {
        add("access is forbidden to this address");
    }
    let breaker = location.breaker.as_ref();
    if breaker.is_some_and(|it| it.breaker.state() == BreakerState::Open) {
        add("the circuit breaker of its location is open");
    }
    if let Content::ProxyPass(pass) = &location.content {
        let upstream = &pass.upstream;
        let backends = upstream.backends();
        if upstream.unavailable(now).is_some() || !backends.iter().any(|it| it.is_available()) {
            add("no server of its upstream is available");
        }
    }
    found
}
