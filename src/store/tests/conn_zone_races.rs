//! Two requests that give a slot back and two that give up waiting for one, in every order of their steps under the lock.
//!
//! A slot is passed on in two steps: a request is taken out of the queue, and is sent the slot once the lock is free.
//! Between the two, and before and after them, that request may leave. Threads meet in that gap once in hundreds of
//! runs, so the steps are taken here one by one.

use super::*;

const NOW: Millis = Millis(0);
const LIMIT: u32 = 2;
const QUEUE: ConnQueue = ConnQueue {
    size: 9,
    timeout: std::time::Duration::from_secs(60),
};

/// The next step of one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// This giver takes the first request out of the queue, or frees its slot.
    TakeOut(usize),
    /// It sends the slot to the request that it took out.
    Send(usize),
    /// This waiter has waited too long.
    GiveUp(usize),
    /// The client of this waiter has gone.
    Vanish(usize),
    /// The zone changes its size.
    Move,
}

/// All orders of these steps in which a giver sends after it took a request out.
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

fn join<'s>(slots: &'s SlotTable, key: &Key) -> SlotWaiter<'s> {
    match slots.take_or_queue(key, LIMIT, &QUEUE, NOW) {
        Ok(SlotAttempt::Queued(waiter)) => waiter,
        _ => panic!("all slots are taken, and there is room in the queue"),
    }
}

/// Takes the steps of one order; nothing is left afterwards.
fn run(order: &[Step]) {
    let slots = SlotTable::new("one", 32 << 10);
    let mut resized = None;
    let key = Key::from_bytes(b"a");
    // The givers give them back step by step.
    for _ in 0..LIMIT {
        std::mem::forget(slots.take(&key, LIMIT, NOW).unwrap());
    }
    let mut waiters = [Some(join(&slots, &key)), Some(join(&slots, &key))];
    let mut chosen = [None, None];
    let mut refused = 0;
    for step in order {
        match *step {
            Step::TakeOut(giver) => chosen[giver] = slots.shards.lock(&key).give_back(&key),
            Step::Send(giver) => {
                if let Some(next) = chosen[giver].take() {
                    next.pass_slot(&slots.shards, &key);
                }
            }
            Step::GiveUp(waiter) => {
                if let Some(mut waiter) = waiters[waiter].take()
                    && waiter.give_up().is_err()
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
        let slot = waiter.receiver.try_recv();
        assert!(slot.is_ok(), "{order:?}: a free slot and a waiting request");
    }
    assert!(slots.is_empty(), "{order:?}: a slot is lost");
    let counts = resized.as_ref().unwrap_or(&slots).counts();
    let newcomers = u64::try_from(order.len()).unwrap();
    assert_eq!(
        counts.pass + counts.refuse + counts.delay,
        u64::from(LIMIT) + newcomers + given_up(order),
        "{order:?}: a request that gives up is counted once, as refused or with a slot"
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
fn no_slot_is_lost_in_any_order_of_giving_and_leaving() {
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
fn no_slot_is_lost_while_the_zone_changes_its_size() {
    for leaving in [Step::GiveUp(0), Step::Vanish(0)] {
        for order in orders(&[&GIVERS[..], &[leaving, Step::Move]].concat()) {
            run(&order);
        }
    }
}
