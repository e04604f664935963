//! The last good answers, in bounded memory, for when there are no new ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AGE, CONNECTION, CONTENT_LENGTH};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, request, response};

use crate::cache::{Freshness, LruCache, Reservation};
use crate::clock::Millis;
use crate::message::ResponseBody;
use crate::upstream::{BodyObserver, UpstreamBody};

/// Where good answers are kept.
#[derive(Debug)]
pub struct StaleCache(Arc<LruCache<CacheEntry>>);

#[derive(Debug)]
enum CacheEntry {
    Answer(Box<CachedResponse>),
    /// There are several; which one depends on these fields of the request.
    Varies(Vec<HeaderName>),
}

#[derive(Debug)]
struct CachedResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    terms: Freshness,
    since: Millis,
}

/// Keeps one answer when all of it has come.
#[derive(Debug)]
pub(super) struct CacheWriter {
    kept: Arc<LruCache<CacheEntry>>,
    key: Vec<u8>,
    good: CachedResponse,
}

/// An answer that is being received, to be kept when all of it has come.
#[derive(Debug)]
pub(super) struct CacheRecording {
    keeper: CacheWriter,
    read: Vec<u8>,
    reservation: Reservation<CacheEntry>,
}

impl StaleCache {
    /// Within so many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(LruCache::new(bytes)))
    }

    /// The same answers within so many bytes.
    #[must_use]
    pub fn heir(self: &Arc<Self>, bytes: usize) -> Arc<Self> {
        match self.0.bound() == bytes {
            true => Arc::clone(self),
            false => Arc::new(Self(Arc::new(self.0.heir(bytes)))),
        }
    }

    /// How many answers are kept, and how many bytes they take with those that are being received.
    #[must_use]
    pub fn usage(&self) -> (usize, usize) {
        self.0.usage()
    }

    /// Whether an answer's length, where it tells it, is no reason not to keep it.
    pub(super) fn has_room_for(&self, head: &response::Parts) -> bool {
        let announced = head.headers.get(CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
        announced.is_none_or(|length: usize| length <= self.0.largest())
    }

    /// What to keep an answer with under a key, on these terms.
    pub(super) fn keeper(
        &self,
        mut key: Vec<u8>,
        request: &request::Parts,
        head: &response::Parts,
        terms: Freshness,
        now: Millis,
    ) -> CacheWriter {
        if !terms.vary.is_empty() {
            let bytes = names_size(&terms.vary);
            self.0
                .put(&key, CacheEntry::Varies(terms.vary.clone()), bytes);
            add_vary_values(&mut key, &terms.vary, request);
        }
        CacheWriter {
            kept: Arc::clone(&self.0),
            key,
            good: CachedResponse {
                status: head.status,
                headers: own(&head.headers),
                body: Bytes::new(),
                terms,
                since: now,
            },
        }
    }

    /// Forgets the answers under a key.
    pub(super) fn forget(&self, key: &[u8]) {
        self.0.remove(key);
    }

    /// The last good answer to this request under a key, if it is no older than `most`.
    pub(super) fn answer(
        &self,
        mut key: Vec<u8>,
        request: &request::Parts,
        most: Duration,
        now: Millis,
    ) -> Option<Response<ResponseBody<UpstreamBody>>> {
        let mut entry = self.0.get(&key)?;
        if let CacheEntry::Varies(names) = &*entry {
            add_vary_values(&mut key, names, request);
            entry = self.0.get(&key)?;
        }
        let CacheEntry::Answer(good) = &*entry else {
            return None;
        };
        let held = now.since(good.since);
        if held > most || good.terms.most.is_some_and(|most| held > most) {
            return None;
        }
        Some(good.response(held, &request.method))
    }
}

impl CachedResponse {
    /// The memory it takes.
    fn size(&self) -> usize {
        let fields = self.headers.iter();
        let fields: usize = fields
            .map(|(name, value)| FIELD + name.as_str().len() + value.len())
            .sum();
        size_of::<Self>() + self.body.len() + fields + names_size(&self.terms.vary)
    }

    fn response(&self, held: Duration, method: &Method) -> Response<ResponseBody<UpstreamBody>> {
        let body = match *method == Method::HEAD {
            true => Bytes::new(),
            false => self.body.clone(),
        };
        let mut response = Response::new(ResponseBody::whole(body));
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

impl CacheWriter {
    /// All of the body is there.
    pub(super) fn keep(mut self, body: &[u8]) {
        self.good.body = Bytes::copy_from_slice(body);
        let bytes = self.good.size();
        let entry = CacheEntry::Answer(Box::new(self.good));
        self.kept.put(&self.key, entry, bytes);
    }

    /// The body is still to come; `None` if there is no room to record it.
    pub(super) fn record(self) -> Option<CacheRecording> {
        let mut reservation = self.kept.reserve();
        if !reservation.grow(self.good.size() + self.key.len()) {
            SKIPPED.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(CacheRecording {
            keeper: self,
            read: Vec::new(),
            reservation,
        })
    }
}

impl CacheRecording {
    /// Makes room for so many bytes of the body in all; false if there is none.
    fn make_room(&mut self, wanted: usize) -> bool {
        let capacity = self.read.capacity();
        if wanted <= capacity {
            return true;
        }
        // Doubled, so that a long body is not moved with every piece; what is doubled is reserved, too.
        let doubled = capacity.saturating_mul(2).min(self.keeper.kept.largest());
        let fits = [doubled.max(wanted), wanted]
            .into_iter()
            .find(|size| self.reservation.grow(size - capacity));
        match fits {
            Some(size) => self.read.reserve_exact(size - self.read.len()),
            None => {
                SKIPPED.fetch_add(1, Ordering::Relaxed);
            }
        }
        fits.is_some()
    }
}

impl BodyObserver for CacheRecording {
    fn piece(&mut self, data: &[u8]) -> bool {
        let wanted = self.read.len() + data.len();
        if wanted > self.keeper.kept.largest() || !self.make_room(wanted) {
            return false;
        }
        self.read.extend_from_slice(data);
        true
    }

    fn complete(self: Box<Self>) {
        let Self {
            keeper: CacheWriter { key, mut good, .. },
            mut read,
            reservation,
        } = *self;
        read.shrink_to_fit();
        good.body = read.into();
        let bytes = good.size();
        reservation.fill(&key, CacheEntry::Answer(Box::new(good)), bytes);
    }
}

/// Adds what an answer depends on.
fn add_vary_values(key: &mut Vec<u8>, names: &[HeaderName], request: &request::Parts) {
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

/// The memory that these names take.
fn names_size(names: &[HeaderName]) -> usize {
    let names = names.iter().map(|name| name.as_str().len());
    names.map(|length| size_of::<HeaderName>() + length).sum()
}

/// How many answers were not kept because there was no room for them while they were received.
pub fn skipped() -> u64 {
    SKIPPED.load(Ordering::Relaxed)
}

static SKIPPED: AtomicU64 = AtomicU64::new(0);

/// What a header field takes besides its name and its value: its places in a map that is never full, and allocations.
const FIELD: usize = 200;

/// RFC 9211.
const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

#[cfg(test)]
mod tests {

    use super::*;

    /// A backend may say any number of seconds.
    #[test]
    fn an_answer_may_be_of_any_age() {
        let good = CachedResponse {
            status: StatusCode::OK,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            terms: Freshness {
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
