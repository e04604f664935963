//! `/api/zones/ZONE/keys`: a zone's busy keys, the state of one and its reset; below it `KEY/block`, `KEY/exempt` and
//! `KEY/grant`: what operators put on a key for a time.

use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::json;

use super::endpoints::{ApiCall, ApiFuture, Endpoint, JSON};
use super::response::{self, ApiError, ApiResponse};
use super::zones::{self, ZoneRef};
use crate::algorithm;
use crate::api::{
    self, KeyActionRequest, KeyActions, KeyReset, KeySort, KeyStatus, NumberOrText, Schemas,
    TopKey, VerdictCounts, VerdictRates,
};
use crate::config::amend;
use crate::limits::{KeyAction, KeyActionEntry, MAX_KEY_ACTIONS, ParsedKey, TopKeyRow};
use crate::store::KeyRates;

pub(super) fn endpoints() -> Vec<Endpoint> {
    let sort = "The order, the largest first. now: requests refused a second of late; among equals delayed, then all. \
                Default: refuse.";
    let sorts: Vec<_> = KeySort::ALL.iter().map(|sort| sort.as_str()).collect();
    let mut endpoints = vec![
        Endpoint::get(
            "/api/zones/{zone}/keys",
            "Its busiest or most refused keys",
            list,
        )
        .query("sort", sort, json!({ "type": "string", "enum": sorts }))
        .limit("The maximum number of keys. Default: 20."),
        Endpoint::get("/api/zones/{zone}/keys/{key}", "The state of one key", show)
            .error(400, "Not a key of this zone."),
        Endpoint::task(
            "/api/zones/{zone}/keys/{key}",
            "Reset a key and its penalty",
            reset,
        )
        .changes(Method::DELETE)
        .response(200, "OK", JSON, Schemas::response::<KeyReset>)
        .error(409, "The zone cannot reset keys.")
        .error(503, "The zone's store is unavailable."),
    ];
    for (path, summary, kind) in [
        (
            "/api/zones/{zone}/keys/{key}/block",
            "Refuse every request of a key for a time",
            KeyAction::Block,
        ),
        (
            "/api/zones/{zone}/keys/{key}/exempt",
            "Do not limit a key for a time",
            KeyAction::Exempt,
        ),
        (
            "/api/zones/{zone}/keys/{key}/grant",
            "Grant a key a number of additional requests",
            KeyAction::Grant(0),
        ),
    ] {
        let put = move |call: &ApiCall, body| put(call, body, kind);
        let put = Endpoint::change_to(Method::PUT, path, summary, put)
            .error(409, "The zone has no room for it, or no requests to grant.");
        endpoints.push(match kind {
            KeyAction::Grant(_) => put,
            KeyAction::Block | KeyAction::Exempt => put.optional_body(),
        });
        let remove = move |call: &ApiCall| remove(call, kind);
        let remove = Endpoint::change(Method::DELETE, path, "Revoke that", remove);
        endpoints.push(remove);
    }
    endpoints
}

fn list(call: &ApiCall) -> Result<Vec<TopKey>, ApiError> {
    let (generation, now) = (&call.generation, call.now);
    let rank = rank(call.query("sort").as_deref())?;
    let limit = call.limit(20)?;
    let mut rows = match zones::find(generation, call.arg("zone"))? {
        ZoneRef::Conn(_, zone) => zone.busiest(now),
        ZoneRef::Req(index, zone) => zone.busiest(zones::burst(generation, index), now),
    };
    // Equals in the alphabet's order: the list does not change while the state does not.
    rows.sort_by(|one, other| {
        let pairs = rank(other).into_iter().zip(rank(one));
        let mut by_rank = pairs.map(|(other, one)| other.total_cmp(&one));
        let differs = by_rank.find(|order| order.is_ne());
        differs.unwrap_or_else(|| one.key.cmp(&other.key))
    });
    rows.truncate(limit);
    let keys = rows.into_iter().map(|row| TopKey {
        key: row.key,
        verdicts: row.counts.into(),
        per_second: rates(row.pace),
        excess: rounded(row.excess),
        missed: row.missed,
        mark: row.action.map(Into::into),
    });
    Ok(keys.collect())
}

