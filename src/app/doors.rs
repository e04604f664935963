//! Which addresses are listened on, and by which door each is known.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;

use crate::config::plan::{Plan, SocketAddress};
use crate::listen::{BoundSocket, SharedSocket};
use crate::proxy::{Generation, ListenerHandle};

/// The doors of the running gateway.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    open: Vec<(SocketAddress, Arc<ListenerHandle>)>,
    /// The sockets of each open door once more, by its number.
    lent: HashMap<usize, Vec<SharedSocket>>,
    /// By number. One whose last client has left is gone, and its number free.
    all: Vec<Weak<ListenerHandle>>,
}

/// What a new plan changes about them.
#[derive(Debug)]
pub(super) struct ListenerChanges {
    /// For each listener of the plan its door.
    wanted: Vec<(SocketAddress, Arc<ListenerHandle>)>,
    /// Those that are new, in the plan's order.
    pub(super) opened: Vec<Arc<ListenerHandle>>,
    /// Those that nobody wants any more.
    pub(super) closed: Vec<Arc<ListenerHandle>>,
}

impl Listeners {
    /// What has to change for a plan. Nothing has, so far.
    pub(super) fn plan(&mut self, plan: &Plan, live: &Arc<ArcSwap<Generation>>) -> ListenerChanges {
        let mut opened = Vec::new();
        let mut wanted = Vec::new();
        for listener in &plan.listeners {
            let address = &listener.address;
            let known = self.open.iter().find(|(open, _)| open == address);
            let door = match known {
                Some((_, door)) => Arc::clone(door),
                None => {
                    let door = self.cut(live);
                    opened.push(Arc::clone(&door));
                    door
                }
            };
            wanted.push((address.clone(), door));
        }
        let is_wanted =
            |address: &SocketAddress| wanted.iter().any(|(wanted, _)| wanted == address);
        let closed = self.open.iter().filter(|(address, _)| !is_wanted(address));
        ListenerChanges {
            closed: closed.map(|(_, door)| Arc::clone(door)).collect(),
            wanted,
            opened,
        }
    }

    /// The change has happened.
    pub(super) fn settle(&mut self, change: ListenerChanges, closed: &[Arc<ListenerHandle>]) {
        for door in closed {
            self.lent.remove(&door.number());
        }
        self.open = change.wanted;
    }

    /// Keeps the sockets of a door once more, for who may take over.
    pub(super) fn lend(&mut self, door: &ListenerHandle, sockets: &[BoundSocket]) {
        let lent = sockets.iter().filter_map(|socket| socket.lend().ok());
        self.lent.insert(door.number(), lent.collect());
    }

    /// The sockets of all open doors.
    pub(super) fn lent(&self) -> impl Iterator<Item = &SharedSocket> {
        self.lent.values().flatten()
    }

    /// Nobody takes over: only the loops have the sockets from now on, and close them when they stop.
    pub(super) fn keep_nothing(&mut self) {
        self.lent.clear();
    }

    fn cut(&mut self, live: &Arc<ArcSwap<Generation>>) -> Arc<ListenerHandle> {
        let free = self.all.iter().position(|door| door.strong_count() == 0);
        let number = free.unwrap_or(self.all.len());
        let door = Arc::new(ListenerHandle::new(number, Arc::clone(live)));
        let weak = Arc::downgrade(&door);
        match self.all.get_mut(number) {
            Some(place) => *place = weak,
            None => self.all.push(weak),
        }
        door
    }
}

/// The table of the first generation, whose doors are in the order of its plan.
pub(super) fn first(plan: &Plan) -> Box<[Option<usize>]> {
    (0..plan.listeners.len()).map(Some).collect()
}

impl ListenerChanges {
    /// For every number of a door the listener it leads to.
    pub(super) fn table(&self) -> Box<[Option<usize>]> {
        let numbers = self.wanted.iter().map(|(_, door)| door.number());
        let mut table = vec![None; numbers.clone().max().map_or(0, |most| most + 1)];
        for (listener, number) in numbers.enumerate() {
            table[number] = Some(listener);
        }
        table.into()
    }
}
