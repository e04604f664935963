//! `retry_budget`: the number of retries when servers fail.

use super::before;
use crate::support::{Origin, Weir, get, metric};

const DENIED: &str = "weir_upstream_retries_denied_total{upstream=\"app\"}";

/// A weir before two servers that fail, with this budget.
fn before_two(bad: &Origin, worse: &Origin, budget: &str) -> Weir {
    Weir::start(&format!(
        "admin: {{ listen: ADMIN }}
upstreams:
  app:
    retry_budget: {budget}
    servers: [ {{ address: '{}', max_fails: 0 }}, {{ address: '{}', max_fails: 0 }} ]
servers: [ {{ listen: LISTEN, locations: [ {{ path: /, proxy_pass: app }} ] }} ]
",
        bad.address(),
        worse.address()
    ))
}

#[test]
fn retries_end_when_the_budget_is_spent() {
    let origins = [0; 2].map(|_| Origin::start().always("/reset"));
    // One a second over ten seconds, and a tenth of the requests.
    let budget = "{ share: 10%, min_per_second: 1 }";
    let weir = before_two(&origins[0], &origins[1], budget);
    for _ in 0..100 {
        assert_eq!(get(weir.address(), "/ok").status, 502);
    }
    let tries = origins[0].count() + origins[1].count();
    let denied = metric(&weir, DENIED);
    assert_eq!(tries as u64, 200 - denied);
    // Ten, and a tenth of what had come by then; a little more if it took longer than ten seconds.
    assert!((115..=140).contains(&tries), "{tries}");
    weir.error_line("retry budget is spent");
}

#[test]
fn no_budget_at_all_is_no_retry() {
    let (bad, good) = (Origin::start().always("/reset"), Origin::start());
    let weir = before_two(&bad, &good, "{ share: 0%, min_per_second: 0 }");
    let statuses = [0; 4].map(|_| get(weir.address(), "/ok").status);
    assert_eq!(statuses, [502, 200, 502, 200]);
    assert_eq!(metric(&weir, DENIED), 2);
}

#[test]
fn a_server_alone_is_asked_again_after_a_pause() {
    let origin = Origin::start().always("/reset");
    let upstream = "retry_budget: { share: 100%, backoff: 2ms, backoff_max: 5ms },";
    let weir = before(&origin, upstream, "", "proxy_next_upstream_tries: 4,");
    assert_eq!(get(weir.address(), "/ok").status, 502);
    assert_eq!(origin.count(), 4);
    origin.recover();
    assert_eq!(get(weir.address(), "/ok").status, 200);
    assert_eq!(origin.count(), 5);
}
