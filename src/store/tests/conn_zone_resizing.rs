//! A zone that changes its size keeps all requests, concurrent and waiting.

use super::*;

const NOW: Millis = Millis(5);
const QUEUE: ConnQueue = ConnQueue {
    size: 10,
    timeout: std::time::Duration::from_secs(60),
};

#[tokio::test(start_paused = true)]
async fn slots_and_waiting_requests_move_to_the_new_size() {
    let old = SlotTable::new("one", 1 << 20);
    let key = Key::from_bytes(b"a");
    let first = old.take(&key, 1, NOW).unwrap();
    let mut second = Box::pin(old.wait(&key, 1, &QUEUE, NOW));
    assert!(
        tokio::time::timeout(std::time::Duration::ZERO, &mut second)
            .await
            .is_err()
    );

    let new = old.resized(64 << 20);
    assert!(!Arc::ptr_eq(&old.shards, &new.shards));
    assert_eq!((old.len(), new.len(), new.taken(&key)), (0, 1, 1));
    assert!(new.take(&key, 1, NOW).is_err());
    // Later requests wait behind earlier ones, whichever zone they use.
    let mut third = Box::pin(new.wait(&key, 1, &QUEUE, NOW));
    assert!(
        tokio::time::timeout(std::time::Duration::ZERO, &mut third)
            .await
            .is_err()
    );
    drop(first);
    let second = second.await.unwrap();
    assert!(
        tokio::time::timeout(std::time::Duration::ZERO, &mut third)
            .await
            .is_err()
    );
    drop(second);
    let third = third.await.unwrap();
    assert_eq!(old.taken(&key), 1);
    drop(third);
    assert!(new.is_empty());
    assert_eq!(
        (new.counts().pass, new.counts().delay, new.counts().refuse),
        (1, 2, 1)
    );
}

#[test]
fn concurrent_requests_stay_where_there_is_less_room() {
    let old = SlotTable::new("one", 1 << 20);
    let held: Vec<_> = (0..5000u32)
        .map(|number| {
            old.take(&Key::from_bytes(&number.to_be_bytes()), 1, NOW)
                .unwrap()
        })
        .collect();
    let new = old.resized(BYTES_PER_KEY);
    assert_eq!(new.len(), 5000);
    assert!(new.take(&Key::from_bytes(b"another"), 1, NOW).is_err());
    drop(held);
    assert!(new.is_empty());
    assert_eq!(old.resized(BYTES_PER_KEY).len(), 0);
}

#[test]
fn the_same_size_keeps_the_shards() {
    let slots = SlotTable::new("one", 1 << 20);
    assert!(Arc::ptr_eq(&slots.shards, &slots.resized(1 << 20).shards));
}
