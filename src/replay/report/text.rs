//! The report for a terminal.
//!
//! The report for programs. Names, once given, stay; more may come.

use std::fmt::Write;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::{ConnReplayMode, ReplayReport, ZoneReport, duration, moment, number, percent};
use crate::replay::report;
use crate::replay::stats::KeyStats;
use crate::replay::suggest::{RateAndBurst, Suggestion};
use crate::text::visible;

pub(super) fn draw_text(report: &ReplayReport) -> String {
    let mut text = String::new();
    summary(report, &mut text);
    for zone in &report.zones {
        text.push('\n');
        draw_zone(zone, report, &mut text);
    }
    text
}

fn summary(report: &ReplayReport, text: &mut String) {
    let (counts, total) = (report.requests, report.requests.total());
    line(text, &format!("{} lines", number(report.lines)));
    if let Some((first, last)) = report.span {
        let (first, last) = (moment(first), moment(last));
        line(text, &format!("from {first} to {last} UTC"));
    }
    line(
        text,
        &format!(
            "{} requests under limits: {} pass, {} are delayed, {} refused ({})",
            number(total),
            number(counts.pass),
            number(counts.delay),
            number(counts.refuse),
            percent(counts.refuse, total)
        ),
    );
    for note in report::notes(report) {
        line(text, &note);
    }
    if report.skipped > 0 {
        let skipped = number(report.skipped);
        line(text, &format!("{skipped} lines could not be read:"));
        for bad in &report.bad {
            let (file, start) = (visible(&bad.file), visible(&bad.text));
            line(text, &format!("  {file}:{}: {start}", bad.line));
        }
    }
}

fn draw_zone(zone: &ZoneReport, report: &ReplayReport, text: &mut String) {
    let kind = zone.kind.word();
    line(
        text,
        &format!("zone {} ({kind}, {})", zone.name, zone.allows),
    );
    let (counts, total) = (zone.counts, zone.counts.total());
    if total == 0 {
        line(text, "  nobody met it");
        return;
    }
    for (name, count) in [
        ("pass", counts.pass),
        ("delay", counts.delay),
        ("refuse", counts.refuse),
    ] {
        let (count, share) = (number(count), percent(count, total));
        line(text, &format!("  {name:<7} {count:>13}  {share:>9}"));
    }
    let about = match zone.forgotten {
        Some(_) => "about ",
        None => "",
    };
    let keys = format!("{about}{}", number(zone.keys));
    line(text, &format!("  {:<7} {keys:>13}", "keys"));
    if zone.evictions > 0 {
        let gone = number(zone.evictions);
        line(
            text,
            &format!("  {gone} live keys had to go: the zone is too small"),
        );
    }
    if let Some(most) = zone.forgotten {
        let most = number(most);
        line(
            text,
            &format!("  too many keys to show all; each of those left out sent at most {most}"),
        );
    }
    hardest(zone, text);
    waits(zone, report, text);
    if let Some(suggestion) = &zone.suggestion {
        draw_suggestion(suggestion, text);
    }
}

fn hardest(zone: &ZoneReport, text: &mut String) {
    if zone.top.is_empty() {
        return;
    }
    let labels: Vec<String> = zone.top.iter().map(|key| visible(&key.label)).collect();
    let width = labels
        .iter()
        .map(|label| label.chars().count())
        .max()
        .unwrap_or(0)
        .clamp(11, 48);
    line(
        text,
        &format!(
            "\n  {:<width$} {:>11} {:>11} {:>9} {:>11} {:>11} {:>8}",
            "hit hardest", "requests", "refused", "share", "delayed", "longest", "peak/s"
        ),
    );
    for (key, label) in zone.top.iter().zip(&labels) {
        let total = key.counts.total();
        let longest = match key.longest {
            0 => "-".to_owned(),
            millis => duration(millis),
        };
        line(
            text,
            &format!(
                "  {label:<width$} {:>11} {:>11} {:>9} {:>11} {longest:>11} {:>8}",
                number(total),
                number(key.counts.refuse),
                percent(key.counts.refuse, total),
                number(key.counts.delay),
                key.peak
            ),
        );
    }
}

