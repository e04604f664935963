//! A running weir and a replay of its log: the same verdict on every request.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::Value;

use super::Desk;
use crate::support::{Client, Weir, eventually};

const CONFIG: &str = "
log: { level: info, access: { path: DIR/access.log, format: json } }
limit_req_zones:
  slow: { key: $binary_remote_addr, size: 1m, rate: 2r/s }
  pages: { key: $binary_remote_addr$uri, size: 1m, rate: 2r/s }
  names: { key: $host, size: 1m, rate: 1r/m }
servers:
- listen: LISTEN
  limit_req_log_level: info
  locations:
  - { path: /nodelay, limit_req: { zone: slow, burst: 4, nodelay: true }, return: 200 }
  - { path: /wait, limit_req: { zone: slow, burst: 3, delay: 2 }, return: 200 }
  - { path: /both/, limit_req: [ { zone: slow, burst: 6, nodelay: true }, { zone: pages, burst: 2, nodelay: true } ], return: 200 }
  - { path: /names, limit_req: { zone: names, burst: 5, nodelay: true }, return: 200 }
  - { path: /dry, limit_req: { zone: names, burst: 1 }, limit_req_dry_run: true, return: 200 }
  - { path: /free, return: 200 }
";

/// Who asks for what, and how long the silence before it is. A pause never ends near a moment at which a bucket has
/// drained by just one more, so that the millisecond that a log may be off does not decide.
fn script() -> Vec<(u8, &'static str, u64)> {
    let mut script = Vec::new();
    for round in 0..2 {
        let first = if round == 0 { 0 } else { 3_250 };
        script.push((1, "/nodelay", first));
        script.extend((0..8).map(|_| (1, "/nodelay", 4)));
        script.extend((0..6).map(|_| (2, "/wait", 4)));
        script.extend((0..5).map(|_| (3, "/both/a", 4)));
        script.extend((0..5).map(|_| (3, "/both/b", 4)));
        script.extend((0..4).map(|_| (4, "/names", 4)));
        script.extend((0..4).map(|_| (4, "/dry", 4)));
        script.push((4, "/free", 4));
    }
    script
}

/// Follows the script, and gives the statuses.
fn ask(weir: &Weir) -> Vec<u16> {
    let (mut statuses, mut waiting) = (Vec::new(), Vec::new());
    for (client, target, pause) in script() {
        std::thread::sleep(Duration::from_millis(pause));
        let mut connection = Client::connect_from(Ipv4Addr::new(127, 0, 0, client), weir.address());
        // One after the other: in which order two came in the same millisecond no log can tell.
        if target == "/wait" {
            let target = format!("{target}?{}", waiting.len());
            connection.get(&target);
            let (waits, over) = (format!("GET {target} "), format!("\"{target}\""));
            eventually("a line about what waits or is over", || {
                weir.stderr().contains(&waits) || weir.file("access.log").contains(&over)
            });
            waiting.push(connection);
        } else {
            connection.get(target);
            statuses.push(connection.response().status);
        }
    }
    let late = waiting
        .iter_mut()
        .map(|connection| connection.response().status);
    statuses.extend(late);
    statuses
}

#[test]
fn a_replay_decides_as_the_road_did() {
    let weir = Weir::start(CONFIG);
    let statuses = ask(&weir);
    let count = statuses.len();
    assert!(statuses.contains(&429) && statuses.contains(&200));
    eventually("all lines", || {
        weir.file("access.log").lines().count() == count
    });

    let log = weir.file("access.log");
    let desk = Desk::new(
        &CONFIG
            .replace("LISTEN", "8080")
            .replace("DIR/access.log", "'-'"),
    );
    desk.put("access.log", &log);
    let replayed: BTreeMap<u64, String> = desk
        .each(&["access.log"])
        .iter()
        .map(|each| {
            (
                each["line"].as_u64().unwrap(),
                each["limit_req_status"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    assert_eq!(replayed.len(), count);
    let mut differences = Vec::new();
    for (number, line) in (1..).zip(log.lines()) {
        let lived: Value = serde_json::from_str(line).unwrap();
        let lived = lived["limit_req_status"].as_str().unwrap();
        if replayed[&number] != lived {
            differences.push(format!(
                "line {number}: {lived} there, {} here: {line}",
                replayed[&number]
            ));
        }
    }
    assert!(differences.is_empty(), "{}\n{log}", differences.join("\n"));
    for word in ["PASSED", "DELAYED", "REJECTED", "REJECTED_DRY_RUN"] {
        assert!(
            replayed.values().any(|status| status == word),
            "{word} in {replayed:?}"
        );
    }
}
