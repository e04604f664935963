//! The slots of a `limit_conn` that several gateways share.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::{metric, missed};
use crate::support::redis::Redis;
use crate::support::{Client, Origin, Weir, eventually, get};

/// Where the places of the usual zone are.
pub(super) const SET: &str = "weir:{places:localhost}:places";

/// A gateway before a backend, with a zone of places that it shares.
pub(super) fn gateway(store: &str, backend: SocketAddr, rule: &str) -> Weir {
    Weir::start(&format!(
        "workers: 2
admin: {{ listen: ADMIN }}
log: {{ access: {{ path: '-', format: '$uri $status $limit_conn_status' }} }}
stores: {{ shared: {{ {store} }} }}
limit_conn_zones: {{ places: {{ key: $host, size: 1m, store: shared }} }}
servers:
- listen: LISTEN
  locations:
  - {{ path: /, limit_conn: {{ zone: places, {rule} }}, proxy_pass: 'http://{backend}' }}
"
    ))
}

fn usual(redis: &Redis, origin: &Origin, rule: &str) -> Weir {
    let store = format!("redis: '{}', timeout: 1s", redis.url());
    gateway(&store, origin.address(), rule)
}

/// A request that stays at the backend until the gate opens.
pub(super) fn hold(weir: &Weir, origin: &Origin, gate: &str) -> Client {
    origin.hold(gate, || {
        let client = Client::connect(weir.address());
        client.get(&format!("/hold?gate={gate}"));
        client
    })
}

pub(super) fn taken(redis: &Redis) -> usize {
    let answer = redis.cli(&["ZCARD", SET]);
    answer.trim().parse().expect("a number")
}

fn comes_free(weir: &Weir) {
    eventually("a free place", || get(weir.address(), "/ok").status == 200);
}

#[test]
fn gateways_share_places() {
    let (redis, origin) = (Redis::start(), Origin::start());
    let [one, two, three] = [(); 3].map(|()| usual(&redis, &origin, "limit: 2"));
    let mut held = [hold(&one, &origin, "g"), hold(&two, &origin, "g")];
    assert_eq!(taken(&redis), 2);
    for weir in [&one, &two, &three] {
        let refused = get(weir.address(), "/no");
        assert_eq!(refused.status, 503);
        assert_eq!(refused.get("retry-after"), Some("1"));
        assert!(weir.access_line("/no").contains("/no 503 REJECTED"));
    }
    assert_eq!(metric(&one, "weir_store_places{store=\"shared\"}"), 1);
    let refusals = "weir_limit_verdicts_total{zone=\"places\",verdict=\"refuse\"}";
    assert_eq!(metric(&three, refusals), 1);
    origin.gates().open("g");
    for client in &mut held {
        assert_eq!(client.response().status, 200);
    }
    eventually("all are given back", || taken(&redis) == 0);
    assert_eq!(get(three.address(), "/yes").status, 200);
    assert!(three.access_line("/yes").contains("/yes 200 PASSED"));
    let seen: serde_json::Value =
        serde_json::from_slice(&get(one.admin_address(), "/api/store").body).unwrap();
    assert_eq!(seen[0]["zones"][0], "places");
    assert_eq!(seen[0]["places"], 0);
}

/// Who has read its answer and asks again finds no place of its own, on whichever event loop it comes out.
#[test]
fn one_after_the_other_is_never_two_at_once() {
    let (redis, origin) = (Redis::start(), Origin::start());
    let weir = usual(&redis, &origin, "limit: 1");
    for round in 0..300 {
        assert_eq!(get(weir.address(), "/ok").status, 200, "{round}");
    }
    let asked = metric(&weir, "weir_store_asked_total{store=\"shared\"}");
    assert_eq!(asked, 300, "one question a request");
}

#[test]
fn a_client_that_leaves_early_releases_its_slot() {
    let (redis, origin) = (Redis::start(), Origin::start());
    let weir = usual(&redis, &origin, "limit: 1");
    drop(hold(&weir, &origin, "never"));
    comes_free(&weir);
    hold(&weir, &origin, "never").reset();
    comes_free(&weir);
    assert_eq!(get(weir.address(), "/reset").status, 502);
    comes_free(&weir);
}

