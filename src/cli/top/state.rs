//! What is on the screen: the last look, what came before it, what is selected, and what a key does about it.

use super::poll::{Latencies, PollCommand, RateHistory, Snapshot};
use super::{KeyEvent, UiEvent};
use crate::api::{Backend, BackendChange, BackendState, KeySort, KeyState, VerdictCounts};
use crate::cli::verbs::{limits, upstreams};
use crate::clock::Millis;
use crate::text::visible;

/// Everything that is drawn.
#[derive(Debug)]
pub(super) struct TopState {
    pub(super) look: Snapshot,
    pub(super) zones: RateHistory,
    /// By zone and key.
    pub(super) keys: RateHistory,
    /// By upstream and server; refused are those with a status of 500 and above.
    pub(super) servers: RateHistory,
    pub(super) latencies: Latencies,
    pub(super) requests: f64,
    pub(super) pane: TopPane,
    pub(super) zone: usize,
    pub(super) key: usize,
    pub(super) server: usize,
    pub(super) sort: KeySort,
    pub(super) cover: Overlay,
    /// Something to say once.
    pub(super) message: Option<Notice>,
    /// Why there is nothing new.
    pub(super) lost: Option<String>,
    /// When paces were last taken.
    paced: Millis,
}

/// What keys move in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TopPane {
    Keys,
    Servers,
    Zones,
}

/// What lies over the tables.
#[derive(Debug)]
pub(super) enum Overlay {
    /// A question that `y` answers.
    Ask {
        question: String,
        order: PollCommand,
    },
    Help,
    Inspect(String, Box<KeyState>),
    None,
}

#[derive(Debug)]
pub(super) enum Notice {
    Done(String),
    Failed(String),
}

/// What is to happen after an event.
#[derive(Debug)]
pub(super) enum UiAction {
    Go,
    Stay,
    Tell(PollCommand),
}

impl TopState {
    pub(super) fn new(look: Snapshot) -> Self {
        let mut view = Self {
            paced: look.at,
            look,
            zones: RateHistory::default(),
            keys: RateHistory::default(),
            servers: RateHistory::default(),
            latencies: Latencies::default(),
            requests: 0.0,
            pane: TopPane::Zones,
            zone: 0,
            key: 0,
            server: 0,
            sort: KeySort::Now,
            cover: Overlay::None,
            message: None,
            lost: None,
        };
        view.track(1.0);
        view
    }

    /// Takes in what happened.
    pub(super) fn take(&mut self, event: UiEvent) -> UiAction {
        match event {
            UiEvent::Done(what) => self.message = Some(Notice::Done(what)),
            UiEvent::Failed(why) => self.message = Some(Notice::Failed(why)),
            UiEvent::Inspected(zone, key) => self.cover = Overlay::Inspect(zone, key),
            UiEvent::Look(look) => self.see(*look),
            UiEvent::Lost(why) => self.lost = Some(why),
            UiEvent::Press(press) => return self.press(press),
            UiEvent::Resize => {}
            UiEvent::Stop => return UiAction::Go,
        }
        UiAction::Stay
    }

    fn see(&mut self, look: Snapshot) {
        self.lost = None;
        let selected = self
            .selected_key()
            .filter(|_| self.pane == TopPane::Keys)
            .map(str::to_owned);
        let seconds = look.at.since(self.paced).as_secs_f64();
        let requests = look.status.requests.total;
        let before = self.look.status.requests.total;
        self.look = look;
        // Keys change places; whoever moves among them means the one, and everybody else the first.
        if let Some(at) = selected.and_then(|key| self.keys_shown().position(|shown| shown == key))
        {
            self.key = at;
        }
        // A look for a key that was pressed comes too soon to tell a pace.
        if seconds >= SHORTEST {
            self.paced = self.look.at;
            self.requests = requests.saturating_sub(before) as f64 / seconds;
            self.track(seconds);
        } else {
            self.look.status.requests.total = before;
        }
        self.zone = self.zone.min(self.look.zones.len().saturating_sub(1));
        self.key = self.key.min(self.keys_shown().count().saturating_sub(1));
        self.server = self
            .server
            .min(self.servers_shown().count().saturating_sub(1));
    }

