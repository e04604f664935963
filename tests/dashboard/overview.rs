//! The overview at the top of the page and the tables below it: limited keys, and the health of the backends.

use std::net::Ipv4Addr;

use super::{DESK, FLOODER, POLITE, answer, flooded, gateway, page, status};
use crate::support::redis::Redis;
use crate::support::{Origin, Weir, get};

#[test]
fn the_dashboard_shows_limited_keys_and_healthy_backends() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    let mut browser = page(&weir, DESK);
    browser.until(&format!(
        "{} === 'No requests are limited.'",
        answer("limited")
    ));
    browser.until(&format!("{} === 'It is well.'", answer("wellness")));
    assert_eq!(status(&weir, POLITE), 200);
    flooded(&weir, FLOODER, "/ok", || {
        browser.until(&format!(
            "{} === '127.0.0.7 is refused by perip'",
            answer("limited")
        ));
        browser.until(
            "document.querySelector('#limited .more').textContent.includes('the limit is 1r/m')",
        );
        // The refusals come as a stream, each with its reason.
        browser.until(
            "document.querySelector('#refusal-rows').innerText.includes('over a burst of 5')",
        );
        // The zone that refuses opens by itself, with the culprit on top.
        browser.until(
            "document.querySelector('#zone tbody tr .lead').innerText.includes('127.0.0.7')",
        );
        browser
            .until("document.querySelector('#zone tbody .spark .refuse').getAttribute('d') !== ''");
    });
    assert_eq!(browser.complaints(), [] as [&str; 0], "CSP and scripts");
}

#[test]
fn the_dashboard_shows_the_gateways_of_a_store_and_its_outage() {
    let redis = Redis::start();
    let start = || {
        Weir::start(&format!(
            "admin: {{ listen: ADMIN }}
stores: {{ shared: {{ redis: '{}', timeout: 1s }} }}
limit_req_zones: {{ perip: {{ key: $binary_remote_addr, size: 1m, rate: 1r/m, store: shared }} }}
servers:
- {{ listen: LISTEN, limit_req: {{ zone: perip }}, return: 204 }}
",
            redis.url()
        ))
    };
    let (weir, _another) = (start(), start());
    let mut browser = page(&weir, DESK);
    browser.until("document.querySelectorAll('#store-cards tbody tr').length === 2");
    let card = "document.querySelector('#store-cards').textContent";
    browser.until(&format!("{card}.includes('answers')"));
    browser.until(&format!("{card}.includes('Counts for perip')"));
    browser.until(&format!("{card}.includes('this one')"));
    drop(redis);
    browser.until(&format!("{card}.includes('away')"));
    browser
        .until("document.querySelector('#wellness').textContent.includes('store shared is away')");
}

/// One client was refused very often and stopped; another one has begun.
#[test]
fn the_dashboard_shows_current_refusals_first() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    let mut browser = page(&weir, DESK);
    for _ in 0..500 {
        status(&weir, FLOODER);
    }
    let first = "document.querySelector('#zone tbody tr .lead').innerText";
    browser.until(&format!("{first}.includes('127.0.0.7')"));
    let another = Ipv4Addr::new(127, 0, 0, 8);
    flooded(&weir, another, "/ok", || {
        browser.until(&format!(
            "{} === '127.0.0.8 is refused by perip'",
            answer("limited")
        ));
        browser.until("/It asks [1-9]/.test(document.querySelector('#limited .more').textContent)");
        browser.until(&format!("{first}.includes('127.0.0.8')"));
        // They are still there, with what they have had.
        let row = "[...document.querySelectorAll('#zone tbody tr')].find(row => row.innerText.includes('127.0.0.7')).innerText";
        browser.until(&format!("{row}.includes('494')"));
    });
}

#[test]
fn rows_are_sorted_around_the_one_being_edited() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    let mut browser = page(&weir, DESK);
    assert_eq!(status(&weir, POLITE), 200);
    let button = "document.querySelector('[aria-label=\"Block 127.0.0.9\"]')";
    browser.until(button);
    browser.value(&format!("{button}.focus()"));
    let rows = "[...document.querySelectorAll('#zone tbody tr .lead span')].map(it => it.textContent).join()";
    browser.until(&format!("{rows} === '127.0.0.9'"));
    flooded(&weir, FLOODER, "/ok", || {
        browser.until(&format!("{rows} === '127.0.0.7,127.0.0.9'"));
    });
    browser.until(&format!("document.activeElement === {button}"));
}

#[test]
fn a_backend_with_error_responses_is_shown_as_failing() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    let mut browser = page(&weir, DESK);
    browser.until(&format!("{} === 'It is well.'", answer("wellness")));
    let says = format!("{} of app: answers with errors", origin.address());
    flooded(&weir, POLITE, "/free/status?code=500", || {
        browser.until(&format!("{} === '{says}'", answer("wellness")));
        browser.until("document.querySelector('#wellness').className === 'glance bad'");
        browser.until(
            "document.querySelector('#upstreams .badge.bad').textContent === 'answers with errors'",
        );
    });
    // When that is over it is over, though errors stay counted.
    flooded(&weir, POLITE, "/free/ok", || {
        browser.until(&format!("{} === 'It is well.'", answer("wellness")));
    });
}

#[test]
fn the_log_names_an_upstream_without_available_servers() {
    let weir = Weir::start(
        "admin: { listen: ADMIN }
upstreams: { dead: { servers: [ 'LISTEN2' ] }, alive: { servers: [ 'LISTEN' ] } }
servers:
- listen: LISTEN
  locations:
  - { path: /, return: 204 }
  - { path: /dead, proxy_pass: dead }
  - { path: /alive, proxy_pass: alive }
",
    );
    let mut browser = page(&weir, DESK);
    assert_eq!(get(weir.address(), "/dead").status, 502);
    browser.until(&format!(
        "{} === 'No server of `dead` answers'",
        answer("wellness")
    ));
    browser.until("document.querySelector('#wellness').className === 'glance bad'");
}
