//! Counters survive a change of their limits.

use std::time::Duration;

use crate::support::{Client, Origin, Weir, eventually, get, metric};

/// One a minute, and so many more at once.
fn limited(zone: &str, burst: u32) -> String {
    format!(
        "log: {{ level: info }}
limit_req_zones:
  perip: {zone}
servers:
- listen: LISTEN
  limit_req: {{ zone: perip, burst: {burst}, nodelay: true }}
  locations:
  - {{ path: /, return: '200 ok' }}
"
    )
}

/// How many of ten requests pass.
fn passing(weir: &Weir) -> usize {
    (0..10)
        .filter(|_| get(weir.address(), "/").status == 200)
        .count()
}

const ZONE: &str = "{ key: $binary_remote_addr, rate: 1r/m, size: 1m }";

#[test]
fn a_spent_burst_stays_spent() {
    let weir = Weir::start(&limited(ZONE, 3));
    assert_eq!(passing(&weir), 4);
    weir.reload(&limited(ZONE, 3));
    assert_eq!(passing(&weir), 0, "nothing has changed");
    weir.reload(&limited(ZONE, 5));
    assert_eq!(
        passing(&weir),
        2,
        "what a larger burst adds is there, and no more"
    );
    weir.reload(&limited(&ZONE.replace("1r/m", "2r/m"), 5));
    assert_eq!(passing(&weir), 0, "a rate is how fast it comes back");
    for size in ["64m", "32k"] {
        weir.reload(&limited(
            &ZONE
                .replace("1m,", "")
                .replace("size: 1m", &format!("size: {size}")),
            5,
        ));
        assert_eq!(passing(&weir), 0, "in {size}");
    }
    let counted = weir.stderr();
    assert!(!counted.contains("afresh"), "{counted}");
}

#[test]
fn a_zone_with_a_changed_key_starts_empty_and_is_logged() {
    let weir = Weir::start(&limited(ZONE, 3));
    assert_eq!(passing(&weir), 4);
    for (zone, why) in [
        (
            ZONE.replace("$binary_remote_addr", "$remote_addr"),
            "its key has changed",
        ),
        (
            ZONE.replace("$binary_remote_addr", "$remote_addr")
                .replace("size", "algorithm: gcra, size"),
            "its algorithm has changed",
        ),
    ] {
        let yaml = match zone.contains("gcra") {
            true => limited(&zone, 3).replace(", nodelay: true", ""),
            false => limited(&zone, 3),
        };
        weir.reload(&yaml);
        assert_eq!(passing(&weir), 4, "{zone}");
        let told = format!("zone \"perip\" starts afresh: {why}");
        assert!(weir.stderr().contains(&told), "{}", weir.stderr());
        weir.reload(&yaml);
        assert_eq!(passing(&weir), 0, "{zone}");
    }
}

#[test]
fn penalties_are_served_to_their_end() {
    let punishing = |burst: u32, size: &str| {
        limited(&ZONE.replace("1m }", &format!("{size} }}")), burst)
            .replace("nodelay: true", "nodelay: true, penalty: 1h")
    };
    let weir = Weir::start(&punishing(3, "1m"));
    assert_eq!(passing(&weir), 4);
    for size in ["1m", "8m"] {
        weir.reload(&punishing(50, size));
        assert_eq!(
            passing(&weir),
            0,
            "there would be room, but for the penalty"
        );
    }
}

const PLACES: &str = "log: { level: info }
admin: { listen: ADMIN }
limit_conn_zones:
  perip: { key: $binary_remote_addr, size: 1m }
servers:
- listen: LISTEN
  locations:
  - path: /
    proxy_pass: 'http://ORIGIN'
    limit_conn: { zone: perip, limit: 1, queue: { size: 5, timeout: 60s } }
";

/// Who waits in a line is served in the order of coming, whatever is reloaded meanwhile.
#[test]
fn waiting_requests_keep_their_order() {
    let origin = Origin::start();
    let yaml = PLACES.replace("ORIGIN", &origin.address().to_string());
    let weir = Weir::start(&yaml);
    let ask = |path: &str| {
        let client = Client::connect(weir.address());
        client.get(path);
        client
    };
    let mut first = ask("/hold?gate=first");
    origin.gates().await_waiting("first", 1);
    let in_line = |count| {
        let length = "weir_limit_queue_length{zone=\"perip\"}";
        eventually("they stand in line", || metric(&weir, length) == count);
    };
    let mut second = ask("/hold?gate=second");
    in_line(1);
    weir.reload(&yaml.replace("1m", "8m"));
    let mut third = ask("/hold?gate=third");
    in_line(2);
    weir.reload(&yaml.replace("size: 5", "size: 6"));
    assert_eq!(
        origin.gates().waiting("second") + origin.gates().waiting("third"),
        0
    );
    origin.gates().open("first");
    assert_eq!(first.response().status, 200);
    origin.gates().await_waiting("second", 1);
    assert_eq!(origin.gates().waiting("third"), 0);
    origin.gates().open("second");
    assert_eq!(second.response().status, 200);
    origin.gates().await_waiting("third", 1);
    origin.gates().open("third");
    assert_eq!(third.response().status, 200);
    eventually("all places are free", || {
        get(weir.address(), "/ok").status == 200
    });
}

/// A request that waits for its turn goes on when it is its turn.
#[test]
fn delayed_requests_are_neither_lost_nor_hurried() {
    let delaying = limited(&ZONE.replace("1r/m", "2r/s"), 5).replace(", nodelay: true", "");
    let weir = Weir::start(&delaying);
    let begun = tokio::time::Instant::now();
    let mut waiting = Client::connect(weir.address());
    waiting.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2));
    assert_eq!(waiting.response().status, 200);
    weir.error_line("delaying request");
    weir.reload(&limited(&ZONE.replace("1r/m", "1r/h"), 0));
    assert_eq!(waiting.response().status, 200);
    assert!(
        begun.elapsed() >= Duration::from_millis(490),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(get(weir.address(), "/").status, 429);
}
