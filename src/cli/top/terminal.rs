//! The terminal of `weir top`: taken over while it runs and restored however it ends; and the keys it sends.
//!
//! A few escape codes that every terminal knows, and `termios` through rustix: a library for this has more code than all of
//! `top`.

use std::io::{self, IsTerminal as _, Write as _};

use parking_lot::Mutex;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// A key that was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyEvent {
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

/// The keys in one read; unknown ones are skipped.
pub(super) fn presses(mut bytes: &[u8]) -> Vec<KeyEvent> {
    let mut presses = Vec::new();
    while let [first, rest @ ..] = bytes {
        let (press, after) = match (first, rest) {
            (0x03 | 0x04, _) => (Some(KeyEvent::Stop), rest),
            (b'\t', _) => (Some(KeyEvent::Tab), rest),
            (b'\r' | b'\n', _) => (Some(KeyEvent::Enter), rest),
            // Arrows are `ESC [ A`, or `ESC O A` in application mode.
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

/// The terminal, taken over until this is dropped.
// Not `Clone`: two owners would give it back twice.
#[derive(Debug)]
pub(super) struct Screen(());

impl Screen {
    /// Fails unless input and output are a terminal.
    pub(super) fn check() -> anyhow::Result<()> {
        anyhow::ensure!(
            io::stdin().is_terminal() && io::stdout().is_terminal(),
            "top needs a terminal; `weir zones`, `keys`, `upstreams` and `refusals` print the same, also with --json"
        );
        Ok(())
    }

    /// Takes the terminal over: keys arrive one by one without an echo, and its contents return at the end.
    pub(super) fn open() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock() = Some(before);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // First this, or the message would disappear with the screen.
            restore();
            hook(panic);
        }));
        // From here on, dropping restores the terminal.
        let screen = Self(());
        tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
        write(ENTER)?;
        Ok(screen)
    }

    /// Columns and rows.
    pub(super) fn size() -> (usize, usize) {
        let size = tcgetwinsize(io::stdout()).ok();
        let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
    }

    /// Shows these lines and no others.
    #[expect(
        clippy::unused_self,
        reason = "only the owner of the terminal may draw on it"
    )]
    pub(super) fn draw(&self, lines: &[String]) -> io::Result<()> {
        let mut frame = String::from(BEGIN);
        for (at, line) in lines.iter().enumerate() {
            if at > 0 {
                frame.push_str("\r\n");
            }
            // Before the text: after one that fills the line it would erase the last character.
            frame.push_str(CLEAR_LINE);
            frame.push_str(line);
        }
        frame.push_str(END);
        write(&frame)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal, once.
fn restore() {
    if let Some(before) = BEFORE.lock().take() {
        // Nothing can be done if this fails.
        drop(write(LEAVE));
        let _given = tcsetattr(io::stdin(), OptionalActions::Flush, &before);
    }
}

/// Not through anstream's stream, which would remove these codes: they are no colours.
fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match anstream::AutoStream::choice(&stdout) {
        anstream::ColorChoice::Never => stdout.write_all(colourless(text).as_bytes())?,
        _ => stdout.write_all(text.as_bytes())?,
    }
    stdout.flush()
}

/// Removes colours, for NO_COLOR: a style ends in `m`.
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

/// The terminal's state before. A static, because a panic hook cannot reach anything else.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The alternate screen, no cursor, no line wrapping.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l\u{1b}[2J";
const LEAVE: &str = "\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l";

/// Synchronised output, where the terminal supports it; from the upper left.
const BEGIN: &str = "\u{1b}[?2026h\u{1b}[H";
const CLEAR_LINE: &str = "\u{1b}[K";
const END: &str = "\u{1b}[?2026l";

#[cfg(test)]
mod tests {

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

    #[test]
    fn without_colours_the_rest_still_arrives() {
        let text = format!("{BEGIN}{CLEAR_LINE}\u{1b}[1m\u{1b}[31mred\u{1b}[0m{END}");
        assert_eq!(colourless(&text), format!("{BEGIN}{CLEAR_LINE}red{END}"));
    }
}
