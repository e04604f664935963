//! What HTTP allows to be kept, and for how long: RFC 9111 as far as it concerns somebody who only looks at what was
//! kept when there is nothing better.

use std::time::Duration;

use http::header::{AGE, CACHE_CONTROL, CONTENT_RANGE, DATE, EXPIRES, SET_COOKIE, VARY};
use http::{HeaderMap, HeaderName, Method, StatusCode, request, response};
use jiff::fmt::rfc2822::DateTimeParser;

/// How an answer may be used once it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Freshness {
    /// How old it is already.
    pub(super) age: Duration,
    /// How long it is fresh from now on, where it says.
    pub(super) fresh: Option<Duration>,
    /// How long it may be used from now on, where it says less than for ever.
    pub(super) most: Option<Duration>,
    /// What of the request it depends on.
    pub(super) vary: Vec<HeaderName>,
}

/// Whom a kept answer may be given to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheScope {
    /// Everybody, as of a shared cache.
    Everybody,
    /// The client it was made for, as of a private cache.
    One,
}

/// Whether the answer to a request may be kept at all.
pub(super) fn may_keep(request: &request::Parts) -> bool {
    request.method == Method::GET && !CacheControl::of(&request.headers).no_store
}

/// Whether what was kept may answer a request.
pub(super) fn may_use(request: &request::Parts) -> bool {
    matches!(request.method, Method::GET | Method::HEAD)
}

/// On what terms an answer may be kept for an audience; `None` if it may not. `now` is the time of day, since the Unix epoch.
pub(super) fn terms(
    answer: &response::Parts,
    audience: CacheScope,
    now: impl FnOnce() -> Duration,
) -> Option<Freshness> {
    if !GOOD.contains(&answer.status) {
        return None;
    }
    let headers = &answer.headers;
    let says = CacheControl::of(headers);
    let shared = audience == CacheScope::Everybody;
    if says.no_store || says.no_cache || (says.private && shared) {
        return None;
    }
    if headers.contains_key(SET_COOKIE) || headers.contains_key(CONTENT_RANGE) {
        return None;
    }
    let s_maxage = says.s_maxage.filter(|_| shared);
    let lifetime = s_maxage.or(says.max_age).map(Duration::from_secs);
    let lifetime = lifetime.or_else(|| expires(headers, now));
    // RFC 9111 would also allow what says nothing to be kept. Backends that say nothing often do not know that somebody
    // keeps their answers, and `max-age=0` is what those write who do not want it.
    let allowed = says.public
        || says.private
        || says.stale_if_error.is_some_and(|time| time > 0)
        || lifetime.is_some_and(|time| !time.is_zero());
    if !allowed {
        return None;
    }
    let age = headers
        .get(AGE)
        .and_then(|age| age.to_str().ok()?.trim().parse().ok());
    let age = Duration::from_secs(age.unwrap_or(0));
    let fresh = lifetime.map(|time| time.saturating_sub(age));
    let most = if says.must_revalidate || (says.proxy_revalidate && shared) || s_maxage.is_some() {
        Some(fresh.unwrap_or_default())
    } else {
        let stale = says.stale_if_error.map(Duration::from_secs);
        stale.map(|stale| fresh.unwrap_or_default().saturating_add(stale))
    };
    // What may never be given is not worth its room.
    if most.is_some_and(|most| most.is_zero()) {
        return None;
    }
    Some(Freshness {
        age,
        fresh,
        most,
        vary: vary(headers)?,
    })
}

/// How long `Expires` says an answer is fresh: not at all where it cannot be understood, or is there twice.
fn expires(headers: &HeaderMap, now: impl FnOnce() -> Duration) -> Option<Duration> {
    let seconds = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        let value = values.next().filter(|_| values.next().is_none())?;
        let text = value.to_str().ok()?;
        let time = DateTimeParser::new().parse_timestamp(text).ok()?;
        u64::try_from(time.as_second()).ok()
    };
    headers.get(EXPIRES)?;
    let Some(until) = seconds(&EXPIRES) else {
        return Some(Duration::ZERO);
    };
    let since = seconds(&DATE).unwrap_or_else(|| now().as_secs());
    Some(Duration::from_secs(until.saturating_sub(since)))
}

/// The fields an answer depends on; `None` if nobody can say.
fn vary(headers: &HeaderMap) -> Option<Vec<HeaderName>> {
    let mut names = Vec::new();
    for value in headers.get_all(VARY) {
        for name in value.to_str().ok()?.split(',') {
            match name.trim() {
                "" => {}
                name => names.push(
                    HeaderName::from_bytes(name.as_bytes())
                        .ok()
                        .filter(|_| name != "*")?,
                ),
            }
        }
    }
    names.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    names.dedup();
    Some(names)
}

/// `Cache-Control`
#[derive(Debug, Default)]
struct CacheControl {
    max_age: Option<u64>,
    must_revalidate: bool,
    no_cache: bool,
    no_store: bool,
    private: bool,
    proxy_revalidate: bool,
    public: bool,
    s_maxage: Option<u64>,
    stale_if_error: Option<u64>,
}

impl CacheControl {
    fn of(headers: &HeaderMap) -> Self {
        let mut found = Self::default();
        for value in headers.get_all(CACHE_CONTROL) {
            let Ok(text) = value.to_str() else {
                // Whatever it says, it wanted to say something.
                found.no_store = true;
                continue;
            };
            for directive in ListElements(text) {
                let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
                // Of two values the shorter holds; what is no number is nothing.
                let least = |known: Option<u64>| {
                    let seconds = value.trim().trim_matches('"').parse().unwrap_or(0);
                    Some(known.map_or(seconds, |known| known.min(seconds)))
                };
                match name.trim().to_ascii_lowercase().as_str() {
                    "max-age" => found.max_age = least(found.max_age),
                    "must-revalidate" => found.must_revalidate = true,
                    "no-cache" => found.no_cache = true,
                    "no-store" => found.no_store = true,
                    "private" => found.private = true,
                    "proxy-revalidate" => found.proxy_revalidate = true,
                    "public" => found.public = true,
                    "s-maxage" => found.s_maxage = least(found.s_maxage),
                    "stale-if-error" => found.stale_if_error = least(found.stale_if_error),
                    _ => {}
                }
            }
        }
        found
    }
}

/// The elements of a list. A comma inside quotes ends none: `ext="a, public"` does not say `public`.
struct ListElements<'t>(&'t str);

impl<'t> Iterator for ListElements<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        if self.0.is_empty() {
            return None;
        }
        let (mut quoted, mut escaped) = (false, false);
        let end = self.0.bytes().position(|byte| {
            let ends = byte == b',' && !quoted;
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = quoted,
                b'"' => quoted = !quoted,
                _ => {}
            }
            ends
        });
        let (element, rest) = match end {
            Some(end) => (self.0.get(..end)?, self.0.get(end + 1..)?),
            None => (self.0, ""),
        };
        self.0 = rest;
        Some(element)
    }
}

/// Answers worth having again: what was asked for, or where it has gone for good.
const GOOD: [StatusCode; 4] = [
    StatusCode::OK,
    StatusCode::NON_AUTHORITATIVE_INFORMATION,
    StatusCode::MOVED_PERMANENTLY,
    StatusCode::PERMANENT_REDIRECT,
];

#[cfg(test)]
mod tests;
