//! `weir top`: the dashboard in a terminal.
//!
//! One thread reads keys, one polls the running weir, and this one draws. Both send it events; a signal says when the window
//! has another size or the process has to end.

mod draw;
mod poll;
mod state;
mod terminal;

use std::io::{self, Read as _};
use std::sync::mpsc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc as events;

use self::poll::{Poller, UiEvent};
use self::state::{TopState, UiAction};
use self::terminal::{Screen, presses};
use super::client::AdminOptions;

/// Shows the dashboard until the user quits.
pub(super) fn run(admin: &AdminOptions) -> anyhow::Result<()> {
    Screen::check()?;
    let poller = Poller::new(admin.client()?);
    // Before the terminal is taken over, so that an error is shown as in every command.
    let mut state = TopState::new(poller.poll()?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let screen = Screen::open()?;
    let (sender, mut events) = events::unbounded_channel();
    let (commands, receiver) = mpsc::channel();
    let poll_events = sender.clone();
    // Both threads end with the process, or when their channel is closed.
    std::thread::Builder::new()
        .spawn(move || poller.run(&receiver, |event| poll_events.send(event).is_ok()))?;
    std::thread::Builder::new().spawn(move || read_keys(&sender))?;
    runtime.block_on(async {
        let mut resize = signal(SignalKind::window_change())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        loop {
            screen.draw(&draw::frame(&state, Screen::size()))?;
            let event = tokio::select! {
                event = events.recv() => event.unwrap_or(UiEvent::Stop),
                _ = resize.recv() => UiEvent::Resize,
                _ = terminate.recv() => UiEvent::Stop,
                _ = hangup.recv() => UiEvent::Stop,
                _ = interrupt.recv() => UiEvent::Stop,
            };
            match state.handle(event) {
                UiAction::Quit => return Ok(()),
                UiAction::None => {}
                // The poller ends only with the process.
                UiAction::Poll(command) => drop(commands.send(command)),
            }
        }
    })
}

/// Reads keys until there are no more.
fn read_keys(events: &events::UnboundedSender<UiEvent>) {
    let mut bytes = [0; 64];
    let mut stdin = io::stdin().lock();
    while let Ok(read @ 1..) = stdin.read(&mut bytes) {
        for press in presses(bytes.get(..read).unwrap_or_default()) {
            if events.send(UiEvent::Press(press)).is_err() {
                return;
            }
        }
    }
    // A terminal that is gone need not send HUP.
    drop(events.send(UiEvent::Stop));
}
