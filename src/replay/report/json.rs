//! The report for programs. Names, once given, stay; more may come.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::{ConnReplayMode, ReplayReport, ZoneReport};
use crate::replay::suggest::{RateAndBurst, Suggestion};
use crate::replay::tally::KeyStats;

pub(super) fn draw(report: &ReplayReport) -> Result<String, serde_json::Error> {
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
