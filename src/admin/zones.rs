//! `/api/zones`: the zones, the rules that use them, and what operators want of them.
//!
//! The zones of both kinds as one list: what `/metrics` and `/api/zones` both read.
//!
//! `PATCH /api/zones/ZONE`: other numbers for a zone, until the next reload.
//!
//! A plan with these numbers is put in force in the same way as that of a reload: what was counted stays, requests
//! under way go on by the numbers they began with, and nobody pays for the possibility.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::{Map, Value};

use super::endpoints::ApiError;
use super::keys;
use crate::algorithm::{AlgorithmParams, Excess};
use crate::api::{self, ShadowCounts, ZoneOverride, ZoneRule};
use crate::clock::Millis;
use crate::config::plan::{LocationConf, Part, Plan};
use crate::config::{self, amend};
use crate::limits::{ConnZone, KeyAdmin, ReqZone, ShadowZone};
use crate::proxy::{Generation, LiveChanges};
use crate::store::ZoneCounts;
use crate::telemetry::HistogramSnapshot;

/// The limits of all `limit_conn` rules by their zone: one walk through the plan for all zones.
struct ConnLimitsByZone<'p>(HashMap<&'p str, BTreeSet<u32>>);

impl<'p> ConnLimitsByZone<'p> {
    fn of(plan: &'p Plan) -> Self {
        let mut found: HashMap<_, BTreeSet<u32>> = HashMap::new();
        for rule in plan.location_confs().flat_map(|conf| &conf.limit_conn) {
            let zone = &*plan.conn_zones[rule.zone].name;
            found.entry(zone).or_default().insert(rule.limit);
        }
        Self(found)
    }

    fn in_zone(&self, name: &str) -> Vec<u32> {
        self.0.get(name).into_iter().flatten().copied().collect()
    }
}

/// `GET /api/zones`
pub(super) fn list(generation: &Generation) -> Vec<api::Zone> {
    let places = ConnLimitsByZone::of(&generation.plan);
    zones(generation)
        .map(|zone| shown(generation, zone, &places))
        .collect()
}

/// `GET /api/zones/{zone}`
pub(super) fn detail(
    generation: &Generation,
    name: &str,
    now: Millis,
) -> Result<api::ZoneDetail, ApiError> {
    let found = find(generation, name)?;
    let zone = zones(generation).find(|zone| zone.name == name);
    let zone = shown(
        generation,
        zone.ok_or_else(|| ApiError::missing("it has just gone"))?,
        &ConnLimitsByZone::of(&generation.plan),
    );
    let plan = &generation.plan;
    Ok(api::ZoneDetail {
        configured: match found {
            ZoneRef::Conn(..) => None,
            ZoneRef::Req(index, _) => Some(
                generation.amendment.file.req_zones[index]
                    .algorithm
                    .to_string(),
            ),
        },
        zone,
        key: found.key(plan),
        rules: rules(plan, found),
        marked: found
            .watch()
            .marks(now)
            .iter()
            .map(|marked| keys::shown(marked, now))
            .collect(),
    })
}

fn shown(
    generation: &Generation,
    zone: ZoneSnapshot<'_>,
    places: &ConnLimitsByZone<'_>,
) -> api::Zone {
    api::Zone {
        name: zone.name.to_owned(),
        kind: match zone.algorithm {
            Some(_) => "limit_req".into(),
            None => "limit_conn".into(),
        },
        algorithm: zone.algorithm.map(|algorithm| algorithm.name().into()),
        rate: zone.algorithm.map(|algorithm| algorithm.to_string()),
        limits: match zone.algorithm {
            Some(_) => Vec::new(),
            None => places.in_zone(zone.name),
        },
        keys: zone.keys as u64,
        capacity: zone.capacity as u64,
        verdicts: keys::verdicts(zone.counts),
        evictions: zone.counts.evictions,
        penalties_dropped: zone.penalties_dropped,
        store: zone.store.map(str::to_owned),
        r#override: generation
            .amendment
            .numbers
            .get(zone.name)
            .map(ZoneOverride::of),
        marks: zone.watch.marked() as u64,
        shadow: zone.shadow.map(shadow),
    }
}

fn shadow(shadow: &ShadowZone) -> ShadowCounts {
    let (store, differs) = (&shadow.zone.store, shadow.differs());
    ShadowCounts {
        keys: store.len() as u64,
        verdicts: keys::verdicts(store.counts()),
        refuses_passed: differs.refuse,
        passes_refused: differs.pass,
    }
}

/// Where a zone is used.
fn rules(plan: &Plan, zone: ZoneRef<'_>) -> Vec<ZoneRule> {
    let mut found = Vec::new();
    for server in &plan.servers {
        let locations = server.locations.iter().map(|it| (&*it.path.text, &it.conf));
        for (location, conf) in locations.chain([("", &server.fallback)]) {
            for (burst, limit, dry_run) in uses(conf, zone) {
                found.push(ZoneRule {
                    server: server.name.to_string(),
                    location: location.to_owned(),
                    burst,
                    limit: limit.map(u64::from),
                    dry_run,
                });
            }
        }
    }
    found.truncate(MOST_RULES);
    found
}