fn waits(zone: &ZoneReport, report: &ReplayReport, text: &mut String) {
    if zone.waits.is_empty() {
        return;
    }
    line(text, "\n  longest waits");
    for wait in &zone.waits {
        let (file, number) = wait.line;
        let name = report.files.get(file as usize).map_or("", |name| &**name);
        line(
            text,
            &format!(
                "  {:>11}  {}  {}  {}:{number}",
                duration(wait.millis),
                moment(wait.at),
                visible(&wait.key),
                visible(name)
            ),
        );
    }
}

fn draw_suggestion(suggestion: &Suggestion, text: &mut String) {
    let share = percent(suggestion.at_most_millionths, 1_000_000);
    let requests = number(suggestion.requests);
    line(
        text,
        &format!("\n  to refuse at most {share} of {requests} requests"),
    );
    line(
        text,
        &format!(
            "  {:>10} {:>10} {:>12} {:>11} {:>11}",
            "rate", "burst", "a minute", "refused", "keys hit"
        ),
    );
    for pair in suggestion.around_best(report::FEW) {
        let chosen = match pair.rate == suggestion.best.rate {
            true => "  <- the fewest a minute",
            false => "",
        };
        line(
            text,
            &format!(
                "  {:>10} {:>10} {:>12} {:>11} {:>11}{chosen}",
                pair.rate.to_string(),
                number(pair.burst.into()),
                number(pair.a_minute()),
                number(pair.refused),
                number(pair.touched)
            ),
        );
    }
    let best = &suggestion.best;
    line(
        text,
        &format!("  rate: {}, burst: {}", best.rate, best.burst),
    );
    line(text, &format!("    costs: {}", suggestion.costs()));
    line(text, &format!("    spares: {}", suggestion.spares()));
}

fn line(text: &mut String, content: &str) {
    // Writing to a string cannot fail.
    let _written = writeln!(text, "{}", content.trim_end());
}

pub(super) fn draw_json(report: &ReplayReport) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(&JsonReport(report))?;
    text.push('\n');
    Ok(text)
}

struct JsonReport<'a>(&'a ReplayReport);

impl Serialize for JsonReport<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let report = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("lines", &report.lines)?;
        map.serialize_entry("skipped", &report.skipped)?;
        map.serialize_entry("malformed", &report.malformed)?;
        map.serialize_entry("early", &report.early)?;
        map.serialize_entry("unlimited", &report.unlimited)?;
        map.serialize_entry("pass", &report.requests.pass)?;
        map.serialize_entry("delay", &report.requests.delay)?;
        map.serialize_entry("refuse", &report.requests.refuse)?;
        map.serialize_entry("late", &report.late)?;
        map.serialize_entry("latest_ms", &report.latest)?;
        map.serialize_entry("first_ms", &report.span.map(|(first, _)| first))?;
        map.serialize_entry("last_ms", &report.span.map(|(_, last)| last))?;
        map.serialize_entry("spread_within_seconds", &report.spread)?;
        map.serialize_entry(
            "limit_conn",
            match report.connections {
                ConnReplayMode::NotReplayed => "not_replayed",
                ConnReplayMode::None => "none",
                ConnReplayMode::Replayed => "replayed",
            },
        )?;
        let bad: Vec<_> = report
            .bad
            .iter()
            .map(|bad| serde_json::json!({ "file": bad.file, "line": bad.line, "text": bad.text }))
            .collect();
        map.serialize_entry("skipped_lines", &bad)?;
        map.serialize_entry(
            "damaged",
            &report.damaged.iter().cloned().collect::<DamagedFiles>(),
        )?;
        map.serialize_entry("zones", &ZoneMap(report))?;
        map.end()
    }
}

/// Files and what is wrong with them, as an object.
struct DamagedFiles(Vec<(Box<str>, String)>);

