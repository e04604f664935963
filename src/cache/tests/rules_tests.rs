//! What may be kept, for whom and for how long.

use http::{Request, Response};

use super::*;

/// A time of day in 1994.
const NOW: Duration = Duration::from_secs(784_111_777);

fn asked(fields: &[(&str, &str)]) -> request::Parts {
    let mut request = Request::get("/");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn judged(audience: CacheScope, status: u16, fields: &[(&str, &str)]) -> Option<Freshness> {
    let mut answer = Response::builder().status(status);
    for (name, value) in fields {
        answer = answer.header(*name, *value);
    }
    let (answer, ()) = answer.body(()).unwrap().into_parts();
    spec(&answer, audience, || NOW)
}

fn for_everybody(fields: &[(&str, &str)]) -> Option<Freshness> {
    judged(CacheScope::Everybody, 200, fields)
}

fn says(cache_control: &str) -> Option<Freshness> {
    for_everybody(&[("cache-control", cache_control)])
}

#[test]
fn what_a_shared_cache_may_not_keep_is_not_kept() {
    for status in [201, 204, 206, 302, 304, 404, 500] {
        let fields = [("cache-control", "public, max-age=60")];
        assert_eq!(judged(CacheScope::Everybody, status, &fields), None);
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
        assert_eq!(says(directives), None, "{directives}");
    }
    let public = ("cache-control", "public, max-age=60");
    for field in [
        ("cache-control", "private"),
        ("set-cookie", "a=b"),
        ("vary", "accept, *"),
        ("content-range", "bytes 0-1/2"),
    ] {
        assert_eq!(for_everybody(&[public, field]), None, "{field:?}");
    }
    assert_eq!(for_everybody(&[]), None, "nobody said it may be kept");
    assert_eq!(for_everybody(&[("etag", "\"a\"")]), None);
    assert!(!may_keep(&asked(&[("cache-control", "no-store")])));
}

#[test]
fn explicit_freshness_or_public_is_needed_and_enough() {
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
        assert!(says(directives).is_some(), "{directives}");
    }
}

#[test]
fn expires_is_explicit_freshness() {
    let fresh = |fields: &[_]| for_everybody(fields).map(|spec| spec.fresh.unwrap().as_secs());
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
fn what_is_for_one_client_may_be_kept_for_it() {
    let private = |directives| {
        let fields = [("cache-control", directives)];
        judged(CacheScope::One, 200, &fields)
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
    assert_eq!(judged(CacheScope::One, 200, &cookie), None);
}

#[test]
fn how_long_it_may_be_used_is_the_backends_to_say() {
    let most = |directives: &str| says(directives).unwrap().most.map(|most| most.as_secs());
    assert_eq!(most("public"), None);
    assert_eq!(most("max-age=60"), None);
    assert_eq!(most("s-maxage=60"), Some(60));
    assert_eq!(most("max-age=60, proxy-revalidate"), Some(60));
    assert_eq!(most("max-age=60, stale-if-error=30"), Some(90));
    let aged = for_everybody(&[
        ("cache-control", "max-age=60, must-revalidate"),
        ("age", "20"),
    ]);
    assert_eq!(aged.unwrap().most, Some(Duration::from_secs(40)));
}

#[test]
fn what_it_depends_on_is_known() {
    let spec = for_everybody(&[
        ("cache-control", "public"),
        ("vary", "Accept-Encoding, accept"),
        ("vary", "accept"),
    ]);
    assert_eq!(spec.unwrap().vary, ["accept", "accept-encoding"]);
}
