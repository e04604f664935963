//! The last good answers, in bounded memory, for when there are no new ones.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AGE, CONNECTION, CONTENT_LENGTH};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, request, response};

use super::rules::{self, Terms};
use crate::clock::{Clock, Millis};
use crate::config::plan::Variable;
use crate::message::{Body, Exchange, vars};
use crate::store::Recent;
use crate::upstream::{Download, Tee};

/// Where good answers are kept.
#[derive(Debug)]
pub struct Kept(Recent<Entry>);

#[derive(Debug)]
enum Entry {
    Answer(Box<Good>),
    /// There are several; which one depends on these fields of the request.
    Varies(Vec<HeaderName>),
}

#[derive(Debug)]
struct Good {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    terms: Terms,
    since: Millis,
}

/// Keeps one answer when all of it has come.
#[derive(Debug)]
pub(in crate::proxy) struct Keeper {
    kept: Arc<Kept>,
    key: Vec<u8>,
    good: Good,
    read: Vec<u8>,
}

impl Kept {
    /// Within so many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(Recent::new(bytes))
    }

    /// The same answers within so many bytes.
    #[must_use]
    pub fn heir(self: &Arc<Self>, bytes: usize) -> Arc<Self> {
        match self.0.bound() == bytes {
            true => Arc::clone(self),
            false => Arc::new(Self(self.0.heir(bytes))),
        }
    }

    /// How many answers are kept, and in how many bytes.
    #[must_use]
    pub fn usage(&self) -> (usize, usize) {
        self.0.usage()
    }

    /// What to keep this answer with, if it may be.
    pub(super) fn keeper(
        self: &Arc<Self>,
        server: &str,
        exchange: &Exchange,
        head: &response::Parts,
        clock: &Clock,
    ) -> Option<Keeper> {
        let request = &exchange.head;
        let announced = head.headers.get(CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
        if !rules::may_keep(request) || announced.unwrap_or(0) > self.0.largest() {
            return None;
        }
        let mut key = key(server, exchange);
        let Some(terms) = rules::terms(request, head) else {
            // What is there by now is of another kind than what was kept.
            if head.status.is_success() {
                self.0.remove(&key);
            }
            return None;
        };
        if !terms.vary.is_empty() {
            let names = terms.vary.clone();
            self.0
                .put(&key, Entry::Varies(names), 64 * terms.vary.len());
            vary(&mut key, &terms.vary, request);
        }
        Some(Keeper {
            kept: Arc::clone(self),
            key,
            good: Good {
                status: head.status,
                headers: own(&head.headers),
                body: Bytes::new(),
                terms,
                since: clock.now(),
            },
            read: Vec::new(),
        })
    }

    /// The last good answer to this request, if it is no older than `most`.
    pub(super) fn answer(
        &self,
        server: &str,
        exchange: &Exchange,
        most: Duration,
        now: Millis,
    ) -> Option<Response<Body<Download>>> {
        let request = &exchange.head;
        if !rules::may_use(request) {
            return None;
        }
        let mut key = key(server, exchange);
        let mut entry = self.0.get(&key)?;
        if let Entry::Varies(names) = &*entry {
            vary(&mut key, names, request);
            entry = self.0.get(&key)?;
        }
        let Entry::Answer(good) = &*entry else {
            return None;
        };
        let held = now.since(good.since);
        if held > most || good.terms.most.is_some_and(|most| held > most) {
            return None;
        }
        Some(good.response(held, &request.method))
    }
}

