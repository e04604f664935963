//! Which responses may be cached, for which clients and for how long.

use http::{Request, Response};

use super::*;

/// A time of day in 1994.
const NOW: Duration = Duration::from_secs(784_111_777);

fn request(fields: &[(&str, &str)]) -> request::Parts {
    let mut request = Request::get("/");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn cached(scope: CacheScope, status: u16, fields: &[(&str, &str)]) -> Option<Freshness> {
    let mut response = Response::builder().status(status);
    for (name, value) in fields {
        response = response.header(*name, *value);
    }
    let (response, ()) = response.body(()).unwrap().into_parts();
    freshness(&response, scope, || NOW)
}

fn shared(fields: &[(&str, &str)]) -> Option<Freshness> {
    cached(CacheScope::Shared, 200, fields)
}

fn with_control(cache_control: &str) -> Option<Freshness> {
    shared(&[("cache-control", cache_control)])
}

#[test]
fn a_shared_cache_stores_no_forbidden_response() {
    for status in [201, 204, 206, 302, 304, 404, 500] {
        let fields = [("cache-control", "public, max-age=60")];
        assert_eq!(cached(CacheScope::Shared, status, &fields), None);
    }
    for directives in [
        "max-age=5, No-Store",
        "public, private",
        "public, private=\"x-name\"",
        "public, no-cache",
        "max-age=60, no-cache=\"set-cookie, x-name\"",
        "max-age=0",
        "max-age=-1",
        "max-age=many",
        "max-age=60, max-age=0",
        "s-maxage=0, max-age=60",
        "must-revalidate",
        "public, must-revalidate",
        "immutable",
        "ext=\"a, public\"",
        "ext=\"a\\\", public, \\\"b\"",
        "",
    ] {
        assert_eq!(with_control(directives), None, "{directives}");
    }
    let public = ("cache-control", "public, max-age=60");
    for field in [
        ("cache-control", "private"),
        ("set-cookie", "a=b"),
        ("vary", "accept, *"),
        ("content-range", "bytes 0-1/2"),
    ] {
        assert_eq!(shared(&[public, field]), None, "{field:?}");
    }
    assert_eq!(shared(&[]), None, "nothing allows it");
    assert_eq!(shared(&[("etag", "\"a\"")]), None);
    assert!(!may_store(&request(&[("cache-control", "no-store")])));
}

#[test]
fn explicit_freshness_or_public_is_required_and_enough() {
    for directives in [
        "public",
        "PUBLIC",
        "max-age=1",
        "max-age=\"1\"",
        "s-maxage=1",
        "stale-if-error=60",
        "max-age=0, stale-if-error=60",
        "ext=\"a,b\", max-age=60",
    ] {
        assert!(with_control(directives).is_some(), "{directives}");
    }
}

#[test]
fn expires_is_explicit_freshness() {
    let fresh = |fields: &[_]| shared(fields).map(|it| it.fresh.unwrap().as_secs());
    let until = ("expires", "Sun, 06 Nov 1994 08:50:37 GMT");
    assert_eq!(fresh(&[until]), Some(60), "from now on");
    let date = ("date", "Sun, 06 Nov 1994 08:50:07 GMT");
    assert_eq!(fresh(&[until, date]), Some(30), "by the backend's clock");
    assert_eq!(fresh(&[until, date, ("age", "10")]), Some(20));
    for value in ["0", "-1", "Sun, 06 Nov 1994 08:48:37 GMT", "tomorrow"] {
        assert_eq!(fresh(&[("expires", value)]), None, "{value}");
    }
    assert_eq!(fresh(&[until, until]), None);
    assert_eq!(fresh(&[until, ("cache-control", "max-age=5")]), Some(5));
}

#[test]
fn a_private_response_may_be_cached_for_its_client() {
    let private = |directives| {
        let fields = [("cache-control", directives)];
        cached(CacheScope::Private, 200, &fields)
    };
    assert!(private("private").is_some());
    assert_eq!(
        private("private, max-age=60, s-maxage=5").unwrap().fresh,
        Some(Duration::from_secs(60)),
        "s-maxage is not for private caches"
    );
    for directives in ["private, no-store", "private, no-cache", "immutable"] {
        assert_eq!(private(directives), None, "{directives}");
    }
    let cookie = [("cache-control", "private"), ("set-cookie", "a=b")];
    assert_eq!(cached(CacheScope::Private, 200, &cookie), None);
}

#[test]
fn the_backend_limits_how_long_a_response_is_usable() {
    let usable = |directives: &str| {
        with_control(directives)
            .unwrap()
            .usable
            .map(|usable| usable.as_secs())
    };
    assert_eq!(usable("public"), None);
    assert_eq!(usable("max-age=60"), None);
    assert_eq!(usable("s-maxage=60"), Some(60));
    assert_eq!(usable("max-age=60, proxy-revalidate"), Some(60));
    assert_eq!(usable("max-age=60, stale-if-error=30"), Some(90));
    let aged = shared(&[
        ("cache-control", "max-age=60, must-revalidate"),
        ("age", "20"),
    ]);
    assert_eq!(aged.unwrap().usable, Some(Duration::from_secs(40)));
}

#[test]
fn vary_names_the_request_fields() {
    let fresh = shared(&[
        ("cache-control", "public"),
        ("vary", "Accept-Encoding, accept"),
        ("vary", "accept"),
    ]);
    assert_eq!(fresh.unwrap().vary, ["accept", "accept-encoding"]);
}
