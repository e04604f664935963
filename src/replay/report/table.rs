//! The report for a terminal.

use std::fmt::Write;

use super::{ReplayReport, ZoneReport, duration, moment, number, percent};
use crate::replay::plot::visible;
use crate::replay::suggest::Suggestion;

pub(super) fn draw(report: &ReplayReport) -> String {
    let mut text = String::new();
    summary(report, &mut text);
    for zone in &report.zones {
        text.push('\n');
        self::zone(zone, report, &mut text);
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
    for note in super::notes(report) {
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

fn zone(zone: &ZoneReport, report: &ReplayReport, text: &mut String) {
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
        self::suggestion(suggestion, text);
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

fn suggestion(suggestion: &Suggestion, text: &mut String) {
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
    for pair in suggestion.around_best(super::FEW) {
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
