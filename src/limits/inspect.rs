//! The keys of a zone for those who look in: who is busy, and where one stands.

use std::time::Duration;

use super::overrides::{OverrideMatch, parted};
use super::spelling::ParsedKey;
use super::watch::{KeyAction, KeyActionEntry};
use super::zones::{ConnZone, ReqZone};
use super::{KeyAdmin, notes};
use crate::clock::Millis;
use crate::config::plan::{Delay, Excess};
use crate::store::algorithm::{KeyStatus, LimitSpec};
use crate::store::busiest::KeyRates;
use crate::store::{Key, SharedStore, ZoneCounts};

/// A key and how often it was told what.
#[derive(Debug, Clone)]
pub struct TopKeyRow {
    /// As people read it.
    pub key: String,
    /// Since it is counted.
    pub counts: ZoneCounts,
    /// How many requests more there may have been before.
    pub missed: u64,
    /// How often of late.
    pub pace: KeyRates,
    /// Requests above its rate, or places taken.
    pub excess: f64,
    /// What holds for it besides the zone's limits, in a word.
    pub mark: Option<&'static str>,
}

/// Where one key stands.
#[derive(Debug, Clone)]
pub struct KeyState {
    /// The key, and whether it is among those that are counted one by one.
    pub counted: TopKeyRow,
    /// See `counted`.
    pub listed: bool,
    /// Whether the zone remembers it.
    pub known: bool,
    /// Where it stands.
    pub standing: KeyStatus,
    /// Its own rate, where it has one.
    pub own: Option<String>,
    /// For how much longer it has to stay out.
    pub penalty: Option<Duration>,
    /// What operators have put on it.
    pub marks: Vec<KeyActionEntry>,
    /// Whether other gateways count it, too.
    pub shared: bool,
}

impl ReqZone {
    /// The keys a text may stand for; none if it is no key of this zone.
    #[must_use]
    pub fn read(&self, text: &str) -> Vec<ParsedKey> {
        self.source.read(text)
    }

    /// How a key is written.
    #[must_use]
    pub fn spell(&self, key: &Key, bytes: Option<&[u8]>) -> String {
        self.source.spell(key, bytes)
    }

    /// Its busiest keys, in no order; `burst` is that of a rule.
    #[must_use]
    pub fn busiest(&self, burst: Excess, now: Millis) -> Vec<TopKeyRow> {
        let terms = LimitSpec::new(&self.algorithm, burst, Delay::Never);
        let found = self.watch.busiest.list(now).into_iter();
        found
            .map(|busy| {
                let standing = self.store.standing(&busy.key, now, &terms);
                let penalty = || self.penalty(&busy.key, now).map(|_| "penalty");
                TopKeyRow {
                    key: self.spell(&busy.key, busy.name.as_deref()),
                    counts: busy.counts,
                    missed: busy.missed,
                    pace: busy.pace,
                    excess: standing.map_or(0.0, |it| notes::requests(it.excess)),
                    mark: self.watch.mark(&busy.key, now).or_else(penalty),
                }
            })
            .collect()
    }

    /// Where a key stands that a text stands for; `burst` is that of a rule.
    #[must_use]
    pub fn inspect(&self, text: &str, burst: Excess, now: Millis) -> Option<KeyState> {
        let readings = self.read(text);
        let terms = LimitSpec::new(&self.algorithm, burst, Delay::Never);
        let is_known = |key: &Key| self.store.standing(key, now, &terms).is_some();
        let known = readings.iter().find(|it| is_known(&it.key));
        let ParsedKey { key, bytes } = known.or_else(|| readings.first())?;
        let (terms, own) = self.terms_of(bytes.as_deref(), terms);
        let standing = self.store.standing(key, now, &terms);
        let found = self.watch.busiest.find(key, now);
        let name = found.as_ref().and_then(|busy| busy.name.as_deref());
        Some(KeyState {
            counted: TopKeyRow {
                key: self.spell(key, bytes.as_deref().or(name)),
                counts: found.as_ref().map(|busy| busy.counts).unwrap_or_default(),
                missed: found.as_ref().map_or(0, |busy| busy.missed),
                pace: found.as_ref().map(|busy| busy.pace).unwrap_or_default(),
                excess: standing.map_or(0.0, |it| notes::requests(it.excess)),
                mark: self.watch.mark(key, now),
            },
            listed: found.is_some(),
            known: standing.is_some(),
            standing: standing.unwrap_or_else(|| untouched(terms.quota())),
            own,
            penalty: self.penalty(key, now),
            marks: self.watch.marks_on(key, now),
            shared: self.shared.is_some(),
        })
    }

