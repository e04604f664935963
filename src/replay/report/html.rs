//! The report as a page: one file without scripts that loads nothing.
//!
//! Keys are texts that clients chose. Every text is escaped where it is written, and the page's policy keeps a browser from
//! running one that was not.

use super::figures::{ReplayReport, ZoneReport, duration, moment, notes, number, percent};
use crate::replay::plot::{
    Axis, AxisScale, AxisUnit, Color, GuideLine, GuidePosition, Plot, PlotTheme, Point, STYLE,
    Series, SeriesStyle, escape,
};
use crate::replay::stats::VerdictCounts;
use crate::replay::suggest::per_second;
use crate::text::Append as _;

pub(super) fn render(report: &ReplayReport) -> String {
    let mut page = String::new();
    page.push_str(HEAD);
    writeln!(
        page,
        "<style>\n{STYLE}{OWN_STYLE}</style>\n</head>\n<body>\n<main>"
    );
    summary(report, &mut page);
    for zone in &report.zones {
        zone_section(zone, &mut page);
    }
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn summary(report: &ReplayReport, page: &mut String) {
    let span = match report.first.zip(report.last) {
        Some((first, last)) => format!("{} to {} UTC", moment(first), moment(last)),
        None => "no requests".to_owned(),
    };
    let counts = report.requests;
    write!(
        page,
        "<h1>Replay</h1>\n<p class=\"sub\">{}</p>\n<div class=\"cards\">",
        escape(&span)
    );
    for (class, name, count) in [
        ("", "lines", report.lines),
        ("pass", "pass", counts.pass),
        ("delay", "delayed", counts.delay),
        ("refuse", "refused", counts.refuse),
    ] {
        write!(
            page,
            "<div class=\"card {class}\"><b>{}</b><span>{name}</span></div>",
            number(count)
        );
    }
    page.push_str("</div>\n<ul class=\"notes\">\n");
    let mut notes = notes(report);
    if report.skipped > 0 {
        notes.push(format!(
            "{} lines could not be read",
            number(report.skipped)
        ));
    }
    for note in notes {
        writeln!(page, "<li>{}</li>", escape(&note));
    }
    page.push_str("</ul>\n");
}

fn zone_section(zone: &ZoneReport, page: &mut String) {
    let kind = zone.kind.key();
    let (counts, total) = (zone.counts, zone.counts.total());
    writeln!(
        page,
        "<section>\n<h2>{}</h2>\n<p class=\"sub\">{kind}, {}; {} keys</p>",
        escape(&zone.name),
        escape(&zone.allows),
        number(zone.keys)
    );
    if total == 0 {
        page.push_str("<p>No requests.</p>\n</section>\n");
        return;
    }
    writeln!(
        page,
        "<p><b class=\"pass\">{}</b> pass, <b class=\"delay\">{}</b> wait, <b class=\"refuse\">{}</b> are refused ({}).</p>",
        number(counts.pass),
        number(counts.delay),
        number(counts.refuse),
        percent(counts.refuse, total)
    );
    page.push_str("<div class=\"plots\">\n");
    for plot in plots(zone) {
        writeln!(page, "<figure>{}</figure>", plot.svg(PlotTheme::Page));
    }
    page.push_str("</div>\n");
    most_refused(zone, page);
    suggestion(zone, page);
    waits(zone, page);
    page.push_str("</section>\n");
}

fn most_refused(zone: &ZoneReport, page: &mut String) {
    page.push_str("<h3>Hit hardest</h3>\n<div class=\"wide\"><table><thead><tr><th>key</th><th>requests</th><th>refused</th><th></th>\
         <th>delayed</th><th>longest wait</th><th>peak/s</th></tr></thead>\n<tbody>\n");
    for key in &zone.top {
        let total = key.counts.total();
        let part = |count: u64| count as f64 * 100.0 / total.max(1) as f64;
        writeln!(
            page,
            "<tr><td class=\"key\">{}</td><td>{}</td><td>{}</td><td class=\"bar\"><i class=\"refuse\" style=\"width:{:.1}%\"></i>\
             <i class=\"delay\" style=\"width:{:.1}%\"></i><i class=\"pass\" style=\"width:{:.1}%\"></i></td><td>{}</td><td>{}</td>\
             <td>{}</td></tr>",
            escape(&key.label),
            number(total),
            percent(key.counts.refuse, total),
            part(key.counts.refuse),
            part(key.counts.delay),
            part(key.counts.pass),
            number(key.counts.delay),
            duration(key.longest),
            key.peak
        );
    }
    page.push_str("</tbody></table></div>\n");
}

fn suggestion(zone: &ZoneReport, page: &mut String) {
    let Some(suggestion) = &zone.suggestion else {
        return;
    };
    let best = &suggestion.best;
    let share = percent(suggestion.at_most_millionths, 1_000_000);
    writeln!(
        page,
        "<h3>To refuse at most {share}</h3>\n<p><code>rate: {}</code>, <code>burst: {}</code></p>\n<ul><li>costs: {}</li>\
             <li>spares: {}</li></ul>\n<div class=\"wide\"><table><thead><tr><th>rate</th><th>burst</th><th>most a minute</th>\
             <th>refused</th><th>keys hit</th></tr></thead>\n<tbody>",
        best.rate,
        best.burst,
        escape(&suggestion.costs()),
        escape(&suggestion.spares())
    );
    for pair in suggestion.around_best() {
        let class = if pair.rate == best.rate {
            " class=\"best\""
        } else {
            ""
        };
        writeln!(
            page,
            "<tr{class}><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            pair.rate,
            number(pair.burst.into()),
            number(pair.per_minute()),
            number(pair.refused),
            number(pair.keys)
        );
    }
    page.push_str("</tbody></table></div>\n");
}

fn waits(zone: &ZoneReport, page: &mut String) {
    if zone.waits.is_empty() {
        return;
    }
    page.push_str("<h3>Longest waits</h3>\n<div class=\"wide\"><table><thead><tr><th>key</th><th>wait</th><th>when</th><th>line</th></tr></thead>\n<tbody>\n");
    for wait in &zone.waits {
        writeln!(
            page,
            "<tr><td class=\"key\">{}</td><td>{}</td><td>{}</td><td>{}:{}</td></tr>",
            escape(&wait.key),
            duration(wait.millis),
            moment(wait.at),
            escape(&wait.file),
            wait.line
        );
    }
    page.push_str("</tbody></table></div>\n");
}

const HEAD: &str = "<!doctype html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta name=\"color-scheme\" content=\"light dark\">
<title>weir replay</title>
";

const OWN_STYLE: &str = "\
:root { --ground: #fff; --text: #24292f; --soft: #59636e; --edge: #d0d7de; --card: #f6f8fa;
 --ok: #1a7f64; --slow: #9a6700; --no: #c93a3a }
@media (prefers-color-scheme: dark) {
:root { --ground: #0f1419; --text: #d5dbe1; --soft: #8b96a1; --edge: #2d353d; --card: #171d23;
 --ok: #3fb890; --slow: #e2ac4a; --no: #f0716b }
}
body { margin: 0; background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, sans-serif }
main { max-width: 1100px; margin: 0 auto; padding: 20px 16px 60px }
h1 { margin: 0; font-size: 24px } h2 { margin: 0; font-size: 20px } h3 { margin: 28px 0 8px; font-size: 16px }
section { margin-top: 36px; padding-top: 20px; border-top: 1px solid var(--edge) }
.sub { margin: 2px 0 16px; color: var(--soft) } .notes { color: var(--soft); padding-left: 20px }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 10px }
.card { padding: 10px 14px; border: 1px solid var(--edge); border-radius: 8px; background: var(--card) }
.card b { display: block; font-size: 20px } .card span { color: var(--soft) }
.pass > b, b.pass { color: var(--ok) } .delay > b, b.delay { color: var(--slow) } .refuse > b, b.refuse { color: var(--no) }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 16px }
figure { margin: 0; padding: 10px; border: 1px solid var(--edge); border-radius: 8px } figure svg { display: block; width: 100%; height: auto }
.wide { overflow-x: auto } table { border-collapse: collapse; min-width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: 4px 10px; border-bottom: 1px solid var(--edge); text-align: right; white-space: nowrap }
th { color: var(--soft); font-weight: 500 } th:first-child, td:first-child { text-align: left; padding-left: 0 }
.key { font-family: ui-monospace, monospace; font-size: 13px; white-space: pre-wrap; overflow-wrap: anywhere; min-width: 130px; max-width: 420px }
.bar { min-width: 90px } .bar i { display: inline-block; height: 10px; vertical-align: middle }
i.refuse { background: var(--no) } i.delay { background: var(--slow) } i.pass { background: var(--ok) }
.best td { font-weight: 600 } code { font-family: ui-monospace, monospace }
";

