//! A fleet whose store is late, goes and comes: what all gateways let pass together, simulated with the time as a number.

use super::*;
use crate::algorithm::KeyStatus;

/// How a gateway reaches the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Answers come in time.
    InTime,
    /// Each answer comes, too late for its request.
    Tardy,
    /// It does not ask any more, and what it lets pass is charged after a while.
    Late,
    /// It cannot tell the store anything.
    Gone,
}

/// What happens next.
#[derive(Debug, Clone, Copy)]
enum Event {
    Request,
    /// One gateway reaches the store otherwise; not at all only when none does.
    Turn(Reach),
    AllGone,
    AllBack,
    Emptied,
}

struct Gateway {
    picture: RateZone,
    reach: Reach,
    passed: Cost,
}

struct World {
    spec: LimitSpec,
    store: RateZone,
    /// Whether the store has lost its memory.
    lost: bool,
    gateways: Vec<Gateway>,
}

const KEY: &[u8] = b"key";

impl World {
    fn new(spec: LimitSpec, gateways: usize) -> Self {
        let zone = || RateZone::new("zone", 1 << 16, &spec, false);
        Self {
            spec,
            store: zone(),
            lost: false,
            gateways: (0..gateways)
                .map(|_| Gateway {
                    picture: zone(),
                    reach: Reach::InTime,
                    passed: Cost(0),
                })
                .collect(),
        }
    }

    /// Whether a request passes.
    fn ask(&mut self, whose: usize, now: Millis) -> bool {
        let Self {
            spec,
            store,
            lost,
            gateways,
        } = self;
        let all = u32::try_from(gateways.len()).unwrap();
        let gateway = &mut gateways[whose];
        let key = Key::from_bytes(KEY);
        if gateway.reach == Reach::InTime {
            recall(store, *lost, &gateway.picture, now, spec);
            let (outcome, _) = store.charge(&key, now, Cost::ONE, spec);
            let remaining = left(store.key_status(&key, now, spec), spec);
            let answer = StoreVerdict {
                outcome,
                remaining,
                penalized: false,
            };
            gateway.picture.mirror(&key, now, Cost::ONE, spec, answer);
            return passes(&outcome);
        }
        let share = crate::store::redis::fleet::share(Cost::ONE, spec, all, 1);
        let (outcome, _) = gateway.picture.charge(&key, now, share.needs, spec);
        let passed = passes(&outcome);
        if passed {
            gateway.picture.debit(&key, now, share.owes, spec);
        }
        if gateway.reach == Reach::Tardy {
            let (there, receipt) = store.charge(&key, now, Cost::ONE, spec);
            match (passes(&there), passed) {
                (true, false) => store.refund(&key, receipt, now, Cost::ONE, spec),
                (false, true) => gateway.passed.0 += Cost::ONE.0,
                _ => {}
            }
        } else if passed {
            gateway.passed.0 += Cost::ONE.0;
        }
        passed
    }

    /// Charges what passed without the store at those gateways that can tell it.
    fn book(&mut self, now: Millis) {
        let all = u32::try_from(self.gateways.len()).unwrap();
        let key = Key::from_bytes(KEY);
        for gateway in &mut self.gateways {
            if gateway.reach != Reach::Gone && gateway.passed > Cost(0) {
                let key_status = gateway.picture.key_status(&key, now, &self.spec);
                let left = key_status.map(|key_status| key_status.remaining);
                let due = crate::store::redis::outage::due(gateway.passed, &self.spec, left, all);
                self.store.debit(&key, now, due, &self.spec);
                gateway.passed = Cost(0);
            }
        }
    }
}

fn passes(outcome: &Verdict) -> bool {
    !matches!(outcome, Verdict::Refuse { .. })
}

fn left(key_status: Option<KeyStatus>, spec: &LimitSpec) -> u64 {
    key_status.map_or_else(|| spec.quota(), |key_status| key_status.remaining)
}

/// A store that has lost its memory takes over what a gateway knows of the key.
fn recall(store: &RateZone, lost: bool, picture: &RateZone, now: Millis, spec: &LimitSpec) {
    let key = Key::from_bytes(KEY);
    let known = store.key_status(&key, now, spec);
    let script_runner = left(picture.key_status(&key, now, spec), spec);
    let gone = left(known, spec).saturating_sub(script_runner + u64::from(known.is_some()));
    if known.is_none() || lost {
        store.debit(&key, now, Cost(gone * Cost::ONE.0), spec);
    }
}

/// The most that passes within any stretch of time, beyond what a rate allows for it.
fn beyond(passed: &[u64], per_second: u64) -> i128 {
    let (mut worst, mut lowest) = (0, i128::MAX);
    for (count, at) in passed.iter().enumerate() {
        let height = i128::try_from(count).unwrap() * 1_000 - i128::from(at * per_second);
        lowest = lowest.min(height);
        worst = worst.max(height - lowest + 1_000);
    }
    worst / 1_000
}

fn events() -> impl Strategy<Value = Vec<(u64, usize, Event)>> {
    let turn = prop_oneof![Just(Reach::InTime), Just(Reach::Tardy), Just(Reach::Late)];
    let event = prop_oneof![
        60 => Just(Event::Request),
        3 => turn.prop_map(Event::Turn),
        1 => Just(Event::AllGone),
        2 => Just(Event::AllBack),
        1 => Just(Event::Emptied),
    ];
    let pause = prop_oneof![20 => Just(0u64), 5 => 0..10u64, 1 => 0..1_500u64];
    prop::collection::vec((pause, 0..4usize, event), 1..1_500)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// However late the store answers and however often it goes and comes, no stretch of time holds more than one burst above
    /// the limit, and one request for each gateway that parts are rounded by.
    #[test]
    fn all_gateways_together_keep_within_one_burst_of_the_limit(
        quota in 4..60u32,
        per_second in 1..200u64,
        gateways in 1..5usize,
        gcra in any::<bool>(),
        events in events(),
    ) {
        let rate = Rate::per_second(per_second * 1_000);
        let spec = match gcra {
            true => LimitSpec::Gcra(Gcra::new(rate, Excess::requests(quota - 1))),
            false => LimitSpec::TokenBucket(TokenBucket { rate, capacity: Excess::requests(quota) }),
        };
        let mut world = World::new(spec, gateways);
        let (mut now, mut booked, mut passed) = (1_000_000, 0, Vec::new());
        for (pause, whose, event) in events {
            now += pause;
            if now - booked >= 50 {
                world.book(Millis(now));
                booked = now;
            }
            let whose = whose % gateways;
            match event {
                Event::Request => {
                    if world.ask(whose, Millis(now)) {
                        passed.push(now);
                    }
                }
                Event::Turn(reach) => {
                    if world.gateways[whose].reach != Reach::Gone {
                        world.gateways[whose].reach = reach;
                    }
                }
                Event::AllGone => world.gateways.iter_mut().for_each(|one| one.reach = Reach::Gone),
                Event::AllBack => {
                    world.gateways.iter_mut().for_each(|one| one.reach = Reach::InTime);
                    world.book(Millis(now));
                }
                Event::Emptied => {
                    world.store.forget(&Key::from_bytes(KEY));
                    world.lost = true;
                }
            }
        }
        let most = i128::from(2 * quota) + i128::try_from(2 * gateways).unwrap();
        let worst = beyond(&passed, per_second);
        prop_assert!(worst <= most, "{} where {} is a burst above the limit", worst, most);
    }
}
