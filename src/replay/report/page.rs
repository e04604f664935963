//! The report as a page: one file, nothing from outside, no script.
//!
//! Keys are texts that strangers chose. Every text is escaped on its way in, and should one ever get through, the
//! page's policy lets a browser do nothing with it.

use std::fmt::Write;

use super::{ReplayReport, ZoneReport, charts, duration, moment, number, percent};
use crate::replay::plot::{PlotTheme, STYLE, escape};

pub(super) fn draw(report: &ReplayReport) -> String {
    let mut page = String::new();
    push(&mut page, HEAD);
    push(
        &mut page,
        &format!("<style>\n{STYLE}{OWN_STYLE}</style>\n</head>\n<body>\n<main>\n"),
    );
    summary(report, &mut page);
    for zone in &report.zones {
        self::zone(zone, report, &mut page);
    }
    push(&mut page, "</main>\n</body>\n</html>\n");
    page
}

fn push(page: &mut String, text: &str) {
    page.push_str(text);
}

fn summary(report: &ReplayReport, page: &mut String) {
    let span = match report.span {
        Some((first, last)) => format!("{} to {} UTC", moment(first), moment(last)),
        None => "no requests".to_owned(),
    };
    let counts = report.requests;
    push(
        page,
        &format!(
            "<h1>Replay</h1>\n<p class=\"sub\">{}</p>\n<div class=\"cards\">",
            escape(&span)
        ),
    );
    for (class, name, count) in [
        ("", "lines", report.lines),
        ("pass", "pass", counts.pass),
        ("delay", "delayed", counts.delay),
        ("refuse", "refused", counts.refuse),
    ] {
        push(
            page,
            &format!(
                "<div class=\"card {class}\"><b>{}</b><span>{name}</span></div>",
                number(count)
            ),
        );
    }
    push(page, "</div>\n<ul class=\"notes\">\n");
    let mut notes = super::notes(report);
    if report.skipped > 0 {
        notes.push(format!(
            "{} lines could not be read",
            number(report.skipped)
        ));
    }
    for note in notes {
        push(page, &format!("<li>{}</li>\n", escape(&note)));
    }
    push(page, "</ul>\n");
}

fn zone(zone: &ZoneReport, report: &ReplayReport, page: &mut String) {
    let kind = zone.kind.word();
    let (counts, total) = (zone.counts, zone.counts.total());
    push(
        page,
        &format!(
            "<section>\n<h2>{}</h2>\n<p class=\"sub\">{kind}, {}; {} keys</p>\n",
            escape(&zone.name),
            escape(&zone.allows),
            number(zone.keys)
        ),
    );
    if total == 0 {
        push(page, "<p>Nobody met it.</p>\n</section>\n");
        return;
    }
    push(
        page,
        &format!(
            "<p><b class=\"pass\">{}</b> pass, <b class=\"delay\">{}</b> wait, <b class=\"refuse\">{}</b> are refused ({}).</p>\n",
            number(counts.pass),
            number(counts.delay),
            number(counts.refuse),
            percent(counts.refuse, total)
        ),
    );
    push(page, "<div class=\"plots\">\n");
    for plot in charts::of(zone) {
        push(
            page,
            &format!("<figure>{}</figure>\n", plot.svg(PlotTheme::Page)),
        );
    }
    push(page, "</div>\n");
    hardest(zone, page);
    suggestion(zone, page);
    waits(zone, report, page);
    push(page, "</section>\n");
}

fn hardest(zone: &ZoneReport, page: &mut String) {
    push(
        page,
        "<h3>Hit hardest</h3>\n<div class=\"wide\"><table><thead><tr><th>key</th><th>requests</th><th>refused</th><th></th>\
         <th>delayed</th><th>longest wait</th><th>peak/s</th></tr></thead>\n<tbody>\n",
    );
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
        )
        .expect("a String takes every write");
    }
    push(page, "</tbody></table></div>\n");
}

fn suggestion(zone: &ZoneReport, page: &mut String) {
    let Some(suggestion) = &zone.suggestion else {
        return;
    };
    let best = &suggestion.best;
    let share = percent(suggestion.at_most_millionths, 1_000_000);
    push(
        page,
        &format!(
            "<h3>To refuse at most {share}</h3>\n<p><code>rate: {}</code>, <code>burst: {}</code></p>\n<ul><li>costs: {}</li>\
             <li>spares: {}</li></ul>\n<div class=\"wide\"><table><thead><tr><th>rate</th><th>burst</th><th>most a minute</th>\
             <th>refused</th><th>keys hit</th></tr></thead>\n<tbody>\n",
            best.rate,
            best.burst,
            escape(&suggestion.costs()),
            escape(&suggestion.spares())
        ),
    );
    for pair in suggestion.around_best(super::FEW) {
        let class = if pair.rate == best.rate {
            " class=\"best\""
        } else {
            ""
        };
        push(
            page,
            &format!(
                "<tr{class}><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                pair.rate,
                number(pair.burst.into()),
                number(pair.a_minute()),
                number(pair.refused),
                number(pair.touched)
            ),
        );
    }
    push(page, "</tbody></table></div>\n");
}

fn waits(zone: &ZoneReport, report: &ReplayReport, page: &mut String) {
    if zone.waits.is_empty() {
        return;
    }
    push(
        page,
        "<h3>Longest waits</h3>\n<div class=\"wide\"><table><thead><tr><th>key</th><th>wait</th><th>when</th><th>line</th></tr></thead>\n<tbody>\n",
    );
    for wait in &zone.waits {
        let file = report
            .files
            .get(wait.line.0 as usize)
            .map_or("", |name| &**name);
        push(
            page,
            &format!(
                "<tr><td class=\"key\">{}</td><td>{}</td><td>{}</td><td>{}:{}</td></tr>\n",
                escape(&wait.key),
                duration(wait.millis),
                moment(wait.at),
                escape(file),
                wait.line.1
            ),
        );
    }
    push(page, "</tbody></table></div>\n");
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
