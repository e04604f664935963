//! What commands print: tables, numbers and times, the same in every command, and reports of configuration errors.
//!
//! A table is never wider than its terminal. Every text in one is made safe first: keys and paths come from clients.

use std::io::{self, IsTerminal as _, Write};

use anstyle::{AnsiColor, Style};
use unicode_width::UnicodeWidthStr as _;

use crate::api::VerdictCounts;
use crate::config::{ColorChoice, Report};
use crate::replay::{duration, percent};
use crate::text::visible;

pub(super) use crate::replay::number;

/// The command line is invalid: the exit status is 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UsageError(String);

pub(super) fn usage_error(error: impl Into<String>) -> anyhow::Error {
    UsageError(error.into()).into()
}

/// A table with a header line.
#[derive(Debug)]
pub(super) struct TextTable {
    columns: Vec<Column>,
    /// Cells, and a line below the row.
    rows: Vec<(Vec<TableCell>, Option<String>)>,
}

#[derive(Debug)]
struct Column {
    name: String,
    /// Aligned to the right, as numbers are.
    right: bool,
}

/// A text and its style.
#[derive(Debug, Clone, Default)]
pub(super) struct TableCell {
    text: String,
    style: Style,
    /// The same text with styles of its own; shown where all of it fits.
    painted: Option<String>,
}

impl TextTable {
    /// An empty table; `header` has the names of its columns, two spaces between them, `>` before those aligned to the right.
    pub(super) fn new(header: &str) -> Self {
        let columns = header.split("  ").map(|name| Column {
            name: name.trim_start_matches('>').to_owned(),
            right: name.starts_with('>'),
        });
        Self {
            columns: columns.collect(),
            rows: Vec::new(),
        }
    }

    pub(super) fn row(&mut self, cells: impl Into<Vec<TableCell>>) {
        self.rows.push((cells.into(), None));
    }

    /// Adds a row with a line below it.
    pub(super) fn row_with(&mut self, cells: impl Into<Vec<TableCell>>, note: &str) {
        self.rows.push((cells.into(), Some(visible(note))));
    }

    /// The lines of the table, at most `most` columns wide.
    pub(super) fn lines(&self, most: Option<usize>) -> Vec<String> {
        let widths = self.widths(most);
        let names = self.columns.iter();
        let header = names.map(|column| TableCell::from(&column.name).styled(FAINT));
        let mut lines = vec![self.line(&header.collect::<Vec<_>>(), &widths)];
        for (cells, note) in &self.rows {
            lines.push(self.line(cells, &widths));
            if let Some(note) = note {
                let room = most.map_or(usize::MAX, |most| most.saturating_sub(GAP));
                let note = cut(note, room);
                lines.push(format!("  {FAINT}{note}{FAINT:#}"));
            }
        }
        lines
    }

    fn widths(&self, most: Option<usize>) -> Vec<usize> {
        let names = self.columns.iter().map(|column| column.name.width());
        let mut widths: Vec<usize> = names.collect();
        for (cells, _) in &self.rows {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.text.width());
            }
        }
        let Some(most) = most else {
            return widths;
        };
        // Names are cut, numbers are not: half a number is another number.
        while widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1) > most {
            let columns = self.columns.iter().zip(&mut widths);
            let names = columns.filter(|(column, _)| !column.right);
            match names.map(|(_, width)| width).max_by_key(|width| **width) {
                Some(width) if *width > NAME_MIN => *width -= 1,
                _ => break,
            }
        }
        widths
    }

    fn line(&self, cells: &[TableCell], widths: &[usize]) -> String {
        let mut line = String::new();
        let used = cells.iter().rposition(|cell| !cell.text.is_empty());
        let used = used.map_or(0, |last| last + 1);
        let columns = self.columns.iter().zip(widths);
        for (at, (cell, (column, width))) in cells.iter().take(used).zip(columns).enumerate() {
            let (text, style) = (cut(&cell.text, *width), cell.style);
            let space = " ".repeat(width.saturating_sub(text.width()));
            if at > 0 {
                line.push_str("  ");
            }
            let text = match &cell.painted {
                Some(painted) if text == cell.text => painted.clone(),
                _ => format!("{style}{text}{style:#}"),
            };
            match column.right {
                true => line.extend([space, text]),
                false if at + 1 == used => line.push_str(&text),
                false => line.extend([text, space]),
            }
        }
        line
    }
}

impl TableCell {
    pub(super) fn styled(self, style: Style) -> Self {
        Self { style, ..self }
    }

    /// A safe text, and the same text in colours.
    pub(super) fn painted(text: String, painted: String) -> Self {
        Self {
            text,
            style: Style::new(),
            painted: Some(painted),
        }
    }

    pub(super) fn styled_if(self, condition: bool, style: Style) -> Self {
        if condition { self.styled(style) } else { self }
    }
}

impl<T: AsRef<str>> From<T> for TableCell {
    fn from(text: T) -> Self {
        Self {
            text: visible(text.as_ref()),
            ..Self::default()
        }
    }
}

/// Cuts a text that is too wide.
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.width() <= most {
        return text.to_owned();
    }
    let mut short = String::new();
    let mut width = 0;
    for letter in text.chars() {
        width += unicode_width::UnicodeWidthChar::width(letter).unwrap_or(0);
        if width + 1 > most {
            break;
        }
        short.push(letter);
    }
    if most > 0 {
        short.push('…');
    }
    short
}

