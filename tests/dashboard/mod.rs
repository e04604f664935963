//! The page on the admin listener, in a real browser: what a person sees, and what their clicks do to the proxy.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::support::browser::Browser;
use crate::support::redis::Redis;
use crate::support::{Origin, Weir, eventually, get, get_from};

const DESK: (u32, u32) = (1280, 900);
const PHONE: (u32, u32) = (390, 800);
const FLOODER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 7);
const POLITE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

fn gateway(origin: &Origin) -> Weir {
    Weir::before(
        origin,
        "admin: { listen: ADMIN, token: sesame }
limit_req_zones: { perip: { key: $binary_remote_addr, size: 1m, rate: 1r/m } }
upstreams: { app: { servers: [ 'ORIGIN' ] } }
degrade_groups: { extras: auto }
servers:
- listen: LISTEN
  limit_req: { zone: perip, burst: 5, nodelay: true }
  locations:
  - { path: /, proxy_pass: app }
  - { path: /extra, degrade_group: extras, proxy_pass: app }
",
    )
}

fn page(weir: &Weir, screen: (u32, u32)) -> Browser {
    let mut browser = Browser::open(&format!("http://{}/", weir.admin_address()), screen);
    browser.until("document.querySelector('#about').textContent !== ''");
    browser
}

fn status(weir: &Weir, from: Ipv4Addr) -> u16 {
    get_from(from, weir.address(), "/ok").status
}

/// Does something while somebody asks much more often than they may.
fn flooded(weir: &Weir, mut doing: impl FnMut()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // An end of its own, should the test fail.
            for _ in 0..2_000 {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                status(weir, FLOODER);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let end = Ending(&over);
        doing();
        drop(end);
    });
}

/// Ends the flood also when an assertion fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Clicks the button with this text, or with this label for those who cannot see.
fn click(browser: &mut Browser, name: &str) {
    let find = format!(
        "[...document.querySelectorAll('button')].find(b => b.checkVisibility() && (b.textContent === {0} || b.getAttribute('aria-label') === {0}))",
        json!(name)
    );
    browser.until(&find);
    browser.value(&format!("{find}.click()"));
}

fn answer(id: &str) -> String {
    format!("document.querySelector('#{id} .answer').textContent")
}

/// Fills in what is asked for the first time something is changed.
fn unlock(browser: &mut Browser) {
    browser
        .until("document.querySelector('#ask[open] input[name=token]') === document.activeElement");
    browser.type_text("sesame");
    enter(browser);
}

fn fill_in_rate(browser: &mut Browser, rate: &str) {
    let input = "document.querySelector('#ask[open] input[name=rate]')";
    browser.until(input);
    browser.value(&format!("{input}.value = '{rate}'"));
}

fn enter(browser: &mut Browser) {
    browser.press("Enter", 13, "\r");
}

#[test]
fn it_says_who_is_limited_by_which_rule_and_whether_the_backend_is_well() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    let mut browser = page(&weir, DESK);
    browser.until(&format!("{} === 'Nobody.'", answer("limited")));
    browser.until(&format!("{} === 'It is well.'", answer("wellness")));
    assert_eq!(status(&weir, POLITE), 200);
    flooded(&weir, || {
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
fn a_key_is_blocked_and_let_go_again_without_a_mouse() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    assert_eq!(status(&weir, POLITE), 200);
    let mut browser = page(&weir, DESK);
    browser.until_shown("127.0.0.9");
    // As a person who has no mouse gets there.
    for _ in 0..60 {
        if browser.value("document.activeElement.getAttribute('aria-label')") == "Block 127.0.0.9" {
            break;
        }
        browser.press("Tab", 9, "");
    }
    let ring = "document.activeElement.getAttribute('aria-label') === 'Block 127.0.0.9' && getComputedStyle(document.activeElement).outlineStyle === 'solid'";
    browser.until(ring);
    enter(&mut browser);
    browser
        .until("document.querySelector('#ask[open] input[name=for]') === document.activeElement");
    enter(&mut browser);
    unlock(&mut browser);
    browser.until_shown("127.0.0.9 is blocked for 1h");
    eventually("it is refused", || status(&weir, POLITE) == 429);
    browser.until_shown("blocked, 60 min left");
    click(&mut browser, "Unblock 127.0.0.9");
    eventually("it is let in again", || status(&weir, POLITE) == 200);
}

#[test]
fn a_limit_is_changed_and_put_back() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    while status(&weir, POLITE) == 200 {}
    let mut browser = page(&weir, DESK);
    click(&mut browser, "Change limit…");
    fill_in_rate(&mut browser, "fast");
    click(&mut browser, "Change");
    unlock(&mut browser);
    // In the words that the same mistake has in a file.
    browser.until("document.querySelector('#toasts .bad').textContent.includes('10r/s')");
    click(&mut browser, "Change limit…");
    fill_in_rate(&mut browser, "1000r/s");
    click(&mut browser, "Change");
    browser.until_shown("changed while it runs");
    eventually("more is let in", || status(&weir, POLITE) == 200);
    click(&mut browser, "Back to the file");
    browser.until("!document.body.innerText.includes('changed while it runs')");
}