impl Good {
    fn response(&self, held: Duration, method: &Method) -> Response<Body<Download>> {
        let body = match *method == Method::HEAD {
            true => Bytes::new(),
            false => self.body.clone(),
        };
        let mut response = Response::new(Body::whole(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        *headers = self.headers.clone();
        headers.insert(CONTENT_LENGTH, HeaderValue::from(self.body.len()));
        headers.insert(
            AGE,
            HeaderValue::from(self.terms.age.saturating_add(held).as_secs()),
        );
        let status = match self.terms.fresh {
            Some(fresh) if fresh >= held => format!("weir; hit; ttl={}", (fresh - held).as_secs()),
            Some(fresh) => format!("weir; hit; ttl=-{}", (held - fresh).as_secs()),
            None => "weir; hit".to_owned(),
        };
        if let Ok(status) = HeaderValue::try_from(status) {
            headers.append(CACHE_STATUS, status);
        }
        response
    }
}

impl Keeper {
    /// All of the body is there.
    pub(in crate::proxy) fn keep(mut self, body: &[u8]) {
        self.good.body = Bytes::copy_from_slice(body);
        self.put();
    }

    fn put(self) {
        let fields = self.good.headers.iter();
        let fields: usize = fields
            .map(|(name, value)| 64 + name.as_str().len() + value.len())
            .sum();
        let bytes = self.good.body.len() + fields;
        self.kept
            .0
            .put(&self.key, Entry::Answer(Box::new(self.good)), bytes);
    }
}

impl Tee for Keeper {
    fn piece(&mut self, data: &[u8]) -> bool {
        if self.read.len() + data.len() > self.kept.0.largest() {
            return false;
        }
        self.read.extend_from_slice(data);
        true
    }

    fn complete(mut self: Box<Self>) {
        self.good.body = std::mem::take(&mut self.read).into();
        self.put();
    }
}

/// What an answer is kept under: its virtual server, and the whole of what was asked for.
fn key(server: &str, exchange: &Exchange) -> Vec<u8> {
    let head = &exchange.head;
    let mut key = server.as_bytes().to_vec();
    key.push(0);
    vars::append(&Variable::Scheme, exchange, &mut key);
    key.push(0);
    key.extend_from_slice(exchange.target.host(head));
    key.push(0);
    if let Some(target) = head.uri.path_and_query() {
        key.extend_from_slice(target.as_str().as_bytes());
    }
    key
}

/// Adds what an answer depends on.
fn vary(key: &mut Vec<u8>, names: &[HeaderName], request: &request::Parts) {
    for name in names {
        key.push(0);
        for value in request.headers.get_all(name) {
            key.extend_from_slice(value.as_bytes());
            key.push(1);
        }
    }
}

/// A copy that shares nothing: what was read with an answer would be kept with it.
fn own(headers: &HeaderMap) -> HeaderMap {
    headers
        .iter()
        .filter(|(name, _)| ![AGE, CONNECTION, CONTENT_LENGTH].contains(name))
        .filter_map(|(name, value)| {
            let value = HeaderValue::from_bytes(value.as_bytes()).ok()?;
            Some((name.clone(), value))
        })
        .collect()
}

/// RFC 9211.
const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Tls, testing, tls::Inner};

    /// `http` may lead to `https` by a redirection: kept for the one, it would lead the other in a circle.
    #[test]
    fn what_is_kept_for_one_scheme_is_not_given_to_the_other() {
        let plain = testing::request("GET", "/a?b", &[]);
        let secured = testing::request("GET", "/a?b", &[]);
        secured.peer.secured(Tls {
            protocol: "TLSv1.3",
            cipher: "TLS_AES_128_GCM_SHA256",
            curve: None,
            server_name: None,
            inner: Inner::Http1,
            resumed: false,
            client: None,
        });
        assert_ne!(key("example.com", &plain), key("example.com", &secured));
        assert_eq!(
            key("example.com", &plain),
            key("example.com", &testing::request("GET", "/a?b", &[]))
        );
    }

    /// A backend may say any number of seconds.
    #[test]
    fn an_answer_may_be_of_any_age() {
        let good = Good {
            status: StatusCode::OK,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            terms: Terms {
                age: Duration::from_secs(u64::MAX),
                fresh: None,
                most: None,
                vary: Vec::new(),
            },
            since: Millis(0),
        };
        let response = good.response(Duration::from_secs(5), &Method::GET);
        assert_eq!(response.headers()[AGE], "18446744073709551615");
    }
}
