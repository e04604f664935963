//! `limit_rate` beside the real nginx's: the same bytes in about the same time.

use tokio::time::Instant;

use super::{Pair, Side, ask};
use crate::support::millis_since;

fn pair() -> Pair {
    Pair::start(
        "map $arg_speed $speed { default ''; slow 50k; none 0; }
        server { listen LISTEN;
            location /slow/ { limit_rate 50k; proxy_pass http://ORIGIN; }
            location /later/ { limit_rate 50k; limit_rate_after 500k; proxy_pass http://ORIGIN; }
            location /told/ { limit_rate $speed; proxy_pass http://ORIGIN; }
            location / { proxy_pass http://ORIGIN; } }",
        "maps: { $speed: { map: $arg_speed, default: '', values: { slow: 50k, none: 0 } } }
servers:
- listen: LISTEN
  proxy_pass: 'http://ORIGIN'
  locations:
  - { path: /slow/, limit_rate: 50k }
  - { path: /later/, limit_rate: 50k, limit_rate_after: 500k }
  - { path: /told/, limit_rate: $speed }
",
    )
}

impl Side<'_> {
    /// How long so many bytes take from this path, in milliseconds.
    fn lasts(&self, path: &str, length: usize) -> u64 {
        let began = Instant::now();
        let mut client = self.begin(&ask(&format!("{path}n={length}")));
        let response = client.response();
        assert_eq!((response.status, response.body.len()), (200, length));
        assert!(!response.has("x-accel-limit-rate"), "{path}");
        millis_since(began)
    }
}

/// nginx sends a second's worth ahead and rounds to seconds; both come to three seconds, give or take one, and what
/// a busy machine adds.
#[test]
fn rates_are_kept_as_nginx_keeps_them() {
    let pair = pair();
    let paths = [
        ("/slow/bytes?", 153_600),
        ("/later/bytes?", 665_600),
        ("/told/bytes?speed=slow&", 153_600),
        ("/bytes?field=X-Accel-Limit-Rate:51200&", 153_600),
    ];
    std::thread::scope(|scope| {
        for (path, length) in paths {
            let pair = &pair;
            scope.spawn(move || {
                pair.agree(|side| {
                    let took = side.lasts(path, length);
                    assert!((1_900..7_000).contains(&took), "{path}: {took} ms");
                })
            });
        }
    });
}

#[test]
fn no_rate_is_any_speed_as_in_nginx() {
    let pair = pair();
    for path in [
        "/told/bytes?",
        "/told/bytes?speed=none&",
        "/slow/bytes?field=X-Accel-Limit-Rate:0&",
        "/bytes?field=X-Accel-Limit-Rate:50k&",
    ] {
        // Once in three times: at the others a busy machine may have kept it.
        let soon = |side: &Side<'_>| (0..3).any(|_| side.lasts(path, 153_600) < 1_500);
        pair.agree(|side| assert!(soon(side), "{path}"));
    }
}
