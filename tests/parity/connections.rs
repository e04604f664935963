//! `limit_conn`: gates at the backend decide which requests are in progress, so nothing here depends on time.

use std::time::Duration;

use super::{Pair, Side, ask};
use crate::support::{Client, eventually};

impl Side<'_> {
    /// Opens a gate, waits for those behind it to be answered, and for their places to be free again.
    fn release(&self, gate: &str, held: Vec<Client>, free: &str) {
        self.origin.gates().open(gate);
        for mut client in held {
            assert_eq!(client.response().status, 200);
        }
        eventually("a freed place", || self.ask(&ask(free)) == 200);
    }
}

fn per_address(nginx_location: &str, weir_location: &str) -> Pair {
    Pair::start(
        &format!(
            "limit_conn_zone $binary_remote_addr zone=address:1m; limit_conn_zone $arg_k zone=argument:1m;
            limit_conn_zone $server_name zone=server:1m;
            server {{ listen LISTEN; server_name a.test; {nginx_location} }}
            server {{ listen LISTEN; server_name b.test; {nginx_location} }}"
        ),
        &format!(
            "limit_conn_zones:
  address: {{ key: $binary_remote_addr, size: 1m }}
  argument: {{ key: $arg_k, size: 1m }}
  server: {{ key: $server_name, size: 1m }}
servers:
- {{ listen: LISTEN, server_name: a.test, locations: [ {weir_location} ] }}
- {{ listen: LISTEN, server_name: b.test, locations: [ {weir_location} ] }}
"
        ),
    )
}

#[test]
fn so_many_at_once_and_not_one_more() {
    let pair = per_address(
        "location / { limit_conn address 3; proxy_pass http://ORIGIN; }",
        "{ path: /, limit_conn: { zone: address, limit: 3 }, proxy_pass: 'http://ORIGIN' }",
    );
    let verdicts = pair.agree(|side| {
        let mut verdicts = Vec::new();
        let two = side.hold(2, "/hold", "a");
        verdicts.push(side.ask(&ask("/ok")));
        let third = side.hold(1, "/hold", "b");
        verdicts.push(side.ask(&ask("/ok")));
        verdicts.push(side.ask(&ask("/ok").from(2)));
        side.release("b", third, "/ok");
        side.release("a", two, "/ok");
        let three = side.hold(3, "/hold", "c");
        verdicts.push(side.ask(&ask("/ok")));
        side.release("c", three, "/ok");
        verdicts
    });
    assert_eq!(verdicts, [200, 503, 200, 503]);
}

#[test]
fn an_idle_connection_takes_no_place() {
    let pair = per_address(
        "location / { limit_conn address 1; proxy_pass http://ORIGIN; }",
        "{ path: /, limit_conn: { zone: address, limit: 1 }, proxy_pass: 'http://ORIGIN' }",
    );
    let verdicts = pair.agree(|side| {
        let mut kept = side.begin(&ask("/ok"));
        let mut verdicts = vec![kept.response().status];
        let mut halfway = [0; 20].map(|_| {
            let client = Client::connect(side.address);
            client.send("GET /ok HTTP/1.1\r\nHost: a.test\r\n");
            client
        });
        eventually("the place of an idle connection", || {
            side.ask(&ask("/ok")) == 200
        });
        let held = side.hold(1, "/hold", "gate");
        kept.get("/ok");
        verdicts.push(kept.response().status);
        side.release("gate", held, "/ok");
        // A place comes free a moment after the last byte.
        let served = halfway.iter_mut().any(|client| {
            std::thread::sleep(Duration::from_millis(50));
            client.send("\r\n");
            client.response().status == 200
        });
        assert!(served, "none of those that had half asked");
        verdicts
    });
    assert_eq!(verdicts, [200, 503]);
}

#[test]
fn a_refusal_by_the_second_zone_holds_no_slot_in_the_first() {
    let pair = per_address(
        "location / {
            limit_conn address 3; limit_conn argument 1; limit_conn_status 429; proxy_pass http://ORIGIN;
        }",
        "{ path: /, limit_conn: [ { zone: address, limit: 3 }, { zone: argument, limit: 1 } ],
        limit_conn_status: 429, proxy_pass: 'http://ORIGIN' }",
    );
    let verdicts = pair.agree(|side| {
        let mut held = vec![side.begin(&ask("/hold?k=x&gate=g"))];
        side.origin.gates().await_waiting("g", 1);
        let mut verdicts: Vec<_> = (0..5).map(|_| side.ask(&ask("/ok?k=x"))).collect();
        for key in ["y", "z"] {
            held.push(side.begin(&ask(&format!("/hold?k={key}&gate=g"))));
        }
        side.origin.gates().await_waiting("g", 3);
        verdicts.push(side.ask(&ask("/ok?k=new")));
        verdicts.push(side.ask(&ask("/ok?k=new").from(2)));
        verdicts.push(side.ask(&ask("/ok?k=x").from(2)));
        side.release("g", held, "/ok?k=x");
        verdicts
    });
    assert_eq!(verdicts, [429, 429, 429, 429, 429, 429, 200, 429]);
}

