//! Names whose addresses change while weir runs, with a DNS server that the test controls.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::metric;
use crate::support::dns::{Dns, DnsBehaviour};
use crate::support::ports::Port;
use crate::support::{Client, Origin, Weir, eventually, get};

/// Backends at several addresses and one port.
struct Fleet {
    port: Port,
    dns: Dns,
}

impl Fleet {
    fn new() -> Self {
        Self {
            port: Port::claim(),
            dns: Dns::start(),
        }
    }

    /// The backend at 127.0.0.`number`.
    fn start(&self, number: u8) -> Origin {
        let address = (address(number), self.port.number());
        Origin::at(address.into(), &format!("origin{number}"))
    }

    /// The name has these addresses from now on, for so many seconds.
    fn name(&self, numbers: &[u8], holds: u32) {
        let addresses: Vec<_> = numbers.iter().map(|number| address(*number)).collect();
        self.dns.set("app.internal", &addresses, holds);
    }

    /// A weir before the name.
    fn weir(&self, resolver: &str, upstream: &str) -> Weir {
        let (dns, port) = (self.dns.address(), self.port.number());
        Weir::start(&format!(
            "workers: 2
admin: {{ listen: ADMIN }}
resolver: {{ address: '{dns}'{resolver} }}
upstreams: {{ app: {{ {upstream} servers: 'app.internal:{port}' }} }}
servers: [ {{ listen: LISTEN, proxy_pass: app }} ]
"
        ))
    }
}

fn address(number: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, number).into()
}

/// Who answers a request.
fn who(weir: &Weir) -> String {
    let answer = get(weir.address(), "/ok");
    answer.get("x-origin").unwrap_or_default().to_owned()
}

/// Waits until exactly these servers respond to requests.
fn until_served_by(weir: &Weir, expected: &[&str]) {
    eventually(&format!("{expected:?} answer"), || {
        let mut seen: Vec<_> = (0..2 * expected.len() + 2).map(|_| who(weir)).collect();
        seen.sort_unstable();
        seen.dedup();
        seen == expected
    });
}

fn lookups(weir: &Weir, result: &str) -> u64 {
    let labels = "upstream=\"app\",name=\"app.internal\"";
    metric(
        weir,
        &format!("weir_upstream_lookups_total{{{labels},result=\"{result}\"}}"),
    )
}

#[test]
fn a_name_is_all_of_its_addresses_and_follows_them() {
    let fleet = Fleet::new();
    let _origins = [1, 2, 3].map(|number| fleet.start(number));
    fleet.name(&[1, 2], 3600);
    let weir = fleet.weir(", ipv6: off", "resolve: 50ms,");
    until_served_by(&weir, &["origin1", "origin2"]);
    fleet.name(&[2, 3], 3600);
    until_served_by(&weir, &["origin2", "origin3"]);
    fleet.name(&[1], 3600);
    until_served_by(&weir, &["origin1"]);
    weir.error_line("upstream server added");
    weir.error_line("upstream server removed");
    let addresses = "weir_upstream_addresses{upstream=\"app\",name=\"app.internal\"}";
    assert_eq!(metric(&weir, addresses), 1);
    assert!(lookups(&weir, "found") > 2);
    assert_eq!(lookups(&weir, "failed"), 0);
}

#[test]
fn requests_in_flight_finish_and_idle_connections_close() {
    let fleet = Fleet::new();
    let (old, _new) = (fleet.start(1), fleet.start(2));
    fleet.name(&[1], 3600);
    let weir = fleet.weir("", "resolve: 50ms,");
    // Two connections to it, one of which is idle then.
    let mut client = old.hold("gate", || {
        let client = Client::connect(weir.address());
        client.get("/hold?gate=gate");
        client
    });
    assert_eq!(who(&weir), "origin1");
    assert_eq!(old.open_connections(), 2);
    fleet.name(&[2], 3600);
    until_served_by(&weir, &["origin2"]);
    eventually("the kept connection is closed", || {
        old.open_connections() == 1
    });
    let api = get(weir.admin_address(), "/api/upstreams").text();
    let listed: serde_json::Value = serde_json::from_str(&api).expect("JSON");
    let servers = listed[0]["servers"].as_array().expect("a list");
    let leaving = servers.iter().find(|server| server["draining"] == true);
    assert_eq!(leaving.expect("it is shown")["active"], 1);
    old.gates().open("gate");
    assert_eq!(client.response().status, 200);
    eventually("it has left", || {
        let api = get(weir.admin_address(), "/api/upstreams").text();
        old.open_connections() == 0 && !api.contains("127.0.0.1:")
    });
}

