//! Many reloads under load: no client notices, and no old generation is left.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::support::{Client, Origin, Weir, eventually, get};

/// A configuration in which something else is different every time.
fn variant(number: usize, origin: &Origin) -> String {
    let second = match number % 2 {
        0 => "- listen: LISTEN2\n  locations: [ { path: /, return: '200 second' } ]\n",
        _ => "",
    };
    let (rate, size) = (1_000_000 + number, 1 + number % 3);
    let (weight, log) = (1 + number % 4, number % 2);
    format!(
        "log: {{ level: info, access: {{ path: DIR/access{log}.log }} }}
limit_req_zones:
  perip: {{ key: $binary_remote_addr, rate: {rate}r/s, size: {size}m }}
limit_conn_zones:
  conns: {{ key: $binary_remote_addr, size: {size}m }}
upstreams:
  app:
    keepalive_timeout: 1s
    servers:
    - {{ address: '{0}', weight: {weight} }}
    - {{ address: '{0}', max_conns: 500 }}
servers:
{second}- listen: LISTEN
  limit_req: {{ zone: perip, burst: 1000000, nodelay: true }}
  limit_conn: {{ zone: conns, limit: 1000 }}
  locations:
  - {{ path: /, proxy_pass: 'http://app' }}
",
        origin.address()
    )
}

/// Asks over kept connections and new ones until it is over; every answer must be whole and right.
fn ask(weir: &Weir, over: &AtomicBool, answers: &AtomicU64) {
    let mut kept = Client::connect(weir.address());
    while !over.load(Ordering::Relaxed) {
        for _ in 0..50 {
            kept.get("/ok");
            let response = kept.response();
            assert_eq!((response.status, response.text().as_str()), (200, "ok"));
            answers.fetch_add(1, Ordering::Relaxed);
            if response.head.get("connection") == Some("close") {
                kept = Client::connect(weir.address());
            }
        }
        assert_eq!(get(weir.address(), "/ok").status, 200);
    }
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn reload_under_load(lasts: Duration) {
    let origin = Origin::start();
    let weir = Weir::start(&variant(0, &origin));
    let (over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| ask(&weir, &over, &answers)))
            .collect();
        // Also after a failure: the clients would not end otherwise.
        let _end = Over(&over);
        let end = Instant::now() + lasts;
        let mut number = 0;
        while (number < 5 || Instant::now() < end)
            && clients.iter().all(|client| !client.is_finished())
        {
            number += 1;
            weir.reload(&variant(number, &origin));
        }
        over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("not one request failed");
        }
    });
    assert!(answers.load(Ordering::Relaxed) > 100);
    let said = weir.stderr();
    assert!(
        !said.contains("[error]") && !said.contains("panicked"),
        "{said}"
    );
}

#[test]
fn not_one_request_fails() {
    reload_under_load(Duration::from_secs(4));
}

/// The same for as long as it takes to be sure: `cargo nextest run --run-ignored only reload::load`.
#[test]
#[ignore = "takes two minutes"]
fn not_one_request_fails_for_long() {
    reload_under_load(Duration::from_secs(120));
}

/// Generations go when their last request does.
#[test]
fn old_generations_are_dropped() {
    let origin = Origin::start();
    let weir = Weir::start(&variant(0, &origin));
    // It holds on to no generation while it is idle.
    let mut idle = Client::connect(weir.address());
    idle.get("/ok");
    assert_eq!(idle.response().status, 200);
    let reload = |times: usize| {
        for number in 0..times {
            weir.reload(&variant(number, &origin));
            assert_eq!(get(weir.address(), "/ok").status, 200);
        }
        weir.reload(&variant(0, &origin));
    };
    reload(20);
    let (descriptors, resident) = (weir.descriptors(), weir.resident());
    reload(60);
    eventually("no more descriptors than before", || {
        weir.descriptors() <= descriptors + 2
    });
    let grown = weir.resident().saturating_sub(resident);
    assert!(grown < 6 << 20, "{grown} bytes more after 60 reloads");
    let threads = std::fs::read_dir(format!("/proc/{}/task", weir.pid())).unwrap();
    assert!(threads.count() < 30);
    idle.get("/ok");
    assert_eq!(idle.response().status, 200);
}
