//! The states of a breaker, with time as a value.

use proptest::prelude::*;

use super::*;
use crate::config::plan::{CallShare, Recovery};

/// Two probes after five seconds.
pub(in crate::upstream) fn plan() -> plan::Breaker {
    plan::Breaker {
        failure_ratio: Some(CallShare(500)),
        failures: None,
        slow: None,
        window: Duration::from_secs(10),
        min_calls: 4,
        open_for: Duration::from_secs(5),
        max_open_for: Duration::from_secs(60),
        recovery: Recovery::Probes(2),
        statuses: vec![StatusCode::BAD_GATEWAY],
    }
}

fn breaker(plan: &plan::Breaker) -> Breaker {
    Breaker::new("test", plan)
}

const WELL: CallOutcome = CallOutcome::Response(Duration::ZERO);

/// So many calls with this outcome, all let through.
fn calls(breaker: &Breaker, count: usize, outcome: CallOutcome, now: u64) {
    for _ in 0..count {
        let pass = breaker.admit(Millis(now)).expect("it is let through");
        pass.report(outcome, Millis(now));
    }
}

/// One that has just opened.
fn open(plan: &plan::Breaker, now: u64) -> Breaker {
    let breaker = breaker(plan);
    calls(&breaker, 4, CallOutcome::Failure, now);
    assert_eq!(breaker.state(), BreakerState::Open);
    breaker
}

fn wait(breaker: &Breaker, now: u64) -> Option<u128> {
    breaker
        .admit(Millis(now))
        .err()
        .map(|refused| refused.retry_after.as_millis())
}

