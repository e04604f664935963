//! Slots are never lost, never given twice, and passed on in order.

use std::time::Duration;

use proptest::prelude::*;
use tokio::task::JoinHandle;

use super::*;
use crate::store::table::ShardLock;

const NOW: Millis = Millis(0);

fn queue(size: u32, millis: u64) -> ConnQueue {
    ConnQueue {
        size,
        timeout: Duration::from_millis(millis),
    }
}

fn spawn_wait(
    slots: &SlotTable,
    limit: u32,
    queue: ConnQueue,
) -> JoinHandle<Result<ConnSlot, NoSlot>> {
    let slots = slots.clone();
    tokio::spawn(async move { slots.wait(&Key::from_bytes(b"a"), limit, &queue, NOW).await })
}

async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_limit_of_two_admits_a_third_request_when_one_has_ended() {
    let slots = SlotTable::new("one", 32 << 10);
    let key = Key::from_bytes(b"a");
    let first = slots.take(&key, 2, NOW).unwrap();
    let _second = slots.take(&key, 2, NOW).unwrap();
    assert_eq!(slots.take(&key, 2, NOW).unwrap_err(), NoSlot);
    drop(first);
    let _third = slots.take(&key, 2, NOW).unwrap();
    assert_eq!(slots.taken(&key), 2);
    assert_eq!((slots.counts().pass, slots.counts().refuse), (3, 1));
}

#[test]
fn different_limits_share_one_counter() {
    let slots = SlotTable::new("one", 32 << 10);
    let key = Key::from_bytes(b"a");
    let _held = [slots.take(&key, 10, NOW), slots.take(&key, 10, NOW)];
    assert!(slots.take(&key, 2, NOW).is_err());
    assert!(slots.take(&key, 3, NOW).is_ok());
}

#[test]
fn a_key_without_requests_takes_no_room() {
    let slots = SlotTable::new("one", 32 << 10);
    let slot = slots.take(&Key::from_bytes(b"a"), 1, NOW);
    assert_eq!(slots.len(), 1);
    drop(slot);
    assert!(slots.is_empty());
}

#[test]
fn a_full_zone_refuses_new_keys_and_serves_known_ones() {
    let slots = SlotTable::new("one", 2 * BYTES_PER_KEY);
    let a = Key::from_bytes(b"a");
    let _held = [
        slots.take(&a, 9, NOW),
        slots.take(&Key::from_bytes(b"b"), 9, NOW),
    ];
    assert!(slots.take(&Key::from_bytes(b"c"), 9, NOW).is_err());
    assert!(slots.take(&a, 9, NOW).is_ok());
    assert_eq!(slots.evictions(), 1);
}

/// Other keys with as many requests as fit neither give a key a slot more nor take one from it.
#[test]
fn a_flood_of_keys_gives_no_key_a_slot_more() {
    for size in [32 << 10, 300_000] {
        let slots = SlotTable::new("one", size);
        let (alice, bob) = (Key::from_bytes(b"alice"), Key::from_bytes(b"bob"));
        let mut own = vec![slots.take(&alice, 2, NOW).unwrap()];
        let mut others = Vec::new();
        for number in 0..u32::try_from(slots.capacity() * 2).unwrap() {
            match slots.take(&Key::from_bytes(&number.to_be_bytes()), 1, NOW) {
                Ok(slot) => others.push(slot),
                // Shards fill unevenly, but none before half of the zone is full.
                Err(NoSlot) => assert!(others.len() > slots.capacity() / 2),
            }
        }
        assert_eq!(slots.len(), slots.capacity());
        assert_eq!(slots.take(&bob, 2, NOW).unwrap_err(), NoSlot, "no room");
        own.push(slots.take(&alice, 2, NOW).unwrap());
        assert_eq!(slots.take(&alice, 2, NOW).unwrap_err(), NoSlot);
        assert_eq!(slots.taken(&alice), 2);
        others.clear();
        assert!(slots.take(&bob, 2, NOW).is_ok());
        assert_eq!(slots.take(&alice, 2, NOW).unwrap_err(), NoSlot);
    }
}

