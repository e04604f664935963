//! `/api/zones/ZONE/keys`: a zone's busy keys, the state of one and its reset; below it `KEY/block`, `KEY/exempt` and
//! `KEY/grant`: what operators put on a key for a time.

use std::time::Duration;

use http::StatusCode;

use super::endpoints::{ApiError, parameter};
use super::zones::ZoneRef;
use super::{endpoints, zones};
use crate::algorithm;
use crate::api::{
    self, KeyActionRequest, KeyActions, KeyReset, KeySort, KeyStatus, TimeOrText, TopKey,
    VerdictCounts, VerdictRates,
};
use crate::clock::Millis;
use crate::config::amend;
use crate::limits::{KeyAction, KeyActionEntry, KeyState, MAX_KEY_ACTIONS, ParsedKey, TopKeyRow};
use crate::proxy::Generation;
use crate::store::{KeyRates, ZoneCounts};

/// `GET /api/zones/{zone}/keys`
pub(super) fn list(
    generation: &Generation,
    zone: &str,
    query: Option<&str>,
    now: Millis,
) -> Result<Vec<TopKey>, ApiError> {
    let rank = rank(parameter(query, "sort").as_deref())?;
    let limit = number(query, "limit", 20)?;
    let mut found = match zones::find(generation, zone)? {
        ZoneRef::Conn(_, zone) => zone.busiest(now),
        ZoneRef::Req(index, zone) => zone.busiest(zones::burst(generation, index), now),
    };
    // Of equals, the one that is first in the alphabet: two looks at the same thing are the same.
    found.sort_by(|one, other| {
        let pairs = rank(other).into_iter().zip(rank(one));
        let mut by_rank = pairs.map(|(other, one)| other.total_cmp(&one));
        let differs = by_rank.find(|order| order.is_ne());
        differs.unwrap_or_else(|| one.key.cmp(&other.key))
    });
    found.truncate(limit);
    let busy = found.into_iter().map(|counted| TopKey {
        key: counted.key,
        verdicts: verdicts(counted.counts),
        per_second: rates(counted.pace),
        excess: rounded(counted.excess),
        missed: counted.missed,
        mark: counted.mark.map(Into::into),
    });
    Ok(busy.collect())
}

/// `GET /api/zones/{zone}/keys/{key}`
pub(super) fn look(
    generation: &Generation,
    zone: &str,
    key: &str,
    now: Millis,
) -> Result<api::KeyState, ApiError> {
    let state = match zones::find(generation, zone)? {
        ZoneRef::Conn(index, zone) => zone.inspect(key, zones::limit(generation, index), now),
        ZoneRef::Req(index, zone) => zone.inspect(key, zones::burst(generation, index), now),
    };
    state
        .map(|state| report(state, now))
        .ok_or_else(|| no_key(generation, zone, key))
}

