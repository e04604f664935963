//! Header fields for clients: when to come back, what is left, and by which policies.

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;
use crate::algorithm::Cost;
use crate::config::plan::{CostSource, RefusalAction, ReqZone};
use crate::limits::tests::support::{
    conf, conn_rule, conn_zone, delaying, exchange_from, limits, plan, record, req_rule, req_zone,
};

fn costing(rule: ReqRule, milli: u64) -> ReqRule {
    ReqRule {
        weight: CostSource::Fixed(Cost::milli(milli)),
        ..rule
    }
}

fn counting(name: &str, algorithm: AlgorithmParams) -> ReqZone {
    ReqZone {
        algorithm,
        ..req_zone(name, 1_000)
    }
}

fn fields(refusal: &Refusal) -> Vec<String> {
    refusal
        .header_fields(HeaderForm::Ietf)
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect()
}

/// 1r/s, and ten may come at once: 7 of them leave 3, and one of 5 has to wait for two more.
#[test]
fn the_rest_is_named_where_it_is_less_than_the_cost_of_a_request() {
    let plan = plan(vec![req_zone("a", 1_000)], vec![]);
    let zones = Zones::build(&plan);
    let compiled = |rule| Limits::compile(&conf(&[rule], &[]), &zones);
    let seven = compiled(costing(req_rule(0, 9), 7_000));
    let five = compiled(costing(req_rule(0, 9), 5_000));
    assert!(matches!(ask(&seven, 0).0, Admission::Pass));
    assert_eq!(
        fields(&refusal(ask(&five, 0).0)),
        [
            "retry-after: 2",
            "ratelimit-policy: \"a\";q=10;w=10",
            "ratelimit: \"a\";r=3;t=2"
        ]
    );
}

#[test]
fn the_time_beside_a_policy_is_its_own() {
    let plan = plan(vec![req_zone("fast", 1_000), req_zone("slow", 10)], vec![]);
    let limits = limits(&plan, &[req_rule(0, 0), req_rule(1, 0)], &[]);
    ask(&limits, 0);
    assert_eq!(
        fields(&refusal(ask(&limits, 0).0)),
        [
            "retry-after: 100",
            "ratelimit-policy: \"fast\";q=1;w=1, \"slow\";q=1;w=100",
            "ratelimit: \"fast\";r=0;t=1"
        ]
    );
}

#[test]
fn a_penalty_is_a_time_of_the_policy_that_gave_it() {
    let mut plan = plan(vec![req_zone("a", 1_000)], vec![]);
    let rule = ReqRule {
        action: RefusalAction {
            penalty: Some(Duration::from_secs(30)),
            ..RefusalAction::default()
        },
        ..costing(req_rule(0, 9), 6_000)
    };
    plan.servers[0].fallback = conf(&[rule], &[]);
    let limits = Limits::compile(&plan.servers[0].fallback, &Zones::build(&plan));
    ask(&limits, 0);
    let named = fields(&refusal(ask(&limits, 0).0));
    assert_eq!(
        (&*named[0], &*named[2]),
        ("retry-after: 30", "ratelimit: \"a\";r=0;t=30")
    );
    let named = fields(&refusal(ask(&limits, 10_000).0));
    assert_eq!(
        (&*named[0], &*named[2]),
        ("retry-after: 20", "ratelimit: \"a\";r=0;t=20")
    );
}

/// Own numbers count in the policies of all zones, and a zone that does not limit the client is not named.
#[test]
fn every_policy_that_holds_is_named_with_the_numbers_that_hold() {
    let own = |address: &str, own| Override {
        key: OverrideKey::Network(address.parse().unwrap()),
        own,
    };
    let faster = OverrideLimits {
        algorithm: AlgorithmParams::LeakyBucket {
            rate: Rate::per_second(2_000),
        },
        burst: Some(Excess::requests(3)),
    };
    let mut zones = [
        req_zone("a", 1_000),
        req_zone("b", 1_000),
        req_zone("c", 1_000),
    ];
    zones[1].overrides = vec![own("10.0.0.0/8", Some(faster))];
    zones[2].overrides = vec![own("10.0.0.0/8", None)];
    let plan = plan(zones.to_vec(), vec![conn_zone("d")]);
    let rules = [req_rule(0, 0), req_rule(1, 0), req_rule(2, 0)];
    let limits = limits(&plan, &rules, &[conn_rule(0, 7)]);
    let policy = |address| {
        let ask = || limits.ask_requests(&mut exchange_from(address, &[]), Millis(0));
        ask();
        fields(&refusal(ask()))[1].clone()
    };
    let places = "\"d\";q=7;qu=\"concurrent-requests\"";
    assert_eq!(
        policy("198.51.100.1"),
        format!("ratelimit-policy: \"a\";q=1;w=1, \"b\";q=1;w=1, \"c\";q=1;w=1, {places}")
    );
    assert_eq!(
        policy("10.1.2.3"),
        format!("ratelimit-policy: \"a\";q=1;w=1, \"b\";q=4;w=2, {places}")
    );
}

