//! Rules that let the excess wait, or give penalties.

use std::time::Duration;

use crate::clock::Millis;
use crate::config::plan::{Plan, RefusalAction, ReqRule};
use crate::limits::Admission;
use crate::limits::Limits;
use crate::limits::Zones;
use crate::limits::tests::support::{
    conf, delaying, exchange_from, limits, plan, req_rule, req_zone,
};
use crate::limits::tests::{ask, refusal};
use crate::message::LimitStatus;

fn waiting(rule: ReqRule, most: u64) -> ReqRule {
    ReqRule {
        action: RefusalAction {
            max_wait: Some(Duration::from_millis(most)),
            ..RefusalAction::default()
        },
        ..rule
    }
}

fn punishing(rule: ReqRule, seconds: u64) -> ReqRule {
    ReqRule {
        action: RefusalAction {
            penalty: Some(Duration::from_secs(seconds)),
            ..RefusalAction::default()
        },
        ..rule
    }
}

fn punishing_limits(mut plan: Plan, rules: &[ReqRule], dry_run: bool) -> Limits {
    let mut conf = conf(rules, &[]);
    conf.limits.limit_req_dry_run = dry_run;
    plan.servers[0].fallback = conf.clone();
    Limits::compile(&conf, &Zones::build(&plan))
}

