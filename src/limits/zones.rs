//! The zones of a plan as they run: each with its keys, its numbers and the store that counts.
//!
//! Made once for a plan and shared by all locations, so that two of them that name one zone count in one
//! place, and a thousand overrides are held once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ShadowZone;
use super::estate::PreviousZones;
use super::fields::ZoneName;
use super::key::{KeyLookup, KeySource};
use super::overrides::Overrides;
use super::watch::KeyAdmin;
use crate::config::plan::{
    self, AlgorithmParams, CountRefused, Delay, Excess, LocationConf, OverrideLimits, Plan,
    ReqRule, StoreTopology, Underscores,
};
use crate::message::RequestRecord;
use crate::message::vars::KeyReader;
use crate::store::algorithm::LimitSpec;
use crate::store::{
    ForgetKeys, Key, Penalties, RateZone, SharedStore, SlotTable, Verdicts, ZoneLeases,
};
use crate::telemetry::Histogram;

/// Every zone of a plan, under the plan's indices.
#[derive(Debug, Default)]
pub struct Zones {
    /// Those of `limit_req`.
    pub req: Vec<Arc<ReqZone>>,
    /// The same again where a `shadow` counts, beside those that are enforced.
    pub shadow: Vec<Option<Arc<ShadowZone>>>,
    /// Those of `limit_conn`.
    pub conn: Vec<Arc<ConnZone>>,
    /// Where some of them count together with other gateways.
    pub stores: Vec<Arc<SharedStore>>,
}

/// A `limit_req` zone.
#[derive(Debug)]
pub struct ReqZone {
    /// Where its keys are.
    pub store: RateZone,
    pub(super) name: Arc<ZoneName>,
    pub(super) algorithm: AlgorithmParams,
    pub(super) count_refused: CountRefused,
    /// Where it counts together with other gateways; [`ReqZone::store`] then goes on while that is away.
    pub(super) shared: Option<Arc<SharedStore>>,
    /// What can be decided without asking there.
    pub(super) leases: Option<Arc<ZoneLeases>>,
    /// Who stays out, where a rule punishes.
    pub(super) penalties: Option<Arc<Penalties>>,
    /// What operators know of its keys and want of them.
    pub watch: Arc<KeyAdmin>,
    pub(super) source: KeySource,
    pub(super) overrides: Overrides,
}

/// A `limit_conn` zone.
#[derive(Debug)]
pub struct ConnZone {
    /// Where its places are.
    pub store: Arc<SlotTable>,
    /// How long those stood in line who got a place.
    pub delays: Arc<Histogram>,
    /// How many stand in line.
    pub(super) waiting: Arc<AtomicU64>,
    /// Where they are counted together with other gateways; [`ConnZone::store`] then has those of this one, and goes on
    /// while that is away.
    pub(super) shared: Option<Arc<SharedStore>>,
    pub(super) name: Arc<ZoneName>,
    /// What operators know of its keys and want of them.
    pub watch: Arc<KeyAdmin>,
    pub(super) source: KeySource,
}

/// A request's key in a `limit_req` zone.
// Small: it is copied for every rule of a location.
#[derive(Debug, Clone, Copy)]
pub(super) struct RuleKey {
    pub(super) key: Key,
    /// Where its own numbers are, if it has some.
    pub(super) own: Option<u32>,
}

impl Zones {
    /// Builds the zones of a plan, all empty, and all in this process.
    #[must_use]
    pub fn build(plan: &Plan) -> Self {
        Self::build_after(plan, &[], None)
    }

    /// Builds the zones of a plan, where `stores` are the plan's. Those that were there before go on from where they are.
    #[must_use]
    pub fn build_after(
        plan: &Plan,
        stores: &[Arc<SharedStore>],
        before: Option<(&Plan, &Self)>,
    ) -> Self {
        let estate = PreviousZones { plan, before };
        let zones = || plan.req_zones.iter().enumerate();
        Self {
            req: zones()
                .map(|(index, zone)| {
                    let punishes = used(plan, index, |site| &site.limit_req).unwrap_or(false);
                    let verdicts = verdicts(plan, index);
                    let (parts, old) = (parts(plan, index, zone), estate.req(zone));
                    let own = Arc::new(ReqZone::new(zone, parts, punishes, stores, verdicts, old));
                    if let Some(store) = &own.shared {
                        let own: Arc<dyn ForgetKeys> = Arc::clone(&own) as _;
                        store.forget_in(Arc::downgrade(&own));
                    }
                    own
                })
                .collect(),
            shadow: zones()
                .map(|(index, zone)| {
                    let punishes = used(plan, index, |site| &site.shadow)?;
                    let old = estate.shadow(zone);
                    let own = ReqZone::new(
                        zone,
                        parts(plan, index, zone),
                        punishes,
                        &[],
                        Verdicts::Forget,
                        old.map(|old| &*old.zone),
                    );
                    Some(Arc::new(ShadowZone::new(own, old)))
                })
                .collect(),
            conn: plan
                .conn_zones
                .iter()
                .enumerate()
                .map(|(index, zone)| {
                    let uses =
                        |site: &LocationConf| site.limit_conn.iter().any(|rule| rule.zone == index);
                    let parts = KeyReader {
                        on_ambiguous: zone.on_ambiguous_key,
                        underscores: underscores(plan, uses),
                    };
                    Arc::new(ConnZone::new(zone, parts, stores, estate.conn(zone)))
                })
                .collect(),
            stores: stores.to_vec(),
        }
    }
}