#[test]
fn a_few_failures_say_nothing() {
    let breaker = breaker(&plan());
    calls(&breaker, 3, CallOutcome::Failure, 0);
    assert_eq!(breaker.state(), BreakerState::Closed);
    calls(&breaker, 1, CallOutcome::Failure, 0);
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn it_is_the_share_that_counts() {
    let breaker = breaker(&plan());
    calls(&breaker, 6, WELL, 0);
    calls(&breaker, 5, CallOutcome::Failure, 0);
    assert_eq!(breaker.state(), BreakerState::Closed);
    calls(&breaker, 1, CallOutcome::Failure, 0);
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn what_is_long_past_counts_no_more() {
    let breaker = breaker(&plan());
    calls(&breaker, 3, CallOutcome::Failure, 0);
    calls(&breaker, 3, CallOutcome::Failure, 10_000);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn a_number_of_failures_needs_no_share() {
    let plan = plan::Breaker {
        failure_ratio: None,
        failures: Some(3),
        ..plan()
    };
    let breaker = breaker(&plan);
    calls(&breaker, 100, WELL, 0);
    calls(&breaker, 2, CallOutcome::Failure, 0);
    assert_eq!(breaker.state(), BreakerState::Closed);
    calls(&breaker, 1, CallOutcome::Failure, 0);
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn slow_answers_open_it_too() {
    let slow = (Duration::from_secs(2), CallShare(500));
    let breaker = breaker(&plan::Breaker {
        slow: Some(slow),
        ..plan()
    });
    calls(&breaker, 2, WELL, 0);
    calls(
        &breaker,
        1,
        CallOutcome::Response(Duration::from_millis(2000)),
        0,
    );
    assert_eq!(breaker.state(), BreakerState::Closed);
    calls(
        &breaker,
        1,
        CallOutcome::Response(Duration::from_millis(2000)),
        0,
    );
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn clients_that_leave_are_not_counted() {
    let breaker = breaker(&plan());
    calls(&breaker, 100, CallOutcome::Cancelled, 0);
    for _ in 0..100 {
        drop(breaker.admit(Millis(0)));
    }
    calls(&breaker, 3, CallOutcome::Failure, 0);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn open_it_says_for_how_long() {
    let breaker = open(&plan(), 1_000);
    assert_eq!(wait(&breaker, 1_000), Some(5_000));
    assert_eq!(wait(&breaker, 5_999), Some(1));
    assert_eq!(breaker.open_until(), Some(Millis(6_000)));
    assert_eq!(wait(&breaker, 6_000), None);
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
}

#[test]
fn probes_that_go_well_close_it() {
    let breaker = open(&plan(), 0);
    let first = breaker.admit(Millis(5_000)).unwrap();
    let second = breaker.admit(Millis(5_000)).unwrap();
    assert_eq!(wait(&breaker, 5_000), Some(1_000), "two are enough");
    first.report(WELL, Millis(5_100));
    assert_eq!(wait(&breaker, 5_100), Some(1_000), "still two");
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    second.report(WELL, Millis(5_200));
    assert_eq!(breaker.state(), BreakerState::Closed);
    calls(&breaker, 10, WELL, 5_200);
}

#[test]
fn the_place_of_a_probe_whose_client_left_is_given_back() {
    let breaker = open(&plan(), 0);
    for _ in 0..10 {
        let first = breaker.admit(Millis(5_000)).unwrap();
        let second = breaker.admit(Millis(5_000)).unwrap();
        assert!(breaker.admit(Millis(5_000)).is_err());
        drop((first, second));
    }
    calls(&breaker, 2, WELL, 6_000);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

/// A client may send its body as slowly as it likes.
#[test]
fn a_probe_that_stays_away_loses_its_place_and_cannot_give_it_back() {
    let breaker = open(&plan(), 0);
    let early = breaker.admit(Millis(5_000)).unwrap();
    let late = breaker.admit(Millis(6_000)).unwrap();
    assert_eq!(
        wait(&breaker, 10_999),
        Some(1_000),
        "both have time until then"
    );
    let first = breaker.admit(Millis(11_000)).unwrap();
    let second = breaker.admit(Millis(11_000)).unwrap();
    drop((early, late));
    assert!(
        breaker.admit(Millis(11_000)).is_err(),
        "there are two places"
    );
    first.report(WELL, Millis(11_000));
    second.report(WELL, Millis(11_000));
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn what_a_late_probe_has_seen_counts() {
    for (outcome, state) in [
        (WELL, BreakerState::Closed),
        (CallOutcome::Failure, BreakerState::Open),
    ] {
        let breaker = open(&plan(), 0);
        let late = [0; 2].map(|_| breaker.admit(Millis(5_000)).unwrap());
        let _others = [0; 2].map(|_| breaker.admit(Millis(10_000)).unwrap());
        late.into_iter()
            .for_each(|pass| pass.report(outcome, Millis(10_000)));
        assert_eq!(breaker.state(), state);
    }
}

#[test]
fn who_leaves_after_waiting_too_long_has_seen_that_it_is_slow() {
    let slow = (Duration::from_secs(2), CallShare(1000));
    let breaker = breaker(&plan::Breaker {
        slow: Some(slow),
        ..plan()
    });
    let clock = Clock::by_hand(Millis(0));
    let leave = |after| {
        clock.set(Millis(0));
        let pass = breaker.admit(Millis(0)).unwrap();
        let pass = pass.timed(&clock, &mut RequestBody::none());
        clock.set(Millis(after));
        drop(pass);
    };
    (0..10).for_each(|_| leave(1_999));
    (0..3).for_each(|_| leave(2_000));
    assert_eq!(breaker.state(), BreakerState::Closed, "three say nothing");
    leave(2_000);
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn every_relapse_doubles_the_time() {
    let breaker = open(&plan(), 0);
    let mut now = 5_000;
    for expected in [10_000, 20_000, 40_000, 60_000, 60_000] {
        calls(&breaker, 1, CallOutcome::Failure, now);
        assert_eq!(wait(&breaker, now), Some(expected));
        now += u64::try_from(expected).unwrap();
    }
}

#[test]
fn who_opens_again_at_once_was_not_well() {
    let breaker = open(&plan(), 0);
    calls(&breaker, 2, WELL, 5_000);
    calls(&breaker, 4, CallOutcome::Failure, 5_100);
    assert_eq!(wait(&breaker, 5_100), Some(10_000));
    calls(&breaker, 2, WELL, 15_100);
    // For a whole window all went well.
    calls(&breaker, 4, CallOutcome::Failure, 25_100);
    assert_eq!(wait(&breaker, 25_100), Some(5_000));
}

#[test]
fn what_comes_late_is_not_listened_to() {
    let breaker = breaker(&plan());
    let late: Vec<_> = (0..4).map(|_| breaker.admit(Millis(0)).unwrap()).collect();
    calls(&breaker, 4, CallOutcome::Failure, 0);
    let probe = breaker.admit(Millis(5_000)).unwrap();
    for pass in late {
        pass.report(CallOutcome::Failure, Millis(5_000));
    }
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    probe.report(WELL, Millis(5_000));
    calls(&breaker, 1, WELL, 5_000);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn an_answer_cut_short_is_a_failure_after_all() {
    let breaker = breaker(&plan());
    calls(&breaker, 4, WELL, 0);
    let ticket = breaker.admit(Millis(0)).unwrap().ticket;
    breaker.revoke(ticket, Millis(0));
    assert_eq!(breaker.state(), BreakerState::Closed);
    breaker.revoke(ticket, Millis(0));
    assert_eq!(breaker.state(), BreakerState::Open);
    // Begun before, cut after it was found to be bad: that is known.
    let probe = breaker.admit(Millis(5_000)).unwrap();
    breaker.revoke(ticket, Millis(5_000));
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    breaker.revoke(probe.ticket, Millis(5_000));
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn a_ramp_lets_a_growing_share_through() {
    let plan = plan::Breaker {
        recovery: Recovery::Ramp {
            over: Duration::from_secs(10),
            min_calls: 4,
        },
        ..plan()
    };
    let breaker = open(&plan, 0);
    let passed = |now| {
        let answer = |pass: CallPermit<'_>| pass.report(WELL, Millis(now));
        (0..100)
            .filter(|_| breaker.admit(Millis(now)).map(answer).is_ok())
            .count()
    };
    assert_eq!(passed(5_000), 3, "one at once, then one in fifty");
    assert_eq!(passed(7_500), 25);
    assert_eq!(passed(10_000), 50);
    assert_eq!(passed(14_000), 90);
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    assert_eq!(passed(15_000), 100);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn a_ramp_that_fails_begins_again_later() {
    let plan = plan::Breaker {
        min_calls: 100,
        failures: Some(4),
        recovery: Recovery::Ramp {
            over: Duration::from_secs(10),
            min_calls: 1,
        },
        ..plan()
    };
    let breaker = open(&plan, 0);
    calls(&breaker, 1, CallOutcome::Failure, 5_000);
    assert_eq!(wait(&breaker, 5_000), Some(10_000));
}

#[test]
fn an_operator_has_the_last_word() {
    let breaker = breaker(&plan());
    breaker.force(Some(ForcedState::Open));
    assert_eq!(breaker.state(), BreakerState::Open);
    assert_eq!(wait(&breaker, u64::MAX - 1), Some(30_000));
    assert_eq!(breaker.wait(Millis(0)), Some(TURNED_OFF));
    breaker.force(Some(ForcedState::Closed));
    calls(&breaker, 100, CallOutcome::Failure, 0);
    assert_eq!(breaker.state(), BreakerState::Closed);
    breaker.force(None);
    assert_eq!(breaker.state(), BreakerState::Closed);
    calls(&breaker, 4, CallOutcome::Failure, 0);
    assert_eq!(breaker.state(), BreakerState::Open);
    assert_eq!(breaker.opened(), 2);
}

#[test]
fn what_the_answer_says_decides() {
    let breaker = breaker(&plan());
    let taken = Duration::from_millis(3);
    let mut headers = HeaderMap::new();
    let pass = breaker.admit(Millis(5)).unwrap();
    let says = |status, headers: &HeaderMap| pass.outcome(status, headers, Millis(8));
    assert_eq!(says(StatusCode::OK, &headers), CallOutcome::Response(taken));
    assert_eq!(
        says(StatusCode::NOT_FOUND, &headers),
        CallOutcome::Response(taken)
    );
    assert_eq!(
        says(StatusCode::BAD_GATEWAY, &headers),
        CallOutcome::Failure
    );
    for (code, failed) in [
        ("0", false),
        ("5", false),
        ("14", true),
        ("4", true),
        ("13", true),
    ] {
        headers.insert("grpc-status", http::HeaderValue::from_static(code));
        let expected = match failed {
            true => CallOutcome::Failure,
            false => CallOutcome::Response(taken),
        };
        assert_eq!(says(StatusCode::OK, &headers), expected, "{code}");
    }
}

proptest! {
    /// Whatever happens: it never lets more probes out than it may, and it always comes back.
    #[test]
    fn it_never_locks_itself_up(steps in proptest::collection::vec((0u64..4_000, 0u8..4), 1..300)) {
        let plan = plan();
        let breaker = breaker(&plan);
        let mut now = 0;
        let mut out = Vec::new();
        for (step, what) in steps {
            now += step;
            let half_open = breaker.wake(Millis(now)).is_none() && breaker.state() == BreakerState::HalfOpen;
            let epoch = breaker.gate.load(Ordering::Relaxed) >> 1;
            if half_open {
                let probes = out.iter().map(|pass: &CallPermit<'_>| pass.ticket).filter(|it| it.epoch == epoch);
                let last = probes.clone().map(|it| it.lapses).max();
                prop_assert!(probes.filter(|it| Some(it.lapses) == last).count() <= 2);
            }
            match what {
                0 => out.extend(breaker.admit(Millis(now)).ok()),
                1 => drop(out.pop()),
                2 => out.pop().into_iter().for_each(|pass| pass.report(WELL, Millis(now))),
                _ => out.pop().into_iter().for_each(|pass| pass.report(CallOutcome::Failure, Millis(now))),
            }
        }
        out.clear();
        now += 60_000;
        for _ in 0..2 {
            let pass = breaker.admit(Millis(now));
            prop_assert!(pass.is_ok());
            pass.into_iter().for_each(|pass| pass.report(WELL, Millis(now)));
        }
        prop_assert_eq!(breaker.state(), BreakerState::Closed);
    }
}
