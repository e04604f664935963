//! What HTTP allows to be kept, and for how long: RFC 9111 as far as it concerns somebody who only looks at what was
//! kept when there is nothing better.

use std::time::Duration;

use http::header::{AGE, AUTHORIZATION, CACHE_CONTROL, CONTENT_RANGE, COOKIE, SET_COOKIE, VARY};
use http::{HeaderMap, HeaderName, Method, StatusCode, request, response};

/// How an answer may be used once it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Terms {
    /// How old it is already.
    pub(super) age: Duration,
    /// How long it is fresh from now on, where it says.
    pub(super) fresh: Option<Duration>,
    /// How long it may be used from now on, where it says less than for ever.
    pub(super) most: Option<Duration>,
    /// What of the request it depends on.
    pub(super) vary: Vec<HeaderName>,
}

/// Whether the answer to a request may be kept at all.
pub(super) fn may_keep(request: &request::Parts) -> bool {
    request.method == Method::GET && !Directives::of(&request.headers).no_store
}

/// Whether what was kept may answer a request.
pub(super) fn may_use(request: &request::Parts) -> bool {
    matches!(request.method, Method::GET | Method::HEAD)
}

/// On what terms an answer may be kept; `None` if it may not.
pub(super) fn terms(request: &request::Parts, answer: &response::Parts) -> Option<Terms> {
    if !GOOD.contains(&answer.status) {
        return None;
    }
    let headers = &answer.headers;
    let says = Directives::of(headers);
    if says.no_store || says.no_cache || says.private {
        return None;
    }
    if headers.contains_key(SET_COOKIE) || headers.contains_key(CONTENT_RANGE) {
        return None;
    }
    // What was said to one who showed who they are is for others only where the backend says so.
    let known = [AUTHORIZATION, COOKIE]
        .iter()
        .any(|name| request.headers.contains_key(name));
    if known && !(says.public || says.s_maxage.is_some() || says.must_revalidate) {
        return None;
    }
    let age = headers
        .get(AGE)
        .and_then(|age| age.to_str().ok()?.trim().parse().ok());
    let age = Duration::from_secs(age.unwrap_or(0));
    let fresh = says.s_maxage.or(says.max_age);
    let fresh = fresh.map(|fresh| Duration::from_secs(fresh).saturating_sub(age));
    let most = if says.must_revalidate || says.s_maxage.is_some() {
        Some(fresh.unwrap_or_default())
    } else {
        let stale = says.stale_if_error.map(Duration::from_secs);
        stale.map(|stale| fresh.unwrap_or_default().saturating_add(stale))
    };
    Some(Terms {
        age,
        fresh,
        most,
        vary: vary(headers)?,
    })
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
struct Directives {
    max_age: Option<u64>,
    must_revalidate: bool,
    no_cache: bool,
    no_store: bool,
    private: bool,
    public: bool,
    s_maxage: Option<u64>,
    stale_if_error: Option<u64>,
}

impl Directives {
    fn of(headers: &HeaderMap) -> Self {
        let mut found = Self::default();
        for value in headers.get_all(CACHE_CONTROL) {
            let Ok(text) = value.to_str() else {
                // Whatever it says, it wanted to say something.
                found.no_store = true;
                continue;
            };
            for directive in text.split(',') {
                let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
                let seconds = || value.trim().trim_matches('"').parse().unwrap_or(0);
                match name.trim().to_ascii_lowercase().as_str() {
                    "max-age" => found.max_age = Some(seconds()),
                    "must-revalidate" | "proxy-revalidate" => found.must_revalidate = true,
                    "no-cache" => found.no_cache = true,
                    "no-store" => found.no_store = true,
                    "private" => found.private = true,
                    "public" => found.public = true,
                    "s-maxage" => found.s_maxage = Some(seconds()),
                    "stale-if-error" => found.stale_if_error = Some(seconds()),
                    _ => {}
                }
            }
        }
        found
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
mod tests {
    use http::{Request, Response};

    use super::*;

    fn asked(fields: &[(&str, &str)]) -> request::Parts {
        let mut request = Request::get("/");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn judged(request: &[(&str, &str)], status: u16, fields: &[(&str, &str)]) -> Option<Terms> {
        let mut answer = Response::builder().status(status);
        for (name, value) in fields {
            answer = answer.header(*name, *value);
        }
        let (answer, ()) = answer.body(()).unwrap().into_parts();
        terms(&asked(request), &answer)
    }

    #[test]
    fn what_is_for_nobody_else_is_not_kept() {
        for (request, status, answer) in [
            (&[][..], 404, &[][..]),
            (&[], 206, &[]),
            (&[], 500, &[]),
            (&[], 200, &[("cache-control", "max-age=5, No-Store")]),
            (&[], 200, &[("cache-control", "private")]),
            (&[], 200, &[("cache-control", "no-cache")]),
            (
                &[],
                200,
                &[("cache-control", "max-age=5"), ("cache-control", "private")],
            ),
            (&[], 200, &[("set-cookie", "a=b")]),
            (&[], 200, &[("vary", "accept, *")]),
            (&[], 200, &[("content-range", "bytes 0-1/2")]),
            (&[("authorization", "Basic x")], 200, &[]),
            (
                &[("cookie", "session=1")],
                200,
                &[("cache-control", "max-age=60")],
            ),
        ] {
            assert_eq!(
                judged(request, status, answer),
                None,
                "{request:?} {answer:?}"
            );
        }
        assert!(!may_keep(&asked(&[("cache-control", "no-store")])));
    }

    #[test]
    fn what_is_for_everybody_is() {
        for (request, answer) in [
            (&[][..], &[][..]),
            (&[("cookie", "theme=dark")], &[("cache-control", "public")]),
            (
                &[("authorization", "Basic x")],
                &[("cache-control", "s-maxage=5")],
            ),
        ] {
            assert!(
                judged(request, 200, answer).is_some(),
                "{request:?} {answer:?}"
            );
        }
    }

    #[test]
    fn how_long_it_may_be_used_is_the_backends_to_say() {
        let seconds = Duration::from_secs;
        let most = |fields: &[(&str, &str)]| judged(&[], 200, fields).unwrap().most;
        assert_eq!(most(&[]), None);
        assert_eq!(most(&[("cache-control", "max-age=60")]), None);
        assert_eq!(
            most(&[
                ("cache-control", "max-age=60, must-revalidate"),
                ("age", "20")
            ]),
            Some(seconds(40))
        );
        assert_eq!(most(&[("cache-control", "s-maxage=60")]), Some(seconds(60)));
        assert_eq!(
            most(&[("cache-control", "must-revalidate")]),
            Some(seconds(0))
        );
        assert_eq!(
            most(&[("cache-control", "max-age=60, stale-if-error=30")]),
            Some(seconds(90))
        );
    }

    #[test]
    fn what_it_depends_on_is_known() {
        let terms = judged(
            &[],
            200,
            &[("vary", "Accept-Encoding, accept"), ("vary", "accept")],
        )
        .unwrap();
        assert_eq!(terms.vary, ["accept", "accept-encoding"]);
    }
}