/// What responses to requests that were let in carry, where the backend sent `sent`.
async fn fields_of(limits: &Limits, address: &str, now: u64, sent: &[(&str, &str)]) -> Vec<String> {
    let clock = Clock::by_hand(Millis(now));
    let mut record = exchange_from(address, &[]);
    let admitted = admit(limits, &mut record, &clock).await;
    let mut headers = HeaderMap::new();
    for (name, value) in sent {
        let name: HeaderName = name.parse().unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    if let Some(allowed_headers) = admitted.unwrap().allowed_headers {
        allowed_headers.write(&mut headers);
    }
    let written = headers.iter().map(|(name, value)| {
        let value = value.to_str().unwrap();
        format!("{name}: {value}")
    });
    written.collect()
}

fn with_headers(plan: &Plan, req: &[ReqRule], conn: &[ConnRule], form: HeaderForm) -> Limits {
    let mut conf = conf(req, conn);
    conf.limit_headers = LimitHeaders {
        form,
        on: HeaderScope::All,
    };
    Limits::compile(&conf, &Zones::build(plan))
}

#[tokio::test]
async fn admitted_requests_get_what_is_left() {
    let window = AlgorithmParams::FixedWindow {
        limit: 5,
        window: Duration::from_secs(60),
    };
    let zones = vec![req_zone("a", 1_000), counting("b", window)];
    let plan = plan(zones, vec![conn_zone("c")]);
    let rules = [costing(req_rule(0, 9), 4_000), req_rule(1, 0)];
    let limits = with_headers(&plan, &rules, &[conn_rule(0, 3)], HeaderForm::Ietf);
    let policy = "ratelimit-policy: \"a\";q=10;w=10, \"b\";q=5;w=60, \
                  \"c\";q=3;qu=\"concurrent-requests\"";
    for (now, state) in [
        (0, "\"a\";r=6;t=4, \"b\";r=4;t=60, \"c\";r=2"),
        (500, "\"a\";r=2;t=8, \"b\";r=3;t=60, \"c\";r=2"),
        (30_000, "\"a\";r=6;t=4, \"b\";r=2;t=30, \"c\";r=2"),
        (40_000, "\"a\";r=6;t=4, \"b\";r=1;t=20, \"c\";r=2"),
        (50_000, "\"a\";r=6;t=4, \"b\";r=0;t=10, \"c\";r=2"),
    ] {
        let fields = fields_of(&limits, "127.0.0.1", now, &[]).await;
        assert_eq!(fields, [policy, &format!("ratelimit: {state}")], "at {now}");
    }
}

#[tokio::test]
async fn fields_of_a_backend_stay_beside_weirs() {
    let plan = plan(vec![req_zone("a", 1_000)], vec![]);
    let ietf = with_headers(&plan, &[req_rule(0, 4)], &[], HeaderForm::Ietf);
    let sent = [
        ("ratelimit", "\"theirs\";r=1"),
        ("ratelimit-policy", "\"theirs\";q=3"),
    ];
    assert_eq!(
        fields_of(&ietf, "127.0.0.1", 0, &sent).await,
        [
            "ratelimit: \"theirs\";r=1",
            "ratelimit: \"a\";r=4;t=1",
            "ratelimit-policy: \"theirs\";q=3",
            "ratelimit-policy: \"a\";q=5;w=5"
        ]
    );
    let legacy = with_headers(&plan, &[req_rule(0, 4)], &[], HeaderForm::Legacy);
    let less = [("x-ratelimit-remaining", "1"), ("x-ratelimit-limit", "3")];
    assert_eq!(
        fields_of(&legacy, "127.0.0.1", 0, &less).await,
        ["x-ratelimit-remaining: 1", "x-ratelimit-limit: 3"]
    );
    let more = [("x-ratelimit-remaining", "9"), ("x-ratelimit-limit", "30")];
    let mut fields = fields_of(&legacy, "127.0.0.1", 0, &more).await;
    fields.sort_unstable();
    assert_eq!(
        fields,
        [
            "x-ratelimit-limit: 5",
            "x-ratelimit-remaining: 3",
            "x-ratelimit-reset: 2"
        ]
    );
}

#[tokio::test]
async fn of_several_policies_legacy_fields_tell_of_the_tightest() {
    let plan = plan(vec![req_zone("a", 1_000), req_zone("b", 1_000)], vec![]);
    let rules = [req_rule(0, 9), req_rule(1, 2)];
    let limits = with_headers(&plan, &rules, &[], HeaderForm::Legacy);
    assert_eq!(
        fields_of(&limits, "127.0.0.1", 0, &[]).await,
        [
            "x-ratelimit-limit: 3",
            "x-ratelimit-remaining: 2",
            "x-ratelimit-reset: 1"
        ]
    );
}

#[tokio::test]
async fn policies_that_do_not_hold_are_not_named() {
    let plan = plan(vec![req_zone("a", 1_000)], vec![]);
    let silent = limits(&plan, &[req_rule(0, 4)], &[]);
    assert!(fields_of(&silent, "127.0.0.1", 0, &[]).await.is_empty());
    let mut conf = conf(&[req_rule(0, 4)], &[]);
    conf.limit_headers.on = HeaderScope::All;
    conf.limits.limit_req_dry_run = true;
    let dry = Limits::compile(&conf, &Zones::build(&plan));
    assert!(fields_of(&dry, "127.0.0.1", 0, &[]).await.is_empty());
    let mut zone = req_zone("a", 1_000);
    zone.overrides = vec![Override {
        key: OverrideKey::Network("10.0.0.0/8".parse().unwrap()),
        own: None,
    }];
    let plan = support::plan(vec![zone], vec![]);
    let limits = with_headers(&plan, &[req_rule(0, 4)], &[], HeaderForm::Ietf);
    assert!(fields_of(&limits, "10.1.2.3", 0, &[]).await.is_empty());
    assert_eq!(fields_of(&limits, "127.0.0.1", 0, &[]).await.len(), 2);
}

/// A zone and a rule of each kind.
fn ruled(kind: u8, burst: u32, milli: u64, most: u64) -> (AlgorithmParams, ReqRule) {
    let (rate, window) = (Rate::per_second(1_300), Duration::from_secs(4));
    let limit = burst + 1;
    let algorithm = match kind {
        0 | 1 => AlgorithmParams::LeakyBucket { rate },
        2 => AlgorithmParams::Gcra { rate },
        3 => AlgorithmParams::TokenBucket { rate },
        4 => AlgorithmParams::FixedWindow { limit, window },
        5 => AlgorithmParams::SlidingLog { limit, window },
        6 => AlgorithmParams::SlidingWindow { limit, window },
        _ => AlgorithmParams::Blocks {
            limit,
            window,
            precision: Duration::from_millis(700),
        },
    };
    let burst = if kind == 3 { limit } else { burst };
    let rule = match kind {
        0 => delaying(0, burst),
        _ => req_rule(0, burst),
    };
    let max_wait = (kind < 4 && most > 0).then(|| Duration::from_millis(most));
    let rule = ReqRule {
        action: RefusalAction {
            max_wait,
            ..RefusalAction::default()
        },
        ..costing(rule, milli)
    };
    (algorithm, rule)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A client that comes back at `Retry-After` passes if no request came before it, and would not have passed earlier.
    #[test]
    fn retry_after_is_true(
        kinds in prop::collection::vec((0..8u8, 0..8u32, 200..4_000u64, 0..6_000u64), 1..4),
        gaps in prop::collection::vec(prop_oneof![3 => Just(0u64), 1 => 0..900u64], 1..25),
    ) {
        let ruled: Vec<_> = kinds.iter().map(|(kind, burst, milli, most)| ruled(*kind, *burst, *milli, *most)).collect();
        let zones = ruled.iter().map(|(algorithm, _)| counting("a", *algorithm)).collect();
        let plan = plan(zones, vec![]);
        let rules: Vec<_> = ruled.into_iter().enumerate().map(|(zone, (_, rule))| ReqRule { zone, ..rule }).collect();
        // The whole history again, and then one more.
        let after = |times: &[u64], now: u64| {
            let limits = limits(&plan, &rules, &[]);
            for time in times {
                limits.ask_requests(&mut record(&[]), Millis(*time));
            }
            limits.ask_requests(&mut record(&[]), Millis(now))
        };
        let (mut now, mut times) = (100_000, Vec::new());
        for gap in gaps {
            now += gap;
            if let Admission::Refuse(refusal) = after(&times, now) {
                match refusal.retry_after.map(|wait| u64::try_from(wait.as_millis()).unwrap()) {
                    Some(wait) => {
                        prop_assert!(!matches!(after(&times, now + wait), Admission::Refuse(_)), "too early: {wait}");
                        // What the burst makes a request wait is known to the millisecond.
                        if wait > 2 {
                            prop_assert!(matches!(after(&times, now + wait - 2), Admission::Refuse(_)), "too late: {wait}");
                        }
                    }
                    None => prop_assert!(matches!(after(&[], now), Admission::Refuse(_)), "a fresh key passes"),
                }
            }
            times.push(now);
        }
    }
}
