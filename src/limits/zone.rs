//! The zones of a plan as they run: each with its keys, its numbers and the store that counts.
//!
//! They are built once for a plan and shared by all its locations. A zone inherits what the zone of the same name in the
//! plan before has counted: rates, bursts and sizes may change. Where what was counted has another meaning now, the zone
//! starts afresh, and the log of the reload says so.
//!
//! An override by address gives the clients it names other numbers, and one bucket cannot be drained at two rates. Where
//! the key tells these clients from all others, as an address does, its bucket is theirs alone. Where other clients have
//! the same key, those that are named share a bucket of their own.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use super::headers::ZoneName;
use super::key::{KeyBytes, KeyLookup, KeySource, network_bucket, split_network_bucket};
use super::key_admin::KeyAdmin;
use super::overrides::{OverrideMatch, Overrides};
use crate::algorithm::{AlgorithmParams, Delay, Excess, LimitSpec};
use crate::config::plan::{self, LocationConf, OverrideLimits, Plan, ReqRule, StoreTopology};
use crate::message::RequestRecord;
use crate::message::variables::KeyReader;
use crate::store::{
    ForgetKeys, Key, Penalties, RateZone, SharedStore, SlotTable, Verdicts, ZoneLeases,
};
use crate::telemetry::Histogram;

/// Every zone of a plan, under the plan's indices.
#[derive(Debug, Default)]
pub struct Zones {
    /// The zones of `limit_req`.
    pub req: Vec<Arc<ReqZone>>,
    /// The same again where a `shadow` counts, beside those that are enforced.
    pub shadow: Vec<Option<Arc<ShadowZone>>>,
    /// The zones of `limit_conn`.
    pub conn: Vec<Arc<ConnZone>>,
    /// The stores in which some of them count together with other gateways.
    pub stores: Vec<Arc<SharedStore>>,
}

/// A `limit_req` zone.
#[derive(Debug)]
pub struct ReqZone {
    /// The buckets of its keys.
    pub store: RateZone,
    pub(super) name: Arc<ZoneName>,
    pub(super) algorithm: AlgorithmParams,
    pub(super) count_refused: bool,
    /// The store in which it counts together with other gateways; [`ReqZone::store`] then counts while that is away.
    pub shared: Option<Arc<SharedStore>>,
    /// What can be decided without asking the shared store.
    pub(super) leases: Option<Arc<ZoneLeases>>,
    /// The penalties of its keys, where a rule gives some.
    pub(super) penalties: Option<Arc<Penalties>>,
    /// The busiest keys, and what operators have done to keys.
    pub key_admin: Arc<KeyAdmin>,
    /// Where its keys come from.
    pub source: KeySource,
    pub(super) overrides: Overrides,
}

/// A `limit_conn` zone.
#[derive(Debug)]
pub struct ConnZone {
    /// The slots of its keys.
    pub store: SlotTable,
    /// How long requests waited in the queue that got a slot.
    pub delays: Arc<Histogram>,
    /// How many requests wait in its queues.
    pub(super) waiting: Arc<AtomicU64>,
    /// The store in which slots are counted together with other gateways; [`ConnZone::store`] then has those of this one,
    /// and counts while that is away.
    pub(super) shared: Option<Arc<SharedStore>>,
    pub(super) name: Arc<ZoneName>,
    /// The busiest keys, and what operators have done to keys.
    pub key_admin: Arc<KeyAdmin>,
    /// Where its keys come from.
    pub source: KeySource,
}

/// A zone in which a `shadow` counts.
#[derive(Debug)]
pub struct ShadowZone {
    /// The zone, apart from the one of its name that is enforced.
    pub zone: Arc<ReqZone>,
    pub(super) stricter: AtomicU64,
    pub(super) laxer: AtomicU64,
}

/// How often the decisions of a shadow and of what is enforced differed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShadowDifferences {
    /// The shadow would have refused what passed.
    pub refuse: u64,
    /// The shadow would have let pass what was refused.
    pub pass: u64,
}

/// A request's key in a `limit_req` zone.
// Small: it is copied for every rule of a location.
#[derive(Debug, Clone, Copy)]
pub(super) struct RuleKey {
    pub(super) key: Key,
    /// The index of its override, if it has one.
    pub(super) own: Option<u32>,
}