fn show(call: &ApiCall) -> Result<api::KeyState, ApiError> {
    let (generation, key, now) = (&call.generation, call.arg("key"), call.now);
    let state = match zones::find(generation, call.arg("zone"))? {
        ZoneRef::Conn(index, zone) => zone.inspect(key, zones::limit(generation, index), now),
        ZoneRef::Req(index, zone) => zone.inspect(key, zones::burst(generation, index), now),
    };
    let state = state.ok_or_else(|| no_key(call))?;
    let row = state.row;
    Ok(api::KeyState {
        key: row.key,
        known: state.known,
        listed: state.listed,
        verdicts: row.counts.into(),
        per_second: rates(row.pace),
        missed: row.missed,
        excess: rounded(row.excess),
        key_status: (&state.key_status).into(),
        own: state.own,
        penalty: state.penalty.map(|left| left.as_secs_f64()),
        marks: shown(&state.actions, call),
        shared: state.shared,
    })
}

fn reset(call: &ApiCall) -> ApiFuture<'_, ApiResponse> {
    Box::pin(async { Ok(response::json(&reset_key(call).await?)) })
}

async fn reset_key(call: &ApiCall) -> Result<KeyReset, ApiError> {
    let zone = call.arg("zone");
    let found = zones::find(&call.generation, zone)?;
    let ZoneRef::Req(_, req_zone) = found else {
        return Err(ApiError::conflict(
            "the places of a limit_conn zone belong to requests in progress and cannot be reset",
        ));
    };
    let (parsed, key) = parse(call, found)?;
    let mut forgotten = false;
    for ParsedKey { key, bytes } in &parsed {
        if let Some(store) = &req_zone.shared {
            let Some(bytes) = bytes else {
                return Err(ApiError::conflict(format!(
                    "the zone `{zone}` is shared through a store, which does not know keys by their number"
                )));
            };
            forgotten |= store.forget(zone, bytes).await.map_err(|error| {
                let error = format!("the store `{}` is unavailable: {error}", store.handle.name);
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error)
            })?;
        }
        forgotten |= req_zone.forget(key);
    }
    tracing::warn!(zone, key, "admin: key reset");
    Ok(KeyReset { key, forgotten })
}

fn rates(rates: KeyRates) -> VerdictRates {
    VerdictRates {
        pass: rounded(rates.pass),
        delay: rounded(rates.delay),
        refuse: rounded(rates.refuse),
    }
}

impl From<&algorithm::KeyStatus> for KeyStatus {
    fn from(status: &algorithm::KeyStatus) -> Self {
        Self {
            limit: status.limit,
            remaining: status.remaining,
            excess: status.excess.milli() as f64 / 1000.0,
            retry_after: status.retry_after.as_secs_f64(),
            reset_after: status.reset_after.as_secs_f64(),
        }
    }
}

/// What keys are sorted by: the first number, among equals the next.
fn rank(sort: Option<&str>) -> Result<fn(&TopKeyRow) -> [f64; 4], ApiError> {
    let word = sort.unwrap_or(KeySort::Refuse.as_str());
    let Some(sort) = KeySort::ALL.iter().find(|sort| sort.as_str() == word) else {
        let words: Vec<_> = KeySort::ALL.iter().map(|sort| sort.as_str()).collect();
        let words = words.join(", ");
        return Err(ApiError::bad(format!(
            "`{word}` is no order of keys: expected one of {words}"
        )));
    };
    Ok(match sort {
        KeySort::Delay => |it| [it.counts.delay as f64, 0.0, 0.0, 0.0],
        KeySort::Demand => |it| [VerdictCounts::from(it.counts).total() as f64, 0.0, 0.0, 0.0],
        KeySort::Excess => |it| [it.excess, 0.0, 0.0, 0.0],
        KeySort::Now => |it| {
            let KeyRates { delay, refuse, .. } = it.pace;
            [refuse, delay, it.pace.total(), it.counts.refuse as f64]
        },
        KeySort::Pass => |it| [it.counts.pass as f64, 0.0, 0.0, 0.0],
        KeySort::Refuse => |it| [it.counts.refuse as f64, 0.0, 0.0, 0.0],
    })
}

/// To thousandths, as everywhere in the API.
fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

