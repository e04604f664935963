//! Reports on logs whose figures are known beforehand.

use super::{Desk, HALF, START, combined, counts, told};
use crate::support::weir::BINARY;

/// A thousand addresses that each ask once a second, for so many seconds.
fn steady(seconds: u64) -> String {
    (0..seconds)
        .flat_map(|second| {
            (0..1000).map(move |client| {
                combined(
                    &format!("10.0.{}.{}", client / 250, client % 250),
                    second,
                    "/",
                )
            })
        })
        .collect()
}

/// Every client's requests are exactly a second apart, so of one in two seconds every other one passes.
fn every_other_one_passes(binary: &str, seconds: u64) {
    let desk = Desk::new(HALF);
    desk.put("access.log", steady(seconds));
    let output = desk
        .command(binary, &["--json", "--top", "1000", "access.log"])
        .output()
        .expect("the binary can be run");
    let report: serde_json::Value = serde_json::from_str(&told(&output)).expect("JSON");
    assert_eq!(report["lines"], seconds * 1000);
    assert_eq!(report["skipped"], 0);
    assert_eq!(
        counts(&report, "perip"),
        [seconds * 500, 0, seconds * 500, 1000]
    );
    let top = report["zones"]["perip"]["top"].as_array().expect("a list");
    assert_eq!(top.len(), 1000);
    for key in top {
        assert_eq!(
            (&key["pass"], &key["refuse"]),
            (&(seconds / 2).into(), &(seconds / 2).into()),
            "{key}"
        );
    }
}

#[test]
fn a_hundred_thousand_lines_are_judged_as_was_known_beforehand() {
    every_other_one_passes(BINARY, 100);
}

/// Ignored here because it needs the optimised binary; `tests/run` has it.
#[test]
#[ignore = "needs WEIR_RELEASE, the optimised binary"]
fn a_million_lines_get_the_verdicts_known_beforehand() {
    let binary = std::env::var("WEIR_RELEASE").expect("WEIR_RELEASE: the optimised binary");
    every_other_one_passes(&binary, 1000);
}

#[test]
fn bursts_delays_and_several_zones_are_those_of_the_road() {
    let desk = Desk::new(
        "
limit_req_zones:
  site: { key: $binary_remote_addr, size: 1m, rate: 10r/s }
  logins: { key: $binary_remote_addr, size: 1m, rate: 1r/s }
servers:
- listen: 8080
  limit_req: { zone: site, burst: 5 }
  locations:
  - { path: /, return: 200 }
  - { path: = /login, return: 200, limit_req: [ { zone: site, burst: 5 }, { zone: logins, burst: 1, nodelay: true } ] }
",
    );
    let line = |millis: u64, target: &str| {
        let at = START * 1000 + millis;
        format!("192.0.2.1 {}.{:03} {target}\n", at / 1000, at % 1000)
    };
    // Seven at once: one passes, five wait for their turn, one too many.
    let mut log: String = (0..7).map(|_| line(0, "/")).collect();
    // Later, three logins: the third is one too many for them, and costs the site nothing.
    log.extend((0..3).map(|_| line(5_000, "/login")));
    log.push_str(&line(5_000, "/"));
    desk.put("access.log", log);
    let format = ["--format", "$remote_addr $msec $request_uri", "access.log"];
    let report = desk.json(&format);
    assert_eq!(counts(&report, "site"), [2, 7, 1, 1]);
    assert_eq!(counts(&report, "logins"), [2, 0, 1, 1]);
    assert_eq!(
        [&report["pass"], &report["delay"], &report["refuse"]].map(|count| count.as_u64().unwrap()),
        [2, 7, 2]
    );
    let waits: Vec<_> = desk
        .each(&format)
        .iter()
        .map(|each| {
            (
                each["verdict"].as_str().unwrap().to_owned(),
                each["delay_ms"].as_u64(),
            )
        })
        .collect();
    let delay = |millis| ("delay".to_owned(), Some(millis));
    let expected = [
        ("pass".to_owned(), None),
        delay(100),
        delay(200),
        delay(300),
        delay(400),
        delay(500),
        ("refuse".to_owned(), None),
        ("pass".to_owned(), None),
        delay(100),
        ("refuse".to_owned(), None),
        delay(200),
    ];
    assert_eq!(waits, expected);
    let longest = &report["zones"]["site"]["longest_delays"][0];
    assert_eq!(
        (&longest["delay_ms"], &longest["line"]),
        (&500.into(), &6.into()),
        "{longest}"
    );
}

#[test]
fn a_penalty_is_served_on_the_clock_of_the_log() {
    let desk = Desk::new(
        "
limit_req_zones: { perip: { key: $binary_remote_addr, size: 1m, rate: 1r/s } }
servers: [ { listen: 8080, limit_req: { zone: perip, nodelay: true, penalty: 30s }, return: 200 } ]
",
    );
    let times = [0, 0, 2, 10, 29, 31, 40];
    let log: String = times
        .iter()
        .map(|second| format!("192.0.2.1 {}.000 /\n", START + second))
        .collect();
    desk.put("access.log", log);
    let format = ["--format", "$remote_addr $msec $request_uri", "access.log"];
    let words: Vec<_> = desk
        .each(&format)
        .iter()
        .map(|each| each["verdict"].clone())
        .collect();
    assert_eq!(
        words,
        [
            "pass", "refuse", "refuse", "refuse", "refuse", "pass", "pass"
        ]
    );
    assert_eq!(counts(&desk.json(&format), "perip"), [3, 0, 4, 1]);
}

