//! A page with a hundred images in a real browser, which does not try again what is refused.

use std::fmt::Write as _;
use std::io::Write as _;

use tokio::time::Instant;

use crate::support::browser::Browser;
use crate::support::{Weir, millis_since};

/// How many of a page's images are shown under these limits, and after how many milliseconds.
fn shown(rate: &str, rule: &str, images: &str) -> (u64, u64) {
    let mut page = String::from("<!doctype html><title>page</title>");
    for number in 0..IMAGES {
        write!(page, "<img src='/i/{number}.svg'>").expect("a string takes it");
    }
    let weir = Weir::start(&format!(
        "limit_req_zones: {{ perip: {{ key: $binary_remote_addr, rate: {rate} }} }}
servers:
- listen: LISTEN
  limit_req: {{ zone: perip, {rule} }}
  proxy_pass: http://LISTEN2
  locations: [{images}]
- listen: LISTEN2
  locations:
  - path: /i/
    return: {{ status: 200, content_type: image/svg+xml, body: \"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>\" }}
  - {{ path: /favicon.ico, return: 204 }}
  - path: = /
    return: {{ status: 200, content_type: text/html, body: \"{page}\" }}
"
    ));
    let start = Instant::now();
    let mut browser = Browser::open(&format!("http://{}/", weir.address()), (1280, 800));
    browser.until("document.title == 'page' && document.readyState == 'complete'");
    let loading = "Math.round(performance.getEntriesByType('navigation')[0].loadEventStart)";
    let taken = browser
        .value(loading)
        .as_u64()
        .unwrap_or_else(|| millis_since(start));
    let shown = browser.value("[...document.images].filter(it => it.naturalWidth > 0).length");
    (shown.as_u64().expect("a number"), taken)
}

#[test]
fn a_page_is_complete_with_the_recommended_limits() {
    let exempt = "{ path: /i/, limit_req: off }";
    let (broken, _) = shown("10r/s", "burst: 20, nodelay: true", "");
    assert!(broken < IMAGES, "all {broken} images are shown");
    let mut table = format!("10r/s, burst 20: {broken} images\n");
    for (rate, rule, images) in [
        ("10r/s", "burst: 120, nodelay: true", ""),
        ("10r/s", "burst: 20, nodelay: true", exempt),
        ("50r/s", "burst: 20, nodelay: true, on_excess: delay", ""),
        ("10r/s", "burst: 20, nodelay: true, on_excess: delay", ""),
    ] {
        let (whole, taken) = shown(rate, rule, images);
        assert_eq!(whole, IMAGES, "{rate} {rule} {images}");
        writeln!(table, "{rate}, {rule} {images}: {taken} ms").expect("a string takes it");
    }
    // For the table in docs/limits.md.
    std::io::stdout().write_all(table.as_bytes()).ok();
}

const IMAGES: u64 = 100;
