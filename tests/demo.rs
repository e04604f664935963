//! The demo: `weir run` without a file.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::{Client, eventually, get, weir};

#[test]
fn the_demo_serves_limits_and_prints_commands_to_try() {
    let address = SocketAddr::from(([127, 0, 0, 1], 8080));
    let admin = SocketAddr::from(([127, 0, 0, 1], 9900));
    eventually("the port of the demo is free", || {
        [address, admin]
            .into_iter()
            .all(|address| Client::try_connect(address).is_err())
    });
    let mut demo = weir::spawn(&["run"]);
    assert!(demo.accepts(address), "the demo listens on {address}");

    let lines = |file: &str| -> usize {
        let text = demo.file(file);
        let commands = text.lines().map(str::trim_start);
        commands
            .filter(|line| {
                ["curl ", "oha ", "wrk ", "for "]
                    .iter()
                    .any(|c| line.contains(c))
            })
            .count()
    };
    eventually("three lines to try", || {
        lines("stdout") + lines("stderr") >= 3
    });

    let first = get(address, "/");
    assert_eq!(first.status, 200);
    assert!(!first.body.is_empty(), "it echoes");

    let mut client = Client::connect(address);
    let mut refused = None;
    for _ in 0..5000 {
        client.get("/");
        let response = client.response();
        if response.status != 200 {
            refused = Some(response);
            break;
        }
    }
    let refused = refused.expect("the burst is spent some time");
    assert_eq!(refused.status, 429);
    assert!(refused.has("retry-after") && refused.has("ratelimit"));
    let seconds: u64 = refused.get("retry-after").unwrap().parse().unwrap();
    std::thread::sleep(Duration::from_secs(seconds));
    assert_eq!(get(address, "/").status, 200);

    demo.signal("INT");
    let status = demo.wait(Duration::from_secs(10)).expect("it ends");
    assert_eq!(status.code(), Some(0));
}
