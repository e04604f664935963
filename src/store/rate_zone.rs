//! A `limit_req` zone: the state of each key, in bounded memory.
//!
//! What a zone forgets is a security decision: a client that can have its key evicted has no limit. So a full table evicts a
//! drained key, which changes no verdict. If there is none, it evicts the least recently used key, of those used once
//! while these are at least half, and a refused request counts as a use: to have a key evicted takes half as many other keys
//! as the zone holds, and for a key that was used twice each of them has to come twice. The depth of a debt does not
//! matter. If keys in debt stayed, a zone full of debts would have no room for a new key, and every new key would evict
//! the one before it.
//!
//! The state of a key does not depend on its rate, so a zone keeps all states when its parameters change. When its memory is
//! divided differently, its keys move one shard at a time. Requests that began before are led to the new shards, so that no
//! charge and no refund is lost.

#[cfg(test)]
#[path = "tests/rate_zone_algorithms.rs"]
mod algorithm_tests;
#[cfg(test)]
#[path = "tests/rate_zone_floods.rs"]
mod flood_tests;
#[cfg(test)]
#[path = "tests/rate_zone.rs"]
mod tests;

use std::sync::Arc;

use super::key::{Key, PackedKey};
use super::lru::SegmentedLru;
use super::table::{self, Shard, ShardLayout, ShardLock, Shards, ZoneCounts};
use crate::algorithm::{
    Algorithm, Cost, KeyStatus, LeakyBucket, LimitSpec, Spent, Verdict, for_each_algorithm,
    match_algorithm,
};
use crate::clock::Millis;
use crate::telemetry::Histogram;

/// A `limit_req` zone. A clone is the same zone.
///
/// With nginx's `rate=10r/s` and `burst=2`, requests above the rate are delayed, and those above the burst are refused:
///
/// ```
/// use std::time::Duration;
///
/// use weir::algorithm::{AlgorithmParams, Cost, Delay, Excess, LimitSpec, Rate, Verdict};
/// use weir::clock::Millis;
/// use weir::store::{Key, RateZone};
///
/// let algorithm = AlgorithmParams::LeakyBucket { rate: Rate::per_second(10_000) };
/// let spec = LimitSpec::new(&algorithm, Excess::requests(2), Delay::After(Excess(0)));
/// let zone = RateZone::new("per_ip", 1 << 20, &spec, false);
/// let key = Key::from_bytes(b"192.0.2.7");
/// let charge = |millis| zone.charge(&key, Millis(millis), Cost::ONE, &spec).0;
/// let delay = |excess, millis| Verdict::Delay {
///     excess: Excess::requests(excess),
///     wait: Duration::from_millis(millis),
/// };
///
/// assert_eq!(charge(0), Verdict::Pass { excess: Excess(0) });
/// assert_eq!(charge(0), delay(1, 100));
/// assert_eq!(charge(0), delay(2, 200));
/// let refused = Verdict::Refuse {
///     excess: Excess::requests(3),
///     retry_after: Some(Duration::from_millis(100)),
/// };
/// assert_eq!(charge(0), refused);
/// assert_eq!(charge(100), delay(2, 200));
/// assert_eq!((zone.counts().delay, zone.counts().refuse), (3, 1));
/// ```
#[derive(Debug, Clone)]
pub struct RateZone {
    /// Its name.
    pub name: Arc<str>,
    /// How long delayed requests waited.
    pub delays: Arc<Histogram>,
    keys: ZoneKeys,
}

macro_rules! define_zone_keys {
    ([] $($name:ident($type:ty) $params:tt => $make:expr,)*) => {
        /// The keys of a zone, with the states of its algorithm.
        #[derive(Debug, Clone)]
        enum ZoneKeys {
            $($name(Arc<Shards<RateShard<$type>>>),)*
        }
    };
}
for_each_algorithm!(define_zone_keys []);

/// What takes a charge back.
#[derive(Debug, Clone, Copy)]
pub struct Receipt {
    counter: Counter,
    spent: Spent,
}

/// Where a charge was counted.
#[derive(Debug, Clone, Copy)]
enum Counter {
    Delay,
    Pass,
    Refuse,
}

/// The verdict of a store on one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreVerdict {
    /// The verdict on the request.
    pub outcome: Verdict,
    /// How many more requests would pass at this moment.
    pub remaining: u64,
    /// Whether the request is refused because its key serves a penalty.
    pub penalized: bool,
}

/// Does the same with the shards of every algorithm.
macro_rules! each {
    ($zone:expr, $shards:ident => $act:expr) => {
        match_algorithm!(&$zone.keys, ZoneKeys($shards) => $act)
    };
}

