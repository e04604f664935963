//! The zones of a plan as they run: each with its keys, its numbers and the store that counts.
//!
//! Made once for a plan and shared by all locations, so that two of them that name one zone count in one
//! place, and a thousand overrides are held once.
//!
//! What zones inherit from those of their names in the plan before.
//!
//! The rate, the burst, the size of a zone may change and everybody stands where they stood. Where what was counted means
//! something else now, it is better forgotten, and whoever has the configuration read again is told so.
//!
//! Keys and clients with numbers of their own.
//!
//! A text names a key. An address or a network names clients, whatever the key is made of: what is written for
//! `192.0.2.7` must not depend on whether the zone's key is the address, a map of it or something else.
//!
//! A zone may have thousands of them, one for every paying customer, so both kinds are found by hashing:
//! a text at once, a network with one try for each prefix length that is in use.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ipnet::IpNet;
use smallvec::SmallVec;

use super::ShadowZone;
use super::headers::ZoneName;
use super::key::{KeyLookup, KeySource};
use super::key_admin::KeyAdmin;
use crate::algorithm::{AlgorithmParams, Delay, Excess, LimitSpec};
use crate::config::plan::{
    self, LocationConf, Override, OverrideKey, OverrideLimits, Plan, ReqRule, StoreTopology,
};
use crate::message::RequestRecord;
use crate::message::variables::KeyReader;
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
    pub(super) count_refused: bool,
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
    pub store: SlotTable,
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
                    let punishes = used(plan, index, |conf| &conf.limit_req).unwrap_or(false);
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
                    let punishes = used(plan, index, |conf| &conf.shadow)?;
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
                        |conf: &LocationConf| conf.limit_conn.iter().any(|rule| rule.zone == index);
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
        let spec = |algorithm: &AlgorithmParams| LimitSpec::new(algorithm, Excess(0), Delay::Never);
        let slowest = own.fold(spec(&zone.algorithm), |slowest, own| {
            slowest.slower(spec(&own.algorithm))
        });
        let shared = zone.store.and_then(|store| stores.get(store).cloned());
        // Where refusals are charged, each has to be told.
        let can_hold = ZoneLeases::can_hold(&slowest) && !zone.count_refused;
        let leases = shared.as_ref().filter(|_| can_hold).map(|store| {
            let size = zone.size / LEASES;
            let old = old.and_then(|old| old.leases.as_ref());
            match old.filter(|old| old.fits(size, store, verdicts)) {
                Some(old) => Arc::clone(old),
                None => ZoneLeases::new(&zone.name, size, store, verdicts),
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
    pub(super) fn find(&self, record: &RequestRecord) -> KeyLookup<RuleKey> {
        self.find_with(record, |_| {})
    }

    #[inline]
    fn find_with(&self, record: &RequestRecord, note: impl FnOnce(&[u8])) -> KeyLookup<RuleKey> {
        if !self.overrides.is_empty() {
            return self.find_own(record, note);
        }
        self.source.find(record, |bytes| {
            note(bytes);
            let key = Key::from_bytes(bytes);
            if self.watch.frees(&key, record) {
                return KeyLookup::Nothing;
            }
            KeyLookup::Key(RuleKey { key, own: None })
        })
    }

    /// The key of a request, and the bytes it was made from.
    pub(super) fn find_in_full(
        &self,
        record: &RequestRecord,
        full: &mut Vec<u8>,
    ) -> KeyLookup<RuleKey> {
        self.find_with(record, |bytes| full.extend_from_slice(bytes))
    }

    /// What holds for a key instead, if it has numbers of its own.
    pub(super) fn own(&self, rule_key: &RuleKey) -> Option<&OverrideLimits> {
        self.overrides.own(rule_key.own?)
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
        parts: KeyReader,
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
    pub(super) fn find(&self, record: &RequestRecord) -> KeyLookup<Key> {
        self.find_with(record, |_| {})
    }

    /// The key of a request, and the bytes it was made from.
    pub(super) fn find_in_full(
        &self,
        record: &RequestRecord,
        full: &mut Vec<u8>,
    ) -> KeyLookup<Key> {
        self.find_with(record, |bytes| full.extend_from_slice(bytes))
    }

    #[inline]
    fn find_with(&self, record: &RequestRecord, note: impl FnOnce(&[u8])) -> KeyLookup<Key> {
        self.source.find(record, |bytes| {
            note(bytes);
            let key = Key::from_bytes(bytes);
            match self.watch.frees(&key, record) {
                true => KeyLookup::Nothing,
                false => KeyLookup::Key(key),
            }
        })
    }

    /// The bytes of a request's key, if it has one.
    pub(super) fn with_key(&self, record: &RequestRecord, act: impl FnOnce(&[u8])) {
        self.source.with(record, act);
    }

    /// What a request's key looks like to people.
    pub(super) fn label(&self, record: &RequestRecord) -> String {
        self.source.label(record)
    }
}

/// Whether those who go over in this zone are punished by one of these rules; `None` where none names it.
fn used(plan: &Plan, zone: usize, rules: impl Fn(&LocationConf) -> &Vec<ReqRule>) -> Option<bool> {
    plan.location_confs()
        .flat_map(rules)
        .filter(|rule| rule.zone == zone)
        .map(|rule| rule.action.penalty.is_some())
        .reduce(|one, other| one || other)
}

/// How the parts of a `limit_req` zone's keys are read.
fn parts(plan: &Plan, index: usize, zone: &plan::ReqZone) -> KeyReader {
    let uses = |conf: &LocationConf| {
        let mut rules = conf.limit_req.iter().chain(&conf.shadow);
        rules.any(|rule| rule.zone == index)
    };
    KeyReader {
        on_ambiguous: zone.on_ambiguous_key,
        underscores: underscores(plan, uses),
    }
}

/// Whether backends of the sites that use a zone get to see header fields with underscores.
fn underscores(plan: &Plan, uses: impl Fn(&LocationConf) -> bool) -> bool {
    let mut proxy_passes = plan
        .location_confs()
        .filter(|conf| uses(conf))
        .flat_map(LocationConf::proxy_passes);
    proxy_passes.any(|proxy_pass| proxy_pass.settings.underscores_in_headers)
}

/// Whether refusals of a zone in a store can be remembered there: not where what a request took is given back when
/// another zone refuses it, because then some pass before the time they were told.
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

/// Which part of a shared zone's size is for what is decided without asking.
const LEASES: usize = 2;

/// Which part of a zone's size is for the penalties, where there are some.
const PENALTIES: usize = 4;

/// What there is to inherit.
pub(super) struct PreviousZones<'a> {
    pub(super) plan: &'a Plan,
    pub(super) before: Option<(&'a Plan, &'a Zones)>,
}

impl<'a> PreviousZones<'a> {
    /// The zone that this one goes on from.
    pub(super) fn req(&self, zone: &plan::ReqZone) -> Option<&'a ReqZone> {
        let (plan, zones) = self.before?;
        let index = req_position(plan, zone)?;
        let inherits = self.plan.inherits(zone, plan, &plan.req_zones[index]);
        inherits.ok()?;
        zones.req.get(index).map(|old| &**old)
    }

    /// The same for what a `shadow` counts.
    pub(super) fn shadow(&self, zone: &plan::ReqZone) -> Option<&'a ShadowZone> {
        let (plan, zones) = self.before?;
        let index = req_position(plan, zone)?;
        let inherits = self.plan.inherits(zone, plan, &plan.req_zones[index]);
        inherits.ok()?;
        zones.shadow.get(index)?.as_deref()
    }

    /// The zone whose places this one has.
    pub(super) fn conn(&self, zone: &plan::ConnZone) -> Option<&'a ConnZone> {
        let (plan, zones) = self.before?;
        let index = conn_position(plan, zone)?;
        let inherits = (self.plan).inherits_places(zone, plan, &plan.conn_zones[index]);
        inherits.then(|| zones.conn.get(index).map(|old| &**old))?
    }
}