    fn track(&mut self, seconds: f64) {
        self.latencies
            .take(std::mem::take(&mut self.look.latencies));
        let look = &self.look;
        let zones = look.zones.iter();
        self.zones.take(
            seconds,
            zones.map(|zone| (zone.name.as_str(), zone.verdicts)),
        );
        if let Some(open) = &look.open {
            let names: Vec<_> = open
                .keys
                .iter()
                .map(|key| joined(&open.detail.zone.name, &key.key))
                .collect();
            let counts = open.keys.iter().map(|key| key.verdicts);
            self.keys
                .take(seconds, names.iter().map(String::as_str).zip(counts));
        }
        let servers: Vec<_> = self
            .servers_shown()
            .map(|(upstream, server)| {
                let counts = VerdictCounts {
                    pass: server.requests.saturating_sub(server.errors),
                    delay: 0,
                    refuse: server.errors,
                };
                (joined(upstream, &server.address), counts)
            })
            .collect();
        self.servers.take(
            seconds,
            servers
                .iter()
                .map(|(name, counts)| (name.as_str(), *counts)),
        );
    }

    /// The keys of the zone that is open, as they are shown.
    pub(super) fn keys_shown(&self) -> impl Iterator<Item = &str> {
        let open = self.look.open.iter();
        open.flat_map(|open| open.keys.iter().map(|key| key.key.as_str()))
    }

    /// All servers with their upstream.
    pub(super) fn servers_shown(&self) -> impl Iterator<Item = (&str, &Backend)> {
        self.look.upstreams.iter().flat_map(|upstream| {
            let servers = upstream.servers.iter();
            servers.map(|server| (upstream.name.as_str(), server))
        })
    }

    fn selected_key(&self) -> Option<&str> {
        self.keys_shown().nth(self.key)
    }

    fn open_zone(&self) -> Option<&str> {
        let open = self.look.open.as_ref()?;
        Some(&open.detail.zone.name)
    }

    fn press(&mut self, press: KeyEvent) -> UiAction {
        if press == KeyEvent::Stop {
            return UiAction::Go;
        }
        self.message = None;
        match std::mem::replace(&mut self.cover, Overlay::None) {
            Overlay::Ask { order, .. } => {
                return match press {
                    KeyEvent::Letter('y' | 'Y') => UiAction::Tell(order),
                    _ => UiAction::Stay,
                };
            }
            Overlay::Help | Overlay::Inspect(..) => return UiAction::Stay,
            Overlay::None => {}
        }
        match press {
            KeyEvent::Letter('q') => return UiAction::Go,
            KeyEvent::Letter('?' | 'h') => self.cover = Overlay::Help,
            KeyEvent::Tab => self.pane = self.pane.next(),
            KeyEvent::TabBack => self.pane = self.pane.next().next(),
            KeyEvent::Down | KeyEvent::Letter('j') => return self.step(1),
            KeyEvent::Up | KeyEvent::Letter('k') => return self.step(-1),
            KeyEvent::Enter => return self.inspect(),
            KeyEvent::Letter('s') => {
                self.sort = next_sort(self.sort);
                return self.watch();
            }
            KeyEvent::Letter('b') => self.mark("block", "blocked"),
            KeyEvent::Letter('x') => self.mark("exempt", "exempt"),
            KeyEvent::Letter('f') => self.forget(),
            KeyEvent::Letter('d') => self.switch(BackendState::Drain, "drained"),
            KeyEvent::Letter('u') => self.switch(BackendState::Up, "up again"),
            _ => {}
        }
        UiAction::Stay
    }