/// Does the same with the shards of every algorithm and the spec for that algorithm.
macro_rules! with {
    ($zone:expr, $spec:expr, ($shards:ident, $of_algorithm:ident) => $act:expr) => {
        match_algorithm!(
            (&$zone.keys, $spec), (ZoneKeys($shards), LimitSpec($of_algorithm)) => $act,
            _ => mismatched()
        )
    };
}

impl RateZone {
    /// An empty zone of at most `size` bytes, in which no key drains slower than by `slowest`. With `count_refused`, refused
    /// requests are charged, too.
    #[must_use]
    pub fn new(name: &str, size: usize, slowest: &LimitSpec, count_refused: bool) -> Self {
        Self {
            name: name.into(),
            delays: Arc::default(),
            keys: match_algorithm!(*slowest, LimitSpec(slowest) => ZoneKeys {
                Arc::new(shards(size, ZoneParams { slowest, count_refused }))
            }),
        }
    }

    /// The verdict on a request; changes nothing.
    #[must_use]
    pub fn peek(&self, key: &Key, now: Millis, cost: Cost, spec: &LimitSpec) -> Verdict {
        with!(self, spec, (shards, spec) => match shards.lock(key).keys.touch(key) {
            Some(state) => spec.peek(state, now, cost),
            None => spec.peek(&spec.new_state(now), now, cost),
        })
    }

    /// Decides about a request and charges its key unless the request is refused, in one step. The receipt takes the
    /// charge back.
    pub fn charge(
        &self,
        key: &Key,
        now: Millis,
        cost: Cost,
        spec: &LimitSpec,
    ) -> (Verdict, Receipt) {
        let (verdict, receipt, evicted) =
            with!(self, spec, (shards, spec) => shards.lock(key).charge(key, now, cost, spec));
        self.warn_if(evicted, now);
        (verdict, receipt)
    }

    /// As [`RateZone::charge`], but only for a key that the zone knows.
    #[inline]
    pub fn charge_known(
        &self,
        key: &Key,
        now: Millis,
        cost: Cost,
        spec: &LimitSpec,
    ) -> Option<(Verdict, Receipt)> {
        with!(self, spec, (shards, spec) => shards.lock(key).charge_known(key, now, cost, spec))
    }

    /// Takes back a charge with the same arguments, for a request that another zone then refused.
    pub fn refund(&self, key: &Key, receipt: Receipt, now: Millis, cost: Cost, spec: &LimitSpec) {
        with!(self, spec, (shards, spec) => shards.lock(key).refund(key, receipt, now, cost, spec));
    }

    /// Charges a key with a cost that is known only afterwards. Refuses and counts nothing; the key may be in debt then.
    pub fn debit(&self, key: &Key, now: Millis, cost: Cost, spec: &LimitSpec) {
        let evicted =
            with!(self, spec, (shards, spec) => shards.lock(key).debit(key, now, cost, spec));
        self.warn_if(evicted, now);
    }

    /// Counts the verdict of a store, and charges the key until it has no more left than the store says.
    pub fn mirror(
        &self,
        key: &Key,
        now: Millis,
        cost: Cost,
        spec: &LimitSpec,
        verdict: StoreVerdict,
    ) {
        let evicted = with!(self, spec, (shards, spec) => {
            shards.lock(key).mirror(key, now, cost, spec, &verdict)
        });
        self.warn_if(evicted, now);
    }

    /// Charges a key with a request that waits until it would pass, and counts it as delayed. The next request finds
    /// the key in debt, so waiting requests keep their order.
    pub fn charge_delayed(&self, key: &Key, now: Millis, cost: Cost, spec: &LimitSpec) {
        let evicted = with!(self, spec, (shards, spec) => {
            let mut shard = shards.lock(key);
            shard.counts.delay += 1;
            shard.debit(key, now, cost, spec)
        });
        self.warn_if(evicted, now);
    }

    /// The status of a key; `None` if the zone does not know it, so that it has all of its limit left.
    #[must_use]
    pub fn key_status(&self, key: &Key, now: Millis, spec: &LimitSpec) -> Option<KeyStatus> {
        with!(self, spec, (shards, spec) => {
            Some(spec.key_status(shards.lock(key).keys.get(key)?, now))
        })
    }

    /// Counts a refusal that was decided without this zone.
    pub fn count_refusal(&self, key: &Key) {
        each!(self, shards => {
            let mut shard = shards.lock(key);
            shard.counts.refuse += 1;
            shard.keys.touch(key);
        });
    }

    /// Forgets a key; false if the zone did not know it.
    pub fn forget(&self, key: &Key) -> bool {
        each!(self, shards => shards.lock(key).keys.remove(key))
    }

    /// The number of known keys.
    #[must_use]
    pub fn len(&self) -> usize {
        each!(self, shards => shards.iter().map(|shard| shard.keys.len()).sum())
    }

