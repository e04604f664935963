//! A zone of places whose memory changes: everybody keeps their place, in progress or in line.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::{BYTES_PER_KEY, SlotShard, SlotTable};
use crate::store::key::Key;
use crate::store::table::ShardLayout;

impl SlotTable {
    /// The same places in so many bytes. Who is in progress or waits is there as before, also where there is less room than
    /// they take; whoever still has this zone is led to where the places are by then.
    #[must_use]
    pub fn heir(self: &Arc<Self>, size: usize) -> Arc<Self> {
        if let Some(heir) = self.heir.get() {
            return heir.heir(size);
        }
        if self.division == ShardLayout::of(size, BYTES_PER_KEY) {
            return Arc::clone(self);
        }
        let heir = Self::new(&self.name, size);
        heir.full.add(self.full.total());
        // Before the first place moves: whoever finds it gone looks there.
        let heir = self.heir.get_or_init(|| heir);
        for (number, shard) in self.shards.iter().enumerate() {
            let mut shard = shard.lock();
            let tickets = shard.next_ticket;
            for (packed, active) in shard.table.empty_out() {
                let key = heir.seeds.unpacked(packed);
                let mut there = heir.lock(&key);
                // No two in one line have the same ticket.
                there.next_ticket = there.next_ticket.max(tickets);
                there.table.stretch();
                there.table.insert(&key, active, &heir.seeds);
            }
            let counts = std::mem::take(&mut shard.counts);
            heir.shards[number % heir.shards.len()].lock().counts += counts;
        }
        Arc::clone(heir)
    }

    #[cold]
    pub(super) fn lock_moved(&self, key: &Key) -> MutexGuard<'_, SlotShard> {
        let heir = self.heir.get();
        heir.expect("places move only where there is an heir")
            .lock(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Millis;
    use crate::config::plan::ConnQueue;

    const NOW: Millis = Millis(5);
    const LINE: ConnQueue = ConnQueue {
        size: 10,
        timeout: std::time::Duration::from_secs(60),
    };

    #[tokio::test(start_paused = true)]
    async fn places_and_those_who_wait_for_them_move_along() {
        let old = SlotTable::new("one", 1 << 20);
        let key = old.key(b"a");
        let first = old.take(&key, 1, NOW).unwrap();
        let mut second = Box::pin(old.wait(&key, 1, &LINE, NOW));
        assert!(
            tokio::time::timeout(std::time::Duration::ZERO, &mut second)
                .await
                .is_err()
        );

        let new = old.heir(64 << 20);
        assert!(!Arc::ptr_eq(&old, &new));
        assert_eq!((old.len(), new.len(), new.taken(&key)), (0, 1, 1));
        assert!(new.take(&key, 1, NOW).is_err());
        // Who comes later stands behind who came before, whichever zone they asked.
        let mut third = Box::pin(new.wait(&key, 1, &LINE, NOW));
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
    fn who_is_in_progress_stays_where_there_is_less_room() {
        let old = SlotTable::new("one", 1 << 20);
        let places: Vec<_> = (0..5000u32)
            .map(|number| old.take(&old.key(&number.to_be_bytes()), 1, NOW).unwrap())
            .collect();
        let new = old.heir(BYTES_PER_KEY);
        assert_eq!(new.len(), 5000);
        assert!(new.take(&new.key(b"another"), 1, NOW).is_err());
        drop(places);
        assert!(new.is_empty());
        assert_eq!(old.heir(BYTES_PER_KEY).len(), 0);
    }

    #[test]
    fn the_same_memory_is_the_same_zone() {
        let slots = SlotTable::new("one", 1 << 20);
        assert!(Arc::ptr_eq(&slots, &slots.heir(1 << 20)));
    }
}