#[test]
fn servers_and_groups_are_switched() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    let mut browser = page(&weir, DESK);
    let address = origin.address();
    click(&mut browser, &format!("Drain: {address}"));
    unlock(&mut browser);
    browser.until_shown("draining");
    eventually("nobody is left", || status(&weir, POLITE) >= 500);
    browser.until(&format!(
        "{} === 'Nobody of app is well'",
        answer("wellness")
    ));
    click(&mut browser, &format!("Enable: {address}"));
    browser.until(&format!("{} === 'It is well.'", answer("wellness")));
    click(&mut browser, "degraded now");
    eventually("what is not essential is off", || {
        get(weir.address(), "/extra").status == 503
    });
}

#[test]
fn it_says_who_shares_a_store_and_when_that_is_away() {
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

#[test]
fn a_wrong_token_is_asked_for_again() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    let mut browser = page(&weir, DESK);
    click(&mut browser, &format!("Drain: {}", origin.address()));
    browser
        .until("document.querySelector('#ask[open] input[name=token]') === document.activeElement");
    browser.type_text("open up");
    enter(&mut browser);
    browser.until_shown("That was not the token.");
    unlock(&mut browser);
    browser.until_shown("draining");
}

#[test]
fn a_request_is_explained_rule_by_rule() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    while status(&weir, FLOODER) == 200 {}
    let mut browser = page(&weir, DESK);
    browser.until("document.querySelector('#explain-form')");
    browser
        .value("document.querySelector('#explain-form').elements.remote_addr.value = '127.0.0.7'");
    click(&mut browser, "Explain");
    browser.until("document.querySelector('#explained').innerText.includes('is refused with 429')");
    browser.until("document.querySelector('#explained ol').innerText.includes('perip (limit_req, 1r/m, burst 5)')");
    // A refusal that was seen is explained as it stands.
    browser.value("document.querySelector('#explain-form').elements.remote_addr.value = ''");
    browser.until("document.querySelector('#refusal-rows button')");
    browser.value("document.querySelector('#refusal-rows button').click()");
    browser.until(
        "document.querySelector('#explain-form').elements.remote_addr.value === '127.0.0.7'",
    );
}

#[test]
fn it_fits_a_phone_in_light_and_in_dark() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    status(&weir, POLITE);
    let mut browser = page(&weir, PHONE);
    browser.until_shown("127.0.0.9");
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        browser.until("document.documentElement.scrollWidth <= innerWidth");
        let small = browser.value("[...document.querySelectorAll('button')].filter(b => b.checkVisibility() && !b.classList.contains('name')).every(b => b.getBoundingClientRect().height >= 30)");
        assert_eq!(small, json!(true), "a finger finds every button");
        grounds.push(browser.value("getComputedStyle(document.body).backgroundColor"));
    }
    assert_ne!(grounds[0], grounds[1]);
}

#[test]
fn it_comes_with_a_strict_policy_and_to_strangers_without_what_it_shows() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    eventually("the admin listener", || {
        get(weir.admin_address(), "/").status == 200
    });
    let page = get(weir.admin_address(), "/");
    let policy = page.get("content-security-policy").unwrap_or_default();
    assert!(
        policy.starts_with("default-src 'none'; script-src 'self';"),
        "{policy}"
    );
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert!(!page.text().contains("perip"), "a shell without content");
}