impl ReqZone {
    fn new(
        zone: &plan::ReqZone,
        parts: KeyReader,
        punishes: bool,
        stores: &[Arc<SharedStore>],
        verdicts: Verdicts,
        old: Option<&Self>,
    ) -> Self {
        let penalties = if punishes { zone.size / PENALTIES } else { 0 };
        let own = zone.overrides.iter().filter_map(|one| one.own);
        let terms =
            |algorithm: &AlgorithmParams| LimitSpec::new(algorithm, Excess(0), Delay::Never);
        let slowest = own.fold(terms(&zone.algorithm), |slowest, own| {
            slowest.slower(terms(&own.algorithm))
        });
        let shared = zone.store.and_then(|store| stores.get(store).cloned());
        // Where refusals are charged, each has to be told.
        let can_hold = ZoneLeases::can_hold(&slowest) && zone.count_refused == CountRefused::No;
        let leases = shared.as_ref().filter(|_| can_hold).map(|store| {
            let size = zone.size / LEASES;
            let old = old.and_then(|old| old.leases.as_ref());
            match old.filter(|old| old.fits(size, store, verdicts)) {
                Some(old) => Arc::clone(old),
                None => ZoneLeases::new(&zone.name, size, store, verdicts),
            }
        });
        let own_penalties = punishes.then(|| match old.and_then(|old| old.penalties.as_ref()) {
            Some(old) => old.heir(penalties),
            None => Arc::new(Penalties::new(&zone.name, penalties)),
        });
        if let Some(leases) = &leases {
            leases.punish_in(own_penalties.as_ref());
        }
        let leased = leases.as_ref().map_or(0, |_| zone.size / LEASES);
        let (size, refused) = (zone.size - leased - penalties, zone.count_refused);
        let heir = old.and_then(|old| old.store.heir(size, &slowest, refused));
        Self {
            store: heir.unwrap_or_else(|| RateZone::new(&zone.name, size, &slowest, refused)),
            name: Arc::new(ZoneName::new(&zone.name)),
            algorithm: zone.algorithm,
            count_refused: zone.count_refused,
            shared,
            leases,
            penalties: own_penalties,
            watch: old.map_or_else(Arc::default, |old| Arc::clone(&old.watch)),
            source: KeySource::new(&zone.key, zone.ipv6_prefix, zone.on_empty_key).reading(parts),
            overrides: Overrides::new(&zone.overrides),
        }
    }

    /// Whether a request has the same key in both, and no numbers of its own in either.
    pub(super) fn shares_keys(&self, other: &Self) -> bool {
        self.source == other.source && self.overrides.is_empty() && other.overrides.is_empty()
    }

    /// The key of a request.
    pub(super) fn find(&self, exchange: &RequestRecord) -> KeyLookup<RuleKey> {
        self.find_with(exchange, |_| {})
    }

    #[inline]
    fn find_with(&self, exchange: &RequestRecord, note: impl FnOnce(&[u8])) -> KeyLookup<RuleKey> {
        if !self.overrides.is_empty() {
            return self.find_own(exchange, note);
        }
        self.source.find(exchange, |bytes| {
            note(bytes);
            let key = self.store.key(bytes);
            if self.watch.frees(&key, exchange) {
                return KeyLookup::Nothing;
            }
            KeyLookup::Key(RuleKey { key, own: None })
        })
    }

    /// The key of a request, and the bytes it was made from.
    pub(super) fn find_in_full(
        &self,
        exchange: &RequestRecord,
        full: &mut Vec<u8>,
    ) -> KeyLookup<RuleKey> {
        self.find_with(exchange, |bytes| full.extend_from_slice(bytes))
    }

    /// What holds for a key instead, if it has numbers of its own.
    pub(super) fn own(&self, keyed: &RuleKey) -> Option<&OverrideLimits> {
        self.overrides.own(keyed.own?)
    }
}

impl ForgetKeys for ReqZone {
    fn zone(&self) -> &str {
        &self.name.plain
    }

