//! `/api/status`, `/api/config`, `/api/store` and `/api/reload`: the process as a whole, and what health checks ask.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::endpoints::{ApiCall, ApiFuture, Endpoint, JSON};
use super::response::{self, ApiError, ApiResponse};
use super::zones::zones;
use crate::api::{
    ConnectionCounts, FleetMember, LoopLag, ReloadFailure, ReloadReport, RequestCounts, Schemas,
    Status, Store, VerdictCounts, ZoneLease,
};
use crate::clock::Clock;
use crate::proxy::Generation;
use crate::store::LeaseHoldings;
use crate::telemetry::{self, COUNTERS, ListenerCounters, REFUSALS};

pub(super) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::raw("/healthz", "Whether the process works", |_| {
            Ok(response::text(StatusCode::OK, "ok\n"))
        })
        .text(200, "It does."),
        Endpoint::raw("/readyz", "Whether it accepts traffic", |call| {
            Ok(match call.state.ready.load(Ordering::Relaxed) {
                true => response::text(StatusCode::OK, "ready\n"),
                false => response::text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            })
        })
        .text(200, "It does.")
        .text(503, "It is starting or stopping."),
        Endpoint::get("/api/status", "The process at a glance", status),
        Endpoint::raw(
            "/api/config",
            "The running configuration, secrets hidden",
            |call| Ok(response::with_type(config(&call.generation), JSON)),
        )
        .response(200, "OK", JSON, |_| {
            let description = "The file as it was read, with environment and includes filled in, secrets replaced by `***`.";
            json!({ "type": "object", "description": description })
        }),
        Endpoint::get("/api/store", "Stores shared with other gateways", stores),
        Endpoint::task("/api/reload", "Reload the configuration", reload)
            .changes(Method::POST)
            .response(
                200,
                "It is in force.",
                JSON,
                Schemas::response::<ReloadReport>,
            )
            .error(409, "The process is stopping.")
            .response(
                422,
                "It has errors; the present one stays in force.",
                JSON,
                Schemas::response::<ReloadFailure>,
            ),
    ]
}

fn reload(call: &ApiCall) -> ApiFuture<'_, ApiResponse> {
    Box::pin(async {
        match call.state.reloads.ask_and_wait().await {
            Some(Ok(report)) => Ok(response::json(&report)),
            Some(Err(failure)) => {
                let mut response = response::json(&failure);
                *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
                Ok(response)
            }
            None => Err(ApiError::conflict("the process is stopping")),
        }
    })
}

fn status(call: &ApiCall) -> Result<Status, ApiError> {
    let state = &call.state;
    let mut limits = VerdictCounts::default();
    for zone in zones(&call.generation) {
        limits.pass += zone.counts.pass;
        limits.delay += zone.counts.delay;
        limits.refuse += zone.counts.refuse;
    }
    let (accepted, active) = ListenerCounters::connections();
    let seconds = |late: Duration| late.as_secs_f64();
    let loops = telemetry::lags().into_iter().map(|lag| LoopLag {
        lag: lag.last.map(seconds),
        worst: lag.worst.map(seconds),
    });
    let by_status = COUNTERS.by_status();
    let by_status = by_status.map(|(class, count)| (class.into(), count));
    Ok(Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        time: u64::try_from(Clock::wall().as_millis()).unwrap_or_default(),
        uptime: call.now.since(Default::default()).as_secs_f64(),
        ready: state.ready.load(Ordering::Relaxed),
        generation: state.reloads.generation(),
        loops: loops.collect(),
        connections: ConnectionCounts { active, accepted },
        requests: RequestCounts {
            total: COUNTERS.requests(),
            by_status: by_status.collect(),
        },
        limits,
        refusals_skipped: REFUSALS.skipped(),
        log_lines_lost: state.writer.lost(),
        changes: call
            .generation
            .plan
            .admin
            .as_ref()
            .is_some_and(|admin| admin.token.is_some()),
    })
}

