//! `/api/upstreams`, `/api/breakers` and `/api/groups`: the state of servers, circuit breakers and degrade groups, and
//! operators' changes to them.

use http::Method;

use super::endpoints::{ApiCall, Endpoint};
use super::response::ApiError;
use crate::api::{self, BackendChange, BackendState, BreakerChange, BreakerForce, DegradeChange};
use crate::config::plan::DegradeMode;
use crate::proxy::{DegradeGroup, LocationBreaker};
use crate::upstream::breaker::{Breaker, ForcedState};
use crate::upstream::{Backend, UnavailableReason, Upstream};

pub(super) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/upstreams", "All upstreams and their servers", list),
        Endpoint::change_to(
            Method::PATCH,
            "/api/upstreams/{upstream}/servers/{server}",
            "Drain, enable or disable a server, or force its breaker",
            change,
        )
        .error(409, "The server has no breaker."),
        Endpoint::get("/api/breakers", "The breakers of locations", |call| {
            let breakers = call.generation.breakers.iter();
            Ok(breakers.map(|breaker| shown(breaker)).collect::<Vec<_>>())
        }),
        Endpoint::change_to(
            Method::PATCH,
            "/api/breakers",
            "Force one, or let it decide again",
            change_breaker,
        )
        .error(404, "No such breaker."),
        Endpoint::get(
            "/api/groups",
            "Groups of locations that are degraded together",
            |call| {
                let groups = call.generation.groups.iter();
                Ok(groups.map(|group| shown_group(group)).collect::<Vec<_>>())
            },
        ),
        Endpoint::change_to(
            Method::PATCH,
            "/api/groups/{group}",
            "Switch a group",
            change_group,
        ),
    ]
}

fn list(call: &ApiCall) -> Result<Vec<api::Upstream>, ApiError> {
    let upstreams = call.generation.upstreams.iter();
    let upstreams = upstreams.map(|upstream| api::Upstream {
        name: upstream.name().to_owned(),
        servers: upstream.backends().iter().map(|it| server(it)).collect(),
    });
    Ok(upstreams.collect())
}

fn change(call: &ApiCall, change: BackendChange) -> Result<api::Backend, ApiError> {
    let (name, address) = (call.arg("upstream"), call.arg("server"));
    let BackendChange { state, breaker } = change;
    if state.is_none() && breaker.is_none() {
        return Err(ApiError::bad("give it a `state` or a `breaker`"));
    }
    // Several upstreams may have the same name, as where `proxy_pass` names an address in two ways.
    let upstreams = call.generation.upstreams.iter();
    let upstreams: Vec<_> = upstreams.filter(|it| it.name() == name).collect();
    if upstreams.is_empty() {
        return Err(ApiError::missing(format!(
            "there is no upstream `{name}`; /api/upstreams lists all upstreams"
        )));
    }
    let mut changed = None;
    for upstream in upstreams {
        let backends = upstream.backends();
        for backend in backends.iter().filter(|it| *it.name == *address) {
            set(upstream, backend, &change)?;
            changed = Some(server(backend));
        }
    }
    let changed = changed.ok_or_else(|| {
        ApiError::missing(format!("the upstream `{name}` has no server `{address}`"))
    })?;
    tracing::warn!(
        upstream = name,
        server = address,
        ?state,
        ?breaker,
        "admin: server changed"
    );
    Ok(changed)
}

fn set(upstream: &Upstream, backend: &Backend, change: &BackendChange) -> Result<(), ApiError> {
    if let Some(force) = change.breaker
        && !upstream.force(&backend.name, wanted(force))
    {
        let why = format!("the server `{}` has no circuit breaker", backend.name);
        return Err(ApiError::conflict(why));
    }
    let Some(state) = change.state else {
        return Ok(());
    };
    let reasons = [UnavailableReason::Down, UnavailableReason::Drained];
    let reason = match state {
        BackendState::Down => Some(UnavailableReason::Down),
        BackendState::Drain => Some(UnavailableReason::Drained),
        BackendState::Up => None,
    };
    // The new reason first: the server must not be available in between.
    if let Some(reason) = reason {
        backend.set_unavailable(reason, true);
    }
    for other in reasons {
        if Some(other) != reason {
            backend.set_unavailable(other, false);
        }
    }
    Ok(())
}