#[test]
fn the_places_of_a_gateway_that_dies_are_free_within_eight_seconds() {
    let (redis, origin) = (Redis::start(), Origin::start());
    let (mut one, two) = (
        usual(&redis, &origin, "limit: 1"),
        usual(&redis, &origin, "limit: 1"),
    );
    let _held = hold(&one, &origin, "never");
    one.signal("KILL");
    one.wait();
    let left: i64 = redis.cli(&["PTTL", SET]).trim().parse().unwrap();
    assert!(left <= 8_001, "{left}");
    comes_free(&two);
}

#[test]
fn a_gateway_that_stops_leaves_no_place_behind() {
    let (redis, origin) = (Redis::start(), Origin::start());
    let store = format!("redis: '{}', timeout: 1s", redis.url());
    let mut weir = Weir::start(&format!(
        "shutdown_timeout: 100ms
stores: {{ shared: {{ {store} }} }}
limit_conn_zones: {{ places: {{ key: $host, store: shared }} }}
servers: [{{ listen: LISTEN, limit_conn: {{ zone: places, limit: 1 }}, proxy_pass: 'http://{}' }}]",
        origin.address()
    ));
    let _held = hold(&weir, &origin, "never");
    assert_eq!(taken(&redis), 1);
    weir.signal("TERM");
    weir.wait();
    assert_eq!(taken(&redis), 0);
}

/// The moment until which a place is kept without a word moves on while it is held.
#[test]
fn a_place_that_is_held_for_long_is_spoken_for() {
    let (redis, origin) = (Redis::start(), Origin::start());
    let weir = usual(&redis, &origin, "limit: 1");
    let mut held = hold(&weir, &origin, "g");
    let kept_until = || redis.cli(&["ZRANGE", SET, "0", "-1", "WITHSCORES"]);
    let first = kept_until();
    eventually("it is spoken for", || kept_until() > first);
    redis.cli(&["FLUSHALL"]);
    eventually("and if it was forgotten, too", || taken(&redis) == 1);
    assert_eq!(get(weir.address(), "/ok").status, 503);
    origin.gates().open("g");
    assert_eq!(held.response().status, 200);
    eventually("it is given back", || taken(&redis) == 0);
}

#[test]
fn a_line_before_shared_places_is_served_in_order() {
    let (redis, origin) = (Redis::start(), Origin::start());
    let rule = "limit: 1, queue: { size: 2, timeout: 20s }";
    let (one, two) = (usual(&redis, &origin, rule), usual(&redis, &origin, rule));
    let mut held = hold(&one, &origin, "g");
    let line_up = |name: &str, length: u64| {
        let client = Client::connect(two.address());
        client.get(&format!("/ok?{name}"));
        eventually("it stands in line", || {
            metric(&two, "weir_limit_queue_length{zone=\"places\"}") == length
        });
        client
    };
    let mut waiting = [line_up("first", 1), line_up("second", 2)];
    assert_eq!(get(two.address(), "/no").status, 503, "the line is full");
    origin.gates().open("g");
    assert_eq!(held.response().status, 200);
    for client in &mut waiting {
        assert_eq!(client.response().status, 200);
    }
    let order: Vec<_> = origin
        .seen()
        .iter()
        .map(|seen| seen.head.word(1).to_owned())
        .collect();
    assert_eq!(order, ["/hold?gate=g", "/ok?first", "/ok?second"]);
    let waited = "weir_limit_verdicts_total{zone=\"places\",verdict=\"delay\"}";
    assert_eq!(metric(&two, waited), 2);
}

#[test]
fn a_request_that_waits_too_long_for_a_shared_slot_is_refused() {
    let (redis, origin) = (Redis::start(), Origin::start());
    let weir = usual(
        &redis,
        &origin,
        "limit: 1, queue: { size: 5, timeout: 300ms }",
    );
    let mut held = hold(&weir, &origin, "g");
    let asked = Instant::now();
    assert_eq!(get(weir.address(), "/no").status, 503);
    assert!(asked.elapsed() >= Duration::from_millis(300));
    origin.gates().open("g");
    assert_eq!(held.response().status, 200);
    comes_free(&weir);
}

