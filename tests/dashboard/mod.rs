//! The dashboard, in a real browser: what it shows, and what clicks change.

mod changes;
mod overview;

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::support::api::TOKEN;
use crate::support::browser::Browser;
use crate::support::{Api, Client, Origin, Weir, eventually, get, get_from};

const DESK: (u32, u32) = (1280, 900);
const PHONE: (u32, u32) = (390, 800);
const FLOODER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 7);
const POLITE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

fn gateway(origin: &Origin) -> Weir {
    Weir::before(
        origin,
        &format!(
            "admin: {{ listen: ADMIN, token: {TOKEN} }}
limit_req_zones:
  perip: {{ key: $binary_remote_addr, size: 1m, rate: 1r/m }}
  perkey: {{ key: $http_x_api_key, size: 1m, rate: 1r/m }}
upstreams: {{ app: {{ servers: [ 'ORIGIN' ] }} }}
degrade_groups: {{ extras: auto }}
servers:
- listen: LISTEN
  locations:
  - {{ path: /, proxy_pass: app, limit_req: {{ zone: perip, burst: 5, nodelay: true }} }}
  - {{ path: /extra, degrade_group: extras, proxy_pass: app }}
  - {{ path: /free, proxy_pass: app }}
  - {{ path: /keyed, proxy_pass: app, limit_req: {{ zone: perkey }} }}
"
        ),
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

/// Runs `act` while a client sends far more requests than its limit.
fn flooded(weir: &Weir, from: Ipv4Addr, path: &str, mut doing: impl FnMut()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // An end of its own, should the test fail.
            for _ in 0..2_000 {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                get_from(from, weir.address(), path);
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
    browser.type_text(TOKEN);
    enter(browser);
}

fn enter(browser: &mut Browser) {
    browser.press("Enter", 13, "\r");
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

/// The key came in a header, and the refusal only tells the key.
#[test]
fn a_refusal_by_a_header_key_is_explained_with_that_header() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    let mut client = Client::connect(weir.address());
    let request = "GET /keyed/ok HTTP/1.1\r\nHost: x\r\nX-Api-Key: abc\r\n\r\n";
    eventually("it is refused", || {
        client.send(request);
        client.response().status == 429
    });
    let mut browser = page(&weir, DESK);
    let headers = "document.querySelector('#explain-form').elements.headers.value";
    browser.value(&format!("{headers} = 'X-Api-Key: of another'"));
    browser.until("document.querySelector('#refusal-rows button')");
    browser.value("document.querySelector('#refusal-rows button').click()");
    browser.until(&format!("{headers} === 'x-api-key: abc'"));
    browser.until("document.querySelector('#explained').innerText.includes('It is refused')");
}

#[test]
fn a_request_stopped_after_its_limits_is_not_explained_as_passing() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    let api = Api(weir.admin_address());
    eventually("the admin listener", || get(api.0, "/readyz").status == 200);
    api.change("PATCH", "/api/groups/extras", &json!({ "mode": "on" }));
    let mut browser = page(&weir, DESK);
    browser.value("document.querySelector('#explain-form').elements.url.value = 'http://x/extra'");
    click(&mut browser, "Explain");
    browser.until("document.querySelector('#explained p').innerText.includes('Limits let it pass, but: its location is degraded')");
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
fn the_dashboard_has_a_strict_policy_and_needs_the_token_for_data() {
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
