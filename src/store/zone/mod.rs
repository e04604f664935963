//! A `limit_req` zone: buckets by key, in bounded memory.
//!
//! What a zone forgets is a security decision: whoever can have his bucket forgotten has no limit. So a
//! full table pushes out the bucket that is the first to be drained anyhow. One already drained changes no
//! answer by going; among the others the one least in debt goes, and a key deep in debt is the last. nginx
//! forgets whom it has not seen for longest, which a flood of other keys can arrange.

mod shard;
#[cfg(test)]
mod tests;

use self::shard::{Room, Shard};
use super::algorithm::leaky_bucket::{self, Bucket, Outcome, Terms};
use super::key::{Key, Seeds};
use super::lock::Lock;
use super::table::Division;
use super::{BYTES_PER_KEY, Counts};
use crate::clock::Millis;
use crate::config::plan::Rate;
use crate::telemetry::Warning;

/// Buckets by key.
#[derive(Debug)]
pub struct Zone {
    name: Box<str>,
    seeds: Seeds,
    division: Division,
    shards: Box<[Lock<Shard>]>,
    slowest: Rate,
    evictions: Warning,
}

impl Zone {
    /// An empty zone of at most `size` bytes, where no key's bucket drains slower than `slowest`.
    #[must_use]
    pub fn new(name: &str, size: usize, slowest: Rate) -> Self {
        let division = Division::of(size);
        Self {
            name: name.into(),
            seeds: Seeds::default(),
            division,
            shards: (0..division.tables)
                .map(|_| Lock::new(Shard::new(division.keys)))
                .collect(),
            slowest,
            evictions: Warning::default(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key these bytes are in this zone.
    #[must_use]
    pub fn key(&self, bytes: &[u8]) -> Key {
        self.seeds.key(bytes)
    }

    /// What would become of a request; changes nothing.
    #[must_use]
    pub fn ask(&self, key: &Key, now: Millis, terms: &Terms) -> Outcome {
        match self.peek(key) {
            Some(bucket) => leaky_bucket::decide(bucket, now, terms).0,
            None => leaky_bucket::first(now).0,
        }
    }

    /// Decides about a request and charges its key unless it is refused, in one step. With the answer comes the bucket
    /// as it was before, if there was one.
    pub fn charge(&self, key: &Key, now: Millis, terms: &Terms) -> (Outcome, Option<Bucket>) {
        let mut shard = self.shard(key).lock();
        if let Some((outcome, before)) = shard.charge(key, now, terms) {
            return (outcome, Some(before));
        }
        let (outcome, bucket) = leaky_bucket::first(now);
        let room = shard.insert(key, bucket, now, self.slowest, &self.seeds);
        shard.count(&outcome);
        // Writing a log line takes longer than everything else here.
        drop(shard);
        if let Room::Evicted = room {
            self.warn(now);
        }
        (outcome, None)
    }

    /// As [`Zone::charge`] for a key that is known; does nothing where it is not.
    #[inline]
    pub fn charge_known(&self, key: &Key, now: Millis, terms: &Terms) -> Option<(Outcome, Bucket)> {
        self.shard(key).lock().charge(key, now, terms)
    }

    /// Takes back what a charge with the same arguments did, for a request that another zone then refused; `before` is
    /// what it gave.
    pub fn refund(&self, key: &Key, before: Option<Bucket>, now: Millis, terms: &Terms) {
        let (outcome, after) = match before {
            Some(before) => leaky_bucket::decide(before, now, terms),
            None => leaky_bucket::first(now),
        };
        let mut shard = self.shard(key).lock();
        shard.uncount(&outcome);
        let Some(bucket) = shard.bucket_mut(key) else {
            return;
        };
        *bucket = match before {
            // Nobody has been there since.
            Some(before) if *bucket == after => before,
            _ => leaky_bucket::refund(*bucket, terms.rate),
        };
    }

    /// Counts a refusal that was decided without asking.
    pub fn count_refusal(&self, key: &Key) {
        self.shard(key).lock().count_refusal();
    }

    /// Forgets a key; whether there was something to forget.
    pub fn forget(&self, key: &Key) -> bool {
        self.shard(key).lock().forget(key, &self.seeds)
    }

    /// A key's bucket as it was when last charged.
    #[must_use]
    pub fn peek(&self, key: &Key) -> Option<Bucket> {
        self.shard(key).lock().bucket(key)
    }

    /// How many keys are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.division.tables * self.division.keys
    }

    /// What it takes from the machine at this moment, in bytes; never more than its size.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| size_of::<Lock<Shard>>() + shard.lock().memory())
            .sum()
    }

    /// How often it has said what, and how many live buckets it had to push out.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for shard in &self.shards {
            sum += shard.lock().counts();
        }
        sum.evictions = self.evictions.total();
        sum
    }

    fn shard(&self, key: &Key) -> &Lock<Shard> {
        &self.shards[self.division.table(key)]
    }

    fn warn(&self, now: Millis) {
        if let Some(evicted) = self.evictions.note(now) {
            tracing::warn!(
                "zone \"{}\" is full: of its {} keys, {evicted} were pushed out before they had drained; \
                 a key takes {BYTES_PER_KEY} bytes of its size",
                self.name,
                self.capacity(),
            );
        }
    }
}
