//! The same traffic in every log format.

use std::process::Command;

use super::{Desk, HALF, START, combined, counts, parsed};

/// Three clients, each once a second for ten seconds.
fn traffic() -> Vec<(String, u64)> {
    (0..10)
        .flat_map(|second| (1..=3).map(move |client| (format!("192.0.2.{client}"), second)))
        .collect()
}

fn lines(line: impl Fn(&str, u64) -> String) -> String {
    traffic()
        .iter()
        .map(|(address, second)| line(address, *second))
        .collect()
}

fn plain() -> String {
    lines(|address, second| combined(address, second, "/a?b=c"))
}

const EXPECTED: [u64; 4] = [15, 0, 15, 3];

#[test]
fn every_format_is_understood() {
    let iso = |second: u64| format!("2026-11-16T03:00:{second:02}");
    let logs = [
        (None, plain()),
        (Some("combined"), plain()),
        (None, plain().replace(" \"-\" \"curl/8\"", "")),
        (Some("common"), plain().replace(" \"-\" \"curl/8\"", "")),
        (None, plain().replace('\n', "\r\n")),
        (
            None,
            lines(|address, second| {
                format!(
                    "{{\"time\":\"{}.500+01:00\",\"remote_addr\":\"{address}\",\"method\":\"GET\",\"uri\":\"/\",\"host\":\"x\",\"request_time\":0.002}}\n",
                    iso(second)
                )
            }),
        ),
        (
            Some("$time_iso8601|$http_referer|$remote_addr|$request_method $request_uri"),
            lines(|address, second| format!("{}+01:00|-|{address}|GET /x\n", iso(second))),
        ),
        (
            Some(
                "log_format main escape=json '{\"at\":\"$msec\",' '\"who\":\"$remote_addr\",\"what\":\"$request\"}';",
            ),
            lines(|address, second| {
                format!(
                    "{{\"at\":\"{}.000\",\"who\":\"{address}\",\"what\":\"GET /\\\"q HTTP/2.0\"}}\n",
                    START + second
                )
            }),
        ),
    ];
    for (format, log) in logs {
        let desk = Desk::new(HALF);
        desk.put("access.log", &log);
        let arguments = match format {
            Some(format) => vec!["--format", format, "access.log"],
            None => vec!["access.log"],
        };
        let report = desk.json(&arguments);
        assert_eq!(report["lines"], 30, "{log}");
        assert_eq!(report["skipped"], 0, "{log}");
        assert_eq!(counts(&report, "perip"), EXPECTED, "{log}");
    }
}

fn packed(desk: &Desk, program: &str, name: &str) -> Vec<u8> {
    let output = Command::new(program)
        .arg("-c")
        .arg(desk.path(name))
        .output();
    let output =
        output.unwrap_or_else(|error| panic!("{program} (tests/run installs it): {error}"));
    assert!(output.status.success());
    output.stdout
}

#[test]
fn compressed_logs_are_recognised_by_their_content() {
    let desk = Desk::new(HALF);
    let log = plain();
    let (first, second) = log.split_at(plain().lines().take(14).map(|line| line.len() + 1).sum());
    desk.put("first", first);
    desk.put("second", second);
    for program in ["gzip", "zstd"] {
        // Two pieces in one file, as they come from logs that were packed one by one and put together.
        desk.put(
            "packed.log",
            [
                packed(&desk, program, "first"),
                packed(&desk, program, "second"),
            ]
            .concat(),
        );
        assert_eq!(
            counts(&desk.json(&["packed.log"]), "perip"),
            EXPECTED,
            "{program}"
        );
        let output = desk.run_with(
            &["--json", "-"],
            &std::fs::read(desk.path("packed.log")).unwrap(),
        );
        assert_eq!(counts(&parsed(&output), "perip"), EXPECTED, "{program}");
    }
}

#[test]
fn several_files_are_one_log_in_the_order_of_their_times() {
    let desk = Desk::new(HALF);
    let (early, late): (Vec<_>, Vec<_>) =
        traffic().into_iter().partition(|(_, second)| *second < 5);
    let text = |lines: &[(String, u64)]| -> String {
        lines
            .iter()
            .map(|(address, second)| combined(address, *second, "/"))
            .collect()
    };
    desk.put("access.log", text(&late));
    desk.put("access.log.1", text(&early));
    desk.put("empty.log", "");
    // The newer one first, as a shell lists them.
    let report = desk.json(&["access.log", "access.log.1", "empty.log"]);
    assert_eq!(counts(&report, "perip"), EXPECTED);
    assert_eq!((&report["lines"], &report["late"]), (&30.into(), &0.into()));

    // And those of two machines that ran side by side.
    let (odd, even): (Vec<_>, Vec<_>) = traffic()
        .into_iter()
        .partition(|(_, second)| second % 2 == 1);
    desk.put("a.log", text(&odd));
    desk.put("b.log", text(&even));
    assert_eq!(counts(&desk.json(&["a.log", "b.log"]), "perip"), EXPECTED);
    let output = desk.run_with(&["--json", "a.log", "-"], text(&even).as_bytes());
    assert_eq!(counts(&parsed(&output), "perip"), EXPECTED);
}
