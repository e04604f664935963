//! The report for a terminal.

use super::figures::{ReplayReport, ZoneReport, duration, moment, notes, number, percent};
use crate::replay::suggest::Suggestion;
use crate::text::{Append as _, visible};

pub(super) fn render(report: &ReplayReport) -> String {
    let mut text = String::new();
    summary(report, &mut text);
    for zone in &report.zones {
        text.push('\n');
        zone_section(zone, &mut text);
    }
    text
}

fn summary(report: &ReplayReport, text: &mut String) {
    let (counts, total) = (report.requests, report.requests.total());
    writeln!(text, "{} lines", number(report.lines));
    if let Some((first, last)) = report.first.zip(report.last) {
        let (first, last) = (moment(first), moment(last));
        writeln!(text, "from {first} to {last} UTC");
    }
    writeln!(
        text,
        "{} requests under limits: {} pass, {} are delayed, {} refused ({})",
        number(total),
        number(counts.pass),
        number(counts.delay),
        number(counts.refuse),
        percent(counts.refuse, total)
    );
    for note in notes(report) {
        writeln!(text, "{note}");
    }
    if report.skipped > 0 {
        let skipped = number(report.skipped);
        writeln!(text, "{skipped} lines could not be read:");
        for bad in &report.bad {
            let (file, start) = (visible(&bad.file), visible(&bad.text));
            writeln!(text, "  {file}:{}: {start}", bad.line);
        }
    }
}

fn zone_section(zone: &ZoneReport, text: &mut String) {
    let kind = zone.kind.key();
    writeln!(text, "zone {} ({kind}, {})", zone.name, zone.allows);
    let (counts, total) = (zone.counts, zone.counts.total());
    if total == 0 {
        writeln!(text, "  no requests");
        return;
    }
    for (name, count) in [
        ("pass", counts.pass),
        ("delay", counts.delay),
        ("refuse", counts.refuse),
    ] {
        let (count, share) = (number(count), percent(count, total));
        writeln!(text, "  {name:<7} {count:>13}  {share:>9}");
    }
    let about = match zone.dropped {
        Some(_) => "about ",
        None => "",
    };
    let keys = format!("{about}{}", number(zone.keys));
    writeln!(text, "  {:<7} {keys:>13}", "keys");
    if zone.evictions > 0 {
        let gone = number(zone.evictions);
        writeln!(text, "  {gone} live keys had to go: the zone is too small");
    }
    if let Some(most) = zone.dropped {
        let most = number(most);
        writeln!(
            text,
            "  too many keys to show all; each of those left out sent at most {most}"
        );
    }
    most_refused(zone, text);
    waits(zone, text);
    if let Some(suggested) = &zone.suggestion {
        suggestion(suggested, text);
    }
}

fn most_refused(zone: &ZoneReport, text: &mut String) {
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
    writeln!(
        text,
        "\n  {:<width$} {:>11} {:>11} {:>9} {:>11} {:>11} {:>8}",
        "hit hardest", "requests", "refused", "share", "delayed", "longest", "peak/s"
    );
    for (key, label) in zone.top.iter().zip(&labels) {
        let total = key.counts.total();
        let longest = match key.longest {
            0 => "-".to_owned(),
            millis => duration(millis),
        };
        writeln!(
            text,
            "  {label:<width$} {:>11} {:>11} {:>9} {:>11} {longest:>11} {:>8}",
            number(total),
            number(key.counts.refuse),
            percent(key.counts.refuse, total),
            number(key.counts.delay),
            key.peak
        );
    }
}

fn waits(zone: &ZoneReport, text: &mut String) {
    if zone.waits.is_empty() {
        return;
    }
    writeln!(text, "\n  longest waits");
    for wait in &zone.waits {
        writeln!(
            text,
            "  {:>11}  {}  {}  {}:{}",
            duration(wait.millis),
            moment(wait.at),
            visible(&wait.key),
            visible(&wait.file),
            wait.line
        );
    }
}

fn suggestion(suggestion: &Suggestion, text: &mut String) {
    let share = percent(suggestion.at_most_millionths, 1_000_000);
    let requests = number(suggestion.requests);
    writeln!(text, "\n  to refuse at most {share} of {requests} requests");
    writeln!(
        text,
        "  {:>10} {:>10} {:>12} {:>11} {:>11}",
        "rate", "burst", "a minute", "refused", "keys hit"
    );
    for pair in suggestion.around_best() {
        let chosen = match pair.rate == suggestion.best.rate {
            true => "  <- the fewest a minute",
            false => "",
        };
        writeln!(
            text,
            "  {:>10} {:>10} {:>12} {:>11} {:>11}{chosen}",
            pair.rate.to_string(),
            number(pair.burst.into()),
            number(pair.per_minute()),
            number(pair.refused),
            number(pair.keys)
        );
    }
    let best = &suggestion.best;
    writeln!(text, "  rate: {}, burst: {}", best.rate, best.burst);
    writeln!(text, "    costs: {}", suggestion.costs());
    writeln!(text, "    spares: {}", suggestion.spares());
}