impl Zones {
    /// Builds the zones of a plan, all empty, and all in this process.
    #[must_use]
    pub fn build(plan: &Plan) -> Self {
        Self::build_after(plan, &[], None)
    }

    /// Builds the zones of a plan, where `stores` are the plan's. Zones that were there before keep what they have counted.
    #[must_use]
    pub fn build_after(
        plan: &Plan,
        stores: &[Arc<SharedStore>],
        before: Option<(&Plan, &Self)>,
    ) -> Self {
        let previous = PreviousZones { plan, before };
        let zones = || plan.req_zones.iter().enumerate();
        Self {
            req: zones()
                .map(|(index, zone)| {
                    let punishes = used(plan, index, |conf| &conf.limit_req).unwrap_or(false);
                    let verdicts = verdicts(plan, index);
                    let (reader, old) = (reader(plan, index, zone), previous.req(zone));
                    let zone =
                        Arc::new(ReqZone::new(zone, reader, punishes, stores, verdicts, old));
                    if let Some(store) = &zone.shared {
                        let zone: Arc<dyn ForgetKeys> = Arc::clone(&zone) as _;
                        store.forget_in(Arc::downgrade(&zone));
                    }
                    zone
                })
                .collect(),
            shadow: zones()
                .map(|(index, zone)| {
                    let punishes = used(plan, index, |conf| &conf.shadow)?;
                    let old = previous.shadow(zone);
                    let own = ReqZone::new(
                        zone,
                        reader(plan, index, zone),
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
                        |conf: &LocationConf| conf.limit_conn.iter().any(|rule| rule.zone == index);
                    let reader = KeyReader {
                        on_ambiguous: zone.on_ambiguous_key,
                        underscores: underscores(plan, uses),
                    };
                    Arc::new(ConnZone::new(zone, reader, stores, previous.conn(zone)))
                })
                .collect(),
            stores: stores.to_vec(),
        }
    }
}

impl ReqZone {
    fn new(
        zone: &plan::ReqZone,
        reader: KeyReader,
        punishes: bool,
        stores: &[Arc<SharedStore>],
        verdicts: Verdicts,
        old: Option<&Self>,
    ) -> Self {
        let penalties = if punishes { zone.size / PENALTIES } else { 0 };
        let own = zone.overrides.iter().filter_map(|one| one.own);
        let spec = |algorithm: &AlgorithmParams| LimitSpec::new(algorithm, Excess(0), Delay::Never);
        let slowest = own.fold(spec(&zone.algorithm), |slowest, own| {
            slowest.slower(spec(&own.algorithm))
        });
        let shared = zone.store.and_then(|store| stores.get(store).cloned());
        // Where refusals are charged, the store has to know of each.
        let can_hold = slowest.info().leasable && !zone.count_refused;
        let leases = shared.as_ref().filter(|_| can_hold).map(|store| {
            let size = zone.size / LEASES;
            let old = old.and_then(|old| old.leases.as_ref());
            match old.filter(|old| old.fits(size, &store.leases, verdicts)) {
                Some(old) => Arc::clone(old),
                None => ZoneLeases::new(&zone.name, size, &store.leases, verdicts),
            }
        });
        let own_penalties = punishes.then(|| match old.and_then(|old| old.penalties.as_ref()) {
            Some(old) => old.resized(penalties),
            None => Arc::new(Penalties::new(&zone.name, penalties)),
        });
        if let Some(leases) = &leases {
            leases.punish_in(own_penalties.as_ref());
        }
        let leased = leases.as_ref().map_or(0, |_| zone.size / LEASES);
        let (size, refused) = (zone.size - leased - penalties, zone.count_refused);
        let resized = old.and_then(|old| old.store.resized(size, &slowest, refused));
        Self {
            store: resized.unwrap_or_else(|| RateZone::new(&zone.name, size, &slowest, refused)),
            name: Arc::new(ZoneName::new(&zone.name)),
            algorithm: zone.algorithm,
            count_refused: zone.count_refused,
            shared,
            leases,
            penalties: own_penalties,
            key_admin: old.map_or_else(Arc::default, |old| Arc::clone(&old.key_admin)),
            source: KeySource::new(&zone.key, zone.ipv6_prefix, zone.on_empty_key)
                .with_reader(reader),
            overrides: Overrides::new(&zone.overrides),
        }
    }

