//! The state of `weir top`: the last poll, rates so far, the selection, and what each key does.

use super::poll::{Latencies, PollCommand, RateHistory, Snapshot, UiEvent, joined};
use super::terminal::KeyEvent;
use crate::api::{
    Backend, BackendChange, BackendState, KeyActionRequest, KeySort, KeyState, NumberOrText,
    VerdictCounts,
};
use crate::cli::client::ApiRequest;
use crate::cli::verbs::{limits, upstreams};
use crate::clock::Millis;
use crate::text::visible;

/// Everything that is drawn.
#[derive(Debug)]
pub(super) struct TopState {
    pub(super) snapshot: Snapshot,
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
    pub(super) overlay: Overlay,
    /// A message that is shown once.
    pub(super) message: Option<Notice>,
    /// Why polling fails.
    pub(super) lost: Option<String>,
    /// When rates were last computed.
    rated: Millis,
}

/// The table that keys move in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TopPane {
    Keys,
    Servers,
    Zones,
}

/// What lies over the tables.
#[derive(Debug)]
pub(super) enum Overlay {
    /// A question that `y` confirms.
    Ask {
        question: String,
        command: PollCommand,
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

/// What `top` does after an event.
#[derive(Debug)]
pub(super) enum UiAction {
    None,
    Poll(PollCommand),
    Quit,
}

impl TopState {
    pub(super) fn new(snapshot: Snapshot) -> Self {
        let mut state = Self {
            rated: snapshot.at,
            snapshot,
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
            overlay: Overlay::None,
            message: None,
            lost: None,
        };
        state.track(1.0);
        state
    }

    /// Handles an event.
    pub(super) fn handle(&mut self, event: UiEvent) -> UiAction {
        match event {
            UiEvent::Done(what) => self.message = Some(Notice::Done(what)),
            UiEvent::Failed(why) => self.message = Some(Notice::Failed(why)),
            UiEvent::Inspected(zone, key) => self.overlay = Overlay::Inspect(zone, key),
            UiEvent::Polled(snapshot) => self.update(*snapshot),
            UiEvent::Lost(why) => self.lost = Some(why),
            UiEvent::Press(press) => return self.press(press),
            UiEvent::Resize => {}
            UiEvent::Stop => return UiAction::Quit,
        }
        UiAction::None
    }

    fn update(&mut self, snapshot: Snapshot) {
        self.lost = None;
        let selected = self
            .selected_key()
            .filter(|_| self.pane == TopPane::Keys)
            .map(str::to_owned);
        let seconds = snapshot.at.since(self.rated).as_secs_f64();
        let requests = snapshot.status.requests.total;
        let before = self.snapshot.status.requests.total;
        self.snapshot = snapshot;
        // Keys change places: in their table the selection follows the key, elsewhere it is the first row.
        if let Some(at) = selected.and_then(|key| self.keys_shown().position(|shown| shown == key))
        {
            self.key = at;
        }
        // A poll because of a command comes too soon to compute rates.
        if seconds >= RATE_INTERVAL_MIN {
            self.rated = self.snapshot.at;
            self.requests = requests.saturating_sub(before) as f64 / seconds;
            self.track(seconds);
        } else {
            self.snapshot.status.requests.total = before;
        }
        self.zone = self.zone.min(self.snapshot.zones.len().saturating_sub(1));
        self.key = self.key.min(self.keys_shown().count().saturating_sub(1));
        self.server = self
            .server
            .min(self.servers_shown().count().saturating_sub(1));
    }

    fn track(&mut self, seconds: f64) {
        self.latencies
            .take(std::mem::take(&mut self.snapshot.latencies));
        let snapshot = &self.snapshot;
        let zones = snapshot.zones.iter();
        self.zones.take(
            seconds,
            zones.map(|zone| (zone.name.as_str(), zone.verdicts)),
        );
        if let Some(open) = &snapshot.open {
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
        let open = self.snapshot.open.iter();
        open.flat_map(|open| open.keys.iter().map(|key| key.key.as_str()))
    }

    /// All servers with their upstream.
    pub(super) fn servers_shown(&self) -> impl Iterator<Item = (&str, &Backend)> {
        upstreams::servers(&self.snapshot.upstreams)
    }

    fn selected_key(&self) -> Option<&str> {
        self.keys_shown().nth(self.key)
    }

    fn open_zone(&self) -> Option<&str> {
        let open = self.snapshot.open.as_ref()?;
        Some(&open.detail.zone.name)
    }

    fn press(&mut self, press: KeyEvent) -> UiAction {
        if press == KeyEvent::Stop {
            return UiAction::Quit;
        }
        self.message = None;
        match std::mem::replace(&mut self.overlay, Overlay::None) {
            Overlay::Ask { command, .. } => {
                return match press {
                    KeyEvent::Letter('y' | 'Y') => UiAction::Poll(command),
                    _ => UiAction::None,
                };
            }
            Overlay::Help | Overlay::Inspect(..) => return UiAction::None,
            Overlay::None => {}
        }
        match press {
            KeyEvent::Letter('q') => return UiAction::Quit,
            KeyEvent::Letter('?' | 'h') => self.overlay = Overlay::Help,
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
            KeyEvent::Letter('x') => self.mark("exempt", "exempted"),
            KeyEvent::Letter('f') => self.forget(),
            KeyEvent::Letter('d') => self.switch(BackendState::Drain, "drained"),
            KeyEvent::Letter('u') => self.switch(BackendState::Up, "up again"),
            _ => {}
        }
        UiAction::None
    }

    fn step(&mut self, by: isize) -> UiAction {
        let (at, count) = match self.pane {
            TopPane::Keys => (self.key, self.keys_shown().count()),
            TopPane::Servers => (self.server, self.servers_shown().count()),
            TopPane::Zones => (self.zone, self.snapshot.zones.len()),
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
        UiAction::None
    }

    fn watch(&self) -> UiAction {
        match self.snapshot.zones.get(self.zone) {
            Some(zone) => UiAction::Poll(PollCommand::Watch {
                zone: zone.name.clone(),
                sort: self.sort,
            }),
            None => UiAction::None,
        }
    }

    fn inspect(&self) -> UiAction {
        match (self.open_zone(), self.selected_key()) {
            (Some(zone), Some(key)) => UiAction::Poll(PollCommand::Inspect {
                zone: zone.to_owned(),
                key: key.to_owned(),
            }),
            _ => UiAction::None,
        }
    }

    /// Asks whether to mark the selected key.
    fn mark(&mut self, mark: &str, done: &str) {
        let Some((zone, key)) = self.open_zone().zip(self.selected_key()) else {
            return;
        };
        let question = format!("{mark} {key} in {zone} for {DURATION}?");
        let done = format!("{done} {key} in {zone} for {DURATION}");
        let body = KeyActionRequest {
            r#for: Some(NumberOrText::Text(DURATION.to_owned())),
            ..KeyActionRequest::default()
        };
        let request = limits::mark(zone, key, mark, &body);
        self.ask(&question, &done, request);
    }

    fn forget(&mut self) {
        let Some((zone, key)) = self.open_zone().zip(self.selected_key()) else {
            return;
        };
        let question = format!("reset {key} in {zone}, its count and its penalty?");
        let done = format!("reset {key} in {zone}");
        let request = limits::forget(zone, key);
        self.ask(&question, &done, request);
    }

    /// Asks whether to switch the selected server; only in the table of servers.
    fn switch(&mut self, state: BackendState, done: &str) {
        let Some((upstream, server)) = self.servers_shown().nth(self.server) else {
            return;
        };
        if self.pane != TopPane::Servers {
            let advice = "select a server first: tab goes there";
            self.message = Some(Notice::Failed(advice.to_owned()));
            return;
        }
        let address = &server.address;
        let question = format!("{} {address} of {upstream}?", state.as_str());
        let done = format!("{address} of {upstream} is {done}");
        let body = BackendChange {
            state: Some(state),
            breaker: None,
        };
        let request = upstreams::change(upstream, address, &body);
        self.ask(&question, &done, request);
    }

    fn ask(&mut self, question: &str, done: &str, request: ApiRequest) {
        let done = visible(done);
        self.overlay = Overlay::Ask {
            question: visible(question),
            command: PollCommand::Do { request, done },
        };
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

/// How long a mark on a key lasts.
const DURATION: &str = "10m";

/// Seconds between two polls that rates are computed from.
const RATE_INTERVAL_MIN: f64 = 0.5;
