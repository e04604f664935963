//! The figures of a replay, and how the forms of the report write them. The names in JSON, once given, stay; more may come.

use serde::{Serialize, Serializer};

use crate::replay::fields::MissingFields;
use crate::replay::input::BadLine;
use crate::replay::stats::{KeyStats, LongWait, Timeline, VerdictCounts};
use crate::replay::suggest::{RateAndBurst, Suggestion};
use crate::text::visible;

/// The figures of a replay.
#[derive(Debug, Default, Serialize)]
pub struct ReplayReport {
    /// Lines of all files.
    pub lines: u64,
    /// Malformed lines.
    pub skipped: u64,
    /// Lines with a malformed request: the response is 400, before any limit.
    pub malformed: u64,
    /// Requests with a response before any limit: redirects to a slash, and methods that are not supported.
    pub early: u64,
    /// Requests without limits.
    pub unlimited: u64,
    /// The verdicts on the others, of all their limits together.
    #[serde(flatten)]
    pub requests: VerdictCounts,
    /// Requests that were further out of order than the window is wide.
    pub late: u64,
    /// How late the latest of them was, in milliseconds.
    #[serde(rename = "latest_ms")]
    pub latest: u64,
    /// When the first request came, in milliseconds since the Unix epoch.
    #[serde(rename = "first_ms")]
    pub first: Option<i64>,
    /// When the last request came.
    #[serde(rename = "last_ms")]
    pub last: Option<i64>,
    /// Whether there were times that are only known to the second.
    #[serde(rename = "spread_within_seconds")]
    pub spread: bool,
    /// How `limit_conn` was replayed.
    #[serde(rename = "limit_conn")]
    pub connections: ConnReplayMode,
    /// The first malformed lines.
    #[serde(rename = "skipped_lines")]
    pub bad: Vec<BadLine>,
    /// Files that could not be read to their end, each with the error.
    #[serde(serialize_with = "as_map")]
    pub damaged: Vec<(Box<str>, String)>,
    /// The zones, in the order of the configuration.
    #[serde(serialize_with = "by_name")]
    pub zones: Vec<ZoneReport>,
}

/// How `limit_conn` was replayed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnReplayMode {
    /// Not: the log does not say how long requests took.
    NotReplayed,
    /// There is none.
    #[default]
    None,
    /// By how long each request took.
    Replayed,
}

/// The figures of a zone.
#[derive(Debug, Default, Serialize)]
pub struct ZoneReport {
    /// Its name.
    #[serde(skip)]
    pub name: Box<str>,
    /// The verdicts.
    #[serde(flatten)]
    pub counts: VerdictCounts,
    /// The number of keys.
    pub keys: u64,
    /// The keys with the most refusals.
    pub top: Vec<KeyStats>,
    /// What it counts.
    pub kind: ZoneKind,
    /// Its limits as text.
    pub allows: String,
    /// Live keys that were evicted.
    pub evictions: u64,
    /// Where there were too many keys to count: the most requests that one of the dropped keys can have had.
    #[serde(rename = "keys_exact", serialize_with = "is_none")]
    pub dropped: Option<u64>,
    /// The longest waits.
    #[serde(rename = "longest_delays")]
    pub waits: Vec<LongWait>,
    /// Better limits.
    #[serde(rename = "suggest", skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<Suggestion>,
    /// The rate of a key, in requests a second, where it has one.
    #[serde(skip)]
    pub rate: Option<f64>,
    /// The most requests of a key that pass at once, where that is known.
    #[serde(skip)]
    pub quota: Option<u64>,
    /// The verdicts over time.
    #[serde(skip)]
    pub timeline: Timeline,
    /// For the busiest second of each key, by its requests: the number of keys. Fewest requests first.
    #[serde(skip)]
    pub peaks: Vec<(u32, u64)>,
    /// The share that other rates would have refused: requests a second, and the share.
    #[serde(skip)]
    pub curve: Vec<(f64, f64)>,
}

/// What a zone counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub enum ZoneKind {
    /// `limit_conn`
    #[serde(rename = "limit_conn")]
    Connections,
    /// `limit_req`
    #[default]
    #[serde(rename = "limit_req")]
    Requests,
}

impl ZoneKind {
    /// Its key in a configuration.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Connections => "limit_conn",
            Self::Requests => "limit_req",
        }
    }
}

impl Suggestion {
    /// The pairs that are shown: those around the best one.
    pub(super) fn around_best(&self) -> &[RateAndBurst] {
        let count = PAIRS_SHOWN;
        let best = self.frontier.iter().position(|pair| *pair == self.best);
        let end = (best.unwrap_or(0) + count / 2 + 1)
            .max(count)
            .min(self.frontier.len());
        &self.frontier[end.saturating_sub(count)..end]
    }

    /// What the best pair refuses, in a sentence.
    pub(super) fn costs(&self) -> String {
        format!(
            "{} requests ({}) of {} keys are refused; without nodelay {} wait, {} at most",
            number(self.best.refused),
            percent(self.best.refused, self.requests),
            number(self.best.keys),
            number(self.delayed),
            duration(self.longest)
        )
    }

    /// What it saves the servers, in a sentence.
    pub(super) fn spares(&self) -> String {
        format!(
            "no key gets more than {} a minute, the busiest sent {}; of the {} heaviest keys' requests, {} of all, {} are refused",
            number(self.most_a_minute),
            number(self.busiest_minute),
            number(self.heavy.keys),
            percent(self.heavy.requests, self.requests),
            percent(self.heavy.refused, self.heavy.requests)
        )
    }
}

/// What a reader of the figures has to know.
pub(super) fn notes(report: &ReplayReport) -> Vec<String> {
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
    /// Which variable is missing, and what to do about it.
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

/// A time in UTC, to the second.
pub(super) fn moment(millis: i64) -> String {
    let moment = jiff::Timestamp::from_millisecond(millis).unwrap_or_default();
    moment.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// A share in per cent, with as many decimals as it takes to tell it from zero.
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

/// Milliseconds as text.
#[must_use]
pub fn duration(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{}.{:01} s", millis / 1000, millis % 1000 / 100),
        60_000..3_600_000 => format!("{} min {} s", millis / 60_000, millis / 1000 % 60),
        _ => format!("{} h {} min", millis / 3_600_000, millis / 60_000 % 60),
    }
}

/// A number with its thousands separated.
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

fn as_map<S: Serializer>(pairs: &[(Box<str>, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(key, value)| (key, value)))
}

fn by_name<S: Serializer>(zones: &[ZoneReport], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(zones.iter().map(|zone| (&zone.name, zone)))
}

fn is_none<S: Serializer>(value: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(value.is_none())
}

/// How many pairs of rate and burst are shown.
const PAIRS_SHOWN: usize = 12;

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn figures_are_written_for_readers() {
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
    fn missing_variables_come_with_advice() {
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