#[test]
fn a_resolver_that_fails_takes_no_server_with_it() {
    let fleet = Fleet::new();
    let _origins = [1, 2].map(|number| fleet.start(number));
    fleet.name(&[1], 3600);
    let weir = fleet.weir(", timeout: 2s", "resolve: 50ms,");
    until_served_by(&weir, &["origin1"]);
    for manner in [DnsBehaviour::Failing, DnsBehaviour::Silent] {
        let (before, well) = (lookups(&weir, "failed"), lookups(&weir, "found"));
        fleet.dns.behave(manner);
        eventually("look-ups fail", || lookups(&weir, "failed") > before + 1);
        assert_eq!(who(&weir), "origin1");
        fleet.dns.behave(DnsBehaviour::Well);
        eventually("look-ups go well", || lookups(&weir, "found") > well + 1);
    }
    // An empty DNS response, which does not remove the servers.
    let before = lookups(&weir, "failed");
    fleet.name(&[], 3600);
    eventually("look-ups fail", || lookups(&weir, "failed") > before + 1);
    assert_eq!(who(&weir), "origin1");
    fleet.name(&[2], 3600);
    until_served_by(&weir, &["origin2"]);
    eventually("all is said", || {
        weir.stderr().matches("host is found again").count() >= 3
    });
    let said = weir.stderr();
    assert!(said.contains("SERVFAIL"), "{said}");
    // Once each time, however many fail after the first.
    let told = said.matches("host not found in upstream").count();
    let over = said.matches("host is found again").count();
    assert_eq!(told, over, "{said}");
    assert!((told as u64) < lookups(&weir, "failed"), "{said}");
}

#[test]
fn an_expired_dns_record_is_resolved_again() {
    let fleet = Fleet::new();
    let _origins = [1, 2].map(|number| fleet.start(number));
    fleet.name(&[1], 1);
    let weir = fleet.weir("", "resolve: 1h,");
    until_served_by(&weir, &["origin1"]);
    fleet.name(&[2], 3600);
    until_served_by(&weir, &["origin2"]);
}

#[test]
fn the_lifetime_of_dns_records_can_be_overridden() {
    let fleet = Fleet::new();
    let _origin = fleet.start(1);
    fleet.name(&[1], 1);
    let weir = fleet.weir(", valid: 1h, ipv6: off", "resolve: 2h,");
    assert_eq!(who(&weir), "origin1");
    assert_eq!(fleet.dns.asked(), 1, "one kind of address, once");
    // Longer than the answer holds by its own account.
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!((fleet.dns.asked(), who(&weir)), (1, "origin1".to_owned()));
}

#[test]
fn truncated_dns_responses_are_queried_over_tcp() {
    let fleet = Fleet::new();
    let _origins = [1, 2].map(|number| fleet.start(number));
    fleet.name(&[1, 2], 3600);
    fleet.dns.behave(DnsBehaviour::Terse);
    let weir = fleet.weir("", "resolve: 1h,");
    until_served_by(&weir, &["origin1", "origin2"]);
    // Both kinds of addresses.
    assert_eq!(fleet.dns.tcp_queries(), 2);
}

#[test]
fn only_the_response_to_the_dns_query_is_accepted() {
    let fleet = Fleet::new();
    let _origin = fleet.start(1);
    fleet.name(&[1], 3600);
    fleet.dns.behave(DnsBehaviour::Confused);
    let weir = fleet.weir("", "resolve: 1h,");
    assert_eq!(who(&weir), "origin1");
}