/// A request needs a place in each of its zones, and holds none if one of them is full.
#[test]
fn all_places_or_none() {
    let (redis, origin) = (Redis::start(), Origin::start());
    let weir = Weir::before(
        &origin,
        &format!(
            "stores: {{ shared: {{ redis: '{}', timeout: 1s }} }}
limit_conn_zones:
  here: {{ key: $host }}
  narrow: {{ key: $host, store: shared }}
  wide: {{ key: $host, store: shared }}
servers:
- listen: LISTEN
  locations:
  - path: /
    limit_conn: [{{ zone: wide, limit: 9 }}, {{ zone: here, limit: 9 }}, {{ zone: narrow, limit: 1 }}]
    proxy_pass: 'http://ORIGIN'
",
            redis.url()
        ),
    );
    let mut held = hold(&weir, &origin, "g");
    for _ in 0..20 {
        assert_eq!(get(weir.address(), "/no").status, 503);
    }
    let wide = || redis.cli(&["ZCARD", "weir:{wide:localhost}:places"]);
    assert_eq!(wide().trim(), "1");
    origin.gates().open("g");
    assert_eq!(held.response().status, 200);
    eventually("all are given back", || wide().trim() == "0");
}

#[test]
fn a_dry_run_refuses_no_request() {
    let (redis, origin) = (Redis::start(), Origin::start());
    let weir = Weir::before(
        &origin,
        &format!(
            "log: {{ access: {{ path: '-', format: '$uri $status $limit_conn_status' }} }}
stores: {{ shared: {{ redis: '{}', timeout: 1s }} }}
limit_conn_zones: {{ places: {{ key: $host, store: shared }} }}
limit_conn_dry_run: true
servers: [{{ listen: LISTEN, limit_conn: {{ zone: places, limit: 1 }}, proxy_pass: 'http://ORIGIN' }}]",
            redis.url()
        ),
    );
    let _held = hold(&weir, &origin, "never");
    assert_eq!(get(weir.address(), "/ok").status, 200);
    assert!(weir.access_line("/ok").contains("/ok 200 REJECTED_DRY_RUN"));
}

/// Answers every request after a moment, and knows how many were there at once.
struct Busy {
    address: SocketAddr,
    most: Arc<AtomicUsize>,
}

impl Busy {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let address = listener.local_addr().expect("it is bound");
        let (most, now) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let told = Arc::clone(&most);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (now, most) = (Arc::clone(&now), Arc::clone(&told));
                thread::spawn(move || answer(stream, &now, &most));
            }
        });
        Self { address, most }
    }
}

fn answer(mut stream: TcpStream, now: &AtomicUsize, most: &AtomicUsize) {
    let mut buffer = [0; 4096];
    while stream.read(&mut buffer).is_ok_and(|length| length > 0) {
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(3));
        now.fetch_sub(1, Ordering::SeqCst);
        // Small enough for one write; every waiting request is served from then on.
        if stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .is_err()
        {
            return;
        }
    }
}

#[test]
fn three_gateways_under_load_never_exceed_the_concurrency_limit() {
    let (redis, busy) = (Redis::start(), Busy::start());
    let store = format!("redis: '{}', timeout: 1s", redis.url());
    let fleet = [(); 3].map(|()| gateway(&store, busy.address, "limit: 4"));
    let until = Instant::now() + Duration::from_secs(2);
    let threads: Vec<_> = (0..12)
        .map(|number| fleet[number % 3].address())
        .map(|address| {
            thread::spawn(move || {
                let mut passed = 0;
                while Instant::now() < until {
                    match get(address, "/").status {
                        200 => passed += 1,
                        503 => {}
                        other => panic!("{other}"),
                    }
                }
                passed
            })
        })
        .collect();
    let passed: usize = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .sum();
    let most = busy.most.load(Ordering::SeqCst);
    let missed = missed(&fleet) as usize;
    assert!(
        most <= 4 + missed,
        "{most} at once, {missed} without an answer"
    );
    assert!(passed > 4, "{passed}");
    eventually("all are given back", || taken(&redis) == 0);
}