/// The plots that the figures of a zone give.
fn plots(zone: &ZoneReport) -> impl Iterator<Item = Plot> {
    let plots = [Some(demand(zone)), busiest(zone), peaks(zone), curve(zone)];
    plots.into_iter().flatten()
}

/// Requests a second, by verdict.
fn demand(zone: &ZoneReport) -> Plot {
    let width = zone.timeline.width() as f64;
    let bins: Vec<_> = zone.timeline.bins().collect();
    let layer =
        |name: &str, hue, from: fn(&VerdictCounts) -> u64, to: fn(&VerdictCounts) -> u64| {
            let points = bins.iter().flat_map(|(at, bin)| {
                let (base, y) = (
                    from(&bin.counts) as f64 / width,
                    to(&bin.counts) as f64 / width,
                );
                let start = *at as f64;
                // Level to the end of the bin.
                [start, start + width * 1000.0].map(|x| Point { x, y, base })
            });
            Series {
                name: name.to_owned(),
                shape: SeriesStyle::Area,
                hue,
                points: points.collect(),
            }
        };
    let most = bins
        .iter()
        .map(|(_, bin)| bin.counts.total())
        .max()
        .unwrap_or(0) as f64
        / width;
    Plot {
        title: "Demand over time".to_owned(),
        size: SIZE,
        x: time_axis(zone),
        y: number_axis("requests/s", Axis::up_to(most)),
        series: vec![
            layer("pass", Color::Pass, |_| 0, |counts| counts.pass),
            layer(
                "delay",
                Color::Delay,
                |counts| counts.pass,
                |counts| counts.pass + counts.delay,
            ),
            layer(
                "refuse",
                Color::Refuse,
                |counts| counts.pass + counts.delay,
                VerdictCounts::total,
            ),
        ],
        marks: Vec::new(),
    }
}

