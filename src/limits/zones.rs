//! The zones of a plan as they run: each with its keys, its numbers and the store that counts.
//!
//! Made once for a plan and shared by all locations, so that two of them that name one zone count in one
//! place, and a thousand overrides are held once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ShadowZone;
use super::estate::Estate;
use super::fields::Name;
use super::key::{Found, Source};
use super::overrides::Overrides;
use super::watch::Watch;
use crate::config::plan::{
    self, Algorithm, CountRefused, Delay, Excess, Own, Plan, ReqRule, Shape, Site, Underscores,
};
use crate::message::Exchange;
use crate::message::vars::KeyParts;
use crate::store::algorithm::Terms;
use crate::store::{ForgetKeys, Key, Leases, Penalties, Shared, Slots, Verdicts, Zone};
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
    pub stores: Vec<Arc<Shared>>,
}

/// A `limit_req` zone.
#[derive(Debug)]
pub struct ReqZone {
    /// Where its keys are.
    pub store: Zone,
    pub(super) name: Arc<Name>,
    pub(super) algorithm: Algorithm,
    pub(super) count_refused: CountRefused,
    /// Where it counts together with other gateways; [`ReqZone::store`] then goes on while that is away.
    pub(super) shared: Option<Arc<Shared>>,
    /// What can be decided without asking there.
    pub(super) leases: Option<Arc<Leases>>,
    /// Who stays out, where a rule punishes.
    pub(super) penalties: Option<Arc<Penalties>>,
    /// What operators know of its keys and want of them.
    pub watch: Arc<Watch>,
    pub(super) source: Source,
    pub(super) overrides: Overrides,
}

/// A `limit_conn` zone.
#[derive(Debug)]
pub struct ConnZone {
    /// Where its places are.
    pub store: Arc<Slots>,
    /// How long those stood in line who got a place.
    pub delays: Arc<Histogram>,
    /// How many stand in line.
    pub(super) waiting: Arc<AtomicU64>,
    /// Where they are counted together with other gateways; [`ConnZone::store`] then has those of this one, and goes on
    /// while that is away.
    pub(super) shared: Option<Arc<Shared>>,
    pub(super) name: Arc<Name>,
    /// What operators know of its keys and want of them.
    pub watch: Arc<Watch>,
    pub(super) source: Source,
}

