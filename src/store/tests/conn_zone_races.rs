//! Two who give a place back and two who give up waiting for one, in every order of what each does under the lock.
//!
//! A place is handed over in two steps: somebody is taken out of line, and is sent the place once the lock is free. Between
//! the two, and on either side of them, whoever it is for may leave. Threads meet in that gap once in hundreds of runs, so
//! the steps are taken here one by one.

use super::*;

const NOW: Millis = Millis(0);
const LIMIT: u32 = 2;
const LINE: ConnQueue = ConnQueue {
    size: 9,
    timeout: std::time::Duration::from_secs(60),
};

/// What one of them does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The giver of this number takes the first out of line, or frees its place.
    TakeOut(usize),
    /// It sends the place to whom it took out.
    Send(usize),
    /// The waiter of this number has waited too long.
    GiveUp(usize),
    /// The client of the waiter of this number is gone.
    Vanish(usize),
    /// Everybody moves to a zone of another size.
    Move,
}

/// All orders of these steps in which a giver sends after it has taken out.
fn orders(steps: &[Step]) -> Vec<Vec<Step>> {
    if steps.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in steps.iter().enumerate() {
        if matches!(first, Step::Send(giver) if steps.contains(&Step::TakeOut(*giver))) {
            continue;
        }
        let rest: Vec<_> = [&steps[..at], &steps[at + 1..]].concat();
        for mut order in orders(&rest) {
            order.insert(0, *first);
            all.push(order);
        }
    }
    all
}

fn join<'s>(slots: &'s Arc<SlotTable>, key: &Key) -> SlotWaiter<'s> {
    match slots.take_or_queue(key, LIMIT, &LINE, NOW) {
        Ok(SlotAttempt::InLine(waiter)) => waiter,
        _ => panic!("all places are taken, and there is room in line"),
    }
}

/// Takes the steps of one order, and what is left afterwards is nothing.
fn run(order: &[Step]) {
    let slots = SlotTable::new("one", 32 << 10);
    let mut resized = None;
    let key = slots.key(b"a");
    // Who holds them gives them back by hand.
    for _ in 0..LIMIT {
        std::mem::forget(slots.take(&key, LIMIT, NOW).unwrap());
    }
    let mut waiters = [Some(join(&slots, &key)), Some(join(&slots, &key))];
    let mut chosen = [None, None];
    let mut refused = 0;
    for step in order {
        match *step {
            Step::TakeOut(giver) => chosen[giver] = slots.lock(&key).give_back(&key, &slots.seeds),
            Step::Send(giver) => {
                if let Some(next) = chosen[giver].take() {
                    slots.hand_over(&key, next);
                }
            }
            Step::GiveUp(waiter) => {
                if let Some(mut waiter) = waiters[waiter].take()
                    && slots.give_up(&mut waiter).is_err()
                {
                    refused += 1;
                }
            }
            Step::Vanish(waiter) => drop(waiters[waiter].take()),
            Step::Move => resized = Some(slots.resized(1 << 20)),
        }
        assert!(slots.taken(&key) <= LIMIT, "{order:?} at {step:?}");
        let taken = slots.taken(&key);
        let newcomer = slots.take(&key, LIMIT, NOW);
        assert_eq!(newcomer.is_ok(), taken < LIMIT, "{order:?} at {step:?}");
    }
    for mut waiter in waiters.into_iter().flatten() {
        let place = waiter.handed.try_recv();
        assert!(place.is_ok(), "{order:?}: a free place and one who waits");
    }
    assert!(slots.is_empty(), "{order:?}: a place is lost");
    let counts = resized.as_ref().unwrap_or(&slots).counts();
    let newcomers = u64::try_from(order.len()).unwrap();
    assert_eq!(
        counts.pass + counts.refuse + counts.delay,
        u64::from(LIMIT) + newcomers + given_up(order),
        "{order:?}: whoever gives up is counted once, as refused or with a place"
    );
    assert!(refused <= counts.refuse, "{order:?}");
}

fn given_up(order: &[Step]) -> u64 {
    let gave_up = order.iter().filter(|step| matches!(step, Step::GiveUp(_)));
    gave_up.count().try_into().unwrap()
}

const GIVERS: [Step; 4] = [
    Step::TakeOut(0),
    Step::Send(0),
    Step::TakeOut(1),
    Step::Send(1),
];

#[test]
fn no_place_is_lost_in_any_order_of_giving_and_leaving() {
    let mut count = 0;
    for leaving in [
        &[Step::GiveUp(0)][..],
        &[Step::Vanish(0)],
        &[Step::Vanish(1)],
        &[Step::GiveUp(0), Step::GiveUp(1)],
        &[Step::GiveUp(0), Step::Vanish(1)],
        &[Step::Vanish(0), Step::Vanish(1)],
    ] {
        for order in orders(&[&GIVERS[..], leaving].concat()) {
            run(&order);
            count += 1;
        }
    }
    assert_eq!(count, 3 * 30 + 3 * 180);
}

#[test]
fn nor_while_everybody_moves_to_another_zone() {
    for leaving in [Step::GiveUp(0), Step::Vanish(0)] {
        for order in orders(&[&GIVERS[..], &[leaving, Step::Move]].concat()) {
            run(&order);
        }
    }
}