/// What is forgotten when one plan takes the place of another, a sentence for each zone.
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

/// The overrides of one zone.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    /// In the order of the file.
    list: Box<[Override]>,
    /// By index into the list.
    texts: HashMap<Box<[u8]>, u32>,
    networks: HashMap<IpNet, u32>,
    /// Prefix lengths in use, longest first.
    lengths_v4: Vec<u8>,
    lengths_v6: Vec<u8>,
}

/// What holds for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OverrideMatch {
    /// Numbers of its own, by the override with this index.
    Own(u32),
    /// What holds for everybody.
    Same,
    /// Nothing, by the override with this index.
    Unlimited(u32),
}

impl Overrides {
    pub(super) fn new(overrides: &[Override]) -> Self {
        let mut all = Self {
            list: overrides.into(),
            ..Self::default()
        };
        for (index, one) in (0..).zip(overrides) {
            match &one.key {
                OverrideKey::Network(network) => {
                    let network = network.trunc();
                    match network {
                        IpNet::V4(v4) => all.lengths_v4.push(v4.prefix_len()),
                        IpNet::V6(v6) => all.lengths_v6.push(v6.prefix_len()),
                    }
                    all.networks.insert(network, index);
                }
                OverrideKey::Text(text) => {
                    all.texts.insert(text.as_bytes().into(), index);
                }
            }
        }
        for lengths in [&mut all.lengths_v4, &mut all.lengths_v6] {
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths.dedup();
        }
        all
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// What holds for a key, and for a client where the key has nothing of its own.
    pub(super) fn find(&self, key: Option<&[u8]>, client: Option<IpAddr>) -> OverrideMatch {
        let text = key.and_then(|key| self.texts.get(key));
        self.held(text.or_else(|| self.network(client?)))
    }

    /// What holds for the clients of exactly this network.
    pub(super) fn of(&self, network: &IpNet) -> OverrideMatch {
        self.held(self.networks.get(network))
    }

    /// The numbers of an [override that has some](Held::Own).
    pub(super) fn own(&self, index: u32) -> Option<&OverrideLimits> {
        self.list.get(index as usize)?.own.as_ref()
    }

    /// The clients that an override names, if it does not name a key.
    pub(super) fn clients(&self, index: u32) -> Option<IpNet> {
        match self.list.get(index as usize)?.key {
            OverrideKey::Network(network) => Some(network.trunc()),
            OverrideKey::Text(_) => None,
        }
    }

    /// What an override is written under.
    pub(super) fn name(&self, index: u32) -> Option<String> {
        Some(match &self.list.get(index as usize)?.key {
            OverrideKey::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                network.addr().to_string()
            }
            OverrideKey::Network(network) => network.to_string(),
            OverrideKey::Text(text) => text.to_string(),
        })
    }

