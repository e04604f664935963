//! An old plan and a new one: what of the living things made from the old one can live on.

use std::fmt;

use super::{AlgorithmParams, ConnZone, Part, Plan, ReqZone, Template, Upstream, Variable};

/// Why a zone cannot go on from where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneResetReason {
    /// It counts in another way.
    Algorithm,
    /// Its keys are others.
    Key,
    /// It counts in another store.
    Store,
    /// Its window is divided otherwise.
    Window,
}

impl fmt::Display for ZoneResetReason {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str(match self {
            Self::Algorithm => "its algorithm has changed",
            Self::Key => "its key has changed",
            Self::Store => "its store has changed",
            Self::Window => "its window has changed",
        })
    }
}

impl Plan {
    /// Whether a zone of this plan can go on from where the one of its name is in the plan before.
    ///
    /// # Errors
    /// Why it has to start afresh.
    pub fn inherits(
        &self,
        zone: &ReqZone,
        before: &Self,
        old: &ReqZone,
    ) -> Result<(), ZoneResetReason> {
        let store = |plan: &Self, zone: &ReqZone| {
            let store = zone.store.and_then(|store| plan.stores.get(store));
            store.map(|store| store.name.clone())
        };
        if !self.reads_alike(&zone.key, before, &old.key) || zone.ipv6_prefix != old.ipv6_prefix {
            return Err(ZoneResetReason::Key);
        }
        if zone.algorithm.name() != old.algorithm.name() {
            return Err(ZoneResetReason::Algorithm);
        }
        if store(self, zone) != store(before, old) {
            return Err(ZoneResetReason::Store);
        }
        match (blocks(&zone.algorithm), blocks(&old.algorithm)) {
            (None, None) => Ok(()),
            (new, old_blocks) if new == old_blocks && zone.overrides == old.overrides => Ok(()),
            _ => Err(ZoneResetReason::Window),
        }
    }

    /// Whether the places of a zone of this plan are told apart as in the one of its name in the plan before.
    #[must_use]
    pub fn inherits_places(&self, zone: &ConnZone, before: &Self, old: &ConnZone) -> bool {
        self.reads_alike(&zone.key, before, &old.key) && zone.ipv6_prefix == old.ipv6_prefix
    }

    /// Whether nothing has changed about an upstream but perhaps what its names stand for.
    #[must_use]
    pub fn keeps(&self, upstream: &Upstream, before: &Self, old: &Upstream) -> bool {
        let maps = || {
            let names = |plan: &Self| -> Vec<Box<str>> {
                plan.maps.iter().map(|map| map.name.clone()).collect()
            };
            names(self) == names(before)
        };
        upstream == old
            && self.upstream_tls == before.upstream_tls
            && (!upstream.uses_maps() || maps())
    }

    /// Whether two texts are made of the same, one here and one in another plan.
    fn reads_alike(&self, own: &Template, other: &Self, theirs: &Template) -> bool {
        let map = |plan: &Self, index: usize| plan.maps.get(index).map(|map| map.name.clone());
        own.parts.len() == theirs.parts.len()
            && own.parts.iter().zip(&theirs.parts).all(|both| match both {
                (Part::Variable(Variable::Map(one)), Part::Variable(Variable::Map(two))) => {
                    map(self, *one) == map(other, *two)
                }
                (one, two) => one == two,
            })
    }
}

impl Upstream {
    /// Whether something in it is found by its place among the maps of its plan.
    fn uses_maps(&self) -> bool {
        use super::Balance;
        let hashed = match &self.balance {
            Balance::ConsistentHash(key) | Balance::Hash(key) => Some(key),
            _ => None,
        };
        let fair = self.queue.as_ref().and_then(|queue| queue.fair.as_ref());
        [hashed, fair]
            .into_iter()
            .flatten()
            .any(|text| text.may_use(|_| false))
    }
}

/// What a window in blocks is divided into.
fn blocks(algorithm: &AlgorithmParams) -> Option<[std::time::Duration; 2]> {
    match algorithm {
        AlgorithmParams::SlidingWindow {
            window,
            precision: Some(precision),
            ..
        } => Some([*window, *precision]),
        _ => None,
    }
}
