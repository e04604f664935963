//! What a verb prints: lines and tables on standard output, as wide as the terminal there is.

use std::io::{self, IsTerminal as _, Write as _};

use super::table::TextTable;

/// Text to be printed.
#[derive(Debug, Default)]
pub(super) struct Output {
    text: String,
    width: Option<usize>,
}

impl Output {
    /// Empty, for standard output: not wider than the terminal, and as wide as it gets where there is none.
    pub(super) fn new() -> Self {
        let terminal = io::stdout().is_terminal();
        let size = terminal.then(|| rustix::termios::tcgetwinsize(io::stdout()).ok());
        let columns = size.flatten().map(|size| usize::from(size.ws_col));
        Self {
            text: String::new(),
            width: columns.filter(|columns| *columns > 0),
        }
    }

    /// A line; what of it strangers have sent must have been made harmless.
    pub(super) fn line(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    pub(super) fn table(&mut self, table: &TextTable) {
        for line in table.lines(self.width) {
            self.line(line);
        }
    }

    /// Writes it to standard output.
    pub(super) fn print(&self) -> io::Result<()> {
        print(&self.text)
    }
}

/// Writes a text to standard output, without its colours where nobody would see them.
pub(super) fn print(text: &str) -> io::Result<()> {
    let mut stdout = anstream::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Writes the API's JSON as it is, but for what would act on a terminal: JSON may have that as it is, and as a number as well.
pub(super) fn print_json(text: &str) -> io::Result<()> {
    let mut safe = String::with_capacity(text.len() + 1);
    for letter in text.trim_end().chars() {
        match letter {
            '\u{7f}'..='\u{9f}' => safe.push_str(&format!("\\u{:04x}", u32::from(letter))),
            letter => safe.push(letter),
        }
    }
    safe.push('\n');
    // Not through anstream: nothing is to be taken out of it.
    let mut stdout = io::stdout().lock();
    stdout.write_all(safe.as_bytes())?;
    stdout.flush()
}
