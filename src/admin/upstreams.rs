//! `/api/upstreams`: servers and how they are, and an operator's hand on them.
//!
//! `/api/breakers` and `/api/groups`: what locations do when their backend fails, and an operator's hand on it.

use serde::{Deserialize, Serialize};

use super::endpoints::ApiError;
use crate::config::plan::DegradeMode;
use crate::proxy::{DegradeGroup, Generation, LocationBreaker};
use crate::upstream;
use crate::upstream::breaker::{Breaker, ForcedState};
use crate::upstream::{Backend, UnavailableReason};

/// An upstream as it is shown.
#[derive(Debug, Serialize)]
struct Upstream<'a> {
    name: &'a str,
    servers: Vec<Server>,
}

#[derive(Debug, Serialize)]
pub(super) struct Server {
    address: String,
    /// Whether it gets requests: nothing speaks against it.
    up: bool,
    down: bool,
    draining: bool,
    backup: bool,
    weight: u32,
    active: u32,
    requests: u64,
    /// Of these, those with a status of 500 and above.
    errors: u64,
    connections: u64,
    reused: u64,
    /// `null` where it is not checked.
    healthy: Option<bool>,
    /// `closed`, `half_open`, `open`, or `null` where it has none.
    breaker: Option<&'static str>,
    forced: Option<&'static str>,
    /// Since its last good answer.
    failures: u32,
    latency: Vec<LatencyBucket>,
}

/// How many requests took no longer than that, until the head of the answer.
#[derive(Debug, Serialize)]
struct LatencyBucket {
    /// `null` for however long.
    seconds: Option<f64>,
    count: u64,
}

/// What is wanted of a server.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackendChange {
    state: Option<BackendState>,
    breaker: Option<BreakerForce>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BackendState {
    Down,
    Drain,
    Up,
}

/// `GET /api/upstreams`
pub(super) fn list(live: &Generation) -> impl Serialize {
    live.upstreams
        .iter()
        .map(|upstream| Upstream {
            name: upstream.name(),
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
    live: &Generation,
    name: &str,
    address: &str,
    change: &BackendChange,
) -> Result<Server, ApiError> {
    if change.state.is_none() && change.breaker.is_none() {
        return Err(ApiError::bad("give it a `state` or a `breaker`"));
    }
    let upstreams = || live.upstreams.iter().filter(|it| it.name() == name);
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
        && !upstream.force(&backend.name, force.wanted())
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

fn latency(backend: &Backend) -> Vec<LatencyBucket> {
    let reading = backend.counts.latency();
    let within = reading.within().iter();
    within
        .map(|(bound, count)| LatencyBucket {
            seconds: bound.parse().ok().filter(|bound: &f64| bound.is_finite()),
            count: *count,
        })
        .collect()
}

fn server(backend: &Backend) -> Server {
    let breaker = backend.breaker.as_deref();
    let count = |from| {
        let answers = backend
            .counts
            .answers()
            .filter(|(status, _)| *status >= from);
        answers.map(|(_, count)| count).sum()
    };
    Server {
        address: backend.name.to_string(),
        up: backend.may_be_asked(),
        down: backend.is_barred_by(UnavailableReason::Down),
        draining: backend.is_barred_by(UnavailableReason::Drained)
            || backend.is_barred_by(UnavailableReason::Draining),
        backup: backend.server.backup,
        weight: backend.server.weight,
        active: backend.active(),
        requests: count(0),
        errors: count(500),
        connections: backend.counts.opened(),
        reused: backend.counts.reused(),
        healthy: backend.health.as_ref().map(|health| health.is_healthy()),
        breaker: breaker.map(|breaker| breaker.state().as_str()),
        forced: breaker.and_then(forced),
        failures: backend.counts.failures(),
        latency: latency(backend),
    }
}

/// What an operator wants of a breaker.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BreakerForce {
    /// It judges for itself.
    Auto,
    Closed,
    Open,
}

impl BreakerForce {
    pub(super) fn wanted(self) -> Option<ForcedState> {
        match self {
            Self::Auto => None,
            Self::Closed => Some(ForcedState::Closed),
            Self::Open => Some(ForcedState::Open),
        }
    }
}

/// What is wanted of a breaker now.
pub(super) fn forced(breaker: &Breaker) -> Option<&'static str> {
    breaker.forced().map(|forced| match forced {
        ForcedState::Closed => "closed",
        ForcedState::Open => "open",
    })
}

/// A location's breaker as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct BreakerRow<'a> {
    server: &'a str,
    location: &'a str,
    state: &'static str,
    forced: Option<&'static str>,
    opened: u64,
}

/// What is wanted of one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BreakerChange {
    server: String,
    location: String,
    breaker: BreakerForce,
}

/// `GET /api/breakers`
pub(super) fn list_breakers(live: &Generation) -> impl Serialize {
    let guards = live.guards.iter();
    guards.map(|guard| shown(guard)).collect::<Vec<_>>()
}

/// `PATCH /api/breakers`
pub(super) fn change_breaker<'l>(
    live: &'l Generation,
    change: &BreakerChange,
) -> Result<BreakerRow<'l>, ApiError> {
    let mut guards = live.guards.iter();
    let guard = guards
        .find(|guard| *guard.server == change.server && *guard.location == change.location)
        .ok_or_else(|| {
            ApiError::missing(format!(
                "no location `{}` of a server `{}` has a circuit breaker; GET lists those that do",
                change.location, change.server
            ))
        })?;
    guard.breaker.force(change.breaker.wanted());
    let (server, location) = (&*guard.server, &*guard.location);
    tracing::warn!(server, location, wanted = ?change.breaker, "admin: breaker forced");
    Ok(shown(guard))
}

fn shown(guard: &LocationBreaker) -> BreakerRow<'_> {
    BreakerRow {
        server: &guard.server,
        location: &guard.location,
        state: guard.breaker.state().as_str(),
        forced: forced(&guard.breaker),
        opened: guard.breaker.opened(),
    }
}

/// A group of locations as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct DegradeState<'a> {
    name: &'a str,
    mode: &'static str,
}

/// What is wanted of one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DegradeChange {
    mode: DegradeModeWord,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DegradeModeWord {
    Auto,
    Off,
    On,
}

/// `GET /api/groups`
pub(super) fn list_groups(live: &Generation) -> impl Serialize {
    let groups = live.groups.iter();
    groups.map(|group| shown_group(group)).collect::<Vec<_>>()
}

/// `PATCH /api/groups/{group}`
pub(super) fn change_group<'l>(
    live: &'l Generation,
    name: &str,
    change: &DegradeChange,
) -> Result<DegradeState<'l>, ApiError> {
    let mut groups = live.groups.iter();
    let group = groups
        .find(|group| *group.name == *name)
        .ok_or_else(|| ApiError::missing(format!("there is no group `{name}`")))?;
    group.set(match change.mode {
        DegradeModeWord::Auto => DegradeMode::Auto,
        DegradeModeWord::Off => DegradeMode::Off,
        DegradeModeWord::On => DegradeMode::On,
    });
    Ok(shown_group(group))
}

fn shown_group(group: &DegradeGroup) -> DegradeState<'_> {
    DegradeState {
        name: &group.name,
        mode: group.mode().as_str(),
    }
}