/// `DELETE /api/zones/{zone}/keys/{key}`
pub(super) async fn forget(
    generation: &Generation,
    zone: &str,
    key: &str,
) -> Result<KeyReset, ApiError> {
    let ZoneRef::Req(_, found) = zones::find(generation, zone)? else {
        return Err(ApiError::conflict(
            "the places of a limit_conn zone belong to requests in progress: there is nothing to forget",
        ));
    };
    let readings = found.read(key);
    let first = readings
        .first()
        .ok_or_else(|| no_key(generation, zone, key))?;
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

fn report(state: KeyState, now: Millis) -> api::KeyState {
    let counted = state.counted;
    api::KeyState {
        key: counted.key,
        known: state.known,
        listed: state.listed,
        verdicts: verdicts(counted.counts),
        per_second: rates(counted.pace),
        missed: counted.missed,
        excess: rounded(counted.excess),
        key_status: status(&state.key_status),
        own: state.own,
        penalty: state.penalty.map(|left| left.as_secs_f64()),
        marks: state.marks.iter().map(|it| shown(it, now)).collect(),
        shared: state.shared,
    }
}

/// The verdicts among the counts of a zone.
pub(super) fn verdicts(counts: ZoneCounts) -> VerdictCounts {
    VerdictCounts {
        pass: counts.pass,
        delay: counts.delay,
        refuse: counts.refuse,
    }
}

fn rates(pace: KeyRates) -> VerdictRates {
    VerdictRates {
        pass: rounded(pace.pass),
        delay: rounded(pace.delay),
        refuse: rounded(pace.refuse),
    }
}

/// The status of a key as it is shown.
pub(super) fn status(status: &algorithm::KeyStatus) -> KeyStatus {
    KeyStatus {
        limit: status.limit,
        remaining: status.remaining,
        excess: status.excess.milli() as f64 / 1000.0,
        retry_after: status.retry_after.as_secs_f64(),
        reset_after: status.reset_after.as_secs_f64(),
    }
}

/// What to say of a text that is no key of a zone.
pub(super) fn no_key(generation: &Generation, zone: &str, key: &str) -> ApiError {
    let keys = zones::find(generation, zone)
        .map_or_else(|_| String::new(), |zone| zone.key(&generation.plan));
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

/// The numbers that keys are sorted by: the first, of equals the next.
fn rank(sort: Option<&str>) -> Result<fn(&TopKeyRow) -> [f64; 4], ApiError> {
    let word = sort.unwrap_or(KeySort::Refuse.as_str());
    let Some(sort) = KeySort::ALL.into_iter().find(|sort| sort.as_str() == word) else {
        let words = KeySort::ALL.map(KeySort::as_str).join(", ");
        return Err(ApiError::bad(format!(
            "`{word}` is nothing to sort by: one of {words}"
        )));
    };
    Ok(match sort {
        KeySort::Delay => |it| [it.counts.delay as f64, 0.0, 0.0, 0.0],
        KeySort::Demand => |it| [verdicts(it.counts).total() as f64, 0.0, 0.0, 0.0],
        KeySort::Excess => |it| [it.excess, 0.0, 0.0, 0.0],
        KeySort::Now => |it| {
            let KeyRates { delay, refuse, .. } = it.pace;
            [refuse, delay, it.pace.demand(), it.counts.refuse as f64]
        },
        KeySort::Pass => |it| [it.counts.pass as f64, 0.0, 0.0, 0.0],
        KeySort::Refuse => |it| [it.counts.refuse as f64, 0.0, 0.0, 0.0],
    })
}

/// In thousandths, as everywhere.
fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// `PUT /api/zones/{zone}/keys/{key}/{mark}`
pub(super) fn put(
    generation: &Generation,
    (zone, key, mark): (&str, &str, endpoints::KeyActionKind),
    body: &[u8],
    now: Millis,
) -> Result<KeyActions, ApiError> {
    let wish: KeyActionRequest = endpoints::parse(body)?;
    let found = zones::find(generation, zone)?;
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
    let (readings, spelled) = read(generation, found, zone, key)?;
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
    generation: &Generation,
    (zone, key, mark): (&str, &str, endpoints::KeyActionKind),
    now: Millis,
) -> Result<KeyActions, ApiError> {
    let found = zones::find(generation, zone)?;
    let mark = match mark {
        endpoints::KeyActionKind::Block => KeyAction::Block,
        endpoints::KeyActionKind::Exempt => KeyAction::Exempt,
        endpoints::KeyActionKind::Grant => KeyAction::Grant(0),
    };
    let (readings, spelled) = read(generation, found, zone, key)?;
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
pub(super) fn shown(marked: &KeyActionEntry, now: Millis) -> api::KeyAction {
    api::KeyAction {
        key: marked.key.to_string(),
        mark: marked.mark.as_str().into(),
        seconds: marked.until.since(now).as_secs_f64(),
        requests: match marked.mark {
            KeyAction::Grant(left) => Some(left),
            KeyAction::Block | KeyAction::Exempt => None,
        },
        reason: marked.reason.as_deref().map(str::to_owned),
    }
}

/// What a text stands for, and how that is spelled.
fn read(
    generation: &Generation,
    found: ZoneRef<'_>,
    zone: &str,
    key: &str,
) -> Result<(Vec<ParsedKey>, String), ApiError> {
    let readings = match found {
        ZoneRef::Conn(_, zone) => zone.read(key),
        ZoneRef::Req(_, zone) => zone.read(key),
    };
    let first = readings
        .first()
        .ok_or_else(|| no_key(generation, zone, key))?;
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