    fn step(&mut self, by: isize) -> UiAction {
        let (at, count) = match self.pane {
            TopPane::Keys => (self.key, self.keys_shown().count()),
            TopPane::Servers => (self.server, self.servers_shown().count()),
            TopPane::Zones => (self.zone, self.look.zones.len()),
        };
        let to = at.saturating_add_signed(by).min(count.saturating_sub(1));
        match self.pane {
            TopPane::Keys => self.key = to,
            TopPane::Servers => self.server = to,
            TopPane::Zones if to != at => {
                self.zone = to;
                self.key = 0;
                return self.watch();
            }
            TopPane::Zones => {}
        }
        UiAction::Stay
    }

    fn watch(&self) -> UiAction {
        match self.look.zones.get(self.zone) {
            Some(zone) => UiAction::Tell(PollCommand::Watch {
                zone: zone.name.clone(),
                sort: self.sort,
            }),
            None => UiAction::Stay,
        }
    }

    fn inspect(&self) -> UiAction {
        match (self.open_zone(), self.selected_key()) {
            (Some(zone), Some(key)) => UiAction::Tell(PollCommand::Inspect {
                zone: zone.to_owned(),
                key: key.to_owned(),
            }),
            _ => UiAction::Stay,
        }
    }

    /// Asks whether the key is to be marked.
    fn mark(&mut self, mark: &str, done: &str) {
        let Some((zone, key)) = self.open_zone().zip(self.selected_key()) else {
            return;
        };
        let (question, done) = (
            visible(&format!("{mark} {key} in {zone} for {MARKED_FOR}?")),
            visible(&format!("{key} is {done} in {zone} for {MARKED_FOR}")),
        );
        let call = limits::mark(zone, key, mark, Some(MARKED_FOR));
        self.ask(question, PollCommand::Do { call, done });
    }

    fn forget(&mut self) {
        let Some((zone, key)) = self.open_zone().zip(self.selected_key()) else {
            return;
        };
        let (question, done) = (
            visible(&format!(
                "forget {key} in {zone}, its count and its penalty?"
            )),
            visible(&format!("{key} begins anew in {zone}")),
        );
        let call = limits::forget(zone, key);
        self.ask(question, PollCommand::Do { call, done });
    }

    /// Asks whether the server is to be switched; only where one is selected for all to see.
    fn switch(&mut self, state: BackendState, done: &str) {
        let Some((upstream, server)) = self.servers_shown().nth(self.server) else {
            return;
        };
        let address = &server.address;
        if self.pane != TopPane::Servers {
            self.message = Some(Notice::Failed(
                "first select a server: tab goes there".to_owned(),
            ));
            return;
        }
        let (question, done) = (
            visible(&format!("{} {address} of {upstream}?", state.as_str())),
            visible(&format!("{address} of {upstream} is {done}")),
        );
        let change = BackendChange {
            state: Some(state),
            breaker: None,
        };
        let call = upstreams::change(upstream, address, &change);
        self.ask(question, PollCommand::Do { call, done });
    }

    fn ask(&mut self, question: String, order: PollCommand) {
        self.cover = Overlay::Ask { question, order };
    }
}

impl TopPane {
    fn next(self) -> Self {
        match self {
            Self::Zones => Self::Keys,
            Self::Keys => Self::Servers,
            Self::Servers => Self::Zones,
        }
    }
}

/// The name of something inside something, in one text.
pub(super) fn joined(outer: &str, inner: &str) -> String {
    format!("{outer}\n{inner}")
}

fn next_sort(sort: KeySort) -> KeySort {
    match sort {
        KeySort::Now => KeySort::Refuse,
        KeySort::Refuse => KeySort::Demand,
        KeySort::Demand => KeySort::Excess,
        KeySort::Excess => KeySort::Delay,
        KeySort::Delay => KeySort::Pass,
        KeySort::Pass => KeySort::Now,
    }
}

/// How long a key is marked for.
const MARKED_FOR: &str = "10m";

/// Seconds between two looks that tell a pace.
const SHORTEST: f64 = 0.5;
