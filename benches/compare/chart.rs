//! The chart: bars of CPU per request relative to nginx, which is the line at 1.
//!
//! Written by hand rather than by a plotting crate: a dozen rectangles. Its colours follow the reader's light or dark.

use crate::cases::Contender;
use crate::report::{Outcome, Ratio};

const LEFT: f64 = 310.0;
const RIGHT: f64 = 60.0;
const WIDTH: f64 = 760.0;
const ROW: f64 = 22.0;
const TOP: f64 = 46.0;

const STYLE: &str = "\
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600 } .small { font-size: 11px }
.weir { fill: #1a7f64 } .other { fill: #9aa4af } .line { stroke: #24292f; stroke-width: 1.5 }
.spread { stroke: #24292f; stroke-width: 1; opacity: .55 }
@media (prefers-color-scheme: dark) {
text { fill: #d5dbe1 } .weir { fill: #3fb890 } .other { fill: #66707b } .line, .spread { stroke: #d5dbe1 }
}";

/// The whole picture.
pub(crate) fn draw(outcomes: &[Outcome]) -> String {
    let mut rows: Vec<(&str, Contender, Ratio)> = Vec::new();
    for outcome in outcomes {
        for (contender, _) in &outcome.proxies {
            if *contender == Contender::BASE {
                continue;
            }
            if let Some(ratio) = outcome.cpu(*contender, Contender::BASE) {
                rows.push((outcome.case.title, *contender, ratio));
            }
        }
    }
    let most = rows.iter().map(|row| row.2.most).fold(1.0, f64::max);
    let scale = (WIDTH - LEFT - RIGHT) / most;
    let mut body = String::new();
    let mut y = TOP;
    let mut title = "";
    for (case, contender, ratio) in rows {
        if case != title {
            y += 8.0;
            body += &format!(
                "<text class=\"title\" x=\"8\" y=\"{:.1}\">{case}</text>\n",
                y + 15.0
            );
            title = case;
        }
        body += &bar(y, scale, contender, ratio);
        y += ROW;
    }
    let (one, bottom, height) = (LEFT + scale, y + 4.0, y + 16.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
         height=\"{height:.0}\" role=\"img\" aria-label=\"CPU per request relative to nginx\">\n\
         <style>\n{STYLE}\n</style>\n\
         <text class=\"title\" x=\"8\" y=\"20\">CPU per request relative to nginx; shorter is cheaper</text>\n{body}\
         <line class=\"line\" x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\"/>\n\
         <text class=\"small\" x=\"{one:.1}\" y=\"40\" text-anchor=\"middle\">nginx = 1</text>\n</svg>\n"
    )
}

fn bar(y: f64, scale: f64, contender: Contender, ratio: Ratio) -> String {
    let class = match contender {
        Contender::Weir => "weir",
        _ => "other",
    };
    let at = |value: f64| LEFT + value * scale;
    let (label, middle) = (contender.label(), y + 10.5);
    format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>\
         <rect class=\"{class}\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"15\" rx=\"2\"/>\
         <line class=\"spread\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>\
         <text class=\"small\" x=\"{:.1}\" y=\"{:.1}\">{:.2}</text>\n",
        LEFT - 8.0,
        y + 15.0,
        y + 3.0,
        ratio.median * scale,
        at(ratio.least),
        at(ratio.most),
        at(ratio.most.max(1.0)) + 8.0,
        y + 14.5,
        ratio.median,
    )
}
