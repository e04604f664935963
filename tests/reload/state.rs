//! The state of backends and shadow limits that a reload keeps.

use crate::support::{Origin, Weir, eventually, get, metric};

/// A location whose breaker opens after four failures, for longer than a test takes.
const BREAKER: &str = "breaker: { min_calls: 4, open_for: 100s, max_open_for: 100s }";

fn guarded(origin: &Origin, upstream: &str, location: &str, also: &str) -> String {
    format!(
        "admin: {{ listen: ADMIN }}
{also}upstreams: {{ app: {{ keepalive: 0, {upstream}servers: [ {{ address: '{}', max_fails: 0 }} ] }} }}
servers:
- listen: LISTEN
  server_name: front
  locations:
  - {{ path: /, proxy_pass: app{location} }}
",
        origin.address()
    )
}

/// Makes the backend fail until a breaker is open, and well again.
fn open(weir: &Weir, origin: &Origin) {
    origin.behave("/status?code=500");
    eventually("a breaker is open", || {
        get(weir.address(), "/ok").status == 503
    });
    origin.recover();
    assert_eq!(get(weir.address(), "/ok").status, 503, "open");
}

#[test]
fn an_open_breaker_stays_open_where_its_rules_are_the_same() {
    for of_the_server in [true, false] {
        let origin = Origin::start();
        let yaml = |rules: &str, read_timeout: &str, also: &str| match of_the_server {
            true => guarded(&origin, &format!("{rules}, "), read_timeout, also),
            false => guarded(&origin, "", &format!(", {rules}{read_timeout}"), also),
        };
        let weir = Weir::start(&yaml(BREAKER, "", ""));
        open(&weir, &origin);
        let asked = origin.count();
        weir.reload(&yaml(BREAKER, "", ""));
        assert_eq!(get(weir.address(), "/ok").status, 503, "{of_the_server}");
        weir.reload(&yaml(
            BREAKER,
            ", proxy_read_timeout: 5s",
            "stale_size: 1m\n",
        ));
        assert_eq!(get(weir.address(), "/ok").status, 503, "{of_the_server}");
        assert_eq!(origin.count(), asked, "the backend is left alone");
        // By other rules what was counted says nothing.
        let other = BREAKER.replace("min_calls: 4", "min_calls: 5");
        weir.reload(&yaml(&other, "", ""));
        assert_eq!(get(weir.address(), "/ok").status, 200, "{of_the_server}");
    }
}

#[test]
fn stale_responses_survive_a_reload() {
    let origin = Origin::start();
    let yaml = |size: &str| guarded(&origin, "", ", fallback: { stale: 10m }", size);
    let weir = Weir::start(&yaml("stale_size: 8m\n"));
    let path = "/fields?cache-control=public,max-age=600";
    let good = get(weir.address(), path);
    assert_eq!(good.status, 200);
    origin.behave("/reset");
    for size in ["stale_size: 8m\n", "stale_size: 1m\n", "stale_size: 16m\n"] {
        weir.reload(&yaml(size));
        let again = get(weir.address(), path);
        assert_eq!((again.status, &again.body), (200, &good.body), "{size}");
        assert!(again.has("age"), "{size}");
    }
    weir.reload(&guarded(&origin, "", "", ""));
    assert_eq!(
        get(weir.address(), path).status,
        502,
        "no fallback any more"
    );
}

#[test]
fn shadow_counts_survive_a_reload() {
    let yaml = |size: &str| {
        format!(
            "admin: {{ listen: ADMIN }}
limit_req_zones: {{ one: {{ key: $host, rate: 1r/h, size: {size} }} }}
servers:
- listen: LISTEN
  limit_req: {{ zone: one, burst: 90, nodelay: true }}
  shadow: {{ zone: one, burst: 1, nodelay: true }}
  return: {{ status: 200 }}
"
        )
    };
    let weir = Weir::start(&yaml("1m"));
    let refused = || {
        metric(
            &weir,
            "weir_shadow_differs_total{zone=\"one\",verdict=\"refuse\"}",
        )
    };
    for _ in 0..3 {
        assert_eq!(get(weir.address(), "/").status, 200);
    }
    assert_eq!(refused(), 1);
    for (size, before) in [("1m", 1), ("4m", 2), ("64k", 3)] {
        weir.reload(&yaml(size));
        assert_eq!(refused(), before, "the counters go on in {size}");
        assert_eq!(get(weir.address(), "/").status, 200);
        assert_eq!(refused(), before + 1, "its buckets are as full in {size}");
    }
}