    /// Forgets a key and its penalty here; whether there was something to forget.
    pub fn forget(&self, key: &Key) -> bool {
        let penalties = self.penalties.as_ref();
        let punished = penalties.is_some_and(|penalties| penalties.forget(key));
        self.watch.busiest.forget(key);
        if let Some(leases) = &self.leases {
            leases.forget_key(key);
        }
        self.store.forget(key) || punished
    }

    /// How many penalties were not given for want of room, where its rules give some.
    #[must_use]
    pub fn penalties_dropped(&self) -> Option<u64> {
        let penalties = self.penalties.as_ref()?;
        Some(penalties.dropped())
    }

    /// Where it counts together with other gateways.
    #[must_use]
    pub fn shared(&self) -> Option<&SharedStore> {
        self.shared.as_deref()
    }

    fn penalty(&self, key: &Key, now: Millis) -> Option<Duration> {
        self.penalties.as_ref()?.left(key, now)
    }

    /// What a key of these bytes is held to, and its own rate in words.
    fn terms_of(&self, bytes: Option<&[u8]>, terms: LimitSpec) -> (LimitSpec, Option<String>) {
        let Some(bytes) = bytes.filter(|_| !self.overrides.is_empty()) else {
            return (terms, None);
        };
        let held = match parted(bytes) {
            Some((network, _)) => self.overrides.of(&network),
            None => {
                let address = self.source.address(bytes);
                let text = address.is_none().then_some(bytes);
                self.overrides.find(text, address)
            }
        };
        match held {
            OverrideMatch::Own(index) => match self.overrides.own(index) {
                Some(own) => {
                    let burst = own.burst.unwrap_or_default();
                    let terms = LimitSpec::new(&own.algorithm, burst, Delay::Never);
                    (terms, Some(own.algorithm.to_string()))
                }
                None => (terms, None),
            },
            OverrideMatch::Same => (terms, None),
            OverrideMatch::Unlimited(_) => (terms, Some("unlimited".to_owned())),
        }
    }
}

impl ConnZone {
    /// The keys a text may stand for; none if it is no key of this zone.
    #[must_use]
    pub fn read(&self, text: &str) -> Vec<ParsedKey> {
        self.source.read(text)
    }

    /// How a key is written.
    #[must_use]
    pub fn spell(&self, key: &Key, bytes: Option<&[u8]>) -> String {
        self.source.spell(key, bytes)
    }

    /// Its busiest keys, in no order.
    #[must_use]
    pub fn busiest(&self, now: Millis) -> Vec<TopKeyRow> {
        let found = self.watch.busiest.list(now).into_iter();
        found
            .map(|busy| TopKeyRow {
                key: self.spell(&busy.key, busy.name.as_deref()),
                counts: busy.counts,
                missed: busy.missed,
                pace: busy.pace,
                excess: self.store.taken(&busy.key).into(),
                mark: self.watch.mark(&busy.key, now),
            })
            .collect()
    }

    /// Where a key stands that a text stands for, where it may have `limit` places.
    #[must_use]
    pub fn inspect(&self, text: &str, limit: u32, now: Millis) -> Option<KeyState> {
        let readings = self.read(text);
        let known = readings.iter().find(|it| self.store.taken(&it.key) > 0);
        let ParsedKey { key, bytes } = known.or_else(|| readings.first())?;
        let taken = self.store.taken(key);
        let found = self.watch.busiest.find(key, now);
        let name = found.as_ref().and_then(|busy| busy.name.as_deref());
        Some(KeyState {
            counted: TopKeyRow {
                key: self.spell(key, bytes.as_deref().or(name)),
                counts: found.as_ref().map(|busy| busy.counts).unwrap_or_default(),
                missed: found.as_ref().map_or(0, |busy| busy.missed),
                pace: found.as_ref().map(|busy| busy.pace).unwrap_or_default(),
                excess: taken.into(),
                mark: self.watch.mark(key, now),
            },
            listed: found.is_some(),
            known: taken > 0,
            standing: KeyStatus {
                remaining: limit.saturating_sub(taken).into(),
                excess: Excess::requests(taken),
                ..untouched(limit.into())
            },
            own: None,
            penalty: None,
            marks: self.watch.marks_on(key, now),
            shared: self.shared.is_some(),
        })
    }
}

impl KeyAdmin {
    /// The strongest mark on a key, in a word.
    fn mark(&self, key: &Key, now: Millis) -> Option<&'static str> {
        let marks = self.marks_on(key, now);
        let block = marks.iter().find(|marked| marked.mark == KeyAction::Block);
        let strongest = block.or_else(|| marks.first());
        strongest.map(|marked| marked.mark.as_str())
    }
}

/// Where a key stands of which nothing is known.
pub(super) fn untouched(limit: u64) -> KeyStatus {
    KeyStatus {
        excess: Excess(0),
        limit,
        remaining: limit,
        retry_after: Duration::ZERO,
        reset_after: Duration::ZERO,
    }
}
