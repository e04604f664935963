//! Shadow limits, evaluated beside those in force.

use crate::support::{Origin, Weir, get};

fn weir(origin: &Origin) -> Weir {
    Weir::before(
        origin,
        "workers: 1
admin: { listen: ADMIN }
log: { access: { path: '-', format: '$uri|$status|$limit_req_status' } }
limit_req_zones:
  now: { key: $uri, size: 1m, rate: 1r/m }
  then: { key: $uri, size: 1m, rate: 1r/h }
servers:
- listen: LISTEN
  proxy_pass: http://ORIGIN
  shadow: { zone: then, on_excess: drop }
  locations:
  - { path: /stricter, limit_req: { zone: now, burst: 2, nodelay: true }, shadow: { zone: now, burst: 1, nodelay: true } }
  - { path: /laxer, limit_req: { zone: now }, shadow: [{ zone: now, burst: 9 }, { zone: then, burst: 9 }] }
  - { path: /inherited }
  - { path: /none, shadow: off }
",
    )
}

#[test]
fn proposed_limits_are_counted_and_change_nothing() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let ask = |path: &str, times: usize| -> Vec<u16> {
        (0..times)
            .map(|_| get(weir.address(), path).status)
            .collect()
    };
    assert_eq!(ask("/stricter", 4), [200, 200, 200, 429]);
    assert_eq!(ask("/laxer", 3), [200, 429, 429]);
    assert_eq!(ask("/inherited", 3), [200, 200, 200]);
    assert_eq!(ask("/none", 2), [200, 200]);

    let metrics = get(weir.admin_address(), "/metrics").text();
    let metric = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        value.unwrap_or_else(|| panic!("no {name} in\n{metrics}"))
    };
    let verdicts = |zone: &str, verdict: &str| {
        metric(&format!(
            "weir_shadow_verdicts_total{{zone=\"{zone}\",verdict=\"{verdict}\"}}"
        ))
    };
    let differs = |zone: &str, verdict: &str| {
        metric(&format!(
            "weir_shadow_differs_total{{zone=\"{zone}\",verdict=\"{verdict}\"}}"
        ))
    };
    // /stricter: two pass, two are refused, one of them passed. /laxer: one passes, two would wait.
    assert_eq!(verdicts("now", "pass"), 2 + 1);
    assert_eq!(verdicts("now", "delay"), 2);
    assert_eq!(verdicts("now", "refuse"), 2);
    assert_eq!((differs("now", "refuse"), differs("now", "pass")), (1, 2));
    // /laxer and /inherited count in `then`.
    assert_eq!((differs("then", "refuse"), differs("then", "pass")), (2, 0));
    assert_eq!(
        metric("weir_limit_verdicts_total{zone=\"then\",verdict=\"pass\"}"),
        0,
        "it is only proposed"
    );

    let zones = get(weir.admin_address(), "/api/zones").text();
    let zones: serde_json::Value = serde_json::from_str(&zones).expect("JSON");
    assert_eq!(zones[0]["name"], "now");
    assert_eq!(zones[0]["shadow"]["refuses_passed"], 1);
    assert_eq!(zones[0]["shadow"]["passes_refused"], 2);
    assert_eq!(zones[1]["shadow"]["refuse"], 2);

    weir.error_line("limiting requests, shadow, excess: 1.000 by zone \"then\"");
    assert_eq!(weir.access_line("/inherited"), "/inherited|200|-");
    assert_eq!(weir.access_line("/stricter|429"), "/stricter|429|REJECTED");
}
