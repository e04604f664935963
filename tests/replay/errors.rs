//! Logs that cannot be read or do not fit: errors with advice, and as much of the report as possible.

use super::{Desk, HALF, START, combined, counts, told};

fn wrong(desk: &Desk, arguments: &[&str], status: i32) -> String {
    let output = desk.run(arguments);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {words}");
    words
}

#[test]
fn lines_that_do_not_parse_are_counted_and_the_first_ten_shown() {
    let desk = Desk::new(HALF);
    let mut log = combined("192.0.2.1", 0, "/");
    for number in 0..12 {
        log.push_str(&format!("rubbish {number} \u{1b}[31m\n"));
    }
    log.push_str(&combined("192.0.2.1", 5, "/"));
    log.push_str(&combined("no-address", 6, "/"));
    log.push_str("\n192.0.2.1 - - [16/Nov/2026:02:00:07 +0000] \"GET / HT");
    desk.put("access.log", log);
    let report = desk.json(&["access.log"]);
    assert_eq!(
        (&report["lines"], &report["skipped"]),
        (&17.into(), &15.into())
    );
    assert_eq!(counts(&report, "perip"), [2, 0, 0, 1]);
    let shown = report["skipped_lines"].as_array().unwrap();
    assert_eq!(shown.len(), 10);
    assert_eq!(
        (&shown[0]["line"], &shown[0]["file"]),
        (&2.into(), &"access.log".into())
    );
    let table = told(&desk.run(&["access.log"]));
    assert!(table.contains("15 lines could not be read"), "{table}");
    assert!(table.contains("access.log:2: rubbish 0"), "{table}");
    assert!(table.contains("access.log:11: rubbish 9"), "{table}");
    assert!(
        !table.contains("access.log:12:") && !table.contains('\u{1b}'),
        "{table}"
    );
}

#[test]
fn requests_that_are_none_never_met_a_limit() {
    let desk = Desk::new(HALF);
    let log = [
        combined("192.0.2.1", 0, "/"),
        combined("192.0.2.1", 0, "/").replace("GET / HTTP/1.1", r"\x16\x03\x01\x02"),
        combined("192.0.2.1", 0, "/").replace("GET / HTTP/1.1", "-"),
        combined("192.0.2.1", 0, "/../.."),
        combined("192.0.2.1", 0, "/%zz"),
    ];
    desk.put("access.log", log.concat());
    let report = desk.json(&["access.log"]);
    assert_eq!(
        (&report["skipped"], &report["malformed"]),
        (&0.into(), &4.into())
    );
    assert_eq!(counts(&report, "perip"), [1, 0, 0, 1]);
}

#[test]
fn a_log_out_of_order_is_sorted_within_the_window_and_reported_beyond() {
    let desk = Desk::new(HALF);
    let times = [0, 4, 2, 8, 6, 10, 100, 15];
    let log: String = times
        .iter()
        .map(|second| combined("192.0.2.1", *second, "/"))
        .collect();
    desk.put("access.log", log);
    let report = desk.json(&["access.log"]);
    assert_eq!(
        counts(&report, "perip"),
        [8, 0, 0, 1],
        "in order they are two seconds apart"
    );
    assert_eq!(
        (&report["late"], &report["latest_ms"]),
        (&1.into(), &55_000.into())
    );
    let table = told(&desk.run(&["access.log"]));
    assert!(
        table.contains("1 lines out of order by more than the window (55.0 s at worst)"),
        "{table}"
    );
    let report = desk.json(&["--window", "100s", "access.log"]);
    assert_eq!(report["late"], 0);
    assert_eq!(report["last_ms"], (START + 100) * 1000);
    assert!(
        desk.json(&["--window", "0s", "access.log"])["late"]
            .as_u64()
            .unwrap()
            > 1
    );
}