    /// Whether a request has the same key in both, and no numbers of its own in either.
    pub(super) fn shares_keys(&self, other: &Self) -> bool {
        self.source == other.source && self.overrides.is_empty() && other.overrides.is_empty()
    }

    /// The key of a request.
    #[inline]
    pub(super) fn find(&self, record: &RequestRecord) -> KeyLookup<RuleKey> {
        if !self.overrides.is_empty() {
            return self.find_with_overrides(record);
        }
        self.source.find(record, |bytes| {
            let key = Key::from_bytes(bytes);
            match self.key_admin.exempts(&key, record) {
                true => KeyLookup::Nothing,
                false => KeyLookup::Key(RuleKey { key, own: None }),
            }
        })
    }

    fn find_with_overrides(&self, record: &RequestRecord) -> KeyLookup<RuleKey> {
        self.find_bucket(record, |bytes, bucket, matching| {
            if let OverrideMatch::Unlimited(_) = matching {
                return KeyLookup::Nothing;
            }
            let exempts = |bytes| self.key_admin.exempts(&Key::from_bytes(bytes), record);
            if exempts(bytes) || bucket.is_some_and(exempts) {
                return KeyLookup::Nothing;
            }
            KeyLookup::Key(RuleKey {
                key: Key::from_bytes(bucket.unwrap_or(bytes)),
                own: matching.index(),
            })
        })
    }

    /// Calls a function with the bytes of a request's key, those of its bucket where that is another one, and its override.
    fn find_bucket<T>(
        &self,
        record: &RequestRecord,
        make: impl FnOnce(&[u8], Option<&[u8]>, OverrideMatch) -> KeyLookup<T>,
    ) -> KeyLookup<T> {
        let client = record.client();
        let lookup = self.source.find(record, |bytes| {
            // The bytes of an address may read like a text.
            let text = (!self.source.is_address_of(client, bytes)).then_some(bytes);
            let matching = self.overrides.find(text, client.ip());
            let named = match matching {
                OverrideMatch::Limits(index) => self.overrides.clients(index),
                OverrideMatch::None | OverrideMatch::Unlimited(_) => None,
            };
            let shared = named.filter(|clients| !self.source.is_within(*clients, client, bytes));
            match shared {
                Some(clients) => make(bytes, Some(&network_bucket(clients, bytes)), matching),
                None => make(bytes, None, matching),
            }
        });
        match lookup {
            // A request that is not limited here needs no key.
            KeyLookup::Refuse(_) if self.is_unlimited(client.ip()) => KeyLookup::Nothing,
            lookup => lookup,
        }
    }

    /// Whether an override frees a client from this zone, whatever its key is.
    fn is_unlimited(&self, client: Option<IpAddr>) -> bool {
        matches!(
            self.overrides.find(None, client),
            OverrideMatch::Unlimited(_)
        )
    }

    /// The keys on which operators can act for a request: its own, and that of its bucket where that is another one.
    pub(super) fn admin_keys(&self, record: &RequestRecord) -> SmallVec<[Key; 2]> {
        let mut keys = SmallVec::new();
        self.find_bucket(record, |bytes, bucket, _| {
            keys.push(Key::from_bytes(bytes));
            keys.extend(bucket.map(Key::from_bytes));
            KeyLookup::<()>::Nothing
        });
        keys
    }

    /// The bytes of a request's bucket; none if it has no key.
    pub(super) fn key_bytes(&self, record: &RequestRecord) -> KeyBytes {
        if self.overrides.is_empty() {
            return self.source.bytes(record);
        }
        let mut copy = KeyBytes::new();
        self.find_bucket(record, |bytes, bucket, _| {
            copy.extend_from_slice(bucket.unwrap_or(bytes));
            KeyLookup::<()>::Nothing
        });
        copy
    }

    /// The name of a request's bucket for people.
    pub(super) fn label(&self, record: &RequestRecord) -> String {
        let label = self.source.label(record);
        match split_network_bucket(&self.key_bytes(record)) {
            Some((network, _)) => format!("({network}) {label}"),
            None => label,
        }
    }