/// The file's own words, with the numbers that were changed since: a reader must not see a limit that is not in force.
fn config(generation: &Generation) -> String {
    let source = &generation.plan.source;
    let numbers = &generation.live_changes.settings_by_zone;
    if numbers.is_empty() {
        return source.to_string();
    }
    let Ok(mut config) = serde_json::from_str::<Value>(source) else {
        return source.to_string();
    };
    for (zone, numbers) in numbers {
        let of_zone = config.pointer_mut("/limit_req_zones");
        let of_zone = of_zone.and_then(|zones| zones.get_mut(&**zone)?.as_object_mut());
        match of_zone {
            Some(own) => {
                overlay(own, numbers, &["rate", "limit"]);
                in_rules(&mut config, "limit_req", zone, numbers, "burst");
            }
            None => in_rules(&mut config, "limit_conn", zone, numbers, "limit"),
        }
    }
    config.to_string()
}

/// Puts a number into all rules that use a zone, at any level.
fn in_rules(
    config: &mut Value,
    kind: &str,
    zone: &str,
    numbers: &Map<String, Value>,
    name: &'static str,
) {
    match config {
        Value::Object(fields) => {
            if let Some(rules) = fields.get_mut(kind) {
                let rules = match rules {
                    Value::Array(rules) => rules.as_mut_slice(),
                    rule => std::slice::from_mut(rule),
                };
                for rule in rules.iter_mut().filter_map(Value::as_object_mut) {
                    if rule.get("zone").is_some_and(|of| of == zone) {
                        overlay(rule, numbers, &[name]);
                    }
                }
            }
            for (_, value) in fields.iter_mut().filter(|(field, _)| *field != kind) {
                in_rules(value, kind, zone, numbers, name);
            }
        }
        Value::Array(values) => {
            for value in values {
                in_rules(value, kind, zone, numbers, name);
            }
        }
        _ => {}
    }
}

fn overlay(own: &mut Map<String, Value>, numbers: &Map<String, Value>, names: &[&'static str]) {
    for name in names {
        if let Some(number) = numbers.get(*name) {
            own.insert((*name).to_owned(), number.clone());
        }
    }
}

fn stores(call: &ApiCall) -> Result<Vec<Store>, ApiError> {
    let Generation { plan, zones, .. } = &*call.generation;
    let zone_stores = || {
        let req = plan.req_zones.iter().map(|it| (&it.name, it.store));
        req.chain(plan.conn_zones.iter().map(|it| (&it.name, it.store)))
    };
    let stores = zones.stores.iter().enumerate().map(|(index, store)| {
        let view = store.status();
        let gateways = view.gateways.into_iter().map(|gateway| FleetMember {
            name: gateway.name,
            seen_ago_ms: gateway.seen_ago,
            leases: gateway.held.into_iter().map(lease).collect(),
        });
        let zones = zone_stores().filter(|(_, store)| *store == Some(index));
        Store {
            name: store.handle.name.to_string(),
            degraded: store.handle.is_away(),
            why: view.outage.map(|outage| outage.why),
            gateway: view.gateway,
            gateways: gateways.collect(),
            zones: zones.map(|(name, _)| name.to_string()).collect(),
            places: store.slots.held() as u64,
            asked: view.asked,
            missed: view.missed,
            asked_behind: view.asked_behind,
            decided_here: view.decided_here,
            leased: view.leased,
            returned: view.returned,
        }
    });
    Ok(stores.collect())
}

fn lease(held: LeaseHoldings) -> ZoneLease {
    // Thousandths of requests fit a u32 far beyond what is ever leased.
    let requests = u32::try_from(held.units.milli()).unwrap_or(u32::MAX);
    ZoneLease {
        zone: held.zone.into(),
        keys: held.keys,
        requests: f64::from(requests) / 1000.0,
        local_keys: held.crowded,
    }
}
