//! `/api/breakers` and `/api/groups`: what locations do when their backend fails, and an operator's hand on it.

use serde::{Deserialize, Serialize};

use super::reply::ApiError;
use crate::config::plan::DegradeMode;
use crate::proxy::{DegradeGroup, Generation, LocationBreaker};
use crate::upstream::breaker::{Breaker, ForcedState};

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
pub(super) fn list(live: &Generation) -> impl Serialize {
    let guards = live.guards.iter();
    guards.map(|guard| shown(guard)).collect::<Vec<_>>()
}

/// `PATCH /api/breakers`
pub(super) fn change<'l>(
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