    /// The name of the override that applies to a request.
    pub(super) fn override_name(&self, record: &RequestRecord) -> Option<String> {
        let lookup = self.find_bucket(record, |_, _, matching| KeyLookup::Key(matching));
        let by_address = || self.overrides.find(None, record.client().ip());
        let matching = lookup.key().unwrap_or_else(by_address);
        self.overrides.name(matching.index()?)
    }

    /// The numbers of a key with an override.
    pub(super) fn override_limits(&self, rule_key: &RuleKey) -> Option<&OverrideLimits> {
        self.overrides.limits(rule_key.own?)
    }

    /// Forgets a key and its penalty here; whether there was something to forget.
    pub fn forget(&self, key: &Key) -> bool {
        let penalties = self.penalties.as_ref();
        let punished = penalties.is_some_and(|penalties| penalties.forget(key));
        self.key_admin.busiest.forget(key);
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
}

impl ForgetKeys for ReqZone {
    fn zone(&self) -> &str {
        &self.name.plain
    }

    fn forget_bytes(&self, bytes: &[u8]) {
        self.forget(&Key::from_bytes(bytes));
    }
}

impl ConnZone {
    fn new(
        zone: &plan::ConnZone,
        reader: KeyReader,
        stores: &[Arc<SharedStore>],
        old: Option<&Self>,
    ) -> Self {
        Self {
            shared: zone.store.and_then(|store| stores.get(store).cloned()),
            store: match old {
                Some(old) => old.store.resized(zone.size),
                None => SlotTable::new(&zone.name, zone.size),
            },
            delays: old.map_or_else(Arc::default, |old| Arc::clone(&old.delays)),
            waiting: old.map_or_else(Arc::default, |old| Arc::clone(&old.waiting)),
            name: Arc::new(ZoneName::new(&zone.name)),
            key_admin: old.map_or_else(Arc::default, |old| Arc::clone(&old.key_admin)),
            source: KeySource::new(&zone.key, zone.ipv6_prefix, zone.on_empty_key)
                .with_reader(reader),
        }
    }

    /// How many requests wait for a slot.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// The key of a request.
    pub(super) fn find(&self, record: &RequestRecord) -> KeyLookup<Key> {
        self.source.find(record, |bytes| {
            let key = Key::from_bytes(bytes);
            match self.key_admin.exempts(&key, record) {
                true => KeyLookup::Nothing,
                false => KeyLookup::Key(key),
            }
        })
    }
}

impl ShadowZone {
    fn new(zone: ReqZone, old: Option<&Self>) -> Self {
        let differences = old.map(Self::differences).unwrap_or_default();
        Self {
            zone: Arc::new(zone),
            stricter: AtomicU64::new(differences.refuse),
            laxer: AtomicU64::new(differences.pass),
        }
    }