    fn held(&self, found: Option<&u32>) -> OverrideMatch {
        match found.map(|index| (*index, self.own(*index))) {
            None => OverrideMatch::Same,
            Some((index, None)) => OverrideMatch::Unlimited(index),
            Some((index, Some(_))) => OverrideMatch::Own(index),
        }
    }

    fn network(&self, address: IpAddr) -> Option<&u32> {
        let lengths = match address {
            IpAddr::V4(_) => &self.lengths_v4,
            IpAddr::V6(_) => &self.lengths_v6,
        };
        lengths.iter().find_map(|length| {
            let network = IpNet::new(address, *length).ok()?;
            self.networks.get(&network.trunc())
        })
    }
}

/// The bytes of the bucket that the clients of a network have of their own where others have the same key.
// The others must not pay for what these may do beyond them, nor these for the others.
pub(super) fn apart(network: IpNet, key: &[u8]) -> SmallVec<[u8; 64]> {
    let mut bytes = SmallVec::new();
    bytes.push(APART);
    bytes.extend_from_slice(network.to_string().as_bytes());
    bytes.push(APART);
    bytes.extend_from_slice(key);
    bytes
}

/// The network and the key of such a bucket.
pub(super) fn parted(bytes: &[u8]) -> Option<(IpNet, &[u8])> {
    let rest = bytes.strip_prefix(&[APART])?;
    let end = rest.iter().position(|byte| *byte == APART)?;
    let network = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    Some((network, &rest[end + 1..]))
}

