//! What is charged when a request is over, and what limits that are only proposed make of it.

use crate::clock::{Clock, Millis};
use crate::config::plan::{CostSource, Plan, ReqRule};
use crate::limits::Admission;
use crate::limits::Zones;
use crate::limits::tests::support::{admit, conf, plan, record, req_rule, req_zone};
use crate::limits::tests::{ask, refusal};
use crate::limits::{Limits, ShadowDifferences};

fn by_response(zone: usize, burst: u32) -> ReqRule {
    ReqRule {
        weight: CostSource::ResponseBytes,
        ..req_rule(zone, burst)
    }
}

fn compile(mut plan: Plan, enforced: &[ReqRule], proposed: &[ReqRule]) -> (Limits, Zones) {
    let mut conf = conf(enforced, &[]);
    conf.shadow = proposed.to_vec();
    plan.servers[0].fallback = conf.clone();
    let zones = Zones::build(&plan);
    (Limits::compile(&conf, &zones), zones)
}

fn differs(zones: &Zones, zone: usize) -> ShadowDifferences {
    zones.shadow[zone].as_ref().unwrap().differences()
}

/// A request that is admitted at `now` and then costs so much.
async fn costs(limits: &Limits, now: u64, bytes: u64) {
    let mut record = record(&[]);
    let clock = Clock::by_hand(Millis(now));
    let permit = admit(limits, &mut record, &clock).await;
    let mut permit = permit.expect("it is admitted");
    record.body_sent = bytes;
    for charge in std::mem::take(&mut permit.charges) {
        charge.settle(&record, Millis(now));
    }
}

/// A thousand bytes a second, two thousand ahead, and one that is always free.
#[tokio::test]
async fn a_key_that_took_too_much_pays_for_it_afterwards() {
    let plan = plan(vec![req_zone("bytes", 1_000_000)], vec![]);
    let (limits, _) = compile(plan, &[by_response(0, 2_000)], &[]);
    costs(&limits, 0, 1_500).await;
    // Not in debt: one more is let in, whatever it will be.
    costs(&limits, 0, 10_501).await;
    let refused = refusal(ask(&limits, 0).0);
    assert_eq!(
        refused.retry_after,
        Some(std::time::Duration::from_secs(10))
    );
    assert!(matches!(ask(&limits, 9_999).0, Admission::Refuse(_)));
    assert!(matches!(ask(&limits, 10_000).0, Admission::Pass));
}

#[tokio::test]
async fn what_went_through_costs_nothing_until_it_is_settled() {
    let plan = plan(vec![req_zone("bytes", 1_000)], vec![]);
    let (limits, _) = compile(plan, &[by_response(0, 0)], &[]);
    for _ in 0..10 {
        costs(&limits, 0, 0).await;
    }
    assert!(limits.requests[0].zone.store.is_empty());
}

#[test]
fn a_shadow_counts_for_itself_and_changes_nothing() {
    let plan = plan(vec![req_zone("a", 1_000), req_zone("b", 1_000)], vec![]);
    let (limits, zones) = compile(plan, &[req_rule(0, 2)], &[req_rule(0, 0), req_rule(1, 9)]);
    for _ in 0..3 {
        assert!(matches!(ask(&limits, 0).0, Admission::Pass));
    }
    assert!(matches!(ask(&limits, 0).0, Admission::Refuse(_)));
    let enforced = zones.req[0].store.counts();
    assert_eq!((enforced.pass, enforced.refuse), (3, 1));
    assert!(zones.req[1].store.is_empty());
    let shadow = |zone: usize| zones.shadow[zone].as_ref().unwrap().zone.store.counts();
    // The first passes; what its first rule refuses is not charged to the second.
    assert_eq!((shadow(0).pass, shadow(0).refuse), (1, 3));
    assert_eq!((shadow(1).pass, shadow(1).refuse), (1, 0));
    let expected = ShadowDifferences { refuse: 2, pass: 0 };
    assert_eq!(differs(&zones, 0), expected);
    assert_eq!(differs(&zones, 1), ShadowDifferences::default());
}

#[test]
fn a_laxer_shadow_is_noticed_too() {
    let plan = plan(vec![req_zone("a", 1_000)], vec![]);
    let (limits, zones) = compile(plan, &[req_rule(0, 0)], &[req_rule(0, 5)]);
    for _ in 0..8 {
        ask(&limits, 0);
    }
    // One passes with both, five of the refused would have passed, two are refused by both.
    let expected = ShadowDifferences { refuse: 0, pass: 5 };
    assert_eq!(differs(&zones, 0), expected);
}

#[tokio::test]
async fn a_shadow_is_paid_by_what_it_would_have_let_in() {
    let plan = plan(vec![req_zone("bytes", 1_000_000)], vec![]);
    let (limits, zones) = compile(plan, &[], &[by_response(0, 0)]);
    costs(&limits, 0, 5_000).await;
    // This one the shadow would have refused: it owes nothing for it.
    costs(&limits, 1_000, 90_000).await;
    costs(&limits, 5_000, 0).await;
    let expected = ShadowDifferences { refuse: 1, pass: 0 };
    assert_eq!(differs(&zones, 0), expected);
}

/// Only what is asked for is made.
#[test]
fn without_a_shadow_there_are_no_zones_for_it() {
    let plan = plan(vec![req_zone("a", 1_000)], vec![]);
    let (_, zones) = compile(plan, &[req_rule(0, 0)], &[]);
    assert!(zones.shadow.iter().all(Option::is_none));
}
