//! `/api/zones/ZONE/keys`: who is busy, where one stands, and letting one begin anew.

use http::StatusCode;
use serde::Serialize;

use super::marks::{ActionRow, shown};
use super::reply::ApiError;
use super::route::parameter;
use super::zones::{self, ZoneRef};
use crate::clock::Millis;
use crate::limits::{KeyState, TopKeyRow};
use crate::proxy::Generation;
use crate::store::ZoneCounts;
use crate::store::busiest::KeyRates;

/// A busy key as it is shown.
#[derive(Debug, Serialize)]
struct KeyRow {
    key: String,
    pass: u64,
    delay: u64,
    refuse: u64,
    per_second: KeyPace,
    excess: f64,
    missed: u64,
    mark: Option<&'static str>,
}

/// What it was told of late.
#[derive(Debug, Serialize)]
struct KeyPace {
    pass: f64,
    delay: f64,
    refuse: f64,
}

/// Where one stands, as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct KeyReport {
    key: String,
    known: bool,
    listed: bool,
    pass: u64,
    delay: u64,
    refuse: u64,
    per_second: KeyPace,
    missed: u64,
    excess: f64,
    standing: KeyLevel,
    own: Option<String>,
    penalty: Option<f64>,
    marks: Vec<ActionRow>,
    shared: bool,
}

/// In whole requests, thousandths of requests, and seconds.
#[derive(Debug, Serialize)]
pub(super) struct KeyLevel {
    limit: u64,
    remaining: u64,
    excess: f64,
    retry_after: f64,
    reset_after: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct KeyReset {
    key: String,
    forgotten: bool,
}

/// `GET /api/zones/{zone}/keys`
pub(super) fn list(
    live: &Generation,
    zone: &str,
    query: Option<&str>,
    now: Millis,
) -> Result<impl Serialize + use<>, ApiError> {
    let rank = rank(parameter(query, "sort").as_deref())?;
    let limit = number(query, "limit", 20)?;
    let mut found = match zones::find(live, zone)? {
        ZoneRef::Conn(_, zone) => zone.busiest(now),
        ZoneRef::Req(index, zone) => zone.busiest(zones::burst(live, index), now),
    };
    // Of equals, the one that is first in the alphabet: two looks at the same thing are the same.
    found.sort_by(|one, other| {
        let pairs = rank(other).into_iter().zip(rank(one));
        let mut by_rank = pairs.map(|(other, one)| other.total_cmp(&one));
        let differs = by_rank.find(|order| order.is_ne());
        differs.unwrap_or_else(|| one.key.cmp(&other.key))
    });
    found.truncate(limit);
    let busy = found.into_iter().map(|counted| KeyRow {
        key: counted.key,
        pass: counted.counts.pass,
        delay: counted.counts.delay,
        refuse: counted.counts.refuse,
        per_second: counted.pace.into(),
        excess: rounded(counted.excess),
        missed: counted.missed,
        mark: counted.mark,
    });
    Ok(busy.collect::<Vec<_>>())
}

/// `GET /api/zones/{zone}/keys/{key}`
pub(super) fn look(
    live: &Generation,
    zone: &str,
    key: &str,
    now: Millis,
) -> Result<KeyReport, ApiError> {
    let state = match zones::find(live, zone)? {
        ZoneRef::Conn(index, zone) => zone.inspect(key, zones::limit(live, index), now),
        ZoneRef::Req(index, zone) => zone.inspect(key, zones::burst(live, index), now),
    };
    state
        .map(|state| KeyReport::new(state, now))
        .ok_or_else(|| no_key(live, zone, key))
}

/// `DELETE /api/zones/{zone}/keys/{key}`
pub(super) async fn forget(live: &Generation, zone: &str, key: &str) -> Result<KeyReset, ApiError> {
    let ZoneRef::Req(_, found) = zones::find(live, zone)? else {
        return Err(ApiError::conflict(
            "the places of a limit_conn zone belong to requests in progress: there is nothing to forget",
        ));
    };
    let readings = found.read(key);
    let first = readings.first().ok_or_else(|| no_key(live, zone, key))?;
    let shown = found.spell(&first.key, first.bytes.as_deref());
    let mut forgotten = false;
    for reading in &readings {
        if let Some(store) = found.shared() {
            let Some(bytes) = &reading.bytes else {
                return Err(ApiError::conflict(format!(
                    "the zone `{zone}` is shared through a store, where nobody knows a key by its number"
                )));
            };
            forgotten |= store.forget(zone, bytes).await.map_err(|why| {
                let why = format!("the store `{}` does not answer: {why}", store.name());
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why)
            })?;
        }
        forgotten |= found.forget(&reading.key);
    }
    tracing::warn!(zone, key = shown, "admin: key forgotten");
    Ok(KeyReset {
        key: shown,
        forgotten,
    })
}