    /// How often it differed from what is enforced.
    #[must_use]
    pub fn differences(&self) -> ShadowDifferences {
        ShadowDifferences {
            refuse: self.stricter.load(Ordering::Relaxed),
            pass: self.laxer.load(Ordering::Relaxed),
        }
    }
}

/// Whether one of these rules gives penalties in a zone; `None` where none names it.
fn used(plan: &Plan, zone: usize, rules: impl Fn(&LocationConf) -> &Vec<ReqRule>) -> Option<bool> {
    plan.location_confs()
        .flat_map(rules)
        .filter(|rule| rule.zone == zone)
        .map(|rule| rule.action.penalty.is_some())
        .reduce(|one, other| one || other)
}

/// How the parts of a `limit_req` zone's keys are read.
fn reader(plan: &Plan, index: usize, zone: &plan::ReqZone) -> KeyReader {
    let uses = |conf: &LocationConf| {
        let mut rules = conf.limit_req.iter().chain(&conf.shadow);
        rules.any(|rule| rule.zone == index)
    };
    KeyReader {
        on_ambiguous: zone.on_ambiguous_key,
        underscores: underscores(plan, uses),
    }
}

/// Whether backends of the locations that use a zone see header fields with underscores.
fn underscores(plan: &Plan, uses: impl Fn(&LocationConf) -> bool) -> bool {
    let mut proxy_passes = plan
        .location_confs()
        .filter(|conf| uses(conf))
        .flat_map(LocationConf::proxy_passes);
    proxy_passes.any(|proxy_pass| proxy_pass.settings.underscores_in_headers)
}

/// Whether refusals of a zone in a store can be remembered there: not where a charge is refunded when another zone refuses
/// the request, because then some requests pass before `Retry-After`.
fn verdicts(plan: &Plan, zone: usize) -> Verdicts {
    let store = |rule: &ReqRule| plan.req_zones.get(rule.zone).and_then(|zone| zone.store);
    let gives_back = |conf: &LocationConf| {
        let mut stores: Vec<_> = conf.limit_req.iter().filter_map(store).collect();
        let shared = stores.len();
        let spread = |index: &usize| {
            let store = plan.stores.get(*index);
            store.is_some_and(|store| store.shape == StoreTopology::Cluster)
        };
        let spread = stores.iter().any(spread);
        stores.sort_unstable();
        stores.dedup();
        let used = conf.limit_req.iter().any(|rule| rule.zone == zone);
        used && shared > 1 && (spread || stores.len() > 1)
    };
    match plan.location_confs().any(gives_back) {
        true => Verdicts::Forget,
        false => Verdicts::Keep,
    }
}

/// The part of a shared zone's size for leases: one in so many.
const LEASES: usize = 2;

/// The part of a zone's size for penalties, where there are some: one in so many.
const PENALTIES: usize = 4;

/// The zones of the plan before, from which new ones inherit.
struct PreviousZones<'a> {
    plan: &'a Plan,
    before: Option<(&'a Plan, &'a Zones)>,
}

impl<'a> PreviousZones<'a> {
    /// The zones before, and the index of the one that this one inherits from.
    fn req_index(&self, zone: &plan::ReqZone) -> Option<(&'a Zones, usize)> {
        let (plan, zones) = self.before?;
        let index = req_position(plan, zone)?;
        let inherits = self.plan.inherits(zone, plan, &plan.req_zones[index]);
        inherits.is_ok().then_some((zones, index))
    }

    fn req(&self, zone: &plan::ReqZone) -> Option<&'a ReqZone> {
        let (zones, index) = self.req_index(zone)?;
        zones.req.get(index).map(|old| &**old)
    }

    fn shadow(&self, zone: &plan::ReqZone) -> Option<&'a ShadowZone> {
        let (zones, index) = self.req_index(zone)?;
        zones.shadow.get(index)?.as_deref()
    }

    fn conn(&self, zone: &plan::ConnZone) -> Option<&'a ConnZone> {
        let (plan, zones) = self.before?;
        let index = conn_position(plan, zone)?;
        let inherits = (self.plan).inherits_places(zone, plan, &plan.conn_zones[index]);
        inherits.then(|| zones.conn.get(index).map(|old| &**old))?
    }
}

/// The zones that start afresh when one plan replaces another, a sentence for each.
pub fn forgotten_zones(plan: &Plan, before: &Plan) -> Vec<String> {
    let requests = plan.req_zones.iter().filter_map(|zone| {
        let old = &before.req_zones[req_position(before, zone)?];
        let why = plan.inherits(zone, before, old).err()?;
        let zone = &*zone.name;
        Some(format!(
            "zone \"{zone}\" starts afresh: {why}, what was counted is forgotten"
        ))
    });
    let connections = plan.conn_zones.iter().filter_map(|zone| {
        let old = &before.conn_zones[conn_position(before, zone)?];
        let afresh = !plan.inherits_places(zone, before, old);
        let zone = &*zone.name;
        afresh.then(|| {
            format!("zone \"{zone}\" starts afresh: its key has changed, requests in progress are not counted in it")
        })
    });
    requests.chain(connections).collect()
}

fn req_position(plan: &Plan, zone: &plan::ReqZone) -> Option<usize> {
    plan.req_zones.iter().position(|old| old.name == zone.name)
}

fn conn_position(plan: &Plan, zone: &plan::ConnZone) -> Option<usize> {
    plan.conn_zones.iter().position(|old| old.name == zone.name)
}
