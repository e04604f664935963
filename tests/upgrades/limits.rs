//! A tunnel is one request for `limit_req`, and a long one for `limit_conn`.

use super::{Far, ask, before, read};
use crate::support::redis::Redis;
use crate::support::{Api, Client, Weir, eventually, metric};

fn limited(far: &Far, limit: usize) -> Weir {
    before(
        far.address(),
        "admin: { listen: ADMIN }
limit_conn_zones: { open: { key: $binary_remote_addr, size: 1m } }
limit_req_zones: { asked: { key: $binary_remote_addr, size: 1m, rate: 1r/d } }",
        &format!(
            "limit_conn: {{ zone: open, limit: {limit} }}, limit_req: {{ zone: asked, burst: {}, nodelay: true }},",
            limit + 1
        ),
    )
}

#[test]
fn a_tunnel_keeps_its_place_until_it_is_over() {
    let far = Far::start();
    let weir = limited(&far, 2);
    let mut tunnels: Vec<_> = (0..2).map(|_| ask(&weir, "/echo", "")).collect();
    for tunnel in &mut tunnels {
        assert_eq!(tunnel.head().word(1), "101");
    }
    let mut refused = ask(&weir, "/echo", "");
    assert_eq!(refused.response().status, 503);
    tunnels[0].send("x");
    assert_eq!(read(&mut tunnels[0], 1), "x");
    tunnels.pop().expect("one of two").reset();
    let api = Api(weir.admin_address());
    eventually("a place", || {
        api.get("/api/zones/open/keys/127.0.0.1")["standing"]["remaining"] == 1
    });
    // Each was charged once, the one without a place too.
    let mut third = ask(&weir, "/echo", "");
    assert_eq!(third.head().word(1), "101");
    drop((third, tunnels));
    eventually("no connection is left", || {
        metric(&weir, "weir_zone_keys{zone=\"open\"}") == 0
    });
    let mut fourth = ask(&weir, "/echo", "");
    assert_eq!(
        fourth.response().status,
        429,
        "every tunnel was charged once"
    );
}

#[test]
fn a_thousand_tunnels_leave_nothing_behind() {
    const MANY: usize = 1000;
    let far = Far::start();
    let weir = limited(&far, MANY);
    let before = weir.resident();
    let mut tunnels = Vec::new();
    for _ in 0..MANY {
        let mut tunnel: Client = ask(&weir, "/echo", "x");
        assert_eq!(tunnel.head().word(1), "101");
        assert_eq!(read(&mut tunnel, 1), "x");
        tunnels.push(tunnel);
    }
    assert_eq!(far.open(), MANY);
    let each = weir.resident().saturating_sub(before) / MANY as u64;
    assert!(each < 24 * 1024, "{each} bytes each");
    // Half of them end well, half do not.
    for (number, tunnel) in tunnels.into_iter().enumerate() {
        match number % 2 {
            0 => drop(tunnel),
            _ => tunnel.reset(),
        }
    }
    eventually("no tunnel is at the backend", || far.open() == 0);
    eventually("no place taken", || {
        metric(&weir, "weir_zone_keys{zone=\"open\"}") == 0
    });
    eventually("every line in the log", || {
        weir.stdout()
            .lines()
            .filter(|line| line.starts_with("/echo 101 "))
            .count()
            == MANY
    });
}

/// A silent tunnel is in use; a connection between two requests makes room for others.
#[test]
fn a_tunnel_does_not_make_room_for_others() {
    let far = Far::start();
    let weir = before(far.address(), "max_connections: 2", "");
    let mut tunnel = ask(&weir, "/echo", "x");
    tunnel.head();
    assert_eq!(read(&mut tunnel, 1), "x");
    for _ in 0..3 {
        let mut other = eventually_served(&weir);
        // Before it is idle it makes no room: its answer may have come a moment ago.
        let _another = eventually_served(&weir);
        assert!(other.is_closed());
    }
    tunnel.send("y");
    assert_eq!(read(&mut tunnel, 1), "y");
}

/// A client that was let in and answered, perhaps not at the first try.
fn eventually_served(weir: &Weir) -> Client {
    let mut served = None;
    eventually("it is let in", || {
        let mut client = Client::connect(weir.address());
        let asked = client.try_send("GET /ok HTTP/1.1\r\nHost: a\r\n\r\n");
        if asked.is_ok() && client.try_response().is_ok() {
            served = Some(client);
        }
        served.is_some()
    });
    served.expect("it was let in")
}

/// A store drops slots that are not renewed; that of a tunnel is renewed while it is open.
#[test]
fn a_tunnel_keeps_its_place_among_gateways_too() {
    let (far, redis) = (Far::start(), Redis::start());
    let weir = before(
        far.address(),
        &format!(
            "stores: {{ shared: {{ redis: '{}', timeout: 1s }} }}
limit_conn_zones: {{ open: {{ key: $server_port, store: shared }} }}",
            redis.url()
        ),
        "limit_conn: { zone: open, limit: 1 },",
    );
    let mut tunnel = ask(&weir, "/echo", "");
    assert_eq!(tunnel.head().word(1), "101");
    let set = format!("weir:{{open:{}}}:places", weir.port());
    let kept_until = || redis.cli(&["ZRANGE", &set, "0", "-1", "WITHSCORES"]);
    let first = kept_until();
    assert!(!first.trim().is_empty());
    eventually("it is spoken for", || kept_until() > first);
    assert_eq!(ask(&weir, "/echo", "").response().status, 503);
    tunnel.reset();
    eventually("no connection is left", || kept_until().trim().is_empty());
}
