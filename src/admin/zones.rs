//! `/api/zones`: the zones of both kinds, the rules that use them, and changes of their numbers until the next reload.
//!
//! A change puts a plan with the new numbers in force as a reload does: counters stay, and requests in progress keep the
//! numbers they began with.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use http::Method;
use serde_json::{Map, Value};

use super::endpoints::{ApiCall, Endpoint};
use super::response::ApiError;
use crate::algorithm::{AlgorithmParams, Excess};
use crate::api::{self, Schemas, ShadowCounts, ZoneChange, ZoneOverride, ZoneRule};
use crate::clock::Millis;
use crate::config::plan::{LocationConf, Part, Plan};
use crate::config::{self, amend};
use crate::limits::{ConnZone, KeyAction, KeyActionEntry, KeyAdmin, ReqZone, ShadowZone};
use crate::proxy::{Generation, LiveChanges};
use crate::store::ZoneCounts;
use crate::telemetry::HistogramSnapshot;

pub(super) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get(
            "/api/zones",
            "All zones: those for requests, then those for connections",
            list,
        ),
        Endpoint::get(
            "/api/zones/{zone}",
            "One zone, the rules that use it, and its marked keys",
            |call| detail(&call.generation, call),
        ),
        Endpoint::change_to(
            Method::PATCH,
            "/api/zones/{zone}",
            "Change rate, limit or burst until the next reload",
            change,
        )
        // The values are read as those of a file are, and null counts.
        .body(Schemas::request::<ZoneChange>, true),
        Endpoint::change(
            Method::DELETE,
            "/api/zones/{zone}/override",
            "Restore the values of the configuration",
            restore,
        ),
    ]
}

/// The limits of all `limit_conn` rules by their zone: one walk through the plan for all zones.
struct ConnLimitsByZone<'p>(HashMap<&'p str, BTreeSet<u32>>);

impl<'p> ConnLimitsByZone<'p> {
    fn of(plan: &'p Plan) -> Self {
        let mut limits: HashMap<_, BTreeSet<u32>> = HashMap::new();
        for rule in plan.location_confs().flat_map(|conf| &conf.limit_conn) {
            let zone = &*plan.conn_zones[rule.zone].name;
            limits.entry(zone).or_default().insert(rule.limit);
        }
        Self(limits)
    }

    fn in_zone(&self, name: &str) -> Vec<u32> {
        self.0.get(name).into_iter().flatten().copied().collect()
    }
}

fn list(call: &ApiCall) -> Result<Vec<api::Zone>, ApiError> {
    let generation = &*call.generation;
    let limits = ConnLimitsByZone::of(&generation.plan);
    let zones = zones(generation).map(|zone| shown(generation, zone, &limits));
    Ok(zones.collect())
}

fn detail(generation: &Generation, call: &ApiCall) -> Result<api::ZoneDetail, ApiError> {
    let name = call.arg("zone");
    let (found, plan) = (find(generation, name)?, &generation.plan);
    let snapshot = zones(generation).find(|zone| zone.name == name);
    let snapshot = snapshot.ok_or_else(|| no_zone(name))?;
    let file = &generation.live_changes.file;
    let marked = found.key_admin().actions(call.now);
    Ok(api::ZoneDetail {
        configured: match found {
            ZoneRef::Conn(..) => None,
            ZoneRef::Req(index, _) => Some(file.req_zones[index].algorithm.to_string()),
        },
        zone: shown(generation, snapshot, &ConnLimitsByZone::of(plan)),
        key: found.key(plan),
        rules: rules(plan, found),
        marked: marked.iter().map(|entry| mark(entry, call.now)).collect(),
    })
}

fn shown(
    generation: &Generation,
    zone: ZoneSnapshot<'_>,
    limits: &ConnLimitsByZone<'_>,
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
            None => limits.in_zone(zone.name),
        },
        keys: zone.keys as u64,
        capacity: zone.capacity as u64,
        verdicts: zone.counts.into(),
        evictions: zone.evictions,
        penalties_dropped: zone.penalties_dropped,
        store: zone.store.map(str::to_owned),
        r#override: generation
            .live_changes
            .settings_by_zone
            .get(zone.name)
            .map(ZoneOverride::of),
        marks: zone.key_admin.count() as u64,
        shadow: zone.shadow.map(shadow),
    }
}

