//! Rules together: what is charged, what waits, what is given back.

mod at_end;
mod excess;
mod headers;
mod keys;
pub(super) mod support;

use http::StatusCode;
use tokio::time::Instant;

use super::*;
use crate::algorithm::{AlgorithmParams, Excess, Rate};
use crate::config::plan::{
    ConnQueue, ConnRule, HeaderForm, OnEmptyKey, Override, OverrideKey, OverrideLimits, Plan,
    ReqRule,
};
use crate::limits::tests::support::{
    admit, conf, conn_rule, conn_zone, delaying, exchange_from, header, key, limits, plan, record,
    req_rule, req_zone,
};

fn ask(limits: &Limits, now: u64) -> (Admission, Option<LimitStatus>) {
    let mut record = record(&[]);
    let verdict = limits.ask_requests(&mut record, Millis(now));
    (verdict, record.limit_req)
}

fn refusal(verdict: Admission) -> Refusal {
    match verdict {
        Admission::Refuse(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

fn dry(plan: &Plan, req: &[ReqRule], conn: &[ConnRule]) -> Limits {
    let mut conf = conf(req, conn);
    conf.limits.limit_req_dry_run = true;
    conf.limits.limit_conn_dry_run = true;
    Limits::compile(&conf, &Zones::build(plan))
}

fn pass_count(limits: &Limits, rule: usize) -> u64 {
    limits.requests[rule].zone.store.counts().pass
}

#[test]
fn without_rules_a_request_passes_without_a_status() {
    let limits = limits(&plan(vec![], vec![]), &[], &[]);
    assert!(matches!(ask(&limits, 0), (Admission::Pass, None)));
}

#[test]
fn burst_is_spent_before_any_request_is_refused() {
    let plan = plan(vec![req_zone("perip", 10_000)], vec![]);
    let limits = limits(&plan, &[req_rule(0, 2)], &[]);
    for _ in 0..3 {
        assert!(matches!(
            ask(&limits, 0),
            (Admission::Pass, Some(LimitStatus::Pass))
        ));
    }
    let (verdict, status) = ask(&limits, 0);
    assert_eq!(status, Some(LimitStatus::Refuse));
    let refusal = refusal(verdict);
    assert_eq!(refusal.zone(), "perip");
    assert_eq!(refusal.kind, LimitKind::Requests);
    assert_eq!(refusal.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refusal.retry_after, Some(Duration::from_millis(100)));
    let fields: Vec<_> = refusal
        .header_fields(HeaderForm::Ietf)
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    assert_eq!(
        fields,
        [
            "retry-after: 1",
            "ratelimit-policy: \"perip\";q=3;w=1",
            "ratelimit: \"perip\";r=0;t=1"
        ]
    );
}

#[test]
fn a_refusal_by_a_later_rule_charges_no_earlier_one() {
    let plan = plan(vec![req_zone("a", 1_000), req_zone("b", 1_000)], vec![]);
    let limits = limits(&plan, &[req_rule(0, 9), req_rule(1, 0)], &[]);
    ask(&limits, 0);
    for _ in 0..5 {
        assert_eq!(refusal(ask(&limits, 0).0).zone(), "b");
    }
    assert_eq!((pass_count(&limits, 0), pass_count(&limits, 1)), (1, 1));
    assert_eq!(limits.requests[1].zone.store.counts().refuse, 5);
}

#[test]
fn a_refusal_by_an_earlier_rule_asks_no_later_one() {
    let plan = plan(vec![req_zone("a", 1_000), req_zone("b", 1_000)], vec![]);
    let limits = limits(&plan, &[req_rule(0, 0), req_rule(1, 9)], &[]);
    ask(&limits, 0);
    assert_eq!(refusal(ask(&limits, 0).0).zone(), "a");
    assert_eq!(pass_count(&limits, 1), 1);
    assert_eq!(limits.requests[0].zone.store.counts().refuse, 1);
}

#[test]
fn the_longest_wait_counts() {
    let plan = plan(
        vec![req_zone("slow", 2_000), req_zone("fast", 10_000)],
        vec![],
    );
    let limits = limits(&plan, &[delaying(0, 9), delaying(1, 9)], &[]);
    ask(&limits, 0);
    let (verdict, status) = ask(&limits, 0);
    assert!(matches!(verdict, Admission::Delay(wait) if wait == Duration::from_millis(500)));
    assert_eq!(status, Some(LimitStatus::Delay));
}

#[test]
fn of_equal_waits_the_later_rules_is_named() {
    let plan = plan(vec![req_zone("a", 2_000), req_zone("b", 2_000)], vec![]);
    let limits = limits(&plan, &[delaying(0, 9), delaying(1, 9)], &[]);
    ask(&limits, 0);
    let record = record(&[]);
    let keys = limits.requests.find_keys(&record);
    let decision = rule::decide(&limits.requests, &keys, &record, Millis(0), &mut ());
    assert!(matches!(decision, Decision::Delay { rule: 1, .. }));
}

#[test]
fn a_last_rule_without_a_key_leaves_the_others_in_force() {
    let mut second = req_zone("b", 1_000);
    second.key = key("x-api-key");
    let plan = plan(vec![req_zone("a", 1_000), second], vec![]);
    let limits = limits(&plan, &[req_rule(0, 0), req_rule(1, 0)], &[]);
    assert!(matches!(ask(&limits, 0).0, Admission::Pass));
    assert_eq!(refusal(ask(&limits, 0).0).zone(), "a");
}

#[test]
fn a_request_without_any_key_is_not_limited_and_has_no_status() {
    let mut zone = req_zone("a", 1_000);
    zone.key = key("x-api-key");
    let limits = limits(&plan(vec![zone], vec![]), &[req_rule(0, 0)], &[]);
    for _ in 0..5 {
        assert!(matches!(ask(&limits, 0), (Admission::Pass, None)));
    }
}

#[test]
fn a_zone_may_refuse_requests_without_a_key() {
    let mut zone = req_zone("a", 1_000);
    zone.key = key("x-api-key");
    zone.on_empty_key = OnEmptyKey::Refuse(None);
    let limits = limits(&plan(vec![zone], vec![]), &[req_rule(0, 0)], &[]);
    let refusal = refusal(ask(&limits, 0).0);
    assert_eq!(
        (refusal.retry_after, refusal.retry_after_seconds()),
        (None, None)
    );
    let mut named = record(&[header("x-api-key", "abc")]);
    assert!(matches!(
        limits.ask_requests(&mut named, Millis(0)),
        Admission::Pass
    ));
}

#[test]
fn a_dry_run_lets_all_pass_charges_delays_and_not_refusals() {
    let plan = plan(vec![req_zone("a", 1_000)], vec![]);
    let limits = dry(&plan, &[delaying(0, 1)], &[]);
    let expected = [
        LimitStatus::Pass,
        LimitStatus::DelayDryRun,
        LimitStatus::RefuseDryRun,
        LimitStatus::RefuseDryRun,
    ];
    for status in expected {
        let (verdict, said) = ask(&limits, 0);
        assert!(matches!(verdict, Admission::Pass));
        assert_eq!(said, Some(status));
    }
    assert!(matches!(
        ask(&limits, 1_000),
        (Admission::Pass, Some(LimitStatus::DelayDryRun))
    ));
}

#[test]
fn overrides_give_a_network_its_own_numbers() {
    let mut zone = req_zone("a", 1_000);
    zone.overrides = vec![
        Override {
            key: OverrideKey::Network("10.0.0.0/8".parse().unwrap()),
            own: Some(OverrideLimits {
                algorithm: AlgorithmParams::LeakyBucket {
                    rate: Rate::per_second(2_000),
                },
                burst: Some(Excess::requests(3)),
            }),
        },
        Override {
            key: OverrideKey::Network("192.0.2.7/32".parse().unwrap()),
            own: None,
        },
    ];
    let limits = limits(&plan(vec![zone], vec![]), &[req_rule(0, 0)], &[]);
    let passed = |address| {
        (0..20)
            .filter(|_| {
                let mut record = exchange_from(address, &[]);
                matches!(limits.ask_requests(&mut record, Millis(0)), Admission::Pass)
            })
            .count()
    };
    assert_eq!(
        (
            passed("198.51.100.1"),
            passed("10.1.2.3"),
            passed("192.0.2.7")
        ),
        (1, 4, 20)
    );
    let mut record = exchange_from("10.1.2.3", &[]);
    let refusal = refusal(limits.ask_requests(&mut record, Millis(0)));
    let policy = refusal.header_fields(HeaderForm::Ietf).nth(1).unwrap().1;
    assert_eq!(policy, "\"a\";q=4;w=2");
}

#[tokio::test(start_paused = true)]
async fn a_delayed_request_holds_no_slot_while_it_waits() {
    let plan = plan(vec![req_zone("a", 10_000)], vec![conn_zone("c")]);
    let limits = limits(&plan, &[delaying(0, 5)], &[conn_rule(0, 1)]);
    let clock = Clock::machine();
    drop(admit(&limits, &mut record(&[]), &clock).await.unwrap());
    let start = Instant::now();
    let mut delayed = record(&[]);
    let mut waiting = Box::pin(admit(&limits, &mut delayed, &clock));
    tokio::select! {
        biased;
        _ = &mut waiting => panic!("it has to wait"),
        () = tokio::task::yield_now() => {}
    }
    assert!(limits.connections[0].zone.store.is_empty());
    let permit = waiting.as_mut().await.unwrap();
    drop(waiting);
    assert_eq!(start.elapsed(), Duration::from_millis(100));
    assert_eq!(limits.connections[0].zone.store.len(), 1);
    drop(permit);
    assert_eq!(delayed.limit_conn, Some(LimitStatus::Pass));
    assert!(limits.connections[0].zone.store.is_empty());
}

#[tokio::test]
async fn a_refusal_by_a_later_limit_conn_releases_earlier_slots() {
    let plan = plan(vec![], vec![conn_zone("a"), conn_zone("b")]);
    let rules = [conn_rule(0, 5), conn_rule(1, 1)];
    let limits = limits(&plan, &[], &rules);
    let clock = Clock::by_hand(Millis(0));
    let held = admit(&limits, &mut record(&[]), &clock).await.unwrap();
    let mut refused = record(&[]);
    let refusal = admit(&limits, &mut refused, &clock).await.unwrap_err();
    assert_eq!(
        (refusal.zone(), refusal.kind),
        ("b", LimitKind::Connections)
    );
    assert_eq!(refusal.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.limit_conn, Some(LimitStatus::Refuse));
    let fields: Vec<_> = refusal.header_fields(HeaderForm::Ietf).collect();
    assert_eq!(
        fields[1].1,
        "\"a\";q=5;qu=\"concurrent-requests\", \"b\";q=1;qu=\"concurrent-requests\""
    );
    let places = &limits.connections[0].zone.store;
    assert_eq!(places.taken(&Key::from_bytes(&[127, 0, 0, 1])), 1);
    drop(held);
    assert!(places.is_empty());
}

#[tokio::test]
async fn a_dry_run_of_limit_conn_lets_the_request_run_uncounted() {
    let plan = plan(vec![], vec![conn_zone("a"), conn_zone("b")]);
    let limits = dry(&plan, &[], &[conn_rule(0, 5), conn_rule(1, 1)]);
    let clock = Clock::by_hand(Millis(0));
    let _held = admit(&limits, &mut record(&[]), &clock).await.unwrap();
    let mut over = record(&[]);
    let _permit = admit(&limits, &mut over, &clock).await.unwrap();
    assert_eq!(over.limit_conn, Some(LimitStatus::RefuseDryRun));
    let places = &limits.connections[0].zone.store;
    assert_eq!(places.taken(&Key::from_bytes(&[127, 0, 0, 1])), 1);
}

#[tokio::test(start_paused = true)]
async fn a_queue_makes_a_request_wait_for_its_slot() {
    let plan = plan(vec![], vec![conn_zone("a")]);
    let rule = ConnRule {
        queue: Some(ConnQueue {
            size: 1,
            timeout: Duration::from_millis(200),
        }),
        ..conn_rule(0, 1)
    };
    let limits = limits(&plan, &[], &[rule]);
    let clock = Clock::machine();
    let held = admit(&limits, &mut record(&[]), &clock).await.unwrap();
    let start = Instant::now();
    assert!(admit(&limits, &mut record(&[]), &clock).await.is_err());
    assert_eq!(start.elapsed(), Duration::from_millis(200));
    let (mut first, mut second) = (record(&[]), record(&[]));
    let leave = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(held);
    };
    let (in_line, too_many, ()) = tokio::join!(
        admit(&limits, &mut first, &clock),
        admit(&limits, &mut second, &clock),
        leave
    );
    assert!(in_line.is_ok() && too_many.is_err());
    assert_eq!(start.elapsed(), Duration::from_millis(250));
}

#[tokio::test]
async fn a_permit_holds_any_number_of_slots() {
    let zones = ["a", "b", "c", "d"].map(conn_zone).to_vec();
    let rules: Vec<_> = (0..4).map(|zone| conn_rule(zone, 1)).collect();
    let limits = limits(&plan(vec![], zones), &[], &rules);
    let clock = Clock::by_hand(Millis(0));
    let permit = admit(&limits, &mut record(&[]), &clock).await.unwrap();
    let taken = || {
        limits
            .connections
            .iter()
            .map(|r| r.zone.store.len())
            .sum::<usize>()
    };
    assert_eq!(taken(), 4);
    drop(permit);
    assert_eq!(taken(), 0);
}

#[test]
fn the_future_of_admit_can_be_spawned() {
    fn spawnable(_: &impl Send) {}
    let limits = limits(&plan(vec![], vec![]), &[], &[]);
    let (mut record, clock) = (record(&[]), Clock::by_hand(Millis(0)));
    spawnable(&admit(&limits, &mut record, &clock));
}

proptest::proptest! {
    #[test]
    fn several_rules_charge_all_or_none(
        bursts in [0..4u32, 0..4u32, 0..4u32],
        gaps in proptest::collection::vec(0..400u64, 1..60),
    ) {
        let rates = [3_000, 5_000, 7_000];
        let zones = rates.map(|rate| req_zone("z", rate)).to_vec();
        let rules: Vec<_> = (0..3).map(|zone| req_rule(zone, bursts[zone])).collect();
        let limits = limits(&plan(zones, vec![]), &rules, &[]);
        // Each rule on its own: how many thousandths of thousandths stand in it, and since when.
        let mut levels: [Option<(u64, u64)>; 3] = [None; 3];
        let mut now = 0;
        for gap in gaps {
            now += gap;
            let next: [u64; 3] = std::array::from_fn(|rule| {
                levels[rule].map_or(0, |(level, last)| {
                    (level + 1_000_000).saturating_sub(rates[rule] * (now - last))
                })
            });
            let passes = (0..3).all(|rule| next[rule] <= u64::from(bursts[rule]) * 1_000_000);
            proptest::prop_assert_eq!(matches!(ask(&limits, now).0, Admission::Pass), passes);
            if passes {
                levels = next.map(|level| Some((level, now)));
            }
        }
    }
}
