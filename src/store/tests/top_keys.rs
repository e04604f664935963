//! Which keys are found, how exactly, and their rates.

use super::*;

fn record(top: &TopKeys, number: u32, verdict: VerdictKind, now: u64) {
    let key = Key::from_bytes(&number.to_be_bytes());
    top.record(&key, verdict, 1, Millis(now), Box::default);
}

fn find(top: &TopKeys, number: u32) -> Option<(u64, u64, u64)> {
    let key = top.find(&Key::from_bytes(&number.to_be_bytes()), Millis(0))?;
    Some((key.counts.pass, key.counts.refuse, key.missed))
}

#[test]
fn few_keys_are_counted_exactly() {
    let top = TopKeys::default();
    for number in 0..MAX_KEYS as u32 {
        for _ in 0..=number % 7 {
            record(&top, number, VerdictKind::Pass, 1);
        }
        record(&top, number, VerdictKind::Refuse, 2);
    }
    assert_eq!(top.list(Millis(3)).len(), MAX_KEYS);
    for number in 0..MAX_KEYS as u32 {
        let expected = (u64::from(number % 7) + 1, 1, 0);
        assert_eq!(find(&top, number), Some(expected));
    }
}

/// A hundred thousand keys that come once, and one in a hundred requests from one key.
#[test]
fn a_key_with_many_requests_is_found_among_any_number_of_others() {
    let top = TopKeys::default();
    for number in 0..100_000u32 {
        record(&top, number, VerdictKind::Pass, u64::from(number) / 100);
        if number % 100 == 99 {
            record(&top, u32::MAX, VerdictKind::Pass, u64::from(number) / 100);
        }
    }
    let (pass, _, missed) = find(&top, u32::MAX).expect("it is on the list");
    assert!(pass <= 1000 && pass + missed >= 1000, "{pass} and {missed}");
    assert!(pass > 600, "{pass}");
    assert!(top.list(Millis(1_000)).len() <= 2 * MAX_KEYS);
}

#[test]
fn a_refused_key_is_found_among_keys_with_more_requests() {
    let top = TopKeys::default();
    for round in 0..200 {
        for number in 0..1000 {
            record(&top, number, VerdictKind::Pass, 1);
        }
        record(&top, 5000, VerdictKind::Refuse, 1);
        record(&top, 5001 + round, VerdictKind::Refuse, 1);
    }
    let (_, refused, missed) = find(&top, 5000).expect("it is on the list");
    assert_eq!((refused, missed), (200, 0));
}

#[test]
fn idle_keys_are_dropped() {
    let top = TopKeys::default();
    record(&top, 1, VerdictKind::Refuse, 0);
    record(&top, 2, VerdictKind::Pass, 599_000);
    assert_eq!(top.list(Millis(599_500)).len(), 2);
    assert_eq!(top.list(Millis(660_000)).len(), 1);
    top.forget(&Key::from_bytes(&2u32.to_be_bytes()));
    assert!(top.list(Millis(660_000)).is_empty());
}

#[test]
fn long_keys_are_listed_with_their_bytes() {
    let top = TopKeys::default();
    let long = b"a key of more than fifteen bytes";
    top.record(
        &Key::from_bytes(long),
        VerdictKind::Refuse,
        1,
        Millis(0),
        || (*long).into(),
    );
    let names = top.list(Millis(0));
    assert_eq!(names[0].name.as_deref(), Some(&long[..]));
    assert_eq!(names[0].counts.refuse, 1);
}

#[test]
fn sampled_requests_stand_for_all() {
    for (requests, off) in [(1_000u64, 0), (10_000, 16), (100_000, 256)] {
        let now = Millis(requests * 1_000_000);
        let noted: u64 = (0..requests).map(|_| sampling_weight(now)).sum();
        assert!(noted.abs_diff(requests) <= off, "{noted} of {requests}");
    }
}

/// A key with a thousand times as many requests stops, and another one begins.
#[test]
fn rates_are_those_of_the_last_seconds() {
    let top = TopKeys::default();
    let rates = |number: u32, now| {
        let key = Key::from_bytes(&number.to_be_bytes());
        let rates = top.find(&key, Millis(now)).unwrap().rates;
        (rates.pass.round(), rates.refuse.round())
    };
    for now in 0..60_000 {
        record(&top, 1, VerdictKind::Refuse, now);
        if now % 100 == 0 {
            record(&top, 2, VerdictKind::Pass, now);
        }
    }
    assert_eq!(
        (rates(1, 60_000), rates(2, 60_000)),
        ((0., 1000.), (10., 0.))
    );
    for now in (60_000..66_000).step_by(50) {
        record(&top, 2, VerdictKind::Refuse, now);
    }
    assert_eq!(rates(1, 66_000), (0., 0.));
    assert_eq!(rates(2, 66_000), (0., 20.));
    assert_eq!(
        rates(2, 90_000),
        (0., 0.),
        "no requests and no look-ups since"
    );
    let shown = top.list(Millis(90_000));
    assert!(shown.iter().all(|key| key.rates == KeyRates::default()));
}

#[test]
fn a_key_that_was_idle_has_a_rate_at_once() {
    let top = TopKeys::default();
    for now in 1_000_000..1_000_300 {
        record(&top, 1, VerdictKind::Refuse, now);
    }
    let [one] = &top.list(Millis(1_000_300))[..] else {
        panic!("one key");
    };
    // In the shortest window there is, or a little longer.
    assert!(
        (80.0..=100.0).contains(&one.rates.refuse),
        "{:?}",
        one.rates
    );
}

#[test]
fn a_key_in_both_lists_is_shown_with_all_its_requests() {
    let top = TopKeys::default();
    for verdict in [
        VerdictKind::Pass,
        VerdictKind::Pass,
        VerdictKind::Pass,
        VerdictKind::Refuse,
    ] {
        record(&top, 1, verdict, 1);
    }
    let list = top.list(Millis(2));
    let shown: Vec<_> = list
        .iter()
        .map(|key| (key.counts.pass, key.counts.refuse))
        .collect();
    assert_eq!(shown, [(3, 1)]);
}
