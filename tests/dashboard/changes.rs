//! Changes made from the page, and its errors where one is not possible.

use serde_json::json;

use super::{DESK, POLITE, answer, click, enter, gateway, page, status, unlock};
use crate::support::api::TOKEN;
use crate::support::browser::Browser;
use crate::support::{Api, Origin, Weir, eventually, get};

fn fill_in_rate(browser: &mut Browser, rate: &str) {
    let input = "document.querySelector('#ask[open] input[name=rate]')";
    browser.until(input);
    browser.value(&format!("{input}.value = '{rate}'"));
}

#[test]
fn a_key_is_blocked_and_let_go_again_without_a_mouse() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    assert_eq!(status(&weir, POLITE), 200);
    let mut browser = page(&weir, DESK);
    browser.until_shown("127.0.0.9");
    // As a person who has no mouse gets there.
    eventually("the focus comes round", || {
        let focus = browser.value("document.activeElement.getAttribute('aria-label')");
        let there = focus == "Block 127.0.0.9";
        if !there {
            browser.press("Tab", 9, "");
        }
        there
    });
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
    eventually("no server is left", || status(&weir, POLITE) >= 500);
    // An operator did that: shown as a warning, and no server is unhealthy.
    browser.until(&format!(
        "{} === 'All servers of `app` are taken out'",
        answer("wellness")
    ));
    browser.until("document.querySelector('#wellness').className === 'glance doubt'");
    click(&mut browser, &format!("Enable: {address}"));
    browser.until(&format!("{} === 'It is well.'", answer("wellness")));
    click(&mut browser, "degraded now");
    eventually("what is not essential is off", || {
        get(weir.address(), "/extra").status == 503
    });
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
    browser.until_shown("The token is wrong.");
    unlock(&mut browser);
    browser.until_shown("draining");
}

#[test]
fn a_block_wins_over_an_exemption() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    let api = Api(weir.admin_address());
    eventually("the admin listener", || get(api.0, "/readyz").status == 200);
    for mark in ["block", "exempt"] {
        let path = format!("/api/zones/perip/keys/127.0.0.9/{mark}");
        api.change("PUT", &path, &json!({ "for": "1h" }));
    }
    assert_eq!(status(&weir, POLITE), 429);
    let mut browser = page(&weir, DESK);
    browser.until_shown("blocked, 60 min left; exempt, but blocked, 60 min left");
    click(&mut browser, "Unblock 127.0.0.9");
    unlock(&mut browser);
    eventually("it is exempt", || status(&weir, POLITE) == 200);
    click(&mut browser, "Limit again 127.0.0.9");
    browser.until("!document.querySelector('#zone tbody').innerText.includes('exempt')");
}

#[test]
fn a_key_that_is_not_listed_is_looked_up_and_blocked() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    let mut browser = page(&weir, DESK);
    let input = "document.querySelector('#zone .seek input')";
    browser.until(input);
    browser.value(&format!("{input}.value = 'long…#and no number'"));
    click(&mut browser, "Show");
    browser.until("document.querySelector('#toasts .bad').textContent.includes('is not a key of')");
    browser.value(&format!("{input}.value = '127.0.0.9'"));
    click(&mut browser, "Show");
    browser.until_shown("6 of 6 left");
    click(&mut browser, "Block 127.0.0.9");
    browser
        .until("document.querySelector('#ask[open] input[name=for]') === document.activeElement");
    enter(&mut browser);
    unlock(&mut browser);
    eventually("it is refused", || status(&weir, POLITE) == 429);
}

#[test]
fn the_configuration_is_read_again() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    let mut browser = page(&weir, DESK);
    browser.until_shown("configuration 1");
    click(&mut browser, "Reload configuration");
    click(&mut browser, "Reload");
    unlock(&mut browser);
    browser.until_shown("configuration 2");
}

#[test]
fn without_a_token_nothing_is_offered_that_cannot_be_done() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "admin: { listen: ADMIN }
limit_req_zones: { perip: { key: $binary_remote_addr, size: 1m, rate: 1r/m } }
upstreams: { app: { servers: [ 'ORIGIN' ] } }
degrade_groups: { extras: auto }
servers:
- { listen: LISTEN, limit_req: { zone: perip, burst: 5 }, locations: [ { path: /, proxy_pass: app, degrade_group: extras } ] }
",
    );
    status(&weir, POLITE);
    let mut browser = page(&weir, DESK);
    browser.until_shown("changes are off: no admin.token");
    browser.until_shown("127.0.0.9");
    let shown = browser.value("[...document.querySelectorAll('button')].filter(b => b.checkVisibility()).map(b => b.textContent)");
    assert_eq!(shown, json!(["perip", "Show", "Pause", "Explain"]));
    browser.until_shown("automatic");
}

/// The token was changed while the page was open.
#[test]
fn a_token_that_has_become_wrong_is_forgotten_and_the_way_back_in_is_shown() {
    let origin = Origin::start();
    let weir = gateway(&origin);
    let mut browser = page(&weir, DESK);
    browser.value("sessionStorage.setItem('weir-token', 'that of yesterday')");
    browser.until_shown("The token was not accepted. Enter it again.");
    browser.until("document.querySelector('#connection').hidden");
    click(&mut browser, "Unlock changes");
    unlock(&mut browser);
    browser.until("document.querySelector('#lock').textContent === 'Forget the token'");
    assert_eq!(browser.value("sessionStorage.getItem('weir-token')"), TOKEN);
}
