//! Full zones: a client cannot get its limit or penalty dropped cheaply.

use std::time::Duration;

use crate::support::{Client, Weir, get, metric};

/// A zone of 512 keys, and one with room for 256 penalties.
const SMALL: &str = "workers: 1
admin: { listen: ADMIN }
limit_req_zones:
  login: { key: $arg_name, size: 32k, rate: 1r/h }
  out: { key: $arg_name, size: 64k, rate: 10r/s }
servers:
- listen: LISTEN
  return: 200
  locations:
  - { path: /login, limit_req: { zone: login, burst: 5, nodelay: true }, return: 200 }
  - { path: /out, limit_req: { zone: out, penalty: 1h }, return: 200 }
";

/// Many GETs, a hundred on each connection; the statuses.
fn statuses(weir: &Weir, paths: impl IntoIterator<Item = String>) -> Vec<u16> {
    let paths: Vec<_> = paths.into_iter().collect();
    let mut statuses = Vec::with_capacity(paths.len());
    for some in paths.chunks(100) {
        let mut client = Client::connect(weir.address());
        for path in some {
            client.get(path);
        }
        statuses.extend(some.iter().map(|_| client.response().status));
    }
    statuses
}

#[test]
fn a_full_zone_forgets_no_name_that_is_tried_again() {
    let weir = Weir::start(SMALL);
    let others =
        |range: std::ops::Range<u32>| range.map(|number| format!("/login?name=other{number}"));
    // All of them in debt, and more than fit.
    let filled = statuses(&weir, others(0..600).flat_map(|path| [path.clone(), path]));
    assert!(filled.iter().all(|status| *status == 200));
    let tries: Vec<_> = (0..10u32)
        .map(|round| {
            let new = 1_000 + round * 200;
            let passed = statuses(&weir, others(new..new + 200));
            assert!(passed.iter().all(|status| *status == 200));
            get(weir.address(), "/login?name=alice").status
        })
        .collect();
    assert_eq!(tries, [200, 200, 200, 200, 200, 200, 429, 429, 429, 429]);
    assert!(metric(&weir, "weir_zone_evictions_total{zone=\"login\"}") >= 2_000);
}

#[test]
fn penalties_are_served_however_many_others_are_punished() {
    let weir = Weir::start(SMALL);
    let thrice = |range: std::ops::Range<u32>| {
        range.flat_map(|number| vec![format!("/out?name={number}"); 3])
    };
    assert!(statuses(&weir, thrice(0..1)).contains(&429));
    statuses(&weir, thrice(1..400));
    let dropped = metric(&weir, "weir_zone_penalties_dropped_total{zone=\"out\"}");
    assert!(dropped >= 100, "{dropped} of 144");
    weir.error_line("zone \"out\" has no room for more penalties: ");
    let zones = get(weir.admin_address(), "/api/zones").text();
    assert!(zones.contains("\"penalties_dropped\":"), "{zones}");
    // The first stays out; the last one has the ordinary limit.
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(get(weir.address(), "/out?name=0").status, 429);
    assert_eq!(get(weir.address(), "/out?name=399").status, 200);

    weir.reload(&SMALL.replace("size: 64k", "size: 32k"));
    weir.error_line("zone \"out\" keeps the room of its penalties");
    assert_eq!(get(weir.address(), "/out?name=0").status, 429);
}
