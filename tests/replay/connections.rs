//! `limit_conn` from a log: concurrent requests, and requests that wait for a slot.

use super::{Desk, START, counts};

/// The line of a request that came so many milliseconds after the start.
fn line(came: u64, took: u64) -> String {
    let ended = START * 1000 + came + took;
    let (at, took) = ([ended / 1000, ended % 1000], [took / 1000, took % 1000]);
    format!(
        "192.0.2.1 {}.{:03} {}.{:03} /{came}\n",
        at[0], at[1], took[0], took[1]
    )
}

#[test]
fn requests_at_once_are_known_from_how_long_they_took() {
    let desk = Desk::new(
        "
limit_conn_zones: { perip: { key: $binary_remote_addr, size: 1m } }
servers: [ { listen: 8080, limit_conn: { zone: perip, limit: 2 }, return: 200 } ]
",
    );
    // Logged when they end: those that began first last longest.
    let log = [
        line(200, 100),
        line(500, 300),
        line(100, 900),
        line(0, 1_100),
        line(1_000, 500),
        line(1_050, 10),
    ];
    desk.put("access.log", log.concat());
    let format = [
        "--format",
        "$remote_addr $msec $request_time $request_uri",
        "access.log",
    ];
    let refused: Vec<_> = desk
        .each(&format)
        .iter()
        .filter(|each| each["verdict"] == "refuse")
        .map(|each| (each["line"].as_u64().unwrap(), each["zone"].clone()))
        .collect();
    // 0 to 1100 and 100 to 1000 hold both places: 200 and 500 find none, 1000 does, 1050 does not.
    assert_eq!(
        refused,
        [
            (1, "perip".into()),
            (2, "perip".into()),
            (6, "perip".into())
        ]
    );
    let report = desk.json(&format);
    assert_eq!(counts(&report, "perip"), [3, 0, 3, 1]);
    assert_eq!(report["limit_conn"], "replayed");
}

#[test]
fn queued_requests_wait_on_the_clock_of_the_log() {
    let desk = Desk::new(
        "
limit_conn_zones: { perip: { key: $binary_remote_addr, size: 1m } }
servers: [ { listen: 8080, limit_conn: { zone: perip, limit: 1, queue: { size: 1, timeout: 1s } }, return: 200 } ]
",
    );
    // The second waits for the end of the first, the third finds the line full; the fourth waits for the second, the
    // sixth for longer than it may.
    let requests = [
        (0, 500),
        (100, 100),
        (200, 10),
        (550, 10),
        (2_000, 5_000),
        (2_500, 10),
    ];
    let mut requests: Vec<_> = requests.to_vec();
    requests.sort_by_key(|(came, took)| came + took);
    let log: String = requests
        .iter()
        .map(|(came, took)| line(*came, *took))
        .collect();
    desk.put("access.log", log);
    let format = [
        "--format",
        "$remote_addr $msec $request_time $request_uri",
        "access.log",
    ];
    let mut verdicts: Vec<_> = desk
        .each(&format)
        .iter()
        .map(|each| {
            let came = each["at_ms"].as_u64().unwrap() - START * 1000;
            (
                came,
                each["verdict"].as_str().unwrap().to_owned(),
                each["delay_ms"].as_u64(),
            )
        })
        .collect();
    verdicts.sort();
    let expected = [
        (0, "pass", None),
        (100, "delay", Some(400)),
        (200, "refuse", None),
        (550, "delay", Some(50)),
        (2_000, "pass", None),
        (2_500, "refuse", None),
    ];
    assert_eq!(
        verdicts,
        expected.map(|(came, word, delay)| (came, word.to_owned(), delay))
    );
    assert_eq!(counts(&desk.json(&format), "perip"), [2, 2, 2, 1]);
}