#[test]
fn servers_and_locations_are_found_as_on_the_road() {
    let desk = Desk::new(
        "
maps: { $who: { map: $http_x_api_key, default: $remote_addr, values: { gold: '' } } }
limit_req_zones:
  a: { key: $server_name$uri, size: 1m, rate: 1r/m }
  b: { key: $who, size: 1m, rate: 1r/m }
servers:
- { listen: 8080, server_name: a.test, locations: [ { path: /x/, limit_req: { zone: a }, return: 200 } ] }
- { listen: 8080, server_name: b.test, limit_req: { zone: b }, return: 200 }
",
    );
    let line = |host: &str, target: &str, key: &str| {
        format!(
            "{{\"time\":\"2026-11-16T02:00:00.000Z\",\"remote_addr\":\"::1\",\"host\":\"{host}\",\"uri\":\"{target}\",\"http_x_api_key\":\"{key}\"}}\n"
        )
    };
    desk.put(
        "access.log",
        [
            line("a.test", "/x/1", ""),
            line("a.test", "/x/%31", ""),
            line("A.TEST", "//x/../x/2?q", ""),
            line("a.test", "/y", ""),
            line("b.test", "/", ""),
            line("b.test", "/other", ""),
            line("b.test", "/", "gold"),
            line("b.test", "/", "k1"),
            line("", "/x/", ""),
        ]
        .concat(),
    );
    let report = desk.json(&["access.log"]);
    assert_eq!(counts(&report, "a"), [3, 0, 1, 3]);
    assert_eq!(counts(&report, "b"), [1, 0, 2, 1]);
    assert_eq!(report["unlimited"], 2, "/y, and requests with a golden key");
    let keys: Vec<_> = report["zones"]["a"]["top"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| key["key"].clone())
        .collect();
    assert_eq!(keys, ["a.test/x/1", "a.test/x/", "a.test/x/2"]);
}

#[test]
fn the_smallest_numbers_are_found() {
    let desk = Desk::new(HALF);
    // Ten at once, every ten seconds.
    let log: String = (0..100)
        .map(|number| format!("192.0.2.1 {}.000 /\n", START + number / 10 * 10))
        .collect();
    desk.put("access.log", log);
    let arguments = [
        "--suggest",
        "--refuse-at-most",
        "0%",
        "--format",
        "$remote_addr $msec $request_uri",
        "access.log",
    ];
    let report = desk.json(&arguments);
    let found = &report["zones"]["perip"]["suggest"];
    let frontier = found["frontier"].as_array().unwrap();
    let at = |rate: &str| {
        frontier
            .iter()
            .find(|pair| pair["rate"] == rate)
            .unwrap_or_else(|| panic!("{rate} in {found}"))
    };
    // One a second drains a burst of ten before the next comes; half of that leaves five each time.
    assert_eq!(at("1r/s")["burst"], 9);
    assert_eq!(at("30r/m")["burst"], 9 + 9 * 5);
    assert_eq!(found["refuse"], 0);
    assert_eq!(found["busiest_minute"], 60);
    // Checked: with this burst no request is refused, and with one less some are.
    for (less, refused) in [(0, false), (1, true)] {
        let burst = found["burst"].as_u64().unwrap() - less;
        let rate = found["rate"].as_str().unwrap();
        let tried = Desk::new(
            &HALF
                .replace("30r/m", rate)
                .replace("nodelay: true", &format!("nodelay: true, burst: {burst}")),
        );
        std::fs::copy(desk.path("access.log"), tried.path("access.log")).unwrap();
        let report = tried.json(&arguments[3..]);
        assert_eq!(report["refuse"] != 0, refused, "{rate} {burst}");
    }
}

#[test]
fn the_same_log_gives_the_same_bytes() {
    let desk = Desk::new(
        "
limit_req_zones: { perip: { key: $binary_remote_addr$uri, size: 32k, rate: 1r/m } }
servers: [ { listen: 8080, limit_req: { zone: perip, burst: 1 }, return: 200 } ]
",
    );
    // More keys than the zone has room for, and many that are equal: everything that could depend on chance.
    let log: String = (0..4000)
        .map(|number| {
            combined(
                &format!("10.0.{}.{}", number % 40, number % 7),
                number / 50,
                &format!("/{}", number % 11),
            )
        })
        .collect();
    desk.put("access.log", log);
    for arguments in [
        &["--json", "--suggest"][..],
        &["--suggest"],
        &["--each", "-"],
    ] {
        let run = || told(&desk.run(&[arguments, &["access.log"]].concat()));
        let first = run();
        assert!(first.len() > 100);
        assert!(first == run(), "{arguments:?}");
    }
    desk.run(&["--html", "one.html", "access.log"]);
    desk.run(&["--html", "two.html", "access.log"]);
    let read = |name| std::fs::read(desk.path(name)).unwrap();
    assert!(read("one.html") == read("two.html"));
    assert!(
        desk.json(&["access.log"])["zones"]["perip"]["evictions"]
            .as_u64()
            .unwrap()
            > 0
    );
}
