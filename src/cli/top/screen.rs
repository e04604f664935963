//! The terminal: taken over for as long as we draw on it, and given back as it was, come what may.
//!
//! A handful of escape codes that every terminal of the last thirty years knows, and `termios` through rustix. A library
//! for this would bring more code than all of `top` is.

use std::io::{self, IsTerminal as _, Write as _};

use parking_lot::Mutex;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::cli::table::cut;

/// Ours until it is dropped.
// Not `Clone`: two owners would give it back twice.
#[derive(Debug)]
pub(super) struct Screen(());

impl Screen {
    /// Fails where there is none.
    pub(super) fn possible() -> anyhow::Result<()> {
        anyhow::ensure!(
            io::stdin().is_terminal() && io::stdout().is_terminal(),
            "top draws on a terminal, and this is none; `weir zones`, `keys`, `upstreams` and `refusals` print the same, also with --json"
        );
        Ok(())
    }

    /// Takes the terminal: keys come one by one and unseen, and what was on it comes back in the end.
    pub(super) fn open() -> io::Result<Self> {
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
    pub(super) fn size() -> (usize, usize) {
        let size = tcgetwinsize(io::stdout()).ok();
        let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
    }

    /// Shows these lines and no others.
    #[expect(
        clippy::unused_self,
        reason = "only whoever has taken the terminal may draw on it"
    )]
    pub(super) fn draw(&self, lines: &[String]) -> io::Result<()> {
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
pub(super) fn line(text: &str, style: anstyle::Style, width: usize) -> String {
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
mod tests {
    use super::*;

    #[test]
    fn without_colours_the_rest_still_arrives() {
        let text = format!("{BEGIN}{CLEAR_LINE}\u{1b}[1m\u{1b}[31mred\u{1b}[0m{END}");
        assert_eq!(colourless(&text), format!("{BEGIN}{CLEAR_LINE}red{END}"));
    }
}
