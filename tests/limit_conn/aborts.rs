//! A thousand requests that end in every known way, without a lost slot.

use std::time::Duration;

use crate::support::{Client, Origin, Weir, eventually, get};

const REQUESTS: [&str; 11] = [
    "GET /ok HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /bytes?n=300000 HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /chunked?n=200 HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /trickle?n=10&ms=1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /close-early HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /reset HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /slow?ms=5 HTTP/1.1\r\nHost: a\r\n\r\n",
    "HEAD /ok HTTP/1.0\r\n\r\n",
    "POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nnot all of it",
    "POST /ok HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
    "GET /ok HTTP/1.1\r\nHost: a\r\n\r\nGET /slow?ms=3 HTTP/1.1\r\nHost: a\r\n\r\nGET /ok HTTP",
];

/// One request that ends somehow.
fn abort(weir: &Weir, random: &mut fastrand::Rng) {
    let mut client = Client::connect(weir.address());
    let request = random.choice(REQUESTS).expect("there are some");
    let cut = match random.u8(..4) {
        0 => random.usize(..request.len()),
        _ => request.len(),
    };
    client.send(&request.as_bytes()[..cut]);
    std::thread::sleep(Duration::from_micros(random.u64(..6000)));
    match random.u8(..4) {
        0 => client.reset(),
        1 => {
            client.try_finish_sending();
            client.is_quiet(Duration::from_millis(1));
        }
        2 if cut == request.len() && request.starts_with("GET") => {
            client.try_response().ok();
        }
        _ => drop(client),
    }
}

#[test]
fn a_thousand_aborts_leave_no_place_taken() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "log: { level: error, access: off }
limit_conn_zones: { places: { key: 'all of them', size: 1m } }
servers:
- listen: LISTEN
  locations:
  - { path: /, limit_conn: { zone: places, limit: 10000 }, proxy_pass: 'http://ORIGIN' }
  - { path: /one/, limit_conn: { zone: places, limit: 1 }, proxy_pass: 'http://ORIGIN' }
  - { path: /three/, limit_conn: { zone: places, limit: 3 }, proxy_pass: 'http://ORIGIN' }
",
    );
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let weir = &weir;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..125 {
                    abort(weir, &mut random);
                }
            });
        }
    });
    eventually("no request is in progress", || {
        get(weir.address(), "/one/ok").status == 200
    });
    let mut held: Vec<_> = (0..3)
        .map(|_| {
            origin.hold("g", || {
                let client = Client::connect(weir.address());
                client.get("/three/hold?gate=g");
                client
            })
        })
        .collect();
    assert_eq!(get(weir.address(), "/three/ok").status, 503);
    origin.gates().open("g");
    for client in &mut held {
        assert_eq!(client.response().status, 200);
    }
}