#[test]
fn another_dns_server_is_asked_where_one_is_silent() {
    let fleet = Fleet::new();
    let _origin = fleet.start(1);
    let (silent, port) = (Dns::start(), fleet.port.number());
    silent.behave(DnsBehaviour::Silent);
    fleet.name(&[1], 3600);
    let weir = Weir::start(&format!(
        "resolver: {{ address: ['{}', '{}'], timeout: 2s }}
upstreams: {{ app: {{ resolve: 1h, servers: 'app.internal:{port}' }} }}
servers: [ {{ listen: LISTEN, proxy_pass: app }} ]
",
        silent.address(),
        fleet.dns.address()
    ));
    assert_eq!(who(&weir), "origin1");
    assert!(silent.asked() > 0);
}

#[test]
fn weir_starts_without_names_that_cannot_be_resolved_yet() {
    let fleet = Fleet::new();
    let weir = fleet.weir("", "resolve: 50ms,");
    weir.error_line("host not found in upstream");
    assert_eq!(get(weir.address(), "/ok").status, 502);
    let _origin = fleet.start(1);
    fleet.name(&[1], 3600);
    until_served_by(&weir, &["origin1"]);
}

#[test]
fn a_queued_request_gets_a_server_that_is_added() {
    let fleet = Fleet::new();
    let (busy, _new) = (fleet.start(1), fleet.start(2));
    fleet.name(&[1], 3600);
    let (dns, port) = (fleet.dns.address(), fleet.port.number());
    let weir = Weir::start(&format!(
        "workers: 2
admin: {{ listen: ADMIN }}
resolver: '{dns}'
upstreams:
  app:
    queue: {{ size: 10 }}
    servers: {{ address: 'app.internal:{port}', max_conns: 1, resolve: 50ms }}
servers: [ {{ listen: LISTEN, proxy_pass: app }} ]
"
    ));
    let _held = busy.hold("gate", || {
        let client = Client::connect(weir.address());
        client.get("/hold?gate=gate");
        client
    });
    let mut waiting = Client::connect(weir.address());
    waiting.get("/ok");
    super::await_waiting(&weir, 1);
    fleet.name(&[1, 2], 3600);
    assert_eq!(waiting.response().get("x-origin"), Some("origin2"));
    busy.gates().open("gate");
}

#[test]
fn a_new_server_is_checked_before_its_first_request() {
    let fleet = Fleet::new();
    let (_well, ill) = (fleet.start(1), fleet.start(2));
    ill.script("/healthz", "/status?code=503");
    fleet.name(&[1], 3600);
    let weir = fleet.weir(
        "",
        "resolve: 50ms, health_check: { path: /healthz, interval: 20ms, rise: 1, initial: down },",
    );
    until_served_by(&weir, &["origin1"]);
    fleet.name(&[1, 2], 3600);
    ill.await_count(3);
    until_served_by(&weir, &["origin1"]);
    ill.recover();
    until_served_by(&weir, &["origin1", "origin2"]);
}

#[test]
fn a_reload_changes_nothing_about_names() {
    let fleet = Fleet::new();
    let _origins = [1, 2, 3].map(|number| fleet.start(number));
    fleet.name(&[1, 2], 3600);
    let weir = fleet.weir("", "resolve: 50ms,");
    fleet.name(&[2], 3600);
    until_served_by(&weir, &["origin2"]);
    let server = format!(
        "upstream=\"app\",server=\"127.0.0.2:{}\"",
        fleet.port.number()
    );
    let asked = || {
        metric(
            &weir,
            &format!("weir_upstream_requests_total{{{server},status=\"200\"}}"),
        )
    };
    let before = asked();
    weir.signal("HUP");
    weir.error_line("is in force");
    fleet.name(&[2, 3], 3600);
    until_served_by(&weir, &["origin2", "origin3"]);
    assert!(asked() > before, "what is known of it is kept");
}

#[test]
fn the_systems_own_names_are_looked_up_too() {
    let origin = Origin::start();
    let port = origin.address().port();
    let weir = Weir::start(&format!(
        "admin: {{ listen: ADMIN }}
upstreams: {{ app: {{ resolve: 20ms, servers: {{ address: 'localhost:{port}', max_fails: 0 }} }} }}
servers: [ {{ listen: LISTEN, proxy_pass: app }} ]
"
    ));
    let found = "weir_upstream_lookups_total{upstream=\"app\",name=\"localhost\",result=\"found\"}";
    eventually("it is looked up again", || metric(&weir, found) > 2);
    assert_eq!(get(weir.address(), "/ok").status, 200);
}