/// No header, cookie, argument or path can hold this byte: no client can send the key of another one's bucket.
const APART: u8 = 1;

#[cfg(test)]
mod tests {

    use super::*;
    use crate::algorithm::{AlgorithmParams, Excess, Rate};

    fn network(text: &str, own: Option<(u64, Option<u32>)>) -> Override {
        Override {
            key: OverrideKey::Network(text.parse().unwrap()),
            own: own.map(|(milli, burst)| numbers(milli, burst)),
        }
    }

    fn numbers(milli: u64, burst: Option<u32>) -> OverrideLimits {
        OverrideLimits {
            algorithm: AlgorithmParams::LeakyBucket {
                rate: Rate::per_second(milli),
            },
            burst: burst.map(Excess::requests),
        }
    }

    fn held(overrides: &Overrides, address: &str) -> OverrideMatch {
        overrides.find(None, Some(address.parse().unwrap()))
    }

    #[test]
    fn the_longest_network_wins() {
        let overrides = Overrides::new(&[
            network("10.0.0.0/8", Some((10_000, Some(50)))),
            network("10.1.2.3/32", None),
            network("10.1.0.0/16", Some((20_000, None))),
            network("2001:db8::/32", Some((30_000, None))),
        ]);
        let own = |address, milli, burst| {
            let OverrideMatch::Own(index) = held(&overrides, address) else {
                panic!("{address} has no numbers of its own");
            };
            assert_eq!(overrides.own(index), Some(&numbers(milli, burst)));
        };
        own("10.9.9.9", 10_000, Some(50));
        own("10.1.9.9", 20_000, None);
        own("2001:db8:5::1", 30_000, None);
        assert_eq!(held(&overrides, "10.1.2.3"), OverrideMatch::Unlimited(1));
        assert_eq!(held(&overrides, "192.0.2.1"), OverrideMatch::Same);
    }

    #[test]
    fn a_text_is_for_exactly_that_key() {
        let overrides = Overrides::new(&[Override {
            key: OverrideKey::Text("gold".into()),
            own: None,
        }]);
        assert_eq!(
            overrides.find(Some(b"gold"), None),
            OverrideMatch::Unlimited(0)
        );
        assert_eq!(overrides.find(Some(b"golden"), None), OverrideMatch::Same);
    }
    #[test]
    fn a_text_comes_before_a_network() {
        let text = Override {
            key: OverrideKey::Text("gold".into()),
            own: Some(numbers(1_000, None)),
        };
        let overrides = Overrides::new(&[network("10.0.0.0/8", None), text]);
        let client = Some("10.1.2.3".parse().unwrap());
        assert_eq!(overrides.find(Some(b"gold"), client), OverrideMatch::Own(1));
        assert_eq!(
            overrides.find(Some(b"other"), client),
            OverrideMatch::Unlimited(0)
        );
        assert_eq!(overrides.name(0).as_deref(), Some("10.0.0.0/8"));
        assert_eq!(overrides.name(1).as_deref(), Some("gold"));
    }

    #[test]
    fn a_bucket_apart_tells_its_network_and_its_key() {
        let network = "2001:db8::/32".parse().unwrap();
        assert_eq!(parted(&apart(network, b"k")), Some((network, &b"k"[..])));
        assert_eq!(parted(b"k"), None);
        assert_eq!(parted(b"\x01k\x01"), None);
    }
}
