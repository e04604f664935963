//! The HTML report, in a real browser.

use std::process::Command;

use super::{Desk, START};

/// Two zones with plots, and keys that would like to be more than text.
fn page() -> (Desk, String) {
    let desk = Desk::new(
        "
limit_req_zones:
  perip: { key: $binary_remote_addr, size: 1m, rate: 2r/s }
  agents: { key: $http_user_agent, size: 1m, rate: 1r/s }
limit_conn_zones: { conns: { key: $binary_remote_addr, size: 1m } }
servers:
- { listen: 8080, limit_req: [ { zone: perip, burst: 5 }, { zone: agents, burst: 50, nodelay: true } ], limit_conn: { zone: conns, limit: 3 }, return: 200 }
",
    );
    let agents = [
        "curl/8",
        "<script>document.title='owned'</script>",
        "\\x22><img src=x onerror=document.title='owned'>",
        "</style></svg><svg onload=document.title='owned'>",
        "\u{202e}txt.exe & <b>",
    ];
    let log: String = (0..3000_usize)
        .map(|number| {
            let client = if number % 3 == 0 { 1 } else { number % 40 };
            let (second, agent) = (
                START + number as u64 / 10,
                agents[number * 7 % 31 % agents.len()],
            );
            format!(
                "192.0.2.{client} {second}.{:03} 0.{:03} \"GET / HTTP/1.1\" \"{agent}\"\n",
                number % 10 * 100,
                number % 900
            )
        })
        .collect();
    desk.put("access.log", log);
    let format = "$remote_addr $msec $request_time \"$request\" \"$http_user_agent\"";
    let output = desk.run(&[
        "--html",
        "page.html",
        "--suggest",
        "--format",
        format,
        "access.log",
    ]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = std::fs::read_to_string(desk.path("page.html")).expect("it was written");
    (desk, text)
}

#[test]
fn a_page_needs_nothing_from_outside_and_keys_stay_text() {
    let (_desk, text) = page();
    for outside in [
        "src=\"",
        "href=",
        "url(",
        "@import",
        "<script",
        "<img",
        "onload=document.title='owned'>\"",
    ] {
        assert!(!text.contains(outside), "{outside}");
    }
    assert!(text.contains("&lt;script&gt;document.title=&#39;owned&#39;&lt;/script&gt;"));
    assert!(text.contains("default-src 'none'"));
    assert!(text.contains("prefers-color-scheme: dark"));
    assert!(!text.contains('\u{202e}'));
    for plot in [
        "Demand over time",
        "The busiest key against its limit",
        "their busiest second",
        "Refused share over rate",
    ] {
        assert!(text.contains(plot), "{plot}");
    }
}

#[test]
fn a_browser_shows_it_as_it_was_meant() {
    let (desk, _) = page();
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--dump-dom",
        ])
        .arg(format!(
            "--user-data-dir={}",
            desk.path("profile").display()
        ))
        .arg(format!("file://{}", desk.path("page.html").display()))
        .output()
        .unwrap_or_else(|error| panic!("chromium (tests/run installs it): {error}"));
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("<title>weir replay</title>"), "{shown}");
    assert_eq!(shown.matches("<section>").count(), 3, "{shown}");
    // Two zones of requests with four plots each, and one of connections without a rate.
    assert_eq!(shown.matches("<svg").count(), 10);
    assert!(!shown.contains("<script") && !shown.contains("<img"));
}