#[test]
fn missing_variables_are_reported_before_the_log_is_read() {
    let desk = Desk::new(&HALF.replace(
        "key: $binary_remote_addr",
        "key: $http_x_api_key$cookie_sid",
    ));
    desk.put("access.log", combined("192.0.2.1", 0, "/"));
    let words = wrong(&desk, &["access.log"], 2);
    assert!(
        words.contains("zone \"perip\" needs $http_x_api_key, which the log does not have"),
        "{words}"
    );
    assert!(
        words.contains("needs $cookie_sid or $http_cookie"),
        "{words}"
    );
    assert!(words.contains("log_format"), "{words}");
    desk.put(
        "own.log",
        "192.0.2.1 1794794400.000 /a k1 sid=7; x=y\n192.0.2.1 1794794400.000 /b k1 sid=8\n",
    );
    let format = "$remote_addr $msec $request_uri $http_x_api_key $http_cookie";
    let report = desk.json(&["--format", format, "own.log"]);
    assert_eq!(counts(&report, "perip"), [2, 0, 0, 2]);
    assert_eq!(report["zones"]["perip"]["top"][0]["key"], "k17");

    let words = wrong(&desk, &["--format", "$remote_addr $status", "own.log"], 2);
    assert!(
        words.contains("$msec, $time_iso8601 or $time_local"),
        "{words}"
    );
    assert!(words.contains("$request or $request_uri"), "{words}");
}

#[test]
fn a_wrong_command_line_is_explained() {
    let desk = Desk::new(HALF);
    desk.put("access.log", combined("192.0.2.1", 0, "/"));
    desk.put("strange.log", "Nov 16 02:00:00 host sshd[1]: hello\n");
    for (arguments, status, expected) in [
        (&["--format", "combind", "access.log"][..], 2, "combind"),
        (
            &["--format", "$remote_addr$request", "access.log"],
            2,
            "where `$remote_addr` ends and `$request` begins",
        ),
        (&["strange.log"], 2, "--format"),
        (&["nowhere.log"], 1, "nowhere.log"),
        (&["."], 1, "cannot read ."),
        (&[], 2, "no log given"),
        (
            &["--suggest", "perpi", "access.log"],
            2,
            "the zones are perip",
        ),
        (&["--refuse-at-most", "ten", "access.log"], 2, "0.1%"),
        (
            &["--window", "soon", "access.log"],
            2,
            "expected a number with a unit",
        ),
    ] {
        let words = wrong(&desk, arguments, status);
        assert!(words.contains(expected), "{arguments:?}: {words}");
    }
    desk.put(
        "weir.yaml",
        "servers: [ { listen: 8080, limit_req: { zone: nowhere }, return: 200 } ]",
    );
    assert!(wrong(&desk, &["access.log"], 2).contains("weir.yaml:1:"));
}

#[test]
fn an_empty_log_is_no_trouble() {
    let desk = Desk::new(HALF);
    desk.put("access.log", "");
    let report = desk.json(&["--suggest", "access.log"]);
    assert_eq!(report["lines"], 0);
    assert_eq!(counts(&report, "perip"), [0, 0, 0, 0]);
    assert!(told(&desk.run(&["access.log"])).contains("  no requests\n"));
}

#[test]
fn a_damaged_file_is_read_as_far_as_possible() {
    let desk = Desk::new(HALF);
    let log: String = (0..5000)
        .map(|number| combined(&format!("10.0.0.{}", number % 250), number / 100, "/"))
        .collect();
    desk.put("access.log", log);
    let packed = std::process::Command::new("gzip")
        .arg("-c")
        .arg(desk.path("access.log"))
        .output()
        .unwrap()
        .stdout;
    desk.put("half.gz", &packed[..packed.len() / 2]);
    let output = desk.run(&["--json", "half.gz"]);
    assert_eq!(
        output.status.code(),
        Some(1),
        "what is missing is a failure"
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["lines"].as_u64().unwrap() > 500, "{report}");
    assert!(report["damaged"]["half.gz"].is_string(), "{report}");
}