fn shadow(shadow: &ShadowZone) -> ShadowCounts {
    let (store, differs) = (&shadow.zone.store, shadow.differences());
    ShadowCounts {
        keys: store.len() as u64,
        verdicts: store.counts().into(),
        refuses_passed: differs.refuse,
        passes_refused: differs.pass,
    }
}

impl From<ZoneCounts> for api::VerdictCounts {
    fn from(counts: ZoneCounts) -> Self {
        Self {
            pass: counts.pass,
            delay: counts.delay,
            refuse: counts.refuse,
        }
    }
}

/// What an operator has put on a key, as the API shows it now.
pub(super) fn mark(entry: &KeyActionEntry, now: Millis) -> api::KeyAction {
    api::KeyAction {
        key: entry.key.to_string(),
        mark: entry.action.as_str().into(),
        seconds: entry.until.since(now).as_secs_f64(),
        requests: match entry.action {
            KeyAction::Grant(left) => Some(left),
            KeyAction::Block | KeyAction::Exempt => None,
        },
        reason: entry.reason.as_deref().map(str::to_owned),
    }
}

/// The rules that use a zone.
fn rules(plan: &Plan, zone: ZoneRef<'_>) -> Vec<ZoneRule> {
    let mut rules = Vec::new();
    for server in &plan.servers {
        let locations = server.locations.iter().map(|it| (&*it.path.text, &it.conf));
        for (location, conf) in locations.chain([("", &server.fallback)]) {
            for (burst, limit, dry_run) in uses(conf, zone) {
                rules.push(ZoneRule {
                    server: server.name.to_string(),
                    location: location.to_owned(),
                    burst,
                    limit: limit.map(u64::from),
                    dry_run,
                });
            }
        }
    }
    rules.truncate(RULES_MAX);
    rules
}

/// Burst, limit and dry run of a location's rules that use a zone.
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

/// A longer list is of no use to a reader.
const RULES_MAX: usize = 1000;

/// A zone at this moment.
pub(super) struct ZoneSnapshot<'a> {
    pub(super) name: &'a str,
    /// How it counts; only a `limit_req` zone has this.
    pub(super) algorithm: Option<AlgorithmParams>,
    pub(super) keys: usize,
    pub(super) capacity: usize,
    pub(super) counts: ZoneCounts,
    /// Keys evicted before they had drained, or requests refused for lack of room.
    pub(super) evictions: u64,
    /// Counts of busy keys, and what operators have put on keys.
    key_admin: &'a KeyAdmin,
    /// The store it shares with other gateways.
    store: Option<&'a str>,
    /// How long requests waited that it delayed.
    pub(super) delays: HistogramSnapshot,
    /// Penalties not recorded for lack of room, where its rules give penalties.
    pub(super) penalties_dropped: Option<u64>,
    /// Requests that wait for a place; only a `limit_conn` zone has this.
    pub(super) waiting: Option<u64>,
    /// The counters of `shadow` rules of this zone.
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
        evictions: zone.store.evictions(),
        key_admin: &zone.key_admin,
        store: plan.store.map(|store| &*generation.plan.stores[store].name),
        delays: zone.store.delays.snapshot(),
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
        evictions: zone.store.evictions(),
        key_admin: &zone.key_admin,
        store: plan.store.map(|store| &*generation.plan.stores[store].name),
        delays: zone.delays.snapshot(),
        penalties_dropped: None,
        waiting: Some(zone.waiting()),
        shadow: None,
    }))
}

/// A zone, and its index in the plan.
#[derive(Debug, Clone, Copy)]
pub(super) enum ZoneRef<'g> {
    Conn(usize, &'g ConnZone),
    Req(usize, &'g ReqZone),
}

/// The zone of this name.
pub(super) fn find<'g>(generation: &'g Generation, name: &str) -> Result<ZoneRef<'g>, ApiError> {
    let (plan, zones) = (&generation.plan, &generation.zones);
    let req = plan.req_zones.iter().position(|zone| *zone.name == *name);
    let conn = || plan.conn_zones.iter().position(|zone| *zone.name == *name);
    req.map(|index| ZoneRef::Req(index, &zones.req[index]))
        .or_else(|| conn().map(|index| ZoneRef::Conn(index, &zones.conn[index])))
        .ok_or_else(|| no_zone(name))
}

