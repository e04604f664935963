//! `/api/zones`: the zones, the rules that use them, and what operators want of them.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;
use serde_json::{Map, Value};

use super::marks;
use super::reply::ApiError;
use super::zones::{self, ZoneRef, zones};
use crate::clock::Millis;
use crate::config::plan::{DryRun, Excess, LocationConf, Plan};
use crate::limits::ShadowZone;
use crate::proxy::Generation;

/// A zone as it is shown.
#[derive(Debug, Serialize)]
struct Zone<'a> {
    name: &'a str,
    kind: &'static str,
    algorithm: Option<&'static str>,
    rate: Option<String>,
    /// How many at once its rules give a key, in order; only a `limit_conn` zone has these.
    limits: Vec<u32>,
    keys: usize,
    capacity: usize,
    pass: u64,
    delay: u64,
    refuse: u64,
    evictions: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    penalties_dropped: Option<u64>,
    store: Option<&'a str>,
    r#override: Option<&'a Map<String, Value>>,
    /// How many keys are marked.
    marks: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    shadow: Option<ShadowCounts>,
}

/// One of them with all there is to know.
#[derive(Debug, Serialize)]
pub(super) struct Detail<'a> {
    #[serde(flatten)]
    zone: Zone<'a>,
    key: String,
    /// The rate in the file.
    configured: Option<String>,
    rules: Vec<Rule<'a>>,
    marked: Vec<marks::ActionRow>,
}

/// Where a zone is used.
#[derive(Debug, Serialize)]
struct Rule<'a> {
    server: &'a str,
    location: &'a str,
    burst: Option<f64>,
    limit: Option<u32>,
    dry_run: bool,
}

/// What limits that are only proposed say in a zone.
#[derive(Debug, Serialize)]
struct ShadowCounts {
    keys: usize,
    pass: u64,
    delay: u64,
    refuse: u64,
    /// Of those it would refuse, how many passed.
    refuses_passed: u64,
    /// Of those it would let pass, how many were refused.
    passes_refused: u64,
}

/// The limits of all `limit_conn` rules by their zone: one walk through the plan for all zones.
struct SlotCounts<'p>(HashMap<&'p str, BTreeSet<u32>>);

impl<'p> SlotCounts<'p> {
    fn of(plan: &'p Plan) -> Self {
        let mut found: HashMap<_, BTreeSet<u32>> = HashMap::new();
        for rule in plan.sites().flat_map(|site| &site.limit_conn) {
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
pub(super) fn list(live: &Generation) -> impl Serialize {
    let places = SlotCounts::of(&live.plan);
    zones(live)
        .map(|zone| shown(live, zone, &places))
        .collect::<Vec<_>>()
}

/// `GET /api/zones/{zone}`
pub(super) fn detail<'l>(
    live: &'l Generation,
    name: &str,
    now: Millis,
) -> Result<Detail<'l>, ApiError> {
    let found = zones::find(live, name)?;
    let zone = zones(live).find(|zone| zone.name == name);
    let zone = shown(
        live,
        zone.ok_or_else(|| ApiError::missing("it has just gone"))?,
        &SlotCounts::of(&live.plan),
    );
    let plan = &live.plan;
    Ok(Detail {
        configured: match found {
            ZoneRef::Conn(..) => None,
            ZoneRef::Req(index, _) => {
                Some(live.amendment.file.req_zones[index].algorithm.to_string())
            }
        },
        zone,
        key: found.key(plan),
        rules: rules(plan, found),
        marked: found
            .watch()
            .marks(now)
            .iter()
            .map(|marked| marks::shown(marked, now))
            .collect(),
    })
}

fn shown<'l>(
    live: &'l Generation,
    zone: zones::ZoneSnapshot<'l>,
    places: &SlotCounts<'_>,
) -> Zone<'l> {
    Zone {
        name: zone.name,
        kind: if zone.algorithm.is_some() {
            "limit_req"
        } else {
            "limit_conn"
        },
        algorithm: zone.algorithm.map(|algorithm| algorithm.name()),
        rate: zone.algorithm.map(|algorithm| algorithm.to_string()),
        limits: match zone.algorithm {
            Some(_) => Vec::new(),
            None => places.in_zone(zone.name),
        },
        keys: zone.keys,
        capacity: zone.capacity,
        pass: zone.counts.pass,
        delay: zone.counts.delay,
        refuse: zone.counts.refuse,
        evictions: zone.counts.evictions,
        penalties_dropped: zone.penalties_dropped,
        store: zone.store,
        r#override: live.amendment.numbers.get(zone.name),
        marks: zone.watch.marked(),
        shadow: zone.shadow.map(shadow),
    }
}

fn shadow(shadow: &ShadowZone) -> ShadowCounts {
    let store = &shadow.zone.store;
    let (counts, differs) = (store.counts(), shadow.differs());
    ShadowCounts {
        keys: store.len(),
        pass: counts.pass,
        delay: counts.delay,
        refuse: counts.refuse,
        refuses_passed: differs.refuse,
        passes_refused: differs.pass,
    }
}

/// Where a zone is used.
fn rules<'p>(plan: &'p Plan, zone: ZoneRef<'_>) -> Vec<Rule<'p>> {
    let mut found = Vec::new();
    for server in &plan.servers {
        let locations = server.locations.iter().map(|it| (&*it.path.text, &it.site));
        for (location, site) in locations.chain([("", &server.fallback)]) {
            for (burst, limit, dry_run) in uses(site, zone) {
                found.push(Rule {
                    server: &server.name,
                    location,
                    burst,
                    limit,
                    dry_run: dry_run == DryRun::On,
                });
            }
        }
    }
    found.truncate(MOST_RULES);
    found
}

/// The numbers of a site's rules that use a zone.
fn uses(site: &LocationConf, zone: ZoneRef<'_>) -> Vec<(Option<f64>, Option<u32>, DryRun)> {
    match zone {
        ZoneRef::Conn(index, _) => {
            let rules = site.limit_conn.iter().filter(|rule| rule.zone == index);
            let dry_run = site.limit_conn_dry_run;
            rules
                .map(|rule| (None, Some(rule.limit), dry_run))
                .collect()
        }
        ZoneRef::Req(index, _) => {
            let rules = site.limit_req.iter().filter(|rule| rule.zone == index);
            let burst = |burst: Excess| burst.0 as f64 / Excess::ONE.0 as f64;
            let dry_run = site.limit_req_dry_run;
            rules
                .map(|rule| (Some(burst(rule.burst)), None, dry_run))
                .collect()
        }
    }
}

/// Nobody reads on.
const MOST_RULES: usize = 1000;
