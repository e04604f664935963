//! The headers of limits that gateways share.

use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::gateway;
use super::leases::leased;
use crate::support::client::Response;
use crate::support::redis::Redis;
use crate::support::{Weir, eventually, get, millis_since};

fn retry_after(response: &Response) -> u64 {
    let seconds = response.get("retry-after").and_then(|it| it.parse().ok());
    seconds.expect("seconds")
}

/// Ten at once, one more a minute, and each request takes five: the third has to wait for five minutes, not for one.
#[test]
fn retry_after_depends_on_the_cost_of_the_request() {
    let redis = Redis::start();
    let exact = format!("redis: '{}', timeout: 1s", redis.url());
    for store in [exact, leased(&redis)] {
        redis.cli(&["FLUSHALL"]);
        let weir = gateway(&store, "rate: 1r/m", "burst: 9, nodelay: true, cost: 5");
        let begun = Instant::now();
        let (mut passed, mut told) = (0, Vec::new());
        eventually("two pass", || {
            let response = get(weir.address(), "/");
            match response.status {
                200 => passed += 1,
                _ => told.push(retry_after(&response)),
            }
            passed == 2
        });
        for _ in 0..20 {
            told.push(retry_after(&get(weir.address(), "/")));
            thread::sleep(Duration::from_millis(20));
        }
        let least = 300 - (millis_since(begun) + 2).div_ceil(1000);
        assert!(
            told.iter().all(|seconds| *seconds > 60),
            "{store}: {told:?}"
        );
        let last = told.last().copied().unwrap_or_default();
        assert!((least..=300).contains(&last), "{store}: {told:?}");
    }
}

/// What the store said is left, wherever it was used up.
#[test]
fn gateways_report_the_remaining_requests_of_all() {
    let redis = Redis::start();
    let start = || {
        Weir::start(&format!(
            "log: {{ access: off }}
stores: {{ shared: {{ redis: '{}', timeout: 1s }} }}
limit_req_zones: {{ one: {{ key: $host, store: shared, algorithm: sliding_log, limit: 5, window: 1d }} }}
limit_headers: {{ on: all }}
servers: [{{ listen: LISTEN, limit_req: {{ zone: one }}, return: {{ status: 200 }} }}]",
            redis.url()
        ))
    };
    let (one, two) = (start(), start());
    for left in (0..5).rev() {
        let weir = if left % 2 == 0 { &one } else { &two };
        let response = get(weir.address(), "/");
        assert_eq!(response.status, 200);
        let state = format!("\"one\";r={left}");
        assert_eq!(response.get("ratelimit"), Some(&*state));
        let policy = "\"one\";q=5;w=86400";
        assert_eq!(response.get("ratelimit-policy"), Some(policy));
    }
}
