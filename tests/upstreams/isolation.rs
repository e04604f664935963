//! A server that hangs must not slow another: `limit_conn` with a `queue` isolates them.

use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::time::Instant;

use crate::support::process::Process;
use crate::support::{Client, Origin, Weir, eventually, get};

/// The longest but one of a hundred of two hundred requests, one after the other.
fn p99(weir: &Weir) -> Duration {
    let mut client = Client::connect(weir.address());
    let mut times: Vec<Duration> = (0..200)
        .map(|_| {
            let started = Instant::now();
            client.get("/well/ok");
            assert_eq!(client.response().status, 200);
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[197]
}

#[test]
fn a_thousand_requests_into_a_server_that_hangs_do_not_slow_its_neighbour() {
    let (well, hanging) = (Origin::start(), Origin::start().always("/hang"));
    let weir = Weir::start(&format!(
        "workers: 2
admin: {{ listen: ADMIN }}
log: {{ access: off }}
limit_conn_zones: {{ bulkhead: {{ key: 'all of them', size: 32k }} }}
servers:
- listen: LISTEN
  locations:
  - {{ path: /well/, proxy_pass: 'http://{}' }}
  - path: /hanging/
    limit_conn: {{ zone: bulkhead, limit: 20, queue: {{ size: 100, timeout: 60s }} }}
    proxy_pass: 'http://{}'
",
        well.address(),
        hanging.address()
    ));
    let before = (p99(&weir), weir.resident(), weir.descriptors());
    // Ten connections with a hundred requests each, all at once.
    let mut flood = Command::new("h2load");
    flood
        .args(["-n", "1000", "-c", "10", "-m", "100"])
        .arg(format!("http://{}/hanging/", weir.address()))
        .stdout(Stdio::null());
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let flood = Process::spawn("h2load", flood, directory);
    eventually("all have come", || hanging.count() == 20);
    // Twenty are there, a hundred wait, all others have been refused.
    let refused = "weir_limit_verdicts_total{zone=\"bulkhead\",verdict=\"refuse\"} 880";
    eventually("all others are refused", || {
        let page = get(weir.admin_address(), "/metrics").text();
        page.lines().any(|line| line == refused)
    });
    let during = (p99(&weir), weir.resident(), weir.descriptors());
    drop(flood);
    assert_eq!(hanging.count(), 20, "no request passed the limit");
    // Ten clients, twenty connections to the one that hangs, and a few of our own.
    assert!(
        during.2 <= before.2 + 10 + 20 + 6,
        "{} descriptors, then {}",
        before.2,
        during.2
    );
    let growth = during.1.saturating_sub(before.1);
    assert!(growth < 16 << 20, "{growth} bytes more");
    // Generous, for this machine has others to serve; a queue behind what hangs would be a minute.
    let bound = before.0 * 10 + Duration::from_secs(2);
    assert!(during.0 < bound, "{:?}, then {:?}", before.0, during.0);
}