/// The numbers of a site's rules that use a zone.
fn uses(conf: &LocationConf, zone: ZoneRef<'_>) -> Vec<(Option<f64>, Option<u32>, bool)> {
    match zone {
        ZoneRef::Conn(index, _) => {
            let rules = conf.limit_conn.iter().filter(|rule| rule.zone == index);
            let dry_run = conf.limits.limit_conn_dry_run;
            rules
                .map(|rule| (None, Some(rule.limit), dry_run))
                .collect()
        }
        ZoneRef::Req(index, _) => {
            let rules = conf.limit_req.iter().filter(|rule| rule.zone == index);
            let burst = |burst: Excess| burst.0 as f64 / Excess::ONE.0 as f64;
            let dry_run = conf.limits.limit_req_dry_run;
            rules
                .map(|rule| (Some(burst(rule.burst)), None, dry_run))
                .collect()
        }
    }
}

/// Nobody reads on.
const MOST_RULES: usize = 1000;

/// A zone at this moment.
pub(super) struct ZoneSnapshot<'a> {
    pub(super) name: &'a str,
    /// How it counts; only a `limit_req` zone has this.
    pub(super) algorithm: Option<AlgorithmParams>,
    pub(super) keys: usize,
    pub(super) capacity: usize,
    pub(super) counts: ZoneCounts,
    /// What operators know of its keys and want of them.
    pub(super) watch: &'a KeyAdmin,
    /// The store it shares with other gateways.
    pub(super) store: Option<&'a str>,
    /// How long those had to wait whom it delayed.
    pub(super) delays: HistogramSnapshot,
    /// Penalties that were not given for want of room, where its rules give some.
    pub(super) penalties_dropped: Option<u64>,
    /// How many stand in line for a place; only a `limit_conn` zone has this.
    pub(super) waiting: Option<u64>,
    /// Where a `shadow` counts in a zone of this name.
    pub(super) shadow: Option<&'a ShadowZone>,
}

/// All zones: those for requests, then those for connections, each in the file's order.
pub(super) fn zones(generation: &Generation) -> impl Iterator<Item = ZoneSnapshot<'_>> {
    let shadows = generation.zones.req.iter().zip(&generation.zones.shadow);
    let requests = generation.plan.req_zones.iter().zip(shadows);
    let connections = generation
        .plan
        .conn_zones
        .iter()
        .zip(&generation.zones.conn);
    let requests = requests.map(|(plan, (zone, shadow))| ZoneSnapshot {
        name: &plan.name,
        algorithm: Some(plan.algorithm),
        keys: zone.store.len(),
        capacity: zone.store.capacity(),
        counts: zone.store.counts(),
        watch: &zone.watch,
        store: plan.store.map(|store| &*generation.plan.stores[store].name),
        delays: zone.store.delays.read(),
        penalties_dropped: zone.penalties_dropped(),
        waiting: None,
        shadow: shadow.as_deref(),
    });
    requests.chain(connections.map(|(plan, zone)| ZoneSnapshot {
        name: &plan.name,
        algorithm: None,
        keys: zone.store.len(),
        capacity: zone.store.capacity(),
        counts: zone.store.counts(),
        watch: &zone.watch,
        store: plan.store.map(|store| &*generation.plan.stores[store].name),
        delays: zone.delays.read(),
        penalties_dropped: None,
        waiting: Some(zone.waiting()),
        shadow: None,
    }))
}

/// A zone that somebody asks for by name, and its place in the plan.
#[derive(Debug, Clone, Copy)]
pub(super) enum ZoneRef<'a> {
    Conn(usize, &'a ConnZone),
    Req(usize, &'a ReqZone),
}

/// The zone of this name.
pub(super) fn find<'l>(generation: &'l Generation, name: &str) -> Result<ZoneRef<'l>, ApiError> {
    let position = |mut names: Box<dyn Iterator<Item = &str> + '_>| names.position(|it| it == name);
    let plan = &generation.plan;
    if let Some(index) = position(Box::new(plan.req_zones.iter().map(|zone| &*zone.name))) {
        return Ok(ZoneRef::Req(index, &generation.zones.req[index]));
    }
    if let Some(index) = position(Box::new(plan.conn_zones.iter().map(|zone| &*zone.name))) {
        return Ok(ZoneRef::Conn(index, &generation.zones.conn[index]));
    }
    Err(ApiError::missing(format!(
        "there is no zone `{name}`; /api/zones lists those there are"
    )))
}

impl ZoneRef<'_> {
    /// What its keys are made of, as in the file.
    pub(super) fn key(&self, plan: &Plan) -> String {
        let template = match self {
            Self::Conn(index, _) => &plan.conn_zones[*index].key,
            Self::Req(index, _) => &plan.req_zones[*index].key,
        };
        let parts = template.parts.iter().map(|part| match part {
            Part::Text(text) => text.to_string(),
            Part::Variable(variable) => {
                format!("${}", config::variable_name(variable, &plan.maps))
            }
        });
        parts.collect()
    }

    pub(super) fn watch(&self) -> &KeyAdmin {
        match self {
            Self::Conn(_, zone) => &zone.watch,
            Self::Req(_, zone) => &zone.watch,
        }
    }
}