fn latency(backend: &Backend) -> Vec<api::LatencyBucket> {
    let reading = backend.counters.latency();
    let within = reading.buckets.iter();
    within
        .map(|(bound, count)| api::LatencyBucket {
            seconds: bound.parse().ok().filter(|bound: &f64| bound.is_finite()),
            count: *count,
        })
        .collect()
}

fn server(backend: &Backend) -> api::Backend {
    let breaker = backend.breaker.as_deref();
    let count = |from| {
        let statuses = backend.counters.statuses();
        let statuses = statuses.filter(|(status, _)| *status >= from);
        statuses.map(|(_, count)| count).sum()
    };
    api::Backend {
        address: backend.name.to_string(),
        up: backend.is_available(),
        down: backend.has(UnavailableReason::Down),
        draining: backend.has(UnavailableReason::Drained)
            || backend.has(UnavailableReason::Draining),
        backup: backend.server.backup,
        weight: backend.server.weight.into(),
        active: backend.active().into(),
        requests: count(0),
        errors: count(500),
        connections: backend.counters.opened(),
        reused: backend.counters.reused(),
        healthy: backend.health.as_ref().map(|health| health.is_healthy()),
        breaker: breaker.map(|breaker| breaker.state().as_str().into()),
        forced: breaker.and_then(forced),
        failures: backend.counters.failures().into(),
        latency: latency(backend),
    }
}

/// The state that a breaker is forced into; `None` to let it decide.
fn wanted(force: BreakerForce) -> Option<ForcedState> {
    match force {
        BreakerForce::Auto => None,
        BreakerForce::Closed => Some(ForcedState::Closed),
        BreakerForce::Open => Some(ForcedState::Open),
    }
}

/// The state that a breaker is in by force.
fn forced(breaker: &Breaker) -> Option<api::Word> {
    breaker.forced().map(|forced| match forced {
        ForcedState::Closed => "closed".into(),
        ForcedState::Open => "open".into(),
    })
}

fn change_breaker(call: &ApiCall, change: BreakerChange) -> Result<api::LocationBreaker, ApiError> {
    let mut breakers = call.generation.breakers.iter();
    let breaker = breakers
        .find(|it| *it.server == change.server && *it.location == change.location)
        .ok_or_else(|| {
            ApiError::missing(format!(
                "no location `{}` of a server `{}` has a circuit breaker; GET lists all breakers",
                change.location, change.server
            ))
        })?;
    breaker.breaker.force(wanted(change.breaker));
    let (server, location) = (&*breaker.server, &*breaker.location);
    tracing::warn!(server, location, wanted = ?change.breaker, "admin: breaker forced");
    Ok(shown(breaker))
}

fn shown(location: &LocationBreaker) -> api::LocationBreaker {
    api::LocationBreaker {
        server: location.server.to_string(),
        location: location.location.to_string(),
        state: location.breaker.state().as_str().into(),
        forced: forced(&location.breaker),
        opened: location.breaker.opened(),
    }
}

fn change_group(call: &ApiCall, change: DegradeChange) -> Result<api::DegradeGroup, ApiError> {
    let name = call.arg("group");
    let mut groups = call.generation.groups.iter();
    let group = groups
        .find(|group| *group.name == *name)
        .ok_or_else(|| ApiError::missing(format!("there is no group `{name}`")))?;
    group.set(match change.mode {
        api::DegradeMode::Auto => DegradeMode::Auto,
        api::DegradeMode::Off => DegradeMode::Off,
        api::DegradeMode::On => DegradeMode::On,
    });
    Ok(shown_group(group))
}

fn shown_group(group: &DegradeGroup) -> api::DegradeGroup {
    api::DegradeGroup {
        name: group.name.to_string(),
        mode: group.mode().as_str().into(),
    }
}
