//! `weir top`: the dashboard in a terminal.
//!
//! One thread reads keys, one looks at the running weir, and this one draws: it is told by both what there is to know,
//! and by the system when the window changes or it has to go.
//!
//! Keys, as a terminal sends them.
//!
//! The terminal: taken over for as long as we draw on it, and given back as it was, come what may.
//!
//! A handful of escape codes that every terminal of the last thirty years knows, and `termios` through rustix. A library
//! for this would bring more code than all of `top` is.

mod draw;
mod poll;
mod state;

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::sync::mpsc;

use clap::Args;
use parking_lot::Mutex;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc as events;

use self::poll::{Poller, Snapshot};
use self::state::{TopState, UiAction};
use super::client::AdminOptions;
use super::output::cut;
use crate::api::KeyState;

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
            .collect::<io::Result<Vec<_>>>()?;
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
    let mut stdin = io::stdin().lock();
    while let Ok(read @ 1..) = stdin.read(&mut bytes) {
        for press in presses(bytes.get(..read).unwrap_or_default()) {
            if tell.send(UiEvent::Press(press)).is_err() {
                return;
            }
        }
    }
    // A terminal that is gone sends nobody away: there may be no HUP.
    drop(tell.send(UiEvent::Stop));
}

/// A key that was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyEvent {
    Down,
    Enter,
    Escape,
    Letter(char),
    /// Ctrl-C: raw mode makes it a key like others.
    Stop,
    Tab,
    TabBack,
    Up,
}

/// The keys in what was read at once. What we have no use for is passed over.
fn presses(mut bytes: &[u8]) -> Vec<KeyEvent> {
    let mut presses = Vec::new();
    while let [first, rest @ ..] = bytes {
        let (press, after) = match (first, rest) {
            (0x03 | 0x04, _) => (Some(KeyEvent::Stop), rest),
            (b'\t', _) => (Some(KeyEvent::Tab), rest),
            (b'\r' | b'\n', _) => (Some(KeyEvent::Enter), rest),
            // Arrows come as `ESC [ A`, or `ESC O A` from terminals in another mood.
            (0x1b, [b'[' | b'O', rest @ ..]) => sequence(rest),
            (0x1b, _) => (Some(KeyEvent::Escape), rest),
            (b' '..=b'~', _) => (Some(KeyEvent::Letter(char::from(*first))), rest),
            _ => (None, rest),
        };
        presses.extend(press);
        bytes = after;
    }
    presses
}

fn sequence(bytes: &[u8]) -> (Option<KeyEvent>, &[u8]) {
    let is_last = |byte: &u8| matches!(byte, 0x40..=0x7e);
    let Some(end) = bytes.iter().position(is_last) else {
        return (None, &[]);
    };
    let (parameters, rest) = bytes.split_at(end);
    let press = match (parameters, rest.first()) {
        ([], Some(b'A')) => Some(KeyEvent::Up),
        ([], Some(b'B')) => Some(KeyEvent::Down),
        ([], Some(b'Z')) => Some(KeyEvent::TabBack),
        _ => None,
    };
    (press, rest.get(1..).unwrap_or_default())
}

/// Ours until it is dropped.
// Not `Clone`: two owners would give it back twice.
#[derive(Debug)]
struct Screen(());

impl Screen {
    /// Fails where there is none.
    fn possible() -> anyhow::Result<()> {
        anyhow::ensure!(
            io::stdin().is_terminal() && io::stdout().is_terminal(),
            "top draws on a terminal, and this is none; `weir zones`, `keys`, `upstreams` and `refusals` print the same, also with --json"
        );
        Ok(())
    }

    /// Takes the terminal: keys come one by one and unseen, and what was on it comes back in the end.
    fn open() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock() = Some(before);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // First this, or what it says would go with the screen.
            give_back();
            hook(panic);
        }));
        // From here on dropping gives back.
        let screen = Self(());
        tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
        write(ENTER)?;
        Ok(screen)
    }

    /// Columns and rows.
    fn size() -> (usize, usize) {
        let size = tcgetwinsize(io::stdout()).ok();
        let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
    }

    /// Shows these lines and no others.
    #[expect(
        clippy::unused_self,
        reason = "only whoever has taken the terminal may draw on it"
    )]
    fn draw(&self, lines: &[String]) -> io::Result<()> {
        let mut frame = String::from(BEGIN);
        for (at, line) in lines.iter().enumerate() {
            if at > 0 {
                frame.push_str("\r\n");
            }
            // Before the text: after one that fills the line it would take the last letter away.
            frame.push_str(CLEAR_LINE);
            frame.push_str(line);
        }
        frame.push_str(END);
        write(&frame)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back, once.
fn give_back() {
    if let Some(before) = BEFORE.lock().take() {
        // There is nobody left to tell if this fails.
        drop(write(LEAVE));
        let _given = tcsetattr(io::stdin(), OptionalActions::Flush, &before);
    }
}

/// Not through anstream's own lock of what is written: these codes are no colours, and have to arrive.
fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match anstream::AutoStream::choice(&stdout) {
        anstream::ColorChoice::Never => stdout.write_all(colourless(text).as_bytes())?,
        _ => stdout.write_all(text.as_bytes())?,
    }
    stdout.flush()
}

/// Without colours, for those who said NO_COLOR: a style is what ends in `m`.
fn colourless(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut parts = text.split("\u{1b}[");
    plain.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let end = part.find(|letter: char| letter.is_ascii_alphabetic());
        match end.and_then(|end| part.split_at_checked(end)) {
            Some((_, rest)) if rest.starts_with('m') => {
                plain.push_str(rest.strip_prefix('m').unwrap_or(rest))
            }
            _ => plain.extend(["\u{1b}[", part]),
        }
    }
    plain
}

/// A line of one style, no wider than there is room.
fn line(text: &str, style: anstyle::Style, width: usize) -> String {
    format!("{style}{}{style:#}", cut(text, width))
}

/// How the terminal was. A static, because a panic has nothing else to reach it by.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The other screen, no cursor, and lines that end at the edge.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l\u{1b}[2J";
const LEAVE: &str = "\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l";

/// All at once, where the terminal can do that; from the upper left.
const BEGIN: &str = "\u{1b}[?2026h\u{1b}[H";
const CLEAR_LINE: &str = "\u{1b}[K";
const END: &str = "\u{1b}[?2026l";

#[cfg(test)]
mod press_tests {

    use super::*;

    #[test]
    fn keys_are_told_apart() {
        let bytes = b"j\x1b[A\x1bOB\t\x1b[Z\r\x1b[1;5C\x1b[3~q\x03\x1b";
        assert_eq!(
            presses(bytes),
            [
                KeyEvent::Letter('j'),
                KeyEvent::Up,
                KeyEvent::Down,
                KeyEvent::Tab,
                KeyEvent::TabBack,
                KeyEvent::Enter,
                KeyEvent::Letter('q'),
                KeyEvent::Stop,
                KeyEvent::Escape,
            ]
        );
    }

    #[test]
    fn half_a_sequence_is_no_key() {
        assert_eq!(presses(b"\x1b[1;"), []);
        assert_eq!(presses("ü".as_bytes()), []);
        assert_eq!(presses(b""), []);
    }
}

#[cfg(test)]
mod screen_tests {

    use super::*;

    #[test]
    fn without_colours_the_rest_still_arrives() {
        let text = format!("{BEGIN}{CLEAR_LINE}\u{1b}[1m\u{1b}[31mred\u{1b}[0m{END}");
        assert_eq!(colourless(&text), format!("{BEGIN}{CLEAR_LINE}red{END}"));
    }
}