fn put(call: &ApiCall, body: KeyActionRequest, kind: KeyAction) -> Result<KeyActions, ApiError> {
    let (zone, now) = (call.arg("zone"), call.now);
    let found = zones::find(&call.generation, zone)?;
    let mark = match (kind, body.requests, found) {
        (KeyAction::Grant(_), _, ZoneRef::Conn(..)) => {
            return Err(ApiError::conflict(
                "only a limit_req zone has requests to grant; `exempt` lifts the limit of this one",
            ));
        }
        (KeyAction::Grant(_), Some(requests @ 1..), _) => KeyAction::Grant(requests),
        (KeyAction::Grant(_), ..) => {
            return Err(ApiError::bad("a grant takes `requests`, at least 1"));
        }
        (_, Some(_), _) => return Err(ApiError::bad("`requests` is for a grant")),
        (kind, None, _) => kind,
    };
    let reason = body.reason.map(String::into_boxed_str);
    if reason.as_ref().is_some_and(|it| it.len() > REASON_MAX) {
        return Err(ApiError::bad(format!(
            "the reason is longer than {REASON_MAX} bytes"
        )));
    }
    let until = now.after(duration(body.r#for)?);
    let (parsed, key) = parse(call, found)?;
    for ParsedKey { key: id, .. } in &parsed {
        let entry = KeyActionEntry {
            key: key.as_str().into(),
            action: mark,
            until,
            reason: reason.clone(),
        };
        found.key_admin().put(id, entry, now).map_err(|_| {
            ApiError::conflict(format!(
                "{MAX_KEY_ACTIONS} keys of the zone `{zone}` are marked already"
            ))
        })?;
    }
    tracing::warn!(
        zone,
        key,
        mark = mark.as_str(),
        ?reason,
        "admin: key marked"
    );
    Ok(actions(call, found, &parsed, key))
}

fn remove(call: &ApiCall, mark: KeyAction) -> Result<KeyActions, ApiError> {
    let zone = call.arg("zone");
    let found = zones::find(&call.generation, zone)?;
    let (parsed, key) = parse(call, found)?;
    let mut removed = false;
    for ParsedKey { key, .. } in &parsed {
        removed |= found.key_admin().remove(key, mark);
    }
    if removed {
        tracing::warn!(zone, key, mark = mark.as_str(), "admin: mark removed");
    }
    Ok(actions(call, found, &parsed, key))
}

/// The keys that a text may mean, and how the first is shown.
fn parse(call: &ApiCall, zone: ZoneRef<'_>) -> Result<(Vec<ParsedKey>, String), ApiError> {
    let text = call.arg("key");
    let source = match zone {
        ZoneRef::Conn(_, zone) => &zone.source,
        ZoneRef::Req(_, zone) => &zone.source,
    };
    let parsed = source.parse(text);
    let ParsedKey { key, bytes } = parsed.first().ok_or_else(|| no_key(call))?;
    let shown = source.format(key, bytes.as_deref());
    Ok((parsed, shown))
}

fn no_key(call: &ApiCall) -> ApiError {
    let (zone, key) = (call.arg("zone"), call.arg("key"));
    let template = zones::find(&call.generation, zone)
        .map_or_else(|_| String::new(), |zone| zone.key(&call.generation.plan));
    ApiError::bad(format!(
        "`{key}` is not a key of the zone `{zone}`, whose key is `{template}`"
    ))
}

fn actions(call: &ApiCall, zone: ZoneRef<'_>, parsed: &[ParsedKey], key: String) -> KeyActions {
    let marks = parsed.first();
    let marks = marks.map(|it| zone.key_admin().actions_on(&it.key, call.now));
    KeyActions {
        key,
        marks: shown(&marks.unwrap_or_default(), call),
    }
}

fn shown(marks: &[KeyActionEntry], call: &ApiCall) -> Vec<api::KeyAction> {
    let marks = marks.iter().map(|entry| zones::mark(entry, call.now));
    marks.collect()
}

fn duration(given: Option<NumberOrText>) -> Result<Duration, ApiError> {
    let time = match given {
        None => return Ok(DURATION_DEFAULT),
        Some(NumberOrText::Number(seconds)) => Duration::from_secs(seconds),
        Some(NumberOrText::Text(text)) => amend::time(&text).map_err(ApiError::bad)?,
    };
    match time {
        Duration::ZERO => Err(ApiError::bad("a time of nothing has no effect")),
        time if time > DURATION_MAX => Err(ApiError::bad("the longest time is 365d")),
        time => Ok(time),
    }
}

const DURATION_DEFAULT: Duration = Duration::from_secs(3600);
const DURATION_MAX: Duration = Duration::from_secs(365 * 86_400);
const REASON_MAX: usize = 200;
