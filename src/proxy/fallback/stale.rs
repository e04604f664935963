//! A location's `stale`: which of its responses are kept, under which key, and who is given them.

use std::sync::Arc;

use http::header::HOST;
use http::{Response, response};

use super::credentials::{self, CredentialVariables};
use super::kept::{CacheWriter, StaleCache};
use super::rules::{self, CacheScope};
use crate::clock::{Clock, Millis};
use crate::config::plan::{self, Variable};
use crate::message::{RequestRecord, ResponseBody, vars};
use crate::upstream::UpstreamBody;

/// `stale` of a location, ready to use.
#[derive(Debug)]
pub(super) struct StaleRules {
    plan: plan::Stale,
    kept: Arc<StaleCache>,
    /// The virtual server, as its responses are kept under.
    server: Box<str>,
    credentials: CredentialVariables,
    /// Maps that responses may differ by.
    maps: Vec<Variable>,
}

impl StaleRules {
    pub(super) fn new(
        plan: &plan::Stale,
        whole: &plan::Plan,
        site: &plan::LocationConf,
        server: Box<str>,
        kept: &Arc<StaleCache>,
    ) -> Self {
        Self {
            plan: plan.clone(),
            kept: Arc::clone(kept),
            server,
            credentials: CredentialVariables::of(whole, site),
            maps: credentials::maps_told(site),
        }
    }

    /// What to keep this response with, if it may be kept.
    pub(super) fn keeper(
        &self,
        exchange: &RequestRecord,
        head: &response::Parts,
        clock: &Clock,
    ) -> Option<CacheWriter> {
        let request = &exchange.head;
        if !rules::may_keep(request) || !self.kept.has_room_for(head) {
            return None;
        }
        let (key, audience) = self.key(exchange);
        if audience == CacheScope::Everybody && self.credentials.carried_by(exchange) {
            return None;
        }
        let Some(terms) = rules::terms(head, audience, Clock::wall) else {
            // What is there by now is of another kind than what was kept.
            if head.status.is_success() {
                self.kept.forget(&key);
            }
            return None;
        };
        Some(self.kept.keeper(key, request, head, terms, clock.now()))
    }

    /// The last good response to this request.
    pub(super) fn response(
        &self,
        exchange: &RequestRecord,
        now: Millis,
    ) -> Option<Response<ResponseBody<UpstreamBody>>> {
        let request = &exchange.head;
        if !rules::may_use(request) {
            return None;
        }
        let (key, _) = self.key(exchange);
        self.kept.answer(key, request, self.plan.max_age, now)
    }

    /// What the response to a request is kept under, and for whom: the virtual server, all of what is asked for, and
    /// what else tells responses apart here.
    fn key(&self, exchange: &RequestRecord) -> (Vec<u8>, CacheScope) {
        let head = &exchange.head;
        let mut key = self.server.as_bytes().to_vec();
        key.push(0);
        vars::append(&Variable::Scheme, exchange, &mut key);
        key.push(0);
        // With its port: a backend that is told of it may write it into links.
        let authority = match head.uri.authority() {
            Some(authority) => authority.as_str().as_bytes(),
            None => head.headers.get(HOST).map_or(&b""[..], |it| it.as_bytes()),
        };
        key.extend(authority.iter().map(u8::to_ascii_lowercase));
        key.push(0);
        if let Some(target) = head.uri.path_and_query() {
            key.extend_from_slice(target.as_str().as_bytes());
        }
        key.push(0);
        for map in &self.maps {
            push(map, exchange, &mut key);
        }
        let mut known = false;
        for variable in self.plan.key.iter().flat_map(|key| key.variables()) {
            known |= push(variable, exchange, &mut key) && variable.is_secret();
        }
        // Without a secret of its own nothing tells this client from others.
        let audience = match self.plan.private && known {
            true => CacheScope::One,
            false => CacheScope::Everybody,
        };
        key.push(audience as u8);
        (key, audience)
    }
}

/// Appends a variable's value with its length, so that no two lists of values read alike; whether there is one.
fn push(variable: &Variable, exchange: &RequestRecord, key: &mut Vec<u8>) -> bool {
    let start = key.len();
    key.extend_from_slice(&[0; LENGTH]);
    vars::append(variable, exchange, key);
    let length = key.len() - start - LENGTH;
    if let Some(place) = key.get_mut(start..start + LENGTH) {
        place.copy_from_slice(&length.to_be_bytes());
    }
    length > 0
}

const LENGTH: usize = size_of::<usize>();