    fn forget_bytes(&self, bytes: &[u8]) {
        self.forget(&self.store.key(bytes));
    }
}

impl ConnZone {
    fn new(
        zone: &plan::ConnZone,
        parts: KeyReader,
        stores: &[Arc<SharedStore>],
        old: Option<&Self>,
    ) -> Self {
        Self {
            shared: zone.store.and_then(|store| stores.get(store).cloned()),
            store: match old {
                Some(old) => old.store.heir(zone.size),
                None => SlotTable::new(&zone.name, zone.size),
            },
            delays: old.map_or_else(Arc::default, |old| Arc::clone(&old.delays)),
            waiting: old.map_or_else(Arc::default, |old| Arc::clone(&old.waiting)),
            name: Arc::new(ZoneName::new(&zone.name)),
            watch: old.map_or_else(Arc::default, |old| Arc::clone(&old.watch)),
            source: KeySource::new(&zone.key, zone.ipv6_prefix, zone.on_empty_key).reading(parts),
        }
    }

    /// How many stand in line for a place.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// The key of a request.
    pub(super) fn find(&self, exchange: &RequestRecord) -> KeyLookup<Key> {
        self.find_with(exchange, |_| {})
    }

    /// The key of a request, and the bytes it was made from.
    pub(super) fn find_in_full(
        &self,
        exchange: &RequestRecord,
        full: &mut Vec<u8>,
    ) -> KeyLookup<Key> {
        self.find_with(exchange, |bytes| full.extend_from_slice(bytes))
    }

    #[inline]
    fn find_with(&self, exchange: &RequestRecord, note: impl FnOnce(&[u8])) -> KeyLookup<Key> {
        self.source.find(exchange, |bytes| {
            note(bytes);
            let key = self.store.key(bytes);
            match self.watch.frees(&key, exchange) {
                true => KeyLookup::Nothing,
                false => KeyLookup::Key(key),
            }
        })
    }

    /// The bytes of a request's key, if it has one.
    pub(super) fn with_key(&self, exchange: &RequestRecord, act: impl FnOnce(&[u8])) {
        self.source.with(exchange, act);
    }

    /// What a request's key looks like to people.
    pub(super) fn label(&self, exchange: &RequestRecord) -> String {
        self.source.label(exchange)
    }
}

/// Whether those who go over in this zone are punished by one of these rules; `None` where none names it.
fn used(plan: &Plan, zone: usize, rules: impl Fn(&LocationConf) -> &Vec<ReqRule>) -> Option<bool> {
    plan.sites()
        .flat_map(rules)
        .filter(|rule| rule.zone == zone)
        .map(|rule| rule.sanction.penalty.is_some())
        .reduce(|one, other| one || other)
}

/// How the parts of a `limit_req` zone's keys are read.
fn parts(plan: &Plan, index: usize, zone: &plan::ReqZone) -> KeyReader {
    let uses = |site: &LocationConf| {
        let mut rules = site.limit_req.iter().chain(&site.shadow);
        rules.any(|rule| rule.zone == index)
    };
    KeyReader {
        on_ambiguous: zone.on_ambiguous_key,
        underscores: underscores(plan, uses),
    }
}

/// Whether backends of the sites that use a zone get to see header fields with underscores.
fn underscores(plan: &Plan, uses: impl Fn(&LocationConf) -> bool) -> Underscores {
    let mut forwards = plan
        .sites()
        .filter(|site| uses(site))
        .flat_map(LocationConf::forwards);
    match forwards.any(|forward| forward.underscores == Underscores::Keep) {
        true => Underscores::Keep,
        false => Underscores::Drop,
    }
}

/// Whether refusals of a zone in a store can be remembered there: not where what a request took is given back when
/// another zone refuses it, because then some pass before the time they were told.
fn verdicts(plan: &Plan, zone: usize) -> Verdicts {
    let store = |rule: &ReqRule| plan.req_zones.get(rule.zone).and_then(|zone| zone.store);
    let gives_back = |site: &LocationConf| {
        let mut stores: Vec<_> = site.limit_req.iter().filter_map(store).collect();
        let shared = stores.len();
        let spread = |index: &usize| {
            let store = plan.stores.get(*index);
            store.is_some_and(|store| store.shape == StoreTopology::Cluster)
        };
        let spread = stores.iter().any(spread);
        stores.sort_unstable();
        stores.dedup();
        let used = site.limit_req.iter().any(|rule| rule.zone == zone);
        used && shared > 1 && (spread || stores.len() > 1)
    };
    match plan.sites().any(gives_back) {
        true => Verdicts::Forget,
        false => Verdicts::Keep,
    }
}

/// Which part of a shared zone's size is for what is decided without asking.
const LEASES: usize = 2;

/// Which part of a zone's size is for the penalties, where there are some.
const PENALTIES: usize = 4;
