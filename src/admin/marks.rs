//! `/api/zones/ZONE/keys/KEY/block`, `…/exempt`, `…/grant`: what an operator wants of a key for a while.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::keys::no_key;
use super::reply::ApiError;
use super::zones::{self, ZoneRef};
use super::{body, route};
use crate::clock::Millis;
use crate::config::amend;
use crate::limits::{KeyAction, KeyActionEntry, MAX_KEY_ACTIONS, ParsedKey};
use crate::proxy::Generation;

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
    (zone, key, mark): (&str, &str, route::KeyActionKind),
    body: &[u8],
    now: Millis,
) -> Result<KeyActions, ApiError> {
    let wish: KeyActionRequest = body::parse(body)?;
    let found = zones::find(live, zone)?;
    let mark = match (mark, wish.requests) {
        (route::KeyActionKind::Block, None) => KeyAction::Block,
        (route::KeyActionKind::Exempt, None) => KeyAction::Exempt,
        (route::KeyActionKind::Grant, Some(requests @ 1..))
            if matches!(found, ZoneRef::Req(..)) =>
        {
            KeyAction::Grant(requests)
        }
        (route::KeyActionKind::Grant, _) if matches!(found, ZoneRef::Conn(..)) => {
            return Err(ApiError::conflict(
                "only a limit_req zone has requests to grant; `exempt` lifts the limit of this one",
            ));
        }
        (route::KeyActionKind::Grant, _) => {
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
    (zone, key, mark): (&str, &str, route::KeyActionKind),
    now: Millis,
) -> Result<KeyActions, ApiError> {
    let found = zones::find(live, zone)?;
    let mark = match mark {
        route::KeyActionKind::Block => KeyAction::Block,
        route::KeyActionKind::Exempt => KeyAction::Exempt,
        route::KeyActionKind::Grant => KeyAction::Grant(0),
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
