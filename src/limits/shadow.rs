//! Limits that are only proposed: asked about every request, counted by themselves, and never enforced.
//!
//! They live as if they were the only ones, in zones of their own: what they would refuse is not charged to them, what the
//! real limits refuse is. Of interest is where the two differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::report::LimitLogger;
use super::rule::Decision;
use super::rules::ReqRules;
use super::zones::{ReqZone, Zones};
use super::{Admission, DeferredCharge};
use crate::clock::Millis;
use crate::config::plan::LocationConf;
use crate::message::RequestRecord;

/// The shadow of a location's `limit_req`.
#[derive(Debug)]
pub(super) struct Shadow {
    rules: ReqRules,
    zones: Box<[Arc<ShadowZone>]>,
    voice: LimitLogger,
}

/// A zone in which a shadow counts.
#[derive(Debug)]
pub struct ShadowZone {
    /// The zone, apart from the one of its name that is enforced.
    pub zone: Arc<ReqZone>,
    stricter: AtomicU64,
    laxer: AtomicU64,
}

/// How often a shadow and what was enforced said different things.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShadowDifferences {
    /// The shadow would have refused what passed.
    pub refuse: u64,
    /// The shadow would have let pass what was refused.
    pub pass: u64,
}

impl ShadowZone {
    pub(super) fn new(zone: ReqZone, old: Option<&Self>) -> Self {
        let differed = old.map(Self::differs).unwrap_or_default();
        Self {
            zone: Arc::new(zone),
            stricter: AtomicU64::new(differed.refuse),
            laxer: AtomicU64::new(differed.pass),
        }
    }

    /// How often it differed.
    #[must_use]
    pub fn differs(&self) -> ShadowDifferences {
        ShadowDifferences {
            refuse: self.stricter.load(Ordering::Relaxed),
            pass: self.laxer.load(Ordering::Relaxed),
        }
    }
}

impl Shadow {
    /// The shadow of a location, if it has one.
    pub(super) fn compile(
        site: &LocationConf,
        zones: &Zones,
        voice: LimitLogger,
    ) -> Option<Box<Self>> {
        if site.shadow.is_empty() {
            return None;
        }
        let zone = |index: usize| zones.shadow.get(index)?.as_ref();
        Some(Box::new(Self {
            rules: ReqRules::compile(&site.shadow, |index| Some(&zone(index)?.zone)),
            zones: site
                .shadow
                .iter()
                .filter_map(|rule| zone(rule.zone).cloned())
                .collect(),
            voice,
        }))
    }

    /// Looks at a request of which this was said; with what it would owe, had it been let in by these rules.
    pub(super) fn watch(
        &self,
        exchange: &RequestRecord,
        now: Millis,
        said: &Admission,
    ) -> Option<DeferredCharge> {
        let refused = matches!(said, Admission::Refuse(_));
        let (rule, excess) = match self.rules.decide(exchange, now, &mut ()) {
            Decision::Delay { .. } | Decision::Pass => {
                if refused {
                    self.count(0, |zone| &zone.laxer);
                }
                return self.rules.bill(exchange);
            }
            Decision::NotLimited => return None,
            Decision::NoKey { rule, .. } | Decision::Penalize { rule, .. } => (rule, None),
            Decision::Refuse { rule, excess, .. } => (rule, Some(excess)),
        };
        if !refused {
            self.count(rule, |zone| &zone.stricter);
            let name = &self.rules[rule].zone.name.plain;
            self.voice.shadow_refusal(exchange, now, excess, name);
        }
        None
    }

    fn count(&self, rule: usize, counter: impl Fn(&ShadowZone) -> &AtomicU64) {
        if let Some(zone) = self.zones.get(rule) {
            counter(zone).fetch_add(1, Ordering::Relaxed);
        }
    }
}
