//! What a replay found out, and the three ways to tell it.

mod html;
mod text;

use super::fields::MissingFields;
use super::input::BadLine;
use super::stats::{KeyStats, LongWait, Timeline, VerdictCounts};
use super::suggest::{RateAndBurst, Suggestion};
use crate::text::visible;

/// What a replay found out.
#[derive(Debug, Default)]
pub struct ReplayReport {
    /// Lines of all files.
    pub lines: u64,
    /// Lines that could not be read.
    pub skipped: u64,
    /// The first of them.
    pub bad: Vec<BadLine>,
    /// Lines whose request was none: answered with 400 before any limit.
    pub malformed: u64,
    /// Requests answered before any limit: redirects to a slash, methods that are not served.
    pub early: u64,
    /// Requests that no limit applies to.
    pub unlimited: u64,
    /// What became of the others, all their limits together.
    pub requests: VerdictCounts,
    /// Requests that came further out of order than the window is wide, and the worst of them, in milliseconds.
    pub late: u64,
    /// See `late`.
    pub latest: u64,
    /// When the first and the last request came, in milliseconds since the Unix epoch.
    pub span: Option<(i64, i64)>,
    /// Whether there were times that are only known to the second.
    pub spread: bool,
    /// What a limit of connections was replayed with, if there was one.
    pub connections: ConnReplayMode,
    /// Files that could not be read to their end, and why.
    pub damaged: Vec<(Box<str>, String)>,
    /// The names of all files.
    pub files: Vec<Box<str>>,
    /// The zones, in the order of the configuration.
    pub zones: Vec<ZoneReport>,
}

/// How `limit_conn` was replayed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ConnReplayMode {
    /// Not: the log does not say how long requests took.
    NotReplayed,
    /// There is none.
    #[default]
    None,
    /// By how long each request took.
    Replayed,
}

/// What a zone said.
#[derive(Debug)]
pub struct ZoneReport {
    /// Its name.
    pub name: Box<str>,
    /// What it counts.
    pub kind: ZoneKind,
    /// What it allows, in words.
    pub allows: String,
    /// The rate a key is held to, in requests a second, where it is held to one.
    pub rate: Option<f64>,
    /// The most a key may send at once, where that is known.
    pub quota: Option<u64>,
    /// What it said.
    pub counts: VerdictCounts,
    /// Live keys it had no room for.
    pub evictions: u64,
    /// How many keys it met.
    pub keys: u64,
    /// Keys that were forgotten here because there were too many, and the most requests one of them can have had.
    pub forgotten: Option<u64>,
    /// The keys hit hardest.
    pub top: Vec<KeyStats>,
    /// The longest waits.
    pub waits: Vec<LongWait>,
    /// What happened when.
    pub timeline: Timeline,
    /// How many keys had which busiest second: requests in it and keys, fewest requests first.
    pub peaks: Vec<(u32, u64)>,
    /// Which share would have been refused at which rate, in requests a second.
    pub curve: Vec<(f64, f64)>,
    /// Better numbers.
    pub suggestion: Option<Suggestion>,
}

/// What a zone counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneKind {
    /// `limit_conn`
    Connections,
    /// `limit_req`
    Requests,
}

impl ReplayReport {
    /// As text for people.
    #[must_use]
    pub fn table(&self) -> String {
        text::draw_text(self)
    }

    /// As JSON.
    ///
    /// # Errors
    /// None that could happen: it is what serde says.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        text::draw_json(self)
    }

    /// As a page for a browser, complete in itself.
    #[must_use]
    pub fn page(&self) -> String {
        html::draw(self)
    }
}

impl ZoneKind {
    /// Its word in a configuration.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Connections => "limit_conn",
            Self::Requests => "limit_req",
        }
    }
}

impl Suggestion {
    /// So many pairs, those around the best one.
    fn around_best(&self, count: usize) -> &[RateAndBurst] {
        let best = self.frontier.iter().position(|pair| *pair == self.best);
        let end = (best.unwrap_or(0) + count / 2 + 1)
            .max(count)
            .min(self.frontier.len());
        &self.frontier[end.saturating_sub(count)..end]
    }

    /// What the best pair takes from those who asked, in a sentence.
    fn costs(&self) -> String {
        format!(
            "{} requests ({}) of {} keys are refused; without nodelay {} wait, {} at most",
            number(self.best.refused),
            percent(self.best.refused, self.requests),
            number(self.best.touched),
            number(self.delayed),
            duration(self.longest)
        )
    }

