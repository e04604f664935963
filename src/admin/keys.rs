//! `/api/zones/ZONE/keys`: who is busy, where one stands, and letting one begin anew.
//!
//! `/api/zones/ZONE/keys/KEY/block`, `…/exempt`, `…/grant`: what an operator wants of a key for a while.

use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::endpoints::{ApiError, parameter};
use super::zones::ZoneRef;
use super::{endpoints, zones};
use crate::algorithm;
use crate::clock::Millis;
use crate::config::amend;
use crate::limits::{KeyAction, KeyActionEntry, KeyState, MAX_KEY_ACTIONS, ParsedKey, TopKeyRow};
use crate::proxy::Generation;
use crate::store::{KeyRates, ZoneCounts};

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

impl From<&algorithm::KeyStatus> for KeyLevel {
    fn from(standing: &algorithm::KeyStatus) -> Self {
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

/// A mark as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct ActionRow {
    key: Box<str>,
    mark: &'static str,
    seconds: f64,
    requests: Option<u64>,
    reason: Option<Box<str>>,
}

/// All on one key.
#[derive(Debug, Serialize)]
pub(super) struct KeyActions {
    key: String,
    marks: Vec<ActionRow>,
}

/// What is asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyActionRequest {
    r#for: Option<TimeOrText>,
    reason: Option<String>,
    requests: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TimeOrText {
    Seconds(u64),
    Text(String),
}

/// `PUT /api/zones/{zone}/keys/{key}/{mark}`
pub(super) fn put(
    live: &Generation,
    (zone, key, mark): (&str, &str, endpoints::KeyActionKind),
    body: &[u8],
    now: Millis,
) -> Result<KeyActions, ApiError> {
    let wish: KeyActionRequest = endpoints::parse(body)?;
    let found = zones::find(live, zone)?;
    let mark = match (mark, wish.requests) {
        (endpoints::KeyActionKind::Block, None) => KeyAction::Block,
        (endpoints::KeyActionKind::Exempt, None) => KeyAction::Exempt,
        (endpoints::KeyActionKind::Grant, Some(requests @ 1..))
            if matches!(found, ZoneRef::Req(..)) =>
        {
            KeyAction::Grant(requests)
        }
        (endpoints::KeyActionKind::Grant, _) if matches!(found, ZoneRef::Conn(..)) => {
            return Err(ApiError::conflict(
                "only a limit_req zone has requests to grant; `exempt` lifts the limit of this one",
            ));
        }
        (endpoints::KeyActionKind::Grant, _) => {
            return Err(ApiError::bad("a grant takes `requests`, at least 1"));
        }
        (_, Some(_)) => return Err(ApiError::bad("`requests` is for a grant")),
    };
    let reason = wish.reason.map(String::into_boxed_str);
    if reason.as_ref().is_some_and(|it| it.len() > LONGEST_REASON) {
        return Err(ApiError::bad(format!(
            "the reason is longer than {LONGEST_REASON} bytes"
        )));
    }
    let until = now.after(time(wish.r#for)?);
    let (readings, spelled) = read(live, found, zone, key)?;
    for reading in &readings {
        let marked = KeyActionEntry {
            key: spelled.as_str().into(),
            mark,
            until,
            reason: reason.clone(),
        };
        found.watch().put(&reading.key, marked, now).map_err(|_| {
            ApiError::conflict(format!(
                "{MAX_KEY_ACTIONS} keys of the zone `{zone}` are marked already"
            ))
        })?;
    }
    tracing::warn!(
        zone,
        key = spelled,
        mark = mark.as_str(),
        ?reason,
        "admin: key marked"
    );
    Ok(on_key(found, &readings, spelled, now))
}

/// `DELETE /api/zones/{zone}/keys/{key}/{mark}`
pub(super) fn remove(
    live: &Generation,
    (zone, key, mark): (&str, &str, endpoints::KeyActionKind),
    now: Millis,
) -> Result<KeyActions, ApiError> {
    let found = zones::find(live, zone)?;
    let mark = match mark {
        endpoints::KeyActionKind::Block => KeyAction::Block,
        endpoints::KeyActionKind::Exempt => KeyAction::Exempt,
        endpoints::KeyActionKind::Grant => KeyAction::Grant(0),
    };
    let (readings, spelled) = read(live, found, zone, key)?;
    let mut removed = false;
    for reading in &readings {
        removed |= found.watch().remove(&reading.key, mark);
    }
    if removed {
        tracing::warn!(
            zone,
            key = spelled,
            mark = mark.as_str(),
            "admin: mark taken off"
        );
    }
    Ok(on_key(found, &readings, spelled, now))
}

/// A mark as it is shown now.
pub(super) fn shown(marked: &KeyActionEntry, now: Millis) -> ActionRow {
    ActionRow {
        key: marked.key.clone(),
        mark: marked.mark.as_str(),
        seconds: marked.until.since(now).as_secs_f64(),
        requests: match marked.mark {
            KeyAction::Grant(left) => Some(left),
            KeyAction::Block | KeyAction::Exempt => None,
        },
        reason: marked.reason.clone(),
    }
}

/// What a text stands for, and how that is spelled.
fn read(
    live: &Generation,
    found: ZoneRef<'_>,
    zone: &str,
    key: &str,
) -> Result<(Vec<ParsedKey>, String), ApiError> {
    let readings = match found {
        ZoneRef::Conn(_, zone) => zone.read(key),
        ZoneRef::Req(_, zone) => zone.read(key),
    };
    let first = readings.first().ok_or_else(|| no_key(live, zone, key))?;
    let bytes = first.bytes.as_deref();
    let spelled = match found {
        ZoneRef::Conn(_, zone) => zone.spell(&first.key, bytes),
        ZoneRef::Req(_, zone) => zone.spell(&first.key, bytes),
    };
    Ok((readings, spelled))
}

fn on_key(found: ZoneRef<'_>, readings: &[ParsedKey], key: String, now: Millis) -> KeyActions {
    let first = readings.first();
    let marks = first.map(|it| found.watch().marks_on(&it.key, now));
    KeyActions {
        key,
        marks: marks.iter().flatten().map(|it| shown(it, now)).collect(),
    }
}

fn time(given: Option<TimeOrText>) -> Result<Duration, ApiError> {
    let time = match given {
        None => return Ok(DEFAULT),
        Some(TimeOrText::Seconds(seconds)) => Duration::from_secs(seconds),
        Some(TimeOrText::Text(text)) => amend::time(&text).map_err(ApiError::bad)?,
    };
    match time {
        Duration::ZERO => Err(ApiError::bad("a time of nothing has no meaning here")),
        time if time > LONGEST => Err(ApiError::bad("the longest time is 365d")),
        time => Ok(time),
    }
}

const DEFAULT: Duration = Duration::from_secs(3600);
const LONGEST: Duration = Duration::from_secs(365 * 86_400);
const LONGEST_REASON: usize = 200;