#[test]
fn locations_compare_one_count_with_their_own_limits() {
    let pair = per_address(
        "location / { limit_conn address 3; proxy_pass http://ORIGIN; }
        location /strict/ { limit_conn address 1; proxy_pass http://ORIGIN; }",
        "{ path: /, limit_conn: { zone: address, limit: 3 }, proxy_pass: 'http://ORIGIN' },
        { path: /strict/, limit_conn: { zone: address, limit: 1 }, proxy_pass: 'http://ORIGIN' }",
    );
    let verdicts = pair.agree(|side| {
        let mut verdicts = vec![side.ask(&ask("/strict/ok"))];
        let held = side.hold(1, "/hold", "g");
        verdicts.push(side.ask(&ask("/strict/ok")));
        verdicts.push(side.ask(&ask("/ok")));
        side.release("g", held, "/strict/ok");
        verdicts
    });
    assert_eq!(verdicts, [200, 503, 200]);
}

#[test]
fn a_server_has_its_own_count_and_a_missing_key_none() {
    let pair = per_address(
        "location / { limit_conn server 2; proxy_pass http://ORIGIN; }
        location /argument/ { limit_conn argument 1; proxy_pass http://ORIGIN; }",
        "{ path: /, limit_conn: { zone: server, limit: 2 }, proxy_pass: 'http://ORIGIN' },
        { path: /argument/, limit_conn: { zone: argument, limit: 1 }, proxy_pass: 'http://ORIGIN' }",
    );
    let verdicts = pair.agree(|side| {
        let held = side.hold(2, "/hold", "g");
        let keyless = side.hold(2, "/argument/hold", "h");
        let verdicts = vec![
            side.ask(&ask("/ok").host("a.test")),
            side.ask(&ask("/ok").host("b.test")),
            side.ask(&ask("/argument/ok")),
            side.ask(&ask("/argument/ok?k=1")),
        ];
        side.release("g", held, "/ok");
        side.release("h", keyless, "/argument/ok");
        verdicts
    });
    assert_eq!(verdicts, [503, 200, 200, 200]);
}

#[test]
fn a_limit_conn_dry_run_refuses_no_request_and_counts_none() {
    let pair = per_address(
        "location / { limit_conn address 2; proxy_pass http://ORIGIN; }
        location /dry/ { limit_conn address 1; limit_conn_dry_run on; proxy_pass http://ORIGIN; }",
        "{ path: /, limit_conn: { zone: address, limit: 2 }, proxy_pass: 'http://ORIGIN' },
        { path: /dry/, limit_conn: { zone: address, limit: 1 }, limit_conn_dry_run: true, proxy_pass: 'http://ORIGIN' }",
    );
    let verdicts = pair.agree(|side| {
        // One is counted, two more would have been refused.
        let held = side.hold(3, "/dry/hold", "g");
        let mut verdicts = vec![side.ask(&ask("/ok"))];
        let another = side.hold(1, "/hold", "h");
        verdicts.push(side.ask(&ask("/ok")));
        side.release("h", another, "/ok");
        side.release("g", held, "/ok");
        verdicts
    });
    assert_eq!(verdicts, [200, 503]);
    pair.weir
        .error_line("limiting connections, dry run, by zone \"address\"");
    pair.weir
        .error_line("limiting connections by zone \"address\"");
}

#[test]
fn a_request_delayed_by_limit_req_holds_no_slot() {
    let pair = Pair::start(
        "limit_conn_zone $binary_remote_addr zone=places:1m;
        limit_req_zone $binary_remote_addr zone=rate:1m rate=30r/m;
        server { listen LISTEN;
            location /delayed/ { limit_req zone=rate burst=5; limit_conn places 1; proxy_pass http://ORIGIN; }
            location / { limit_conn places 1; proxy_pass http://ORIGIN; } }",
        "limit_conn_zones: { places: { key: $binary_remote_addr, size: 1m } }
limit_req_zones: { rate: { key: $binary_remote_addr, size: 1m, rate: 30r/m } }
servers:
- listen: LISTEN
  locations:
  - path: /delayed/
    limit_req: { zone: rate, burst: 5 }
    limit_conn: { zone: places, limit: 1 }
    proxy_pass: 'http://ORIGIN'
  - { path: /, limit_conn: { zone: places, limit: 1 }, proxy_pass: 'http://ORIGIN' }
",
    );
    let verdicts = pair.agree(|side| {
        let mut verdicts = vec![side.ask(&ask("/delayed/ok"))];
        let mut parked = side.begin(&ask("/delayed/ok"));
        eventually("a free place", || side.ask(&ask("/ok")) == 200);
        // Two seconds later it finds the place taken.
        let held = side.hold(1, "/hold", "g");
        verdicts.push(parked.response().status);
        side.release("g", held, "/ok");
        verdicts
    });
    assert_eq!(verdicts, [200, 503]);
}