    /// What it keeps away, in a sentence.
    fn spares(&self) -> String {
        format!(
            "no key gets more than {} a minute, the busiest sent {}; of the {} heaviest keys' requests, {} of all, {} are refused",
            number(self.best.a_minute()),
            number(self.busiest_minute),
            number(self.heavy.keys),
            percent(self.heavy.requests, self.requests),
            percent(self.heavy.refused, self.heavy.requests)
        )
    }
}

/// What else has to be said, besides numbers of zones.
fn notes(report: &ReplayReport) -> Vec<String> {
    let mut notes = Vec::new();
    for (count, what) in [
        (report.unlimited, "requests that no limit applies to"),
        (
            report.early,
            "requests answered before any limit: a missing slash, or a method that is not served",
        ),
        (
            report.malformed,
            "lines whose request is none: answered with 400 before any limit",
        ),
    ] {
        if count > 0 {
            notes.push(format!("{} {what}", number(count)));
        }
    }
    if report.late > 0 {
        notes.push(format!(
            "{} lines out of order by more than the window ({} at worst): taken when they came",
            number(report.late),
            duration(report.latest)
        ));
    }
    if report.spread {
        notes.push(
            "times are known to the second only: requests of one second are spread evenly over it"
                .to_owned(),
        );
    }
    if report.connections == ConnReplayMode::NotReplayed {
        notes.push("limit_conn is not replayed: the log does not have $request_time".to_owned());
    }
    for (file, why) in &report.damaged {
        notes.push(format!(
            "{} could not be read to its end: {why}",
            visible(file)
        ));
    }
    notes
}

impl MissingFields {
    /// What is wrong, and what to do about it.
    #[must_use]
    pub fn advice(&self) -> String {
        let names: Vec<String> = self
            .variables
            .iter()
            .map(|name| format!("${name}"))
            .collect();
        let any = match &names[..] {
            [one] => one.clone(),
            [others @ .., last] => format!("{} or {last}", others.join(", ")),
            [] => String::new(),
        };
        let why = match &self.zone {
            Some(zone) => {
                format!("zone \"{zone}\" needs {any}, which the log does not have")
            }
            None => {
                format!("the log does not have {any}, without which no request can be replayed")
            }
        };
        let first = names.first().map_or("", String::as_str);
        format!(
            "{why}\n  = help: add it to the log's format (`format: '... {first}'` in weir's log.access, \
             `log_format` in nginx), and tell `--format` where it stands"
        )
    }
}

/// A moment, to the second, in UTC.
fn moment(millis: i64) -> String {
    let moment = jiff::Timestamp::from_millisecond(millis).unwrap_or_default();
    moment.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// A share in per cent, with as many decimals as tell it from nothing.
#[must_use]
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let share = part as f64 * 100.0 / whole as f64;
    match share {
        share if part == 0 || share >= 10.0 => format!("{share:.1} %"),
        share if share >= 0.1 => format!("{share:.2} %"),
        share if share >= 0.001 => format!("{share:.4} %"),
        _ => "< 0.001 %".to_owned(),
    }
}

/// Milliseconds in words.
#[must_use]
pub fn duration(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{}.{:01} s", millis / 1000, millis % 1000 / 100),
        60_000..3_600_000 => format!("{} min {} s", millis / 60_000, millis / 1000 % 60),
        _ => format!("{} h {} min", millis / 3_600_000, millis / 60_000 % 60),
    }
}

/// A number with its thousands apart.
#[must_use]
pub fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut spaced = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            spaced.push('\u{202f}');
        }
        spaced.push(digit);
    }
    spaced
}

/// Pairs of rate and burst that are worth showing to people.
const FEW: usize = 12;

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn numbers_are_told_as_people_read_them() {
        assert_eq!(number(0), "0");
        assert_eq!(number(999), "999");
        assert_eq!(number(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(1, 1000), "0.10 %");
        assert_eq!(percent(1, 10_000_000), "< 0.001 %");
        assert_eq!(percent(0, 5), "0.0 %");
        assert_eq!(percent(0, 0), "-");
        assert_eq!(duration(999), "999 ms");
        assert_eq!(duration(61_500), "1 min 1 s");
        assert_eq!(moment(1_794_794_603_021), "2026-11-16 02:03:23");
    }

    #[test]
    fn what_is_missing_is_told_with_what_to_do() {
        let missing = MissingFields {
            variables: vec!["cookie_sid".to_owned(), "http_cookie".to_owned()],
            zone: Some("sessions".to_owned()),
        };
        let advice = missing.advice();
        assert!(
            advice.starts_with("zone \"sessions\" needs $cookie_sid or $http_cookie"),
            "{advice}"
        );
    }
}