/// The style of a verdict.
pub(super) fn verdict(word: &str) -> Style {
    match word {
        "refuse" => BAD,
        "delay" => DOUBTFUL,
        _ => GOOD,
    }
}

pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(super) const DOUBTFUL: Style = AnsiColor::Yellow.on_default();
pub(super) const FAINT: Style = Style::new().dimmed();
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
pub(super) const STRONG: Style = Style::new().bold();

/// Spaces between two columns.
const GAP: usize = 2;

/// The minimum width of a column of names.
const NAME_MIN: usize = 8;

/// Text to be printed.
#[derive(Debug, Default)]
pub(super) struct Output {
    text: String,
    width: Option<usize>,
}

impl Output {
    /// Empty, for standard output: at most as wide as its terminal, if it is one.
    pub(super) fn new() -> Self {
        let terminal = io::stdout().is_terminal();
        let size = terminal.then(|| rustix::termios::tcgetwinsize(io::stdout()).ok());
        let columns = size.flatten().map(|size| usize::from(size.ws_col));
        Self {
            text: String::new(),
            width: columns.filter(|columns| *columns > 0),
        }
    }

    /// Adds a line; what clients have sent must be safe to show.
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

/// Writes a text to standard output, without colours where it is no terminal.
pub(super) fn print(text: &str) -> io::Result<()> {
    let mut stdout = anstream::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Writes the API's JSON unchanged, except that control characters, which could act on a terminal, are escaped.
pub(super) fn print_json(text: &str) -> io::Result<()> {
    let mut safe = String::with_capacity(text.len() + 1);
    for letter in text.trim_end().chars() {
        match letter {
            '\u{7f}'..='\u{9f}' => safe.push_str(&format!("\\u{:04x}", u32::from(letter))),
            letter => safe.push(letter),
        }
    }
    safe.push('\n');
    // Not through anstream, which would remove what looks like a colour.
    let mut stdout = io::stdout().lock();
    stdout.write_all(safe.as_bytes())?;
    stdout.flush()
}

/// A time in seconds.
pub(super) fn span(seconds: f64) -> String {
    // A cast of a float keeps to the range of what it is cast to.
    let millis = (seconds * 1000.0).ceil() as u64;
    match millis / DAY {
        0 => duration(millis),
        days => format!("{days} d {} h", millis % DAY / 3_600_000),
    }
}

/// Requests, with up to three decimals.
pub(super) fn requests(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A lag, to a tenth of a millisecond.
pub(super) fn lag(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 0.1 => format!("{:.1} ms", seconds * 1000.0),
        Some(seconds) => span(seconds),
    }
}

/// Counts of verdicts, with the share of refusals.
pub(super) fn verdicts(counts: VerdictCounts) -> String {
    let share = percent(counts.refuse, counts.total());
    format!(
        "{} pass, {} delay, {} refuse ({share})",
        number(counts.pass),
        number(counts.delay),
        number(counts.refuse)
    )
}

const DAY: u64 = 86_400_000;

/// Writes a report to standard error.
pub(super) fn draw(report: &Report) -> io::Result<()> {
    // anstream removes the colours where it is no terminal.
    let mut stderr = anstream::stderr().lock();
    writeln!(stderr, "{}\n", report.draw(ColorChoice::Coloured))
}

#[cfg(test)]
mod tests {

    use super::*;

    fn plain(lines: &[String]) -> String {
        let text = lines.join("\n");
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn columns_are_aligned_under_the_header() {
        let mut table = TextTable::new("KEY  >REFUSE");
        table.row([
            TableCell::from("192.0.2.7"),
            TableCell::from("9 120").styled(BAD),
        ]);
        table.row([TableCell::from("日本"), TableCell::from("1")]);
        assert_eq!(
            plain(&table.lines(None)),
            "KEY        REFUSE\n192.0.2.7   9 120\n日本            1"
        );
    }

    #[test]
    fn names_are_cut_and_numbers_are_not() {
        let mut table = TextTable::new("KEY  >REFUSE");
        table.row([
            TableCell::from("a-very-long-key-of-a-client"),
            TableCell::from("1234567890"),
        ]);
        assert_eq!(
            plain(&table.lines(Some(24))),
            "KEY               REFUSE\na-very-long…  1234567890"
        );
    }

    #[test]
    fn nothing_in_a_key_acts_on_the_terminal() {
        let mut table = TextTable::new("KEY");
        table.row_with(
            [TableCell::from("\u{1b}[2J\u{9b}31m\u{202e}x\r\n")],
            "\u{1b}]0;title\u{7}",
        );
        let text = plain(&table.lines(None));
        assert!(
            !text
                .chars()
                .any(|letter| letter.is_control() && letter != '\n'),
            "{text:?}"
        );
        assert_eq!(text.lines().count(), 3, "{text:?}");
    }

    #[test]
    fn times_and_shares_are_short() {
        assert_eq!(span(0.04), "40 ms");
        assert_eq!(span(600.0), "10 min 0 s");
        assert_eq!(span(200_000.0), "2 d 7 h");
        assert_eq!(span(f64::INFINITY), span(f64::MAX));
        assert_eq!(requests(20.4), "20.4");
        assert_eq!(requests(20.0), "20");
        assert_eq!(lag(Some(0.000_42)), "0.4 ms");
        assert_eq!(lag(None), "-");
    }
}