impl FromIterator<(Box<str>, String)> for DamagedFiles {
    fn from_iter<I: IntoIterator<Item = (Box<str>, String)>>(files: I) -> Self {
        Self(files.into_iter().collect())
    }
}

impl Serialize for DamagedFiles {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(file, why)| (file, why)))
    }
}

/// By name, in the configuration's order.
struct ZoneMap<'a>(&'a ReplayReport);

impl Serialize for ZoneMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let zones = self.0.zones.iter();
        serializer.collect_map(zones.map(|zone| {
            (
                &zone.name,
                ZoneJson {
                    zone,
                    report: self.0,
                },
            )
        }))
    }
}

struct ZoneJson<'a> {
    zone: &'a ZoneReport,
    report: &'a ReplayReport,
}

impl Serialize for ZoneJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let zone = self.zone;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("pass", &zone.counts.pass)?;
        map.serialize_entry("delay", &zone.counts.delay)?;
        map.serialize_entry("refuse", &zone.counts.refuse)?;
        map.serialize_entry("keys", &zone.keys)?;
        map.serialize_entry("top", &zone.top.iter().map(key).collect::<Vec<_>>())?;
        map.serialize_entry("kind", zone.kind.word())?;
        map.serialize_entry("allows", &zone.allows)?;
        map.serialize_entry("evictions", &zone.evictions)?;
        map.serialize_entry("keys_exact", &zone.forgotten.is_none())?;
        let waits: Vec<_> = zone
            .waits
            .iter()
            .map(|wait| {
                let file = self.report.files.get(wait.line.0 as usize);
                serde_json::json!({
                    "key": wait.key, "delay_ms": wait.millis, "at_ms": wait.at, "file": file, "line": wait.line.1,
                })
            })
            .collect();
        map.serialize_entry("longest_delays", &waits)?;
        if let Some(suggestion) = &zone.suggestion {
            map.serialize_entry("suggest", &suggested(suggestion))?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct JsonTopKey<'a> {
    key: &'a str,
    pass: u64,
    delay: u64,
    refuse: u64,
    longest_delay_ms: u64,
    peak_per_second: u32,
}

fn key(key: &KeyStats) -> JsonTopKey<'_> {
    JsonTopKey {
        key: &key.label,
        pass: key.counts.pass,
        delay: key.counts.delay,
        refuse: key.counts.refuse,
        longest_delay_ms: key.longest,
        peak_per_second: key.peak,
    }
}

#[derive(Serialize)]
struct JsonSuggestion {
    refuse_at_most: f64,
    requests: u64,
    rate: String,
    burst: u32,
    refuse: u64,
    keys_refused: u64,
    delay_without_nodelay: u64,
    longest_delay_ms: u64,
    most_a_minute: u64,
    busiest_minute: u64,
    heaviest_keys: u64,
    heaviest_requests: u64,
    heaviest_refused: u64,
    frontier: Vec<serde_json::Value>,
}

fn suggested(suggestion: &Suggestion) -> JsonSuggestion {
    let best = &suggestion.best;
    let pair = |pair: &RateAndBurst| {
        serde_json::json!({
            "rate": pair.rate.to_string(), "burst": pair.burst, "refuse": pair.refused, "keys_refused": pair.touched,
        })
    };
    JsonSuggestion {
        refuse_at_most: suggestion.at_most_millionths as f64 / 1e6,
        requests: suggestion.requests,
        rate: best.rate.to_string(),
        burst: best.burst,
        refuse: best.refused,
        keys_refused: best.touched,
        delay_without_nodelay: suggestion.delayed,
        longest_delay_ms: suggestion.longest,
        most_a_minute: best.a_minute(),
        busiest_minute: suggestion.busiest_minute,
        heaviest_keys: suggestion.heavy.keys,
        heaviest_requests: suggestion.heavy.requests,
        heaviest_refused: suggestion.heavy.refused,
        frontier: suggestion.frontier.iter().map(pair).collect(),
    }
}
