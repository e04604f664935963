//! Requests over the burst that wait for their turn: the script against what is asked here.

use super::*;
use crate::store::redis::tests::reserve::brisk;

/// What becomes of a request that may wait so long, by this zone alone.
fn expected(zone: &RateZone, spec: &LimitSpec, now: u64, longest: Duration) -> Verdict {
    let key = Key::from_bytes(b"key");
    let ask = |at: Millis| zone.peek(&key, at, Cost::ONE, spec);
    if let Verdict::Refuse {
        excess,
        retry_after: Some(turn),
    } = ask(Millis(now))
    {
        let wait = match ask(Millis(now).after(turn)) {
            Verdict::Delay { wait, .. } => turn + wait,
            _ => turn,
        };
        if wait <= longest {
            zone.charge_delayed(&key, Millis(now), Cost::ONE, spec);
            return Verdict::Delay { excess, wait };
        }
    }
    zone.charge(&key, Millis(now), Cost::ONE, spec).0
}

fn in_line() -> impl Strategy<Value = LimitSpec> {
    let capacities = (rates(), 1..30u32).prop_map(|(rate, capacity)| {
        let capacity = Excess::requests(capacity);
        LimitSpec::TokenBucket(TokenBucket { rate, capacity })
    });
    let gcra = (brisk(), 0..30u32)
        .prop_map(|(rate, burst)| LimitSpec::Gcra(Gcra::new(rate, Excess::requests(burst))));
    prop_oneof![leaky_buckets(), capacities, gcra]
}

#[test]
fn who_may_wait_waits_as_long_in_redis() {
    let server = Server::start();
    let script_runner = std::cell::RefCell::new(ScriptRunner::new(&server));
    let mut runner = TestRunner::new(ProptestConfig {
        cases: ProptestConfig::default().cases / 2,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let pauses = prop::collection::vec(prop_oneof![4 => Just(0u64), 2 => 1..3_000u64], 1..60);
    let cases = (in_line(), pauses, 0..20_000u64);
    runner
        .run(&cases, |(spec, pauses, longest)| {
            let mut script_runner = script_runner.borrow_mut();
            script_runner.forget();
            let longest = Duration::from_millis(longest);
            let zone = RateZone::new("zone", 1 << 20, &spec, false);
            let mut now = 1_700_000_000_000;
            for pause in pauses {
                now += pause;
                let (cost, refused) = (Cost::ONE, false);
                let mut check = KeyCheck::new(b"key".to_vec(), &spec, cost, refused);
                check.patience = Some(longest);
                let got = script_runner.run("charge", &[check], now);
                let expected = expected(&zone, &spec, now, longest);
                prop_assert_eq!(got[0].outcome, expected, "at {}", now);
            }
            Ok(())
        })
        .unwrap();
}