/// The busiest key of every second against the limit of a key.
fn busiest(zone: &ZoneReport) -> Option<Plot> {
    let rate = zone.rate?;
    let width = zone.timeline.width() as f64 * 1000.0;
    let points: Vec<_> = zone
        .timeline
        .bins()
        .flat_map(|(at, bin)| {
            [at as f64, at as f64 + width].map(|x| Point::at(x, bin.busiest.into()))
        })
        .collect();
    let most = points.iter().map(|point| point.y).fold(rate, f64::max);
    let mut marks = vec![GuideLine {
        at: GuidePosition::Y(rate),
        label: format!("rate {}/s", plain(rate)),
    }];
    if let Some(quota) = zone.quota.filter(|quota| (*quota as f64) <= most) {
        marks.push(GuideLine {
            at: GuidePosition::Y(quota as f64),
            label: format!("at once {quota}"),
        });
    }
    Some(Plot {
        title: "The busiest key against its limit".to_owned(),
        size: SIZE,
        x: time_axis(zone),
        y: number_axis("requests in a second", Axis::up_to(most)),
        series: vec![Series {
            name: String::new(),
            shape: SeriesStyle::Line,
            hue: Color::Other(0),
            points,
        }],
        marks,
    })
}

/// How many keys had how busy a second.
fn peaks(zone: &ZoneReport) -> Option<Plot> {
    let most = zone.peaks.last()?.0;
    // Each bin is twice as wide as the last: one key with a thousand requests shows, as do a thousand keys with one.
    let mut bins: Vec<u64> = Vec::new();
    for (peak, keys) in &zone.peaks {
        let bin = peak.max(&1).ilog2() as usize;
        bins.resize(bins.len().max(bin + 1), 0);
        bins[bin] += keys;
    }
    let bars = (0..)
        .zip(&bins)
        .filter(|(_, keys)| **keys > 0)
        .map(|(bin, keys)| {
            let start = f64::from(1_u32.checked_shl(bin).unwrap_or(u32::MAX));
            let series = |hue| Series {
                name: String::new(),
                shape: SeriesStyle::Bars(start),
                hue,
                points: vec![Point {
                    x: start,
                    y: *keys as f64,
                    base: 0.5,
                }],
            };
            series(Color::Other(0))
        });
    let largest = bins.iter().max().copied().unwrap_or(1) as f64;
    let marks = zone.rate.filter(|rate| *rate >= 1.0).map(|rate| GuideLine {
        at: GuidePosition::X(rate),
        label: "rate".to_owned(),
    });
    Some(Plot {
        title: "How busy keys get: their busiest second".to_owned(),
        size: SIZE,
        x: Axis {
            label: "requests in a key's busiest second".to_owned(),
            unit: AxisUnit::Number,
            scale: AxisScale::Log,
            range: (
                1.0,
                f64::from(most.max(zone.rate.unwrap_or(1.0).min(1e6) as u32)) * 2.0 + 2.0,
            ),
        },
        y: Axis {
            label: "keys".to_owned(),
            unit: AxisUnit::Number,
            scale: AxisScale::Log,
            range: (0.5, largest.max(2.0) * 1.5),
        },
        series: bars.collect(),
        marks: marks.into_iter().collect(),
    })
}

