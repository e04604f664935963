//! `weir top`: the dashboard in a terminal.
//!
//! One thread reads keys, one looks at the running weir, and this one draws: it is told by both what there is to know,
//! and by the system when the window changes or it has to go.

mod draw;
mod latency;
mod pace;
mod press;
mod screen;
mod sentences;
mod view;
mod watch;

use std::io::Read as _;
use std::sync::mpsc;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc as events;

use super::admin::AdminOptions;
use super::admin::answers::KeyState;
use press::KeyEvent;
use screen::Screen;
use view::{TopState, UiAction};
use watch::{Poller, Snapshot};

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    #[command(flatten)]
    reach: AdminOptions,
}

/// What there is to react to.
#[derive(Debug)]
enum UiEvent {
    /// What was wanted is done.
    Done(String),
    /// What was wanted is not done, and why.
    Failed(String),
    Inspected(String, Box<KeyState>),
    Look(Box<Snapshot>),
    /// It does not answer any more.
    Lost(String),
    Press(KeyEvent),
    /// The window has another size.
    Resize,
    Stop,
}

impl UiEvent {
    fn failed(error: &anyhow::Error) -> Self {
        Self::Failed(format!("{error:#}"))
    }
}

impl TopArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        Screen::possible()?;
        let watcher = Poller::new(self.reach.admin()?);
        // Before the terminal is taken: what is wrong is then told as everywhere.
        let mut view = TopState::new(watcher.look()?);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()?;
        let screen = Screen::open()?;
        let (sender, mut receiver) = events::unbounded_channel();
        let (orders, wanted) = mpsc::channel();
        let news = sender.clone();
        // Both end with the process, or when nobody listens any more.
        std::thread::Builder::new()
            .spawn(move || watcher.run(&wanted, |event| news.send(event).is_ok()))?;
        std::thread::Builder::new().spawn(move || keys(&sender))?;
        runtime.block_on(async {
            let mut resized = signal(SignalKind::window_change())?;
            let mut ends = [
                SignalKind::terminate(),
                SignalKind::hangup(),
                SignalKind::interrupt(),
            ]
            .map(signal)
            .into_iter()
            .collect::<std::io::Result<Vec<_>>>()?;
            loop {
                screen.draw(&draw::frame(&view, Screen::size()))?;
                let [terminate, hangup, interrupt] = &mut ends[..] else {
                    return Ok(());
                };
                let event = tokio::select! {
                    event = receiver.recv() => event.unwrap_or(UiEvent::Stop),
                    _ = resized.recv() => UiEvent::Resize,
                    _ = terminate.recv() => UiEvent::Stop,
                    _ = hangup.recv() => UiEvent::Stop,
                    _ = interrupt.recv() => UiEvent::Stop,
                };
                match view.take(event) {
                    UiAction::Go => return Ok(()),
                    UiAction::Stay => {}
                    UiAction::Tell(order) => {
                        // Whoever took orders is gone only when we are.
                        drop(orders.send(order));
                    }
                }
            }
        })
    }
}

/// Reads keys until there are no more.
fn keys(tell: &events::UnboundedSender<UiEvent>) {
    let mut bytes = [0; 64];
    let mut stdin = std::io::stdin().lock();
    while let Ok(read @ 1..) = stdin.read(&mut bytes) {
        for press in press::presses(bytes.get(..read).unwrap_or_default()) {
            if tell.send(UiEvent::Press(press)).is_err() {
                return;
            }
        }
    }
    // A terminal that is gone sends nobody away: there may be no HUP.
    drop(tell.send(UiEvent::Stop));
}