fn no_zone(name: &str) -> ApiError {
    ApiError::missing(format!(
        "there is no zone `{name}`; /api/zones lists all zones"
    ))
}

impl ZoneRef<'_> {
    /// The template of its keys, as in the file.
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

    pub(super) fn key_admin(&self) -> &KeyAdmin {
        match self {
            Self::Conn(_, zone) => &zone.key_admin,
            Self::Req(_, zone) => &zone.key_admin,
        }
    }
}

/// The largest burst of the rules that use a `limit_req` zone.
pub(super) fn burst(generation: &Generation, zone: usize) -> Excess {
    let confs = generation.plan.location_confs();
    let rules = confs.flat_map(|conf| &conf.limit_req);
    let bursts = rules.filter(|rule| rule.zone == zone).map(|it| it.burst);
    bursts.max().unwrap_or_default()
}

/// The largest limit of the rules that use a `limit_conn` zone.
pub(super) fn limit(generation: &Generation, zone: usize) -> u32 {
    let confs = generation.plan.location_confs();
    let rules = confs.flat_map(|conf| &conf.limit_conn);
    let limits = rules.filter(|rule| rule.zone == zone).map(|it| it.limit);
    limits.max().unwrap_or_default()
}

/// Changes numbers of a zone; those that are not named stay, and `null` restores the file's.
fn change(call: &ApiCall, change: Map<String, Value>) -> Result<api::ZoneDetail, ApiError> {
    if change.is_empty() {
        return Err(ApiError::bad("give it a `rate`, a `limit` or a `burst`"));
    }
    let known = ["burst", "limit", "rate"];
    let mut nulls = change.iter().filter(|(_, value)| value.is_null());
    if let Some((name, _)) = nulls.find(|(name, _)| !known.contains(&name.as_str())) {
        return Err(ApiError::bad(format!("unknown key `{name}`")));
    }
    let changed = swap(call, |numbers| {
        numbers.extend(change.clone());
        numbers.retain(|_, value| !value.is_null());
    })?;
    let (zone, change) = (call.arg("zone"), Value::Object(change));
    tracing::warn!(zone, %change, "admin: zone changed until the next reload");
    detail(&changed, call)
}

/// Restores the numbers of the file.
fn restore(call: &ApiCall) -> Result<api::ZoneDetail, ApiError> {
    let restored = swap(call, Map::clear)?;
    let zone = call.arg("zone");
    tracing::warn!(zone, "admin: zone restored to the values of the file");
    detail(&restored, call)
}

/// Puts a generation in force that differs in the numbers of one zone.
fn swap(
    call: &ApiCall,
    change: impl Fn(&mut Map<String, Value>),
) -> Result<Arc<Generation>, ApiError> {
    let (generation, zone) = (&call.state.generation, call.arg("zone"));
    loop {
        let present = generation.load_full();
        find(&present, zone)?;
        let mut live_changes = present.live_changes.clone();
        change(
            live_changes
                .settings_by_zone
                .entry(zone.into())
                .or_default(),
        );
        live_changes
            .settings_by_zone
            .retain(|_, numbers| !numbers.is_empty());
        let plan = amended(&present, &live_changes)?;
        let next = Arc::new(present.amended(plan, live_changes));
        let seen = generation.compare_and_swap(&present, Arc::clone(&next));
        // Otherwise a reload was faster: its generation is changed then.
        if Arc::ptr_eq(&seen, &present) {
            return Ok(next);
        }
    }
}

/// The plan of the file with all changed numbers.
fn amended(generation: &Generation, live_changes: &LiveChanges) -> Result<Plan, ApiError> {
    let mut plan = (*live_changes.file).clone();
    for (zone, numbers) in &live_changes.settings_by_zone {
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
            // Unlimited: no rule applies.
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
