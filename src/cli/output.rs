//! Tables for people: aligned, coloured where that helps, and never wider than the terminal they are shown on.
//!
//! Every text that goes into one is made harmless first: keys and paths are what strangers have sent.
//!
//! What a verb prints: lines and tables on standard output, as wide as the terminal there is.
//!
//! Numbers and times as people read them, the same in every verb.
//!
//! A report drawn for people: with colour on a terminal, plain everywhere else.

use std::io::{self, IsTerminal as _, Write};

use anstyle::{AnsiColor, Style};
use unicode_width::UnicodeWidthStr as _;

use crate::api::VerdictCounts;
use crate::config::{ColorChoice, Report};
use crate::replay::{duration, percent};
use crate::text::visible;

pub(super) use crate::replay::number;

/// Rows under heads.
#[derive(Debug)]
pub(super) struct TextTable {
    heads: Vec<Column>,
    rows: Vec<TableRow>,
}

/// What a column is called, and where its texts stand.
#[derive(Debug, Clone, Copy)]
pub(super) enum Column {
    Left(&'static str),
    Right(&'static str),
}

/// A text and how it looks.
#[derive(Debug, Clone, Default)]
pub(super) struct TableCell {
    text: String,
    style: Style,
    /// The same with styles of its own, shown where all of it has room.
    painted: Option<String>,
}

#[derive(Debug)]
struct TableRow {
    cells: Vec<TableCell>,
    /// Stands below the row.
    note: Option<String>,
}

impl TextTable {
    pub(super) fn new(heads: impl Into<Vec<Column>>) -> Self {
        Self {
            heads: heads.into(),
            rows: Vec::new(),
        }
    }

    pub(super) fn row(&mut self, cells: impl Into<Vec<TableCell>>) {
        self.rows.push(TableRow {
            cells: cells.into(),
            note: None,
        });
    }

    /// A row with a sentence below it.
    pub(super) fn row_with(&mut self, cells: impl Into<Vec<TableCell>>, note: &str) {
        self.rows.push(TableRow {
            cells: cells.into(),
            note: Some(visible(note)),
        });
    }

    /// As lines without their ends; `most` is how wide they may be.
    pub(super) fn lines(&self, most: Option<usize>) -> Vec<String> {
        let widths = self.widths(most);
        let mut lines = Vec::with_capacity(self.rows.len() + 1);
        let heads = self
            .heads
            .iter()
            .map(|head| TableCell::from(head.name()).styled(FAINT));
        lines.push(self.line(&heads.collect::<Vec<_>>(), &widths));
        for row in &self.rows {
            lines.push(self.line(&row.cells, &widths));
            if let Some(note) = &row.note {
                let note = cut(
                    note,
                    most.map_or(usize::MAX, |most| most.saturating_sub(GAP)),
                );
                lines.push(format!("  {FAINT}{note}{FAINT:#}"));
            }
        }
        lines
    }

    fn widths(&self, most: Option<usize>) -> Vec<usize> {
        let mut widths: Vec<usize> = self.heads.iter().map(|head| head.name().width()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(&row.cells) {
                *width = (*width).max(cell.text.width());
            }
        }
        let Some(most) = most else {
            return widths;
        };
        // Names give way, numbers do not: half a number is another number.
        while widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1) > most {
            let left = self.heads.iter().zip(&mut widths);
            let left =
                left.filter_map(|(head, width)| matches!(head, Column::Left(_)).then_some(width));
            match left.max_by_key(|width| **width) {
                Some(width) if *width > LEAST => *width -= 1,
                _ => break,
            }
        }
        widths
    }

    fn line(&self, cells: &[TableCell], widths: &[usize]) -> String {
        let mut line = String::new();
        let last = cells.iter().rposition(|cell| !cell.text.is_empty());
        let Some(last) = last else { return line };
        for (at, ((cell, head), width)) in cells.iter().zip(&self.heads).zip(widths).enumerate() {
            if at > last {
                break;
            }
            let (text, style) = (cut(&cell.text, *width), cell.style);
            let space = " ".repeat(width.saturating_sub(text.width()));
            if at > 0 {
                line.push_str("  ");
            }
            let text = match &cell.painted {
                Some(painted) if text == cell.text => painted.clone(),
                _ => format!("{style}{text}{style:#}"),
            };
            match head {
                Column::Right(_) => line.extend([space, text]),
                Column::Left(_) if at == last => line.push_str(&text),
                Column::Left(_) => line.extend([text, space]),
            }
        }
        line
    }
}

impl Column {
    fn name(self) -> &'static str {
        match self {
            Self::Left(name) | Self::Right(name) => name,
        }
    }
}

impl TableCell {
    pub(super) fn styled(self, style: Style) -> Self {
        Self { style, ..self }
    }

    /// A text of our own, and the same in colours.
    pub(super) fn painted(text: String, painted: String) -> Self {
        Self {
            text,
            style: Style::new(),
            painted: Some(painted),
        }
    }

    /// In this style if so.
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

/// The beginning of a text that is too wide.
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

/// How a verdict looks.
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

/// Between two columns.
const GAP: usize = 2;

/// What is left of a name at the least.
const LEAST: usize = 8;

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

/// A time in seconds.
pub(super) fn span(seconds: f64) -> String {
    // A cast of a float keeps to the range of what it is cast to.
    let millis = (seconds * 1000.0).ceil() as u64;
    match millis / DAY {
        0 => duration(millis),
        days => format!("{days} d {} h", millis % DAY / 3_600_000),
    }
}

/// Requests, in parts of one where it is not whole.
pub(super) fn requests(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A lag: what matters begins below a millisecond.
pub(super) fn lag(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 0.1 => format!("{:.1} ms", seconds * 1000.0),
        Some(seconds) => span(seconds),
    }
}

/// What became of how many.
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
///
/// # Errors
///
/// What writing there fails with.
pub(super) fn draw(report: &Report) -> io::Result<()> {
    // anstream takes the colours out again where nobody would see them.
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
    fn columns_stand_under_their_heads() {
        let mut table = TextTable::new([Column::Left("KEY"), Column::Right("REFUSE")]);
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
    fn names_give_way_and_numbers_do_not() {
        let mut table = TextTable::new([Column::Left("KEY"), Column::Right("REFUSE")]);
        table.row([
            TableCell::from("a-very-long-key-of-somebody"),
            TableCell::from("1234567890"),
        ]);
        assert_eq!(
            plain(&table.lines(Some(24))),
            "KEY               REFUSE\na-very-long…  1234567890"
        );
    }

    #[test]
    fn nothing_in_a_key_acts_on_the_terminal() {
        let mut table = TextTable::new([Column::Left("KEY")]);
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
}

#[cfg(test)]
mod words_tests {

    use super::*;

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