impl KeyReport {
    fn new(state: KeyState, now: Millis) -> Self {
        let counted = state.counted;
        let standing = state.standing;
        Self {
            key: counted.key,
            known: state.known,
            listed: state.listed,
            pass: counted.counts.pass,
            delay: counted.counts.delay,
            refuse: counted.counts.refuse,
            per_second: counted.pace.into(),
            missed: counted.missed,
            excess: rounded(counted.excess),
            standing: KeyLevel::from(&standing),
            own: state.own,
            penalty: state.penalty.map(|left| left.as_secs_f64()),
            marks: state.marks.iter().map(|it| shown(it, now)).collect(),
            shared: state.shared,
        }
    }
}

impl From<KeyRates> for KeyPace {
    fn from(pace: KeyRates) -> Self {
        Self {
            pass: rounded(pace.pass),
            delay: rounded(pace.delay),
            refuse: rounded(pace.refuse),
        }
    }
}

impl From<&crate::store::algorithm::KeyStatus> for KeyLevel {
    fn from(standing: &crate::store::algorithm::KeyStatus) -> Self {
        Self {
            limit: standing.limit,
            remaining: standing.remaining,
            excess: standing.excess.milli() as f64 / 1000.0,
            retry_after: standing.retry_after.as_secs_f64(),
            reset_after: standing.reset_after.as_secs_f64(),
        }
    }
}

/// What to say of a text that is no key of a zone.
pub(super) fn no_key(live: &Generation, zone: &str, key: &str) -> ApiError {
    let keys = zones::find(live, zone).map_or_else(|_| String::new(), |zone| zone.key(&live.plan));
    ApiError::bad(format!(
        "`{key}` is no key of the zone `{zone}`, whose key is `{keys}`"
    ))
}

/// A number in a query.
pub(super) fn number(query: Option<&str>, name: &str, default: usize) -> Result<usize, ApiError> {
    match parameter(query, name).map(|text| text.parse()) {
        None => Ok(default),
        Some(Ok(number @ 1..=1000)) => Ok(number),
        Some(_) => Err(ApiError::bad(format!(
            "`{name}` is a number from 1 to 1000"
        ))),
    }
}

/// By what keys are sorted: by the first number, of equals by the next.
fn rank(sort: Option<&str>) -> Result<fn(&TopKeyRow) -> [f64; 4], ApiError> {
    Ok(match sort.unwrap_or("refuse") {
        "delay" => |it| [it.counts.delay as f64, 0.0, 0.0, 0.0],
        "demand" => |it| {
            let ZoneCounts {
                pass,
                delay,
                refuse,
                ..
            } = it.counts;
            [(pass + delay + refuse) as f64, 0.0, 0.0, 0.0]
        },
        "excess" => |it| [it.excess, 0.0, 0.0, 0.0],
        "now" => |it| {
            let KeyRates { delay, refuse, .. } = it.pace;
            [refuse, delay, it.pace.demand(), it.counts.refuse as f64]
        },
        "pass" => |it| [it.counts.pass as f64, 0.0, 0.0, 0.0],
        "refuse" => |it| [it.counts.refuse as f64, 0.0, 0.0, 0.0],
        other => {
            return Err(ApiError::bad(format!(
                "`{other}` is nothing to sort by: one of now, refuse, pass, delay, excess, demand"
            )));
        }
    })
}

/// In thousandths, as everywhere.
fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}