/// The share that each rate would refuse.
fn curve(zone: &ZoneReport) -> Option<Plot> {
    let first = zone.curve.first()?;
    let last = zone.curve.last()?;
    let most = zone
        .curve
        .iter()
        .map(|(_, share)| *share)
        .fold(0.0, f64::max);
    let mut marks: Vec<_> = zone
        .rate
        .map(|rate| GuideLine {
            at: GuidePosition::X(rate),
            label: "configured".to_owned(),
        })
        .into_iter()
        .collect();
    if let Some(suggestion) = &zone.suggestion {
        marks.push(GuideLine {
            at: GuidePosition::X(per_second(suggestion.best.rate)),
            label: "suggested".to_owned(),
        });
    }
    let points = zone
        .curve
        .iter()
        .map(|(rate, share)| Point::at(*rate, *share));
    Some(Plot {
        title: "Refused share over rate, burst as configured".to_owned(),
        size: SIZE,
        x: Axis {
            label: "rate, requests/s".to_owned(),
            unit: AxisUnit::Number,
            scale: AxisScale::Log,
            range: (first.0, last.0.max(first.0 * 2.0)),
        },
        y: Axis {
            label: "refused".to_owned(),
            unit: AxisUnit::Share,
            scale: AxisScale::Linear,
            range: Axis::up_to(most.max(0.000_1)),
        },
        series: vec![Series {
            name: String::new(),
            shape: SeriesStyle::Line,
            hue: Color::Refuse,
            points: points.collect(),
        }],
        marks,
    })
}

fn time_axis(zone: &ZoneReport) -> Axis {
    let width = zone.timeline.width() as f64 * 1000.0;
    let mut bins = zone.timeline.bins().map(|(at, _)| at as f64);
    let first = bins.next().unwrap_or(0.0);
    let last = bins.last().unwrap_or(first) + width;
    Axis {
        label: "UTC".to_owned(),
        unit: AxisUnit::Time,
        scale: AxisScale::Linear,
        range: (first, last),
    }
}

fn number_axis(label: &str, range: (f64, f64)) -> Axis {
    Axis {
        label: label.to_owned(),
        unit: AxisUnit::Number,
        scale: AxisScale::Linear,
        range,
    }
}

fn plain(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// For a column of half a page, or for a phone.
const SIZE: (f64, f64) = (480.0, 300.0);
