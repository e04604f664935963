//! `/api/upstreams`, `/api/breakers` and `/api/groups`: the state of servers, circuit breakers and degrade groups, and
//! operators' changes to them.

use super::endpoints::ApiError;
use crate::api::{self, BackendChange, BackendState, BreakerChange, BreakerForce, DegradeChange};
use crate::config::plan::DegradeMode;
use crate::proxy::{DegradeGroup, Generation, LocationBreaker};
use crate::upstream::breaker::{Breaker, ForcedState};
use crate::upstream::{self, Backend, UnavailableReason};

/// `GET /api/upstreams`
pub(super) fn list(generation: &Generation) -> Vec<api::Upstream> {
    generation
        .upstreams
        .iter()
        .map(|upstream| api::Upstream {
            name: upstream.name().to_owned(),
            servers: upstream
                .backends()
                .iter()
                .map(|backend| server(backend))
                .collect(),
        })
        .collect::<Vec<_>>()
}

/// `PATCH /api/upstreams/{upstream}/servers/{server}`
pub(super) fn change(
    generation: &Generation,
    name: &str,
    address: &str,
    change: &BackendChange,
) -> Result<api::Backend, ApiError> {
    if change.state.is_none() && change.breaker.is_none() {
        return Err(ApiError::bad("give it a `state` or a `breaker`"));
    }
    let upstreams = || generation.upstreams.iter().filter(|it| it.name() == name);
    if upstreams().next().is_none() {
        return Err(ApiError::missing(format!(
            "there is no upstream `{name}`; /api/upstreams lists those there are"
        )));
    }
    // The same name may stand for several, as where `proxy_pass` names an address in two ways.
    let mut changed = None;
    for upstream in upstreams() {
        let backends = upstream.backends();
        for backend in backends.iter().filter(|it| *it.name == *address) {
            set(upstream, backend, change)?;
            changed = Some(server(backend));
        }
    }
    let changed = changed.ok_or_else(|| {
        ApiError::missing(format!("the upstream `{name}` has no server `{address}`"))
    })?;
    let BackendChange { state, breaker } = change;
    tracing::warn!(
        upstream = name,
        server = address,
        ?state,
        ?breaker,
        "admin: server changed"
    );
    Ok(changed)
}

fn set(
    upstream: &upstream::Upstream,
    backend: &Backend,
    change: &BackendChange,
) -> Result<(), ApiError> {
    if let Some(force) = change.breaker
        && !upstream.force(&backend.name, wanted(force))
    {
        let why = format!("the server `{}` has no circuit breaker", backend.name);
        return Err(ApiError::conflict(why));
    }
    let Some(state) = change.state else {
        return Ok(());
    };
    let (up, down) = match state {
        BackendState::Down => (
            Some(UnavailableReason::Down),
            &[UnavailableReason::Drained][..],
        ),
        BackendState::Drain => (
            Some(UnavailableReason::Drained),
            &[UnavailableReason::Down][..],
        ),
        BackendState::Up => (
            None,
            &[UnavailableReason::Down, UnavailableReason::Drained][..],
        ),
    };
    // First this: in between it must not be asked.
    if let Some(bar) = up {
        backend.bar(bar);
    }
    down.iter().for_each(|bar| backend.unbar(*bar));
    Ok(())
}

fn latency(backend: &Backend) -> Vec<api::LatencyBucket> {
    let reading = backend.counts.latency();
    let within = reading.within().iter();
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
        let answers = backend
            .counts
            .answers()
            .filter(|(status, _)| *status >= from);
        answers.map(|(_, count)| count).sum()
    };
    api::Backend {
        address: backend.name.to_string(),
        up: backend.may_be_asked(),
        down: backend.is_barred_by(UnavailableReason::Down),
        draining: backend.is_barred_by(UnavailableReason::Drained)
            || backend.is_barred_by(UnavailableReason::Draining),
        backup: backend.server.backup,
        weight: backend.server.weight.into(),
        active: backend.active().into(),
        requests: count(0),
        errors: count(500),
        connections: backend.counts.opened(),
        reused: backend.counts.reused(),
        healthy: backend.health.as_ref().map(|health| health.is_healthy()),
        breaker: breaker.map(|breaker| breaker.state().as_str().into()),
        forced: breaker.and_then(forced),
        failures: backend.counts.failures().into(),
        latency: latency(backend),
    }
}

/// The state that a breaker is to be forced into; `None` to let it judge for itself.
fn wanted(force: BreakerForce) -> Option<ForcedState> {
    match force {
        BreakerForce::Auto => None,
        BreakerForce::Closed => Some(ForcedState::Closed),
        BreakerForce::Open => Some(ForcedState::Open),
    }
}

/// The state that a breaker is forced into now.
fn forced(breaker: &Breaker) -> Option<api::Word> {
    breaker.forced().map(|forced| match forced {
        ForcedState::Closed => "closed".into(),
        ForcedState::Open => "open".into(),
    })
}

/// `GET /api/breakers`
pub(super) fn list_breakers(generation: &Generation) -> Vec<api::LocationBreaker> {
    let guards = generation.guards.iter();
    guards.map(|guard| shown(guard)).collect()
}

/// `PATCH /api/breakers`
pub(super) fn change_breaker(
    generation: &Generation,
    change: &BreakerChange,
) -> Result<api::LocationBreaker, ApiError> {
    let mut guards = generation.guards.iter();
    let guard = guards
        .find(|guard| *guard.server == change.server && *guard.location == change.location)
        .ok_or_else(|| {
            ApiError::missing(format!(
                "no location `{}` of a server `{}` has a circuit breaker; GET lists those that do",
                change.location, change.server
            ))
        })?;
    guard.breaker.force(wanted(change.breaker));
    let (server, location) = (&*guard.server, &*guard.location);
    tracing::warn!(server, location, wanted = ?change.breaker, "admin: breaker forced");
    Ok(shown(guard))
}

fn shown(guard: &LocationBreaker) -> api::LocationBreaker {
    api::LocationBreaker {
        server: guard.server.to_string(),
        location: guard.location.to_string(),
        state: guard.breaker.state().as_str().into(),
        forced: forced(&guard.breaker),
        opened: guard.breaker.opened(),
    }
}

/// `GET /api/groups`
pub(super) fn list_groups(generation: &Generation) -> Vec<api::DegradeGroup> {
    let groups = generation.groups.iter();
    groups.map(|group| shown_group(group)).collect()
}

/// `PATCH /api/groups/{group}`
pub(super) fn change_group(
    generation: &Generation,
    name: &str,
    change: &DegradeChange,
) -> Result<api::DegradeGroup, ApiError> {
    let mut groups = generation.groups.iter();
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
