//! Looks at the running weir once a second, and does what the user wants of it, beside the drawing: a slow answer must
//! not make keys slow.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::UiEvent;
use super::latency::{self, LatencySums};
use crate::cli::admin::answers::{
    BusyKey, Detail, KeyState, Refusal, Refusals, Status, Upstream, Zone,
};
use crate::cli::admin::{AdminClient, ApiRequest, escape};
use crate::cli::verbs::keys::{self, KeySort};
use crate::cli::verbs::refusals;
use crate::clock::{Clock, Millis};

/// What is seen in one look.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// When, on our own clock.
    pub(super) at: Millis,
    pub(super) status: Status,
    pub(super) zones: Vec<Zone>,
    pub(super) upstreams: Vec<Upstream>,
    pub(super) latencies: LatencySums,
    /// The latest last.
    pub(super) refusals: Vec<Refusal>,
    /// The zone that is looked into.
    pub(super) open: Option<ZoneSnapshotDetail>,
}

/// A zone that is looked into.
#[derive(Debug)]
pub(super) struct ZoneSnapshotDetail {
    pub(super) detail: Detail,
    pub(super) keys: Vec<BusyKey>,
}

/// What the user wants.
#[derive(Debug)]
pub(super) enum PollCommand {
    /// Change something; `done` is said when it is.
    Do { call: ApiRequest, done: String },
    /// Show where a key stands.
    Inspect { zone: String, key: String },
    /// Look into this zone, with its keys in this order.
    Watch { zone: String, sort: KeySort },
}

/// Looks, and looks again, until nobody wants to know.
#[derive(Debug)]
pub(super) struct Poller {
    admin: AdminClient,
    clock: Clock,
    watched: Option<(String, KeySort)>,
}

impl Poller {
    pub(super) fn new(admin: AdminClient) -> Self {
        Self {
            admin,
            clock: Clock::machine(),
            watched: None,
        }
    }

    /// Everything at this moment.
    pub(super) fn look(&self) -> anyhow::Result<Snapshot> {
        let admin = &self.admin;
        let status = admin.ask(&ApiRequest::get("/api/status"))?;
        let at = self.clock.now();
        let zones: Vec<Zone> = admin.ask(&ApiRequest::get("/api/zones"))?;
        let upstreams = admin.ask(&ApiRequest::get("/api/upstreams"))?;
        // Everything else is worth seeing without it.
        let metrics = admin.text(&ApiRequest::get("/metrics")).unwrap_or_default();
        let Refusals { refusals, .. } = admin.ask(&refusals::last(REFUSALS))?;
        // A reload may have taken the zone away.
        let is_there =
            |watched: &(String, KeySort)| zones.iter().any(|zone| zone.name == watched.0);
        let watched = self.watched.clone().filter(is_there);
        let watched = watched.or_else(|| Some((zones.first()?.name.clone(), KeySort::Now)));
        let open = match &watched {
            Some((zone, sort)) => Some(ZoneSnapshotDetail {
                detail: admin.ask(&ApiRequest::get(format!("/api/zones/{}", escape(zone))))?,
                keys: admin.ask(&keys::busiest(zone, *sort, KEYS))?,
            }),
            None => None,
        };
        Ok(Snapshot {
            at,
            status,
            zones,
            upstreams,
            latencies: latency::read(&metrics),
            refusals,
            open,
        })
    }

    /// Sends what it sees, and takes orders, for as long as there is somebody at the other ends.
    pub(super) fn run(mut self, orders: &Receiver<PollCommand>, tell: impl Fn(UiEvent) -> bool) {
        let mut next = self.clock.now().after(PERIOD);
        loop {
            let wait = next.since(self.clock.now());
            let event = match orders.recv_timeout(wait) {
                Ok(PollCommand::Watch { zone, sort }) => {
                    self.watched = Some((zone, sort));
                    // Soon, but not for each step of somebody who runs down the list.
                    next = next.min(self.clock.now().after(SOON));
                    None
                }
                Ok(PollCommand::Do { call, done }) => Some(match self.admin.text(&call) {
                    Ok(_) => {
                        next = next.min(self.clock.now().after(SOON));
                        UiEvent::Done(done)
                    }
                    Err(error) => UiEvent::failed(&error),
                }),
                Ok(PollCommand::Inspect { zone, key }) => Some(self.inspect(zone, &key)),
                Err(RecvTimeoutError::Timeout) => {
                    next = self.clock.now().after(PERIOD);
                    Some(match self.look() {
                        Ok(look) => UiEvent::Look(Box::new(look)),
                        Err(error) => UiEvent::Lost(format!("{error:#}")),
                    })
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if event.is_some_and(|event| !tell(event)) {
                return;
            }
        }
    }

    fn inspect(&self, zone: String, key: &str) -> UiEvent {
        match self
            .admin
            .ask::<KeyState>(&ApiRequest::get(keys::path(&zone, key)))
        {
            Ok(state) => UiEvent::Inspected(zone, Box::new(state)),
            Err(error) => UiEvent::failed(&error),
        }
    }
}

const PERIOD: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(80);
const REFUSALS: u16 = 100;
const KEYS: u16 = 40;
