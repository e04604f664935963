//! `/api/zones/ZONE/keys/KEY/block`, `…/exempt`, `…/grant`: what an operator wants of a key for a while.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::keys::no_key;
use super::reply::Problem;
use super::zones::{self, Named};
use super::{body, route};
use crate::clock::Millis;
use crate::config::amend;
use crate::limits::{MOST_MARKED, Mark, Marked, Reading};
use crate::proxy::Live;

/// A mark as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    key: Box<str>,
    mark: &'static str,
    seconds: f64,
    requests: Option<u64>,
    reason: Option<Box<str>>,
}

/// All on one key.
#[derive(Debug, Serialize)]
pub(super) struct OnKey {
    key: String,
    marks: Vec<Shown>,
}

/// What is asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    r#for: Option<Time>,
    reason: Option<String>,
    requests: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Time {
    Seconds(u64),
    Text(String),
}

/// `PUT /api/zones/{zone}/keys/{key}/{mark}`
pub(super) fn put(
    live: &Live,
    (zone, key, mark): (&str, &str, route::Mark),
    body: &[u8],
    now: Millis,
) -> Result<OnKey, Problem> {
    let wish: Wish = body::parse(body)?;
    let found = zones::find(live, zone)?;
    let mark = match (mark, wish.requests) {
        (route::Mark::Block, None) => Mark::Block,
        (route::Mark::Exempt, None) => Mark::Exempt,
        (route::Mark::Grant, Some(requests @ 1..)) if matches!(found, Named::Req(..)) => {
            Mark::Grant(requests)
        }
        (route::Mark::Grant, _) if matches!(found, Named::Conn(..)) => {
            return Err(Problem::conflict(
                "only a limit_req zone has requests to grant; `exempt` lifts the limit of this one",
            ));
        }
        (route::Mark::Grant, _) => {
            return Err(Problem::bad("a grant takes `requests`, at least 1"));
        }
        (_, Some(_)) => return Err(Problem::bad("`requests` is for a grant")),
    };
    let reason = wish.reason.map(String::into_boxed_str);
    if reason.as_ref().is_some_and(|it| it.len() > LONGEST_REASON) {
        return Err(Problem::bad(format!(
            "the reason is longer than {LONGEST_REASON} bytes"
        )));
    }
    let until = now.after(time(wish.r#for)?);
    let (readings, spelled) = read(live, found, zone, key)?;
    for reading in &readings {
        let marked = Marked {
            key: spelled.as_str().into(),
            mark,
            until,
            reason: reason.clone(),
        };
        found.watch().put(&reading.key, marked, now).map_err(|_| {
            Problem::conflict(format!(
                "{MOST_MARKED} keys of the zone `{zone}` are marked already"
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
    live: &Live,
    (zone, key, mark): (&str, &str, route::Mark),
    now: Millis,
) -> Result<OnKey, Problem> {
    let found = zones::find(live, zone)?;
    let mark = match mark {
        route::Mark::Block => Mark::Block,
        route::Mark::Exempt => Mark::Exempt,
        route::Mark::Grant => Mark::Grant(0),
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
pub(super) fn shown(marked: &Marked, now: Millis) -> Shown {
    Shown {
        key: marked.key.clone(),
        mark: marked.mark.as_str(),
        seconds: marked.until.since(now).as_secs_f64(),
        requests: match marked.mark {
            Mark::Grant(left) => Some(left),
            Mark::Block | Mark::Exempt => None,
        },
        reason: marked.reason.clone(),
    }
}

/// What a text stands for, and how that is spelled.
fn read(
    live: &Live,
    found: Named<'_>,
    zone: &str,
    key: &str,
) -> Result<(Vec<Reading>, String), Problem> {
    let readings = match found {
        Named::Conn(_, zone) => zone.read(key),
        Named::Req(_, zone) => zone.read(key),
    };
    let first = readings.first().ok_or_else(|| no_key(live, zone, key))?;
    let bytes = first.bytes.as_deref();
    let spelled = match found {
        Named::Conn(_, zone) => zone.spell(&first.key, bytes),
        Named::Req(_, zone) => zone.spell(&first.key, bytes),
    };
    Ok((readings, spelled))
}

fn on_key(found: Named<'_>, readings: &[Reading], key: String, now: Millis) -> OnKey {
    let first = readings.first();
    let marks = first.map(|it| found.watch().marks_on(&it.key, now));
    OnKey {
        key,
        marks: marks.iter().flatten().map(|it| shown(it, now)).collect(),
    }
}

fn time(given: Option<Time>) -> Result<Duration, Problem> {
    let time = match given {
        None => return Ok(DEFAULT),
        Some(Time::Seconds(seconds)) => Duration::from_secs(seconds),
        Some(Time::Text(text)) => amend::time(&text).map_err(Problem::bad)?,
    };
    match time {
        Duration::ZERO => Err(Problem::bad("a time of nothing has no meaning here")),
        time if time > LONGEST => Err(Problem::bad("the longest time is 365d")),
        time => Ok(time),
    }
}

const DEFAULT: Duration = Duration::from_secs(3600);
const LONGEST: Duration = Duration::from_secs(365 * 86_400);
const LONGEST_REASON: usize = 200;