    /// Whether no key is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        each!(self, shards => shards.capacity())
    }

    /// The memory it uses at this moment, in bytes; never more than its size.
    #[must_use]
    pub fn memory(&self) -> usize {
        each!(self, shards => shards.iter().map(|shard| shard.memory()).sum())
    }

    /// Its verdicts.
    #[must_use]
    pub fn counts(&self) -> ZoneCounts {
        each!(self, shards => shards.counts())
    }

    /// How many keys it evicted before they had drained.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        each!(self, shards => shards.overflows.total())
    }

    /// What a key may cost of the zone's size in all, in bytes.
    fn bytes_per_key(&self) -> usize {
        each!(self, shards => {
            let mut shards = shards.iter();
            shards.next().map_or(0, |shard| bytes_per_key(&shard.params.slowest))
        })
    }

    /// This zone with other parameters, or of another size; `None` where the states cannot be read with these parameters.
    ///
    /// No state is lost, unless there is less room: then the least recently used keys are.
    #[must_use]
    pub fn resized(&self, size: usize, slowest: &LimitSpec, count_refused: bool) -> Option<Self> {
        let keys = match_algorithm!(
            (&self.keys, *slowest), (ZoneKeys(shards), LimitSpec(slowest)) => ZoneKeys {
                resized(shards, size, ZoneParams { slowest, count_refused })?
            },
            _ => return None
        );
        Some(Self {
            name: Arc::clone(&self.name),
            delays: Arc::clone(&self.delays),
            keys,
        })
    }

    // A log line takes longer than everything else here: it is never written under a lock.
    fn warn_if(&self, evicted: bool, now: Millis) {
        if evicted && let Some(evicted) = each!(self, shards => shards.overflows.note(now)) {
            tracing::warn!(
                "zone \"{}\" is full: of its {} keys, {evicted} were pushed out before they had drained; \
                 a key takes {} bytes of its size",
                self.name,
                self.capacity(),
                self.bytes_per_key(),
            );
        }
    }
}

// The spec of a rule and its zone are made from one algorithm of one plan; a zone whose algorithm changes is a new one.
#[cold]
fn mismatched() -> ! {
    unreachable!("a zone was used with the spec of another algorithm")
}

fn shards<A: Algorithm>(size: usize, params: ZoneParams<A>) -> Shards<RateShard<A>> {
    let layout = ShardLayout::of(size, bytes_per_key(&params.slowest));
    let params = Arc::new(params);
    Shards::new(layout, |bound| RateShard {
        keys: SegmentedLru::new(bound),
        params: Arc::clone(&params),
        counts: ZoneCounts::default(),
    })
}

fn resized<A: Algorithm>(
    shards: &Arc<Shards<RateShard<A>>>,
    size: usize,
    params: ZoneParams<A>,
) -> Option<Arc<Shards<RateShard<A>>>> {
    let shards = shards.current();
    let slowest = &params.slowest;
    if !shards
        .iter()
        .all(|shard| slowest.reads_state_of(&shard.params.slowest))
    {
        return None;
    }
    if shards.layout != ShardLayout::of(size, bytes_per_key(slowest)) {
        return Some(shards.move_to(self::shards(size, params)));
    }
    let params = Arc::new(params);
    for mut shard in shards.iter() {
        shard.params = Arc::clone(&params);
        shard.keys.reset_order();
    }
    Some(Arc::clone(shards))
}

/// What a key may cost in all: its entry in a table, its places in the index and in the eviction order, and its heap.
fn bytes_per_key<A: Algorithm>(slowest: &A) -> usize {
    table::bytes_per_key::<A::State>().saturating_add(slowest.max_heap())
}

/// Some of a zone's keys, behind one lock.
// In this order, the half that every charge writes lies beside the lock, and the half that is only read, where the table is,
// can stay in the caches of all threads.
#[derive(Debug)]
#[repr(C)]
struct RateShard<A: Algorithm> {
    keys: SegmentedLru<A::State>,
    params: Arc<ZoneParams<A>>,
    counts: ZoneCounts,
}

/// What holds for all keys of a zone.
#[derive(Debug)]
struct ZoneParams<A> {
    /// No key drains slower than by this.
    slowest: A,
    /// Whether refused requests are charged, too.
    count_refused: bool,
}

// With its lock it has exactly the size that it is aligned to.
const _: () = assert!(size_of::<ShardLock<RateShard<LeakyBucket>>>() == 128);

