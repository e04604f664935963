//! What would happen to a request, without it happening.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{Method, Request};

use super::generation::Generation;
use super::location::Location;
use crate::clock::Millis;
use crate::config::plan::{Content, DegradeMode, ServerName};
use crate::limits::RuleExplanation;
use crate::message::{ClientConnection, Error, RemoteAddr, RequestRecord, Target};
use crate::upstream::breaker::BreakerState;

/// Where a request would be led, and what would be said there.
#[derive(Debug)]
pub struct Explanation {
    /// The server's first name, or nothing.
    pub server: Box<str>,
    /// Where it would have come in.
    pub listen: String,
    /// The location as it is written, or nothing where none matches.
    pub location: Box<str>,
    /// Who would be taken to ask.
    pub client: String,
    /// Where the answer would come from.
    pub action: String,
    /// What each limit would say.
    pub rules: Vec<RuleExplanation>,
    /// What else would keep it from its backend.
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
        let listener = listener.unwrap_or_else(|| self.known_at(target.host(&head)));
        let server = self.sites.server(listener, target.host(&head));
        let peer = Arc::new(ClientConnection::new(RemoteAddr::Ip(remote), None, 0, now));
        let mut exchange =
            RequestRecord::begin(Arc::clone(&self.plan), server, peer, head, target, now);
        if let Some(rule) = &self.plan.servers[server].real_ip {
            exchange.identify(rule);
        }
        let path = exchange.target.path(&exchange.head);
        let site = self.sites.find(server, path);
        if let Some(rule) = &site.plan.real_ip {
            exchange.identify(rule);
        }
        let slash = self.adds_slash(&exchange);
        Ok(Explanation {
            server: exchange.server().name.clone(),
            listen: self.plan.listeners[listener].address.to_string(),
            location: self.location(server, site).into(),
            client: exchange.client().text().to_owned(),
            action: match &site.plan.action {
                _ if slash => "redirect to the same path with a slash at its end".to_owned(),
                Content::Forward(_) => match &site.upstream {
                    Some(upstream) => format!("forward to {}", upstream.name()),
                    None => "nothing is configured here".to_owned(),
                },
                Content::NotFound => "nothing is configured here".to_owned(),
                Content::Return(answer) => format!("return {}", answer.status),
            },
            // Whoever is only sent to another path is not limited.
            rules: match slash {
                true => Vec::new(),
                false => site.limits.explain(&exchange, now),
            },
            obstacles: obstacles(site, &exchange, now),
        })
    }

    /// The first listener with a server of this name, else the first.
    fn known_at(&self, host: &[u8]) -> usize {
        let listeners = self.plan.listeners.iter().enumerate();
        let mut known = listeners.filter(|(index, listener)| {
            let server = self.sites.server(*index, host);
            let mut names = self.plan.servers[server].names.iter();
            // Who is there for those whom nobody knows may know this one, too.
            server != listener.default_server
                || names.any(|name| matches!(name, ServerName::Exact(it) if it.as_bytes() == host))
        });
        known.next().map_or(0, |(index, _)| index)
    }

    /// A site's location as it is written.
    fn location(&self, server: usize, site: &Location) -> &str {
        // Sites are numbered in the order of the plan: those of a server, then the one for the rest.
        let before = self.plan.servers[..server].iter();
        let before: usize = before.map(|server| server.locations.len() + 1).sum();
        let own = site.number.checked_sub(before);
        let locations = &self.plan.servers[server].locations;
        let location = own.and_then(|own| locations.get(own));
        location.map_or("", |location| &location.path.text)
    }
}

fn obstacles(site: &Location, exchange: &RequestRecord, now: Millis) -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |what: &str| found.push(what.to_owned());
    if matches!(exchange.head.method, Method::CONNECT | Method::TRACE) {
        add("its method is not allowed");
    }
    if site.mode() == DegradeMode::On {
        add("its location is degraded: nobody is asked");
    }
    if !site.admits(exchange.client()) {
        add("access is forbidden to this address");
    }
    let guard = site.guard.as_ref();
    if guard.is_some_and(|guard| guard.breaker.state() == BreakerState::Open) {
        add("the circuit breaker of its location is open");
    }
    if let Some(upstream) = &site.upstream {
        let backends = upstream.backends();
        if upstream.unavailable(now).is_some() || !backends.iter().any(|it| it.may_be_asked()) {
            add("no server of its upstream is available");
        }
    }
    found
}