/// The largest burst of the rules that use a `limit_req` zone.
pub(super) fn burst(generation: &Generation, zone: usize) -> Excess {
    let rules = generation
        .plan
        .location_confs()
        .flat_map(|conf| &conf.limit_req);
    let rules = rules.filter(|rule| rule.zone == zone);
    rules.map(|rule| rule.burst).max().unwrap_or_default()
}

/// The largest limit of the rules that use a `limit_conn` zone.
pub(super) fn limit(generation: &Generation, zone: usize) -> u32 {
    let rules = generation
        .plan
        .location_confs()
        .flat_map(|conf| &conf.limit_conn);
    let rules = rules.filter(|rule| rule.zone == zone);
    rules.map(|rule| rule.limit).max().unwrap_or_default()
}

/// Other numbers for a zone; those it has already stay unless they are named, and `null` takes one back.
pub(super) fn change(
    generation: &ArcSwap<Generation>,
    zone: &str,
    change: &Map<String, Value>,
) -> Result<Arc<Generation>, ApiError> {
    if change.is_empty() {
        return Err(ApiError::bad("give it a `rate`, a `limit` or a `burst`"));
    }
    let changed = swap(generation, zone, |numbers| {
        for (name, value) in change {
            numbers.insert(name.clone(), value.clone());
        }
        // Even so it has to be one that could have been given.
        check_names(change)?;
        numbers.retain(|_, value| !value.is_null());
        Ok(())
    })?;
    let change = Value::Object(change.clone());
    tracing::warn!(zone, %change, "admin: zone changed until the next reload");
    Ok(changed)
}

/// The numbers of the file for a zone.
pub(super) fn restore(
    generation: &ArcSwap<Generation>,
    zone: &str,
) -> Result<Arc<Generation>, ApiError> {
    let restored = swap(generation, zone, |numbers| {
        numbers.clear();
        Ok(())
    })?;
    tracing::warn!(zone, "admin: zone as in the file again");
    Ok(restored)
}

/// Puts a generation in force that differs in the numbers of one zone.
fn swap(
    generation: &ArcSwap<Generation>,
    zone: &str,
    change: impl Fn(&mut Map<String, Value>) -> Result<(), ApiError>,
) -> Result<Arc<Generation>, ApiError> {
    loop {
        let present = generation.load_full();
        find(&present, zone)?;
        let mut amendment = present.amendment.clone();
        change(amendment.numbers.entry(zone.into()).or_default())?;
        amendment.numbers.retain(|_, numbers| !numbers.is_empty());
        let plan = amended(&present, &amendment)?;
        let next = Arc::new(present.amended(plan, amendment));
        let seen = generation.compare_and_swap(&present, Arc::clone(&next));
        // A reload was faster: it is amended then.
        if Arc::ptr_eq(&seen, &present) {
            return Ok(next);
        }
    }
}

/// The plan of the file with all other numbers that hold.
fn amended(generation: &Generation, amendment: &LiveChanges) -> Result<Plan, ApiError> {
    let mut plan = (*amendment.file).clone();
    for (zone, numbers) in &amendment.numbers {
        let applied = match find(generation, zone)? {
            ZoneRef::Conn(index, _) => set_places(&mut plan, index, numbers),
            ZoneRef::Req(index, _) => set_numbers(&mut plan, index, numbers),
        };
        applied.map_err(ApiError::bad)?;
    }
    Ok(plan)
}

fn set_numbers(plan: &mut Plan, zone: usize, numbers: &Map<String, Value>) -> Result<(), String> {
    let own = &mut plan.req_zones[zone];
    let numbers = amend::numbers(numbers, own.algorithm, own.size)?;
    if let Some(numbers) = numbers {
        own.algorithm = numbers.algorithm;
    }
    for conf in plan.sites_mut() {
        match numbers {
            // Whoever has no limit meets no rule.
            None => conf.limit_req.retain(|rule| rule.zone != zone),
            Some(numbers) => {
                for rule in conf.limit_req.iter_mut().filter(|it| it.zone == zone) {
                    rule.burst = numbers.burst.unwrap_or(rule.burst);
                }
            }
        }
    }
    Ok(())
}

fn set_places(plan: &mut Plan, zone: usize, numbers: &Map<String, Value>) -> Result<(), String> {
    let Some(limit) = amend::places(numbers)? else {
        return Ok(());
    };
    for conf in plan.sites_mut() {
        let rules = conf.limit_conn.iter_mut();
        for rule in rules.filter(|rule| rule.zone == zone) {
            rule.limit = limit;
        }
    }
    Ok(())
}

/// What is taken back has to have a name, too.
fn check_names(change: &Map<String, Value>) -> Result<(), ApiError> {
    let known = ["burst", "limit", "rate"];
    let mut taken_back = change.iter().filter(|(_, value)| value.is_null());
    match taken_back.find(|(name, _)| !known.contains(&name.as_str())) {
        Some((name, _)) => Err(ApiError::bad(format!("unknown key `{name}`"))),
        None => Ok(()),
    }
}