impl<A: Algorithm> RateShard<A> {
    /// Decides about a request, charges it unless it is refused, and counts it. The last value tells whether a key that had
    /// not drained was evicted.
    fn charge(&mut self, key: &Key, now: Millis, cost: Cost, spec: &A) -> (Verdict, Receipt, bool) {
        if let Some((verdict, receipt)) = self.charge_known(key, now, cost, spec) {
            return (verdict, receipt, false);
        }
        let mut state = spec.new_state(now);
        let (verdict, spent) = spec.charge(&mut state, now, cost);
        let receipt = self.count(&verdict, spent);
        let is_changed = match verdict {
            // A request that costs nothing, or more than there can be, changes nothing and must not fill a zone.
            Verdict::Delay { .. } | Verdict::Pass { .. } => cost > Cost(0),
            Verdict::Refuse { .. } => {
                if self.params.count_refused {
                    spec.count_refused(&mut state, now, cost);
                }
                self.params.count_refused
            }
        };
        let evicted = is_changed && self.insert(key, state, now);
        (verdict, receipt, evicted)
    }

    #[inline]
    fn charge_known(
        &mut self,
        key: &Key,
        now: Millis,
        cost: Cost,
        spec: &A,
    ) -> Option<(Verdict, Receipt)> {
        let state = self.keys.touch(key)?;
        let (verdict, spent) = spec.charge(state, now, cost);
        if matches!(verdict, Verdict::Refuse { .. }) && self.params.count_refused {
            spec.count_refused(state, now, cost);
        }
        Some((verdict, self.count(&verdict, spent)))
    }

    fn refund(&mut self, key: &Key, receipt: Receipt, now: Millis, cost: Cost, spec: &A) {
        let count = self.count_of(receipt.counter);
        *count = count.saturating_sub(1);
        if let Some(state) = self.keys.touch(key) {
            spec.refund(state, now, cost, receipt.spent);
        }
    }

    fn debit(&mut self, key: &Key, now: Millis, cost: Cost, spec: &A) -> bool {
        if let Some(state) = self.keys.touch(key) {
            spec.debit(state, now, cost);
            return false;
        }
        let mut state = spec.new_state(now);
        spec.debit(&mut state, now, cost);
        cost > Cost(0) && self.insert(key, state, now)
    }

    fn mirror(
        &mut self,
        key: &Key,
        now: Millis,
        cost: Cost,
        spec: &A,
        verdict: &StoreVerdict,
    ) -> bool {
        self.count(&verdict.outcome, Spent::default());
        let catch_up = |state: &mut A::State| {
            if !matches!(verdict.outcome, Verdict::Refuse { .. }) {
                spec.debit(state, now, cost);
            }
            let remaining = spec.key_status(state, now).remaining;
            if let Some(surplus @ 1..) = remaining.checked_sub(verdict.remaining) {
                spec.debit(state, now, Cost(surplus.saturating_mul(Cost::ONE.0)));
            }
        };
        if let Some(state) = self.keys.touch(key) {
            catch_up(state);
            return false;
        }
        let mut state = spec.new_state(now);
        catch_up(&mut state);
        self.insert(key, state, now)
    }

    /// Adds a new key; whether a key that had not drained was evicted for it.
    fn insert(&mut self, key: &Key, state: A::State, now: Millis) -> bool {
        let drained_at = |state: &A::State| self.params.slowest.drained_at(state);
        let evicted = self.keys.insert(key, state, now, drained_at);
        evicted.is_some_and(|state| drained_at(&state) > now)
    }

    #[inline]
    fn count(&mut self, verdict: &Verdict, spent: Spent) -> Receipt {
        let counter = match verdict {
            Verdict::Delay { .. } => Counter::Delay,
            Verdict::Pass { .. } => Counter::Pass,
            Verdict::Refuse { .. } => Counter::Refuse,
        };
        *self.count_of(counter) += 1;
        Receipt { counter, spent }
    }

    fn count_of(&mut self, counter: Counter) -> &mut u64 {
        match counter {
            Counter::Delay => &mut self.counts.delay,
            Counter::Pass => &mut self.counts.pass,
            Counter::Refuse => &mut self.counts.refuse,
        }
    }

    fn memory(&self) -> usize {
        let heap = self.keys.values().map(A::heap).sum::<usize>();
        size_of::<ShardLock<Self>>() + self.keys.memory() + heap
    }
}

impl<A: Algorithm> Shard for RateShard<A> {
    type Entry = (A::State, u32);

    #[inline]
    fn is_moved_out(&self) -> bool {
        self.keys.is_moved_out()
    }

    fn move_out(&mut self) -> impl Iterator<Item = (PackedKey, Self::Entry)> {
        self.keys.move_out()
    }

    fn move_in(&mut self, key: &Key, (state, stamp): Self::Entry) {
        let drained_at = |state: &A::State| self.params.slowest.drained_at(state);
        self.keys.insert_stamped(key, state, stamp, drained_at);
    }

    fn counts(&mut self) -> &mut ZoneCounts {
        &mut self.counts
    }
}