/// For how long it is made to wait, in milliseconds.
fn delay(limits: &Limits, now: u64) -> u64 {
    match ask(limits, now) {
        (Admission::Delay(wait), Some(LimitStatus::Delay)) => {
            u64::try_from(wait.as_millis()).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

fn retry_after(limits: &Limits, now: u64) -> u64 {
    let wait = refusal(ask(limits, now).0).retry_after.unwrap();
    u64::try_from(wait.as_millis()).unwrap()
}

#[test]
fn the_excess_waits_in_line_instead_of_being_refused() {
    let plan = plan(vec![req_zone("a", 1_000)], vec![]);
    let limits = limits(&plan, &[waiting(req_rule(0, 1), 3_000)], &[]);
    for _ in 0..2 {
        assert!(matches!(ask(&limits, 0).0, Admission::Pass));
    }
    assert_eq!(delay(&limits, 0), 1_000);
    assert_eq!(delay(&limits, 0), 2_000);
    assert_eq!(delay(&limits, 500), 2_500);
    // The next would have to wait for 3.5 s, and may come back when it need not.
    assert_eq!(retry_after(&limits, 500), 500);
    assert_eq!(delay(&limits, 1_000), 3_000);
    let counts = limits.requests[0].zone.store.counts();
    assert_eq!((counts.pass, counts.delay, counts.refuse), (2, 4, 1));
    // All requests have had their turn.
    assert!(matches!(ask(&limits, 5_000).0, Admission::Pass));
}

#[test]
fn a_wait_within_the_burst_comes_on_top() {
    let plan = plan(vec![req_zone("a", 1_000)], vec![]);
    let limits = limits(&plan, &[waiting(delaying(0, 2), 10_000)], &[]);
    assert!(matches!(ask(&limits, 0).0, Admission::Pass));
    let waits: Vec<_> = (0..5).map(|_| delay(&limits, 0)).collect();
    assert_eq!(waits, [1_000, 2_000, 3_000, 4_000, 5_000]);
}

#[test]
fn who_would_wait_is_not_charged_when_another_rule_refuses() {
    let plan = plan(vec![req_zone("a", 1_000), req_zone("b", 1_000)], vec![]);
    let rules = [waiting(req_rule(0, 0), 5_000), req_rule(1, 1)];
    let limits = limits(&plan, &rules, &[]);
    assert!(matches!(ask(&limits, 0).0, Admission::Pass));
    assert_eq!(delay(&limits, 0), 1_000);
    for _ in 0..3 {
        assert_eq!(refusal(ask(&limits, 0).0).zone(), "b");
    }
    // The first zone still holds two.
    assert_eq!(delay(&limits, 1_000), 1_000);
}

#[test]
fn a_key_that_goes_over_stays_out_for_its_penalty() {
    let plan = plan(vec![req_zone("a", 10_000)], vec![]);
    let limits = punishing_limits(plan, &[punishing(req_rule(0, 0), 30)], false);
    assert!(matches!(ask(&limits, 0).0, Admission::Pass));
    assert_eq!(retry_after(&limits, 0), 30_000);
    // Asking on does not prolong it.
    let (verdict, status) = ask(&limits, 10_000);
    assert_eq!(status, Some(LimitStatus::Penalize));
    assert_eq!(refusal(verdict).retry_after, Some(Duration::from_secs(20)));
    assert_eq!(retry_after(&limits, 29_999), 1);
    assert!(matches!(ask(&limits, 30_000).0, Admission::Pass));
    assert_eq!(limits.requests[0].zone.store.counts().refuse, 3);
    // Others are not touched.
    let mut other = exchange_from("192.0.2.1", &[]);
    assert!(matches!(
        limits.ask_requests(&mut other, Millis(1)),
        Admission::Pass
    ));
}

/// A slow rate may keep a key out for longer than its penalty.
#[test]
fn a_key_that_would_get_another_penalty_has_to_wait_for_longer() {
    let plan = plan(vec![req_zone("a", 100)], vec![]);
    let limits = punishing_limits(plan, &[punishing(req_rule(0, 0), 4)], false);
    assert!(matches!(ask(&limits, 0).0, Admission::Pass));
    assert_eq!(retry_after(&limits, 0), 10_000);
    assert_eq!(retry_after(&limits, 3_000), 7_000);
    assert!(matches!(ask(&limits, 10_000).0, Admission::Pass));
}

#[test]
fn a_refusal_by_another_rule_gives_no_penalty() {
    let plan = plan(vec![req_zone("a", 1_000), req_zone("b", 1_000)], vec![]);
    let rules = [punishing(req_rule(0, 5), 60), req_rule(1, 0)];
    let limits = punishing_limits(plan, &rules, false);
    assert!(matches!(ask(&limits, 0).0, Admission::Pass));
    for _ in 0..10 {
        assert_eq!(refusal(ask(&limits, 0).0).zone(), "b");
    }
    assert!(matches!(ask(&limits, 1_000).0, Admission::Pass));
}

/// A zone of 32k has room for 128 penalties.
#[test]
fn without_room_for_a_penalty_the_ordinary_limit_holds() {
    let plan = plan(vec![req_zone("a", 1_000)], vec![]);
    let limits = punishing_limits(plan, &[punishing(req_rule(0, 0), 60)], false);
    let ask = |number: u8, now| {
        let mut record = exchange_from(&format!("192.0.2.{number}"), &[]);
        let verdict = limits.ask_requests(&mut record, Millis(now));
        (verdict, record.limit_req)
    };
    for number in 0..200 {
        assert!(matches!(ask(number, 0).0, Admission::Pass));
        let wait = refusal(ask(number, 0).0).retry_after.unwrap();
        let seconds = if number < 128 { 60 } else { 1 };
        assert_eq!(wait, Duration::from_secs(seconds), "{number}");
    }
    let zone = &limits.requests[0].zone;
    assert_eq!(zone.penalties_dropped(), Some(72));
    for number in 0..200 {
        let status = ask(number, 30_000).1;
        let expected = match number {
            0..128 => LimitStatus::Penalize,
            _ => LimitStatus::Pass,
        };
        assert_eq!(status, Some(expected), "{number}");
    }
    // Those that have ended make room.
    assert!(matches!(ask(1, 60_000).0, Admission::Pass));
    assert!(matches!(ask(199, 60_000).0, Admission::Pass));
    let wait = refusal(ask(199, 60_000).0).retry_after.unwrap();
    assert_eq!(wait, Duration::from_secs(60));
}

#[test]
fn a_dry_run_only_tells_of_penalties() {
    let plan = plan(vec![req_zone("a", 1_000)], vec![]);
    let limits = punishing_limits(plan, &[punishing(req_rule(0, 0), 30)], true);
    let statuses: Vec<_> = [0, 0, 10_000, 30_000]
        .into_iter()
        .map(|now| {
            let (verdict, status) = ask(&limits, now);
            assert!(matches!(verdict, Admission::Pass));
            status.unwrap().as_str()
        })
        .collect();
    assert_eq!(
        statuses,
        ["PASSED", "REJECTED_DRY_RUN", "PENALIZED_DRY_RUN", "PASSED"]
    );
}
