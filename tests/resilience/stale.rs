//! Stale responses: when they are served, and how much memory they may take.

use super::{ask, before, metric};
use crate::support::{Client, Origin, Weir, eventually, get};

/// What lets a shared cache keep an answer for a minute.
const FRESH: &str = "field=cache-control:max-age=60";

fn keeping(origin: &Origin) -> Weir {
    before(
        &[origin],
        "keepalive: 0",
        "fallback: { stale: 10m }
  proxy_pass: app",
    )
}

#[test]
fn the_last_good_response_is_served_stale() {
    let origin = Origin::start();
    let weir = keeping(&origin);
    let paths = [
        format!("/bytes?n=10&{FRESH}"),
        format!("/chunked?n=5&{FRESH}"),
        format!("/bytes?n=100000&{FRESH}"),
    ];
    let good: Vec<_> = paths.iter().map(|path| get(weir.address(), path)).collect();
    assert_eq!((good[0].status, good[0].has("age")), (200, false));
    origin.behave("/reset");
    for (path, good) in paths.iter().zip(&good) {
        let again = get(weir.address(), path);
        assert_eq!((again.status, &again.body), (200, &good.body), "{path}");
        assert!(again.has("age"), "{path}");
        let says = again.get("cache-status").expect("it comes from there");
        assert!(says.starts_with("weir; hit; ttl="), "{says}");
    }
    let head = ask(&weir, "HEAD", &paths[0], "");
    assert_eq!((head.status, head.get("content-length")), (200, Some("10")));
    assert_eq!(
        get(weir.address(), &format!("/bytes?n=11&{FRESH}")).status,
        502,
        "no client has requested it before"
    );
    let posted = ask(&weir, "POST", &paths[0], "Content-Length: 0\r\n");
    assert_eq!(posted.status, 502);
    origin.recover();
    assert!(!get(weir.address(), &paths[0]).has("age"));
}

#[test]
fn responses_that_may_not_be_stored_are_not() {
    let origin = Origin::start();
    let weir = keeping(&origin);
    let fields = |says: &str| format!("/fields?cache-control={says}");
    let mut unkept: Vec<_> = [
        "no-store,max-age=60",
        "private,max-age=60",
        "no-cache,public",
        "max-age=0",
        "public,must-revalidate",
        "public&set-cookie=a",
        "public&vary=*",
        "public&content-range=bytes",
    ]
    .iter()
    .map(|says| fields(says))
    .collect();
    unkept.extend(["/ok", "/close-early", "/fields?expires=0"].map(str::to_owned));
    let varying = fields("public&vary=x-kind");
    for path in &unkept {
        assert_eq!(get(weir.address(), path).status, 200, "{path}");
    }
    assert_eq!(ask(&weir, "GET", &varying, "X-Kind: a\r\n").status, 200);
    origin.behave("/reset");
    for path in &unkept {
        assert_eq!(get(weir.address(), path).status, 502, "{path}");
    }
    assert_eq!(ask(&weir, "GET", &varying, "X-Kind: a\r\n").status, 200);
    assert_eq!(ask(&weir, "GET", &varying, "X-Kind: b\r\n").status, 502);
}

/// A cache that leaves one of these out of its key serves one client the response to another.
#[test]
fn stale_responses_are_served_to_identical_requests_only() {
    let origin = Origin::start();
    let weir = keeping(&origin);
    let path = "/fields?cache-control=public";
    let with_body = "Content-Length: 2\r\n\r\nhi";
    let ask_host = |host: &str| {
        let mut client = Client::connect(weir.address());
        client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        client.response().status
    };
    let mut client = Client::connect(weir.address());
    client.send(format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\n{with_body}"
    ));
    assert_eq!(client.response().status, 200);
    assert_eq!(ask_host("localhost:1234"), 200);
    origin.behave("/reset");
    assert_eq!(ask_host("localhost"), 502, "another body, another port");
    assert_eq!(ask_host("LOCALHOST:1234"), 200);
}

/// Answers that clients take slowly are in memory twice: in part on their way, and as far as they came to be kept.
#[test]
fn buffered_responses_count_against_the_bound() {
    const STREAMS: usize = 40;
    const SIZE: usize = 3 << 19;
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "admin: { listen: ADMIN }
stale_size: 16m
servers:
- listen: LISTEN
  fallback: { stale: 10m }
  proxy_pass: http://ORIGIN
",
    );
    let path = |number: usize, gate: &str| format!("/bytes?n={SIZE}&number={number}&{FRESH}{gate}");
    let bytes = || metric(&weir, "weir_stale_bytes", &[]).expect("it is counted");
    assert_eq!(get(weir.address(), &path(0, "")).body.len(), SIZE);
    let (before, kept) = (weir.resident(), bytes());
    assert!(kept > SIZE as u64, "{kept}");
    let mut clients: Vec<_> = (1..=STREAMS)
        .map(|number| {
            let mut client = Client::connect(weir.address());
            client.get(&path(number, "&gate=last"));
            client.head();
            let mut received = 0;
            while received < SIZE - 1 {
                received += client.some(SIZE).len();
            }
            client
        })
        .collect();
    let (after, taken) = (weir.resident(), bytes());
    assert!(taken <= 16 << 20, "{taken}");
    let grown = after.saturating_sub(before) >> 20;
    assert!(grown < 32, "{grown} MB for {STREAMS} streams of 1.5 MB");
    let skipped = metric(&weir, "weir_stale_skipped_total", &[]);
    assert!(skipped > Some(STREAMS as u64 / 2), "{skipped:?}");
    // Half of the room is for what is complete, however many are on their way.
    origin.script(&path(0, ""), "/reset");
    assert_eq!(get(weir.address(), &path(0, "")).body.len(), SIZE);
    // Those that end early give their room back, and those that end well are kept in it.
    drop(clients.split_off(1));
    eventually("the rest is given back", || bytes() < 4 << 20);
    origin.gates().open("last");
    assert_eq!(clients[0].some(1).len(), 1);
    eventually("all is given back but what is kept", || {
        (2 * kept - 1000..2 * kept + 1000).contains(&bytes())
    });
    assert_eq!(metric(&weir, "weir_stale_answers", &[]), Some(2));
}
