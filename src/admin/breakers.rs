//! `/api/breakers` and `/api/groups`: what locations do when their backend fails, and an operator's hand on it.

use serde::{Deserialize, Serialize};

use super::reply::Problem;
use crate::config::plan::Degrade;
use crate::proxy::{Group, Guard, Live};
use crate::upstream::breaker::{Breaker, Forced};

/// What an operator wants of a breaker.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Force {
    /// It judges for itself.
    Auto,
    Closed,
    Open,
}

impl Force {
    pub(super) fn wanted(self) -> Option<Forced> {
        match self {
            Self::Auto => None,
            Self::Closed => Some(Forced::Closed),
            Self::Open => Some(Forced::Open),
        }
    }
}

/// What is wanted of a breaker now.
pub(super) fn forced(breaker: &Breaker) -> Option<&'static str> {
    breaker.forced().map(|forced| match forced {
        Forced::Closed => "closed",
        Forced::Open => "open",
    })
}

/// A location's breaker as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct Shown<'a> {
    server: &'a str,
    location: &'a str,
    state: &'static str,
    forced: Option<&'static str>,
    opened: u64,
}

/// What is wanted of one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Change {
    server: String,
    location: String,
    breaker: Force,
}

/// `GET /api/breakers`
pub(super) fn list(live: &Live) -> impl Serialize {
    let guards = live.guards.iter();
    guards.map(|guard| shown(guard)).collect::<Vec<_>>()
}

/// `PATCH /api/breakers`
pub(super) fn change<'l>(live: &'l Live, change: &Change) -> Result<Shown<'l>, Problem> {
    let mut guards = live.guards.iter();
    let guard = guards
        .find(|guard| *guard.server == change.server && *guard.location == change.location)
        .ok_or_else(|| {
            Problem::missing(format!(
                "no location `{}` of a server `{}` has a circuit breaker; GET lists those that do",
                change.location, change.server
            ))
        })?;
    guard.breaker.force(change.breaker.wanted());
    let (server, location) = (&*guard.server, &*guard.location);
    tracing::warn!(server, location, wanted = ?change.breaker, "admin: breaker forced");
    Ok(shown(guard))
}

fn shown(guard: &Guard) -> Shown<'_> {
    Shown {
        server: &guard.server,
        location: &guard.location,
        state: guard.breaker.state().as_str(),
        forced: forced(&guard.breaker),
        opened: guard.breaker.opened(),
    }
}

/// A group of locations as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct ShownGroup<'a> {
    name: &'a str,
    mode: &'static str,
}

/// What is wanted of one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupChange {
    mode: Mode,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Auto,
    Off,
    On,
}

/// `GET /api/groups`
pub(super) fn list_groups(live: &Live) -> impl Serialize {
    let groups = live.groups.iter();
    groups.map(|group| shown_group(group)).collect::<Vec<_>>()
}

/// `PATCH /api/groups/{group}`
pub(super) fn change_group<'l>(
    live: &'l Live,
    name: &str,
    change: &GroupChange,
) -> Result<ShownGroup<'l>, Problem> {
    let mut groups = live.groups.iter();
    let group = groups
        .find(|group| *group.name == *name)
        .ok_or_else(|| Problem::missing(format!("there is no group `{name}`")))?;
    group.set(match change.mode {
        Mode::Auto => Degrade::Auto,
        Mode::Off => Degrade::Off,
        Mode::On => Degrade::On,
    });
    Ok(shown_group(group))
}

fn shown_group(group: &Group) -> ShownGroup<'_> {
    ShownGroup {
        name: &group.name,
        mode: group.mode().as_str(),
    }
}