#[test]
fn a_key_costs_at_most_64_bytes() {
    for size in [32 << 10, 115_000, 1 << 20] {
        let slots = SlotTable::new("one", size);
        let mut held: Vec<Result<ConnSlot, NoSlot>> = Vec::new();
        for round in 0..3u32 {
            held.clear();
            for number in 0..u32::try_from(slots.capacity() * 2).unwrap() {
                let key = Key::from_bytes(&(number ^ (round << 24)).to_be_bytes());
                held.push(slots.take(&key, 1, NOW));
            }
        }
        assert_eq!(slots.len(), slots.capacity());
        let memory: usize = slots
            .shards
            .iter()
            .map(|shard| size_of::<ShardLock<SlotShard>>() + shard.table.memory())
            .sum();
        assert!(memory <= size, "{memory} bytes in {size}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_get_slots_in_order() {
    let slots = SlotTable::new("one", 32 << 10);
    let mut held = slots.take(&Key::from_bytes(b"a"), 1, NOW).unwrap();
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(spawn_wait(&slots, 1, queue(3, 60_000)));
        settle().await;
    }
    for next in 0..3 {
        drop(held);
        settle().await;
        let done: Vec<bool> = waiting.iter().map(JoinHandle::is_finished).collect();
        assert_eq!(done, [true, false, false][..3 - next], "{next}");
        assert!(
            slots.take(&Key::from_bytes(b"a"), 1, NOW).is_err(),
            "the slot was passed on, not freed"
        );
        held = waiting.remove(0).await.unwrap().unwrap();
    }
    drop(held);
    assert!(slots.is_empty());
    assert_eq!(slots.counts().delay, 3);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_at_once() {
    let slots = SlotTable::new("one", 32 << 10);
    let held = slots.take(&Key::from_bytes(b"a"), 1, NOW).unwrap();
    let waiting = spawn_wait(&slots, 1, queue(1, 60_000));
    settle().await;
    let late = spawn_wait(&slots, 1, queue(1, 60_000));
    assert_eq!(late.await.unwrap().unwrap_err(), NoSlot);
    drop(held);
    assert!(waiting.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_too_long_is_refused_and_leaves_the_queue() {
    let slots = SlotTable::new("one", 32 << 10);
    let held = slots.take(&Key::from_bytes(b"a"), 1, NOW).unwrap();
    let before = tokio::time::Instant::now();
    let refused = slots
        .wait(&Key::from_bytes(b"a"), 1, &queue(5, 300), NOW)
        .await
        .unwrap_err();
    assert_eq!(refused, NoSlot);
    assert_eq!(before.elapsed(), Duration::from_millis(300));
    drop(held);
    assert!(
        slots.is_empty(),
        "no slot was passed to a request that has gone"
    );
    assert_eq!((slots.counts().refuse, slots.counts().delay), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request_leaves_the_queue_to_the_next() {
    let slots = SlotTable::new("one", 32 << 10);
    let held = slots.take(&Key::from_bytes(b"a"), 1, NOW).unwrap();
    let first = spawn_wait(&slots, 1, queue(2, 60_000));
    settle().await;
    let second = spawn_wait(&slots, 1, queue(2, 60_000));
    settle().await;
    first.abort();
    settle().await;
    drop(held);
    let slot = second.await.unwrap().unwrap();
    assert_eq!(slots.taken(&Key::from_bytes(b"a")), 1);
    drop(slot);
    assert!(slots.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_slot_sent_to_a_dropped_request_is_passed_on() {
    let slots = SlotTable::new("one", 32 << 10);
    let held = slots.take(&Key::from_bytes(b"a"), 1, NOW).unwrap();
    let first = spawn_wait(&slots, 1, queue(2, 60_000));
    settle().await;
    let second = spawn_wait(&slots, 1, queue(2, 60_000));
    settle().await;
    // Sent and aborted before the task could run again.
    drop(held);
    first.abort();
    assert!(second.await.unwrap().is_ok());
    assert!(first.await.unwrap_err().is_cancelled());
    assert!(slots.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stricter_limit_at_the_front_does_not_delay_the_others() {
    let slots = SlotTable::new("one", 32 << 10);
    let key = Key::from_bytes(b"a");
    let mut held: Vec<ConnSlot> = (0..3).map(|_| slots.take(&key, 3, NOW).unwrap()).collect();
    let strict = spawn_wait(&slots, 1, queue(9, 60_000));
    settle().await;
    let loose = spawn_wait(&slots, 3, queue(9, 60_000));
    settle().await;
    held.pop();
    held.push(loose.await.unwrap().unwrap());
    while let Some(slot) = held.pop() {
        assert!(!strict.is_finished(), "{} besides it", held.len() + 1);
        drop(slot);
        settle().await;
    }
    let slot = strict.await.unwrap().unwrap();
    assert_eq!(slots.taken(&key), 1);
    drop(slot);
    assert!(slots.is_empty());
}

/// A request that gets a slot has at most as many beside it as its own limit allows, in whatever order limits are queued.
#[tokio::test(start_paused = true)]
async fn a_slot_passed_on_is_never_above_the_limit() {
    for limits in [[1, 2, 3], [3, 2, 1], [2, 1, 3], [2, 2, 2], [1, 1, 1]] {
        let slots = SlotTable::new("one", 32 << 10);
        let key = Key::from_bytes(b"a");
        let mut held: Vec<_> = (0..4).map(|_| slots.take(&key, 4, NOW).unwrap()).collect();
        let mut waiting = Vec::new();
        for limit in limits {
            waiting.push((limit, spawn_wait(&slots, limit, queue(9, 60_000))));
            settle().await;
        }
        while !held.is_empty() {
            held.pop();
            settle().await;
            let (done, still): (Vec<_>, Vec<_>) = waiting
                .into_iter()
                .partition(|(_, wait)| wait.is_finished());
            waiting = still;
            for (limit, wait) in done {
                held.push(wait.await.unwrap().unwrap());
                assert!(slots.taken(&key) <= limit, "{limit} of {limits:?}");
            }
            let taken = slots.taken(&key);
            let could = waiting.iter().filter(|(limit, _)| *limit > taken).count();
            assert_eq!(
                could, 0,
                "of {limits:?} a request waits that could have a slot"
            );
        }
        assert!(waiting.is_empty() && slots.is_empty());
    }
}

/// Waits for a slot fifty times; odd tasks give up early, in the queue or with a slot that was just sent.
async fn wait_and_leave(slots: SlotTable, number: u64) {
    for round in 0..50 {
        let (key, queue) = (Key::from_bytes(b"a"), queue(64, 60_000));
        let wait = slots.wait(&key, 3, &queue, NOW);
        if number.is_multiple_of(2) {
            drop(wait.await);
        } else {
            let patience = Duration::from_micros((number * 7 + round) % 50);
            drop(tokio::time::timeout(patience, wait).await);
        }
        assert!(slots.taken(&key) <= 3);
    }
}

#[test]
fn no_slot_is_lost_between_threads() {
    let slots = SlotTable::new("one", 32 << 10);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_time()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    let tasks: Vec<_> = (0..16)
                        .map(|number| tokio::spawn(wait_and_leave(slots.clone(), number)))
                        .collect();
                    for task in tasks {
                        task.await.unwrap();
                    }
                });
            });
        }
    });
    assert!(slots.is_empty());
}

proptest! {
    #[test]
    fn slots_never_leak_in_any_order(steps in prop::collection::vec((0..5u8, 0..4u8, 0..64usize), 0..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let slots = SlotTable::new("one", 32 << 10);
            let mut held: Vec<(u8, ConnSlot)> = Vec::new();
            let mut waiting: Vec<(u8, JoinHandle<Result<ConnSlot, NoSlot>>)> = Vec::new();
            for (action, name, pick) in steps {
                let key = Key::from_bytes(&[name]);
                match action {
                    0 | 1 => {
                        if let Ok(slot) = slots.take(&key, 2, NOW) {
                            held.push((name, slot));
                        }
                    }
                    2 => {
                        let slots = slots.clone();
                        let wait = tokio::spawn(async move { slots.wait(&key, 2, &queue(3, 60_000), NOW).await });
                        waiting.push((name, wait));
                    }
                    3 if !held.is_empty() => drop(held.swap_remove(pick % held.len())),
                    4 if !waiting.is_empty() => waiting.swap_remove(pick % waiting.len()).1.abort(),
                    _ => {}
                }
                if pick % 3 > 0 {
                    settle().await;
                    let (done, still): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(_, wait)| wait.is_finished());
                    waiting = still;
                    for (name, wait) in done {
                        if let Ok(Ok(slot)) = wait.await {
                            held.push((name, slot));
                        }
                    }
                    for name in 0..4u8 {
                        let mine = held.iter().filter(|(holder, _)| *holder == name).count();
                        assert_eq!(slots.taken(&Key::from_bytes(&[name])) as usize, mine);
                        assert!(mine <= 2);
                    }
                }
            }
            held.clear();
            for (_, wait) in waiting {
                drop(wait.await);
            }
            settle().await;
            assert!(slots.is_empty());
        });
    }
}

#[test]
fn a_request_with_an_uncounted_slot_is_counted_once() {
    let slots = SlotTable::new("one", 32 << 10);
    let key = Key::from_bytes(b"a");
    for waited in [false, false, true] {
        slots.count_pass(&key, waited);
    }
    let counts = slots.counts();
    assert_eq!((counts.pass, counts.delay, counts.refuse), (2, 1, 0));
}

#[tokio::test]
async fn a_full_zone_refuses_a_new_key_that_would_wait_and_counts_it() {
    let slots = SlotTable::new("one", 2 * BYTES_PER_KEY);
    let _held = [b"a", b"b"].map(|name| slots.take(&Key::from_bytes(name), 9, NOW));
    let (key, queue) = (Key::from_bytes(b"c"), queue(9, 60_000));
    assert!(slots.wait(&key, 9, &queue, NOW).await.is_err());
    assert_eq!((slots.counts().refuse, slots.evictions()), (1, 1));
}