/// A request's key in a `limit_req` zone.
// Small: it is copied for every rule of a location.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keyed {
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
        stores: &[Arc<Shared>],
        before: Option<(&Plan, &Self)>,
    ) -> Self {
        let estate = Estate { plan, before };
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
                    let uses = |site: &Site| site.limit_conn.iter().any(|rule| rule.zone == index);
                    let parts = KeyParts {
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
        parts: KeyParts,
        punishes: bool,
        stores: &[Arc<Shared>],
        verdicts: Verdicts,
        old: Option<&Self>,
    ) -> Self {
        let penalties = if punishes { zone.size / PENALTIES } else { 0 };
        let own = zone.overrides.iter().filter_map(|one| one.own);
        let terms = |algorithm: &Algorithm| Terms::new(algorithm, Excess(0), Delay::Never);
        let slowest = own.fold(terms(&zone.algorithm), |slowest, own| {
            slowest.slower(terms(&own.algorithm))
        });
        let shared = zone.store.and_then(|store| stores.get(store).cloned());
        // Where refusals are charged, each has to be told.
        let can_hold = Leases::can_hold(&slowest) && zone.count_refused == CountRefused::No;
        let leases = shared.as_ref().filter(|_| can_hold).map(|store| {
            let size = zone.size / LEASES;
            let old = old.and_then(|old| old.leases.as_ref());
            match old.filter(|old| old.fits(size, store, verdicts)) {
                Some(old) => Arc::clone(old),
                None => Leases::new(&zone.name, size, store, verdicts),
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
            store: heir.unwrap_or_else(|| Zone::new(&zone.name, size, &slowest, refused)),
            name: Arc::new(Name::new(&zone.name)),
            algorithm: zone.algorithm,
            count_refused: zone.count_refused,
            shared,
            leases,
            penalties: own_penalties,
            watch: old.map_or_else(Arc::default, |old| Arc::clone(&old.watch)),
            source: Source::new(&zone.key, zone.ipv6_prefix, zone.on_empty_key).reading(parts),
            overrides: Overrides::new(&zone.overrides),
        }
    }

    /// Whether a request has the same key in both, and no numbers of its own in either.
    pub(super) fn shares_keys(&self, other: &Self) -> bool {
        self.source == other.source && self.overrides.is_empty() && other.overrides.is_empty()
    }

    /// The key of a request.
    pub(super) fn find(&self, exchange: &Exchange) -> Found<Keyed> {
        self.find_with(exchange, |_| {})
    }

    #[inline]
    fn find_with(&self, exchange: &Exchange, note: impl FnOnce(&[u8])) -> Found<Keyed> {
        if !self.overrides.is_empty() {
            return self.find_own(exchange, note);
        }
        self.source.find(exchange, |bytes| {
            note(bytes);
            let key = self.store.key(bytes);
            if self.watch.frees(&key, exchange) {
                return Found::Nothing;
            }
            Found::Key(Keyed { key, own: None })
        })
    }

    /// The key of a request, and the bytes it was made from.
    pub(super) fn find_in_full(&self, exchange: &Exchange, full: &mut Vec<u8>) -> Found<Keyed> {
        self.find_with(exchange, |bytes| full.extend_from_slice(bytes))
    }

    /// What holds for a key instead, if it has numbers of its own.
    pub(super) fn own(&self, keyed: &Keyed) -> Option<&Own> {
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
        parts: KeyParts,
        stores: &[Arc<Shared>],
        old: Option<&Self>,
    ) -> Self {
        Self {
            shared: zone.store.and_then(|store| stores.get(store).cloned()),
            store: match old {
                Some(old) => old.store.heir(zone.size),
                None => Slots::new(&zone.name, zone.size),
            },
            delays: old.map_or_else(Arc::default, |old| Arc::clone(&old.delays)),
            waiting: old.map_or_else(Arc::default, |old| Arc::clone(&old.waiting)),
            name: Arc::new(Name::new(&zone.name)),
            watch: old.map_or_else(Arc::default, |old| Arc::clone(&old.watch)),
            source: Source::new(&zone.key, zone.ipv6_prefix, zone.on_empty_key).reading(parts),
        }
    }

    /// How many stand in line for a place.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// The key of a request.
    pub(super) fn find(&self, exchange: &Exchange) -> Found<Key> {
        self.find_with(exchange, |_| {})
    }

    /// The key of a request, and the bytes it was made from.
    pub(super) fn find_in_full(&self, exchange: &Exchange, full: &mut Vec<u8>) -> Found<Key> {
        self.find_with(exchange, |bytes| full.extend_from_slice(bytes))
    }

    #[inline]
    fn find_with(&self, exchange: &Exchange, note: impl FnOnce(&[u8])) -> Found<Key> {
        self.source.find(exchange, |bytes| {
            note(bytes);
            let key = self.store.key(bytes);
            match self.watch.frees(&key, exchange) {
                true => Found::Nothing,
                false => Found::Key(key),
            }
        })
    }

    /// The bytes of a request's key, if it has one.
    pub(super) fn with_key(&self, exchange: &Exchange, act: impl FnOnce(&[u8])) {
        self.source.with(exchange, act);
    }

    /// What a request's key looks like to people.
    pub(super) fn label(&self, exchange: &Exchange) -> String {
        self.source.label(exchange)
    }
}

/// Whether those who go over in this zone are punished by one of these rules; `None` where none names it.
fn used(plan: &Plan, zone: usize, rules: impl Fn(&Site) -> &Vec<ReqRule>) -> Option<bool> {
    plan.sites()
        .flat_map(rules)
        .filter(|rule| rule.zone == zone)
        .map(|rule| rule.sanction.penalty.is_some())
        .reduce(|one, other| one || other)
}

/// How the parts of a `limit_req` zone's keys are read.
fn parts(plan: &Plan, index: usize, zone: &plan::ReqZone) -> KeyParts {
    let uses = |site: &Site| {
        let mut rules = site.limit_req.iter().chain(&site.shadow);
        rules.any(|rule| rule.zone == index)
    };
    KeyParts {
        on_ambiguous: zone.on_ambiguous_key,
        underscores: underscores(plan, uses),
    }
}

/// Whether backends of the sites that use a zone get to see header fields with underscores.
fn underscores(plan: &Plan, uses: impl Fn(&Site) -> bool) -> Underscores {
    let mut forwards = plan
        .sites()
        .filter(|site| uses(site))
        .flat_map(Site::forwards);
    match forwards.any(|forward| forward.underscores == Underscores::Keep) {
        true => Underscores::Keep,
        false => Underscores::Drop,
    }
}

/// Whether refusals of a zone in a store can be remembered there: not where what a request took is given back when
/// another zone refuses it, because then some pass before the time they were told.
fn verdicts(plan: &Plan, zone: usize) -> Verdicts {
    let store = |rule: &ReqRule| plan.req_zones.get(rule.zone).and_then(|zone| zone.store);
    let gives_back = |site: &Site| {
        let mut stores: Vec<_> = site.limit_req.iter().filter_map(store).collect();
        let shared = stores.len();
        let spread = |index: &usize| {
            let store = plan.stores.get(*index);
            store.is_some_and(|store| store.shape == Shape::Cluster)
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
