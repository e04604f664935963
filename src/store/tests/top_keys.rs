//! Who is found, how exactly, and what their pace is.

use super::*;

fn note(busiest: &TopKeys, number: u32, said: VerdictKind, now: u64) {
    let key = Key::from_bytes(&number.to_be_bytes());
    busiest.note(&key, said, 1, Millis(now), Box::default);
}

fn find(busiest: &TopKeys, number: u32) -> Option<(u64, u64, u64)> {
    let busy = busiest.find(&Key::from_bytes(&number.to_be_bytes()), Millis(0))?;
    Some((busy.counts.pass, busy.counts.refuse, busy.missed))
}

#[test]
fn few_keys_are_counted_exactly() {
    let busiest = TopKeys::default();
    for number in 0..MOST as u32 {
        for _ in 0..=number % 7 {
            note(&busiest, number, VerdictKind::Pass, 1);
        }
        note(&busiest, number, VerdictKind::Refuse, 2);
    }
    assert_eq!(busiest.list(Millis(3)).len(), MOST);
    for number in 0..MOST as u32 {
        let expected = (u64::from(number % 7) + 1, 1, 0);
        assert_eq!(find(&busiest, number), Some(expected));
    }
}

/// A hundred thousand keys that come once, and one in a hundred requests from one key.
#[test]
fn who_asks_much_is_found_among_any_number_of_others() {
    let busiest = TopKeys::default();
    for number in 0..100_000u32 {
        note(&busiest, number, VerdictKind::Pass, u64::from(number) / 100);
        if number % 100 == 99 {
            note(
                &busiest,
                u32::MAX,
                VerdictKind::Pass,
                u64::from(number) / 100,
            );
        }
    }
    let (pass, _, missed) = find(&busiest, u32::MAX).expect("it is on the list");
    assert!(pass <= 1000 && pass + missed >= 1000, "{pass} and {missed}");
    assert!(pass > 600, "{pass}");
    assert!(busiest.list(Millis(1_000)).len() <= 2 * MOST);
}

#[test]
fn who_is_refused_is_found_among_those_who_ask_more_and_are_not() {
    let busiest = TopKeys::default();
    for round in 0..200 {
        for number in 0..1000 {
            note(&busiest, number, VerdictKind::Pass, 1);
        }
        note(&busiest, 5000, VerdictKind::Refuse, 1);
        note(&busiest, 5001 + round, VerdictKind::Refuse, 1);
    }
    let (_, refused, missed) = find(&busiest, 5000).expect("it is on the list");
    assert_eq!((refused, missed), (200, 0));
}

#[test]
fn who_has_gone_is_forgotten() {
    let busiest = TopKeys::default();
    note(&busiest, 1, VerdictKind::Refuse, 0);
    note(&busiest, 2, VerdictKind::Pass, 599_000);
    assert_eq!(busiest.list(Millis(599_500)).len(), 2);
    assert_eq!(busiest.list(Millis(660_000)).len(), 1);
    busiest.forget(&Key::from_bytes(&2u32.to_be_bytes()));
    assert!(busiest.list(Millis(660_000)).is_empty());
}

#[test]
fn long_keys_bring_their_bytes() {
    let busiest = TopKeys::default();
    let long = b"a key of more than fifteen bytes";
    busiest.note(
        &Key::from_bytes(long),
        VerdictKind::Refuse,
        1,
        Millis(0),
        || (*long).into(),
    );
    let names = busiest.list(Millis(0));
    assert_eq!(names[0].name.as_deref(), Some(&long[..]));
    assert_eq!(names[0].counts.refuse, 1);
}

#[test]
fn of_many_some_stand_for_all() {
    for (requests, off) in [(1_000u64, 0), (10_000, 16), (100_000, 256)] {
        let now = Millis(requests * 1_000_000);
        let noted: u64 = (0..requests).map(|_| sampling_weight(now)).sum();
        assert!(noted.abs_diff(requests) <= off, "{noted} of {requests}");
    }
}

/// Somebody who asked for a thousand times as much stops, and somebody else begins.
#[test]
fn a_pace_is_that_of_the_last_seconds_whatever_was_before() {
    let busiest = TopKeys::default();
    let pace = |number: u32, now| {
        let key = Key::from_bytes(&number.to_be_bytes());
        let pace = busiest.find(&key, Millis(now)).unwrap().pace;
        (pace.pass.round(), pace.refuse.round())
    };
    for now in 0..60_000 {
        note(&busiest, 1, VerdictKind::Refuse, now);
        if now % 100 == 0 {
            note(&busiest, 2, VerdictKind::Pass, now);
        }
    }
    assert_eq!((pace(1, 60_000), pace(2, 60_000)), ((0., 1000.), (10., 0.)));
    for now in (60_000..66_000).step_by(50) {
        note(&busiest, 2, VerdictKind::Refuse, now);
    }
    assert_eq!(pace(1, 66_000), (0., 0.));
    assert_eq!(pace(2, 66_000), (0., 20.));
    assert_eq!(pace(2, 90_000), (0., 0.), "nobody came, and nobody looked");
    let shown = busiest.list(Millis(90_000));
    assert!(shown.iter().all(|busy| busy.pace == KeyRates::default()));
}

#[test]
fn who_comes_after_a_silence_has_a_pace_at_once() {
    let busiest = TopKeys::default();
    for now in 1_000_000..1_000_300 {
        note(&busiest, 1, VerdictKind::Refuse, now);
    }
    let [one] = &busiest.list(Millis(1_000_300))[..] else {
        panic!("one key");
    };
    // In the shortest window there is, or a little longer.
    assert!((80.0..=100.0).contains(&one.pace.refuse), "{:?}", one.pace);
}

#[test]
fn a_key_in_both_lists_is_shown_with_all_its_requests() {
    let busiest = TopKeys::default();
    for said in [
        VerdictKind::Pass,
        VerdictKind::Pass,
        VerdictKind::Pass,
        VerdictKind::Refuse,
    ] {
        note(&busiest, 1, said, 1);
    }
    let list = busiest.list(Millis(2));
    let shown: Vec<_> = list
        .iter()
        .map(|busy| (busy.counts.pass, busy.counts.refuse))
        .collect();
    assert_eq!(shown, [(3, 1)]);
}
