//! Plots as SVG: lines, areas, bars and dots over two axes, and guide lines.
//!
//! A plot has no scripts and loads nothing, so any browser and any page with Markdown shows it, in light and in dark. Every
//! text in it is escaped here, because clients chose some of them.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::text::{Append as _, escape_html, visible};

/// A plot.
#[derive(Debug, Clone)]
pub struct Plot {
    /// Its title.
    pub title: String,
    /// Width and height in pixels; text is 13 high.
    pub size: (f64, f64),
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Drawn in this order, the last on top.
    pub series: Vec<Series>,
    /// Lines across the whole plot.
    pub marks: Vec<GuideLine>,
}

/// Points that belong together.
#[derive(Debug, Clone)]
pub struct Series {
    /// Its name in the legend; empty for none.
    pub name: String,
    /// How it is drawn.
    pub shape: SeriesStyle,
    /// Its colour.
    pub hue: Color,
    /// Its points, from left to right.
    pub points: Vec<Point>,
}

/// A point of a [`Series`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// From the left.
    pub x: f64,
    /// From the bottom.
    pub y: f64,
    /// Where an area or a bar begins.
    pub base: f64,
}

/// How points are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SeriesStyle {
    /// Filled down to the base.
    Area,
    /// One bar for each, from its `x` so far to the right.
    Bars(f64),
    /// A dot for each.
    Dots,
    /// Straight from each to the next.
    Line,
    /// Level until the next.
    Step,
}

/// A colour, by what it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Color {
    /// Delayed requests.
    Delay,
    /// The colour of text.
    Ink,
    /// Requests that pass.
    Pass,
    /// Refused requests.
    Refuse,
    /// One of several without a meaning.
    Other(u8),
}

/// A line across the plot.
#[derive(Debug, Clone)]
pub struct GuideLine {
    /// Its position.
    pub at: GuidePosition,
    /// The text at it.
    pub label: String,
}

/// Where a [`GuideLine`] is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GuidePosition {
    /// Vertical, at this value of the horizontal axis.
    X(f64),
    /// Horizontal, at this value of the vertical axis.
    Y(f64),
}

/// Where a plot is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlotTheme {
    /// In a file of its own, with the colours in it.
    Alone,
    /// In a page that has [`STYLE`] already.
    Page,
}

impl Point {
    /// A point without a base.
    #[must_use]
    pub fn at(x: f64, y: f64) -> Self {
        Self { x, y, base: 0.0 }
    }
}

impl Color {
    /// Its CSS class.
    fn class(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Ink => "ink",
            Self::Pass => "pass",
            Self::Refuse => "refuse",
            Self::Other(which) => OTHERS[usize::from(which) % OTHERS.len()],
        }
    }
}

impl Plot {
    /// The plot as SVG.
    #[must_use]
    pub fn svg(&self, theme: PlotTheme) -> String {
        let (width, height) = self.size;
        let legend = legend(self);
        let frame = PlotArea {
            plot: self,
            left: 52.0,
            right: width - 14.0,
            top: if legend.is_empty() { 46.0 } else { 68.0 },
            bottom: height - 42.0,
        };
        let mut svg = String::new();
        let title = escape(&self.title);
        write!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             role=\"img\" aria-label=\"{title}\""
        );
        svg += &match theme {
            PlotTheme::Alone => {
                format!(" width=\"{width:.0}\" height=\"{height:.0}\">\n<style>\n{STYLE}</style>\n")
            }
            PlotTheme::Page => ">\n".to_owned(),
        };
        writeln!(
            svg,
            "<text class=\"title\" x=\"4\" y=\"18\">{title}</text>{legend}"
        );
        frame.axes(&mut svg);
        for series in &self.series {
            frame.series(series, &mut svg);
        }
        for mark in &self.marks {
            frame.mark(mark, &mut svg);
        }
        svg += "</svg>\n";
        svg
    }
}

/// Escapes text for SVG and HTML, between tags and inside quotes.
pub(super) fn escape(text: &str) -> String {
    escape_html(&visible(text)).into_owned()
}

const OTHERS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// The colours and fonts of all plots.
pub const STYLE: &str = "\
.plot { --ink: #24292f; --faint: #d0d7de; --pass: #1a7f64; --delay: #c98a1b; --refuse: #c93a3a;
 --a: #2f6fb3; --b: #c2571a; --c: #1a7f64; --d: #8250a8; --e: #b0377e; --f: #7a6a1f; --g: #0f7c8f; --h: #6b7280 }
@media (prefers-color-scheme: dark) {
.plot { --ink: #d5dbe1; --faint: #3b424a; --pass: #3fb890; --delay: #e2ac4a; --refuse: #f0716b;
 --a: #6aa9ea; --b: #ee9460; --c: #3fb890; --d: #bb91de; --e: #e77fb8; --f: #c9b65a; --g: #4fbfd3; --h: #a0a8b2 }
}
.plot text { font: 13px system-ui, sans-serif; fill: var(--ink) }
.plot .title { font-weight: 600 } .plot .small { font-size: 12px }
.plot .grid { stroke: var(--faint); stroke-width: 1; fill: none }
.plot .mark { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 5 3 }
.plot .halo { paint-order: stroke; stroke: var(--ground, transparent); stroke-width: 3px; stroke-linejoin: round }
.plot .line { fill: none; stroke-width: 2; stroke-linejoin: round }
.plot .area { stroke: none; opacity: .85 }
";

/// The area inside the axes.
struct PlotArea<'a> {
    plot: &'a Plot,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// The names of all series, each beside its colour.
fn legend(plot: &Plot) -> String {
    let mut text = String::new();
    let mut x = 4.0;
    for series in plot.series.iter().filter(|series| !series.name.is_empty()) {
        let class = series.hue.class();
        write!(
            text,
            "<rect x=\"{x:.0}\" y=\"29\" width=\"12\" height=\"12\" rx=\"2\" style=\"fill:var(--{class})\"/>\
             <text class=\"small\" x=\"{:.0}\" y=\"40\">{}</text>",
            x + 17.0,
            escape(&series.name)
        );
        // About the width of a letter.
        x += 34.0 + 6.6 * series.name.chars().count() as f64;
    }
    text
}

impl PlotArea<'_> {
    fn x(&self, value: f64) -> f64 {
        self.left + self.plot.x.place(value) * (self.right - self.left)
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - self.plot.y.place(value) * (self.bottom - self.top)
    }

    fn axes(&self, svg: &mut String) {
        for (value, text) in self.plot.y.ticks(4) {
            let y = self.y(value);
            writeln!(
                svg,
                "<path class=\"grid\" d=\"M{:.1} {y:.1}H{:.1}\"/><text class=\"small\" x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                self.left,
                self.right,
                self.left - 6.0,
                y + 4.0,
                escape(&text)
            );
        }
        let count = ((self.right - self.left) / 80.0).max(2.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a few dozen at most"
        )]
        for (value, text) in self.plot.x.ticks(count as usize) {
            let x = self.x(value);
            // The last one must stay inside the picture.
            let anchor = if x > self.right - 20.0 {
                "end"
            } else {
                "middle"
            };
            writeln!(
                svg,
                "<path class=\"grid\" d=\"M{x:.1} {:.1}v4\"/><text class=\"small\" x=\"{x:.1}\" y=\"{:.1}\" \
                 text-anchor=\"{anchor}\">{}</text>",
                self.bottom,
                self.bottom + 17.0,
                escape(&text)
            );
        }
        writeln!(
            svg,
            "<text class=\"small\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text class=\"small\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            self.right,
            self.bottom + 35.0,
            escape(&self.plot.x.label),
            self.left,
            self.top - 6.0,
            escape(&self.plot.y.label)
        );
    }

    fn series(&self, series: &Series, svg: &mut String) {
        let colour = format!("var(--{})", series.hue.class());
        match series.shape {
            SeriesStyle::Area => {
                let mut path = self.path(series.points.iter().copied());
                for point in series.points.iter().rev() {
                    write!(path, "L{:.1} {:.1}", self.x(point.x), self.y(point.base));
                }
                writeln!(
                    svg,
                    "<path class=\"area\" style=\"fill:{colour}\" d=\"{path}Z\"/>"
                );
            }
            SeriesStyle::Bars(width) => {
                for point in &series.points {
                    let (left, right) = (self.x(point.x), self.x(point.x + width));
                    let (top, bottom) = (self.y(point.y), self.y(point.base));
                    writeln!(
                        svg,
                        "<rect class=\"area\" style=\"fill:{colour}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" \
                         height=\"{:.1}\"/>",
                        (right - left - 1.0).max(0.5),
                        (bottom - top).max(0.0)
                    );
                }
            }
            SeriesStyle::Dots => {
                for point in &series.points {
                    writeln!(
                        svg,
                        "<circle style=\"fill:{colour}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/>",
                        self.x(point.x),
                        self.y(point.y)
                    );
                }
            }
            SeriesStyle::Line => self.line(series.points.iter().copied(), &colour, svg),
            SeriesStyle::Step => {
                let corners = series.points.windows(2).flat_map(|two| {
                    let corner = Point::at(two[1].x, two[0].y);
                    [corner, two[1]]
                });
                let first = series.points.first().copied();
                self.line(first.into_iter().chain(corners), &colour, svg);
            }
        }
    }

    fn line(&self, points: impl Iterator<Item = Point>, colour: &str, svg: &mut String) {
        let path = self.path(points);
        writeln!(
            svg,
            "<path class=\"line\" style=\"stroke:{colour}\" d=\"{path}\"/>"
        );
    }

    fn path(&self, points: impl Iterator<Item = Point>) -> String {
        let mut path = String::new();
        for (at, point) in points.enumerate() {
            let letter = if at == 0 { 'M' } else { 'L' };
            write!(
                path,
                "{letter}{:.1} {:.1}",
                self.x(point.x),
                self.y(point.y)
            );
        }
        path
    }

    fn mark(&self, mark: &GuideLine, svg: &mut String) {
        let label = escape(&mark.label);
        let (path, x, y, anchor) = match mark.at {
            GuidePosition::X(value) => {
                let x = self.x(value);
                let right = x > (self.left + self.right) / 2.0;
                let (beside, anchor) = if right {
                    (x - 5.0, "end")
                } else {
                    (x + 5.0, "start")
                };
                (
                    format!("M{x:.1} {:.1}V{:.1}", self.top, self.bottom),
                    beside,
                    self.top + 12.0,
                    anchor,
                )
            }
            GuidePosition::Y(value) => {
                let y = self.y(value);
                let above = if y < self.top + 16.0 {
                    y + 15.0
                } else {
                    y - 5.0
                };
                (
                    format!("M{:.1} {y:.1}H{:.1}", self.left, self.right),
                    self.right - 2.0,
                    above,
                    "end",
                )
            }
        };
        writeln!(
            svg,
            "<path class=\"mark\" d=\"{path}\"/><text class=\"small halo\" x=\"{x:.1}\" y=\"{y:.1}\" \
             text-anchor=\"{anchor}\">{label}</text>"
        );
    }
}

/// One of the two axes of a plot.
#[derive(Debug, Clone)]
pub struct Axis {
    /// Its label.
    pub label: String,
    /// The unit of its values.
    pub unit: AxisUnit,
    /// How values are spread.
    pub scale: AxisScale,
    /// Its first and last value.
    pub range: (f64, f64),
}

/// The unit of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxisUnit {
    /// Numbers.
    Number,
    /// Shares: 1 is 100 %.
    Share,
    /// Times, in milliseconds since the Unix epoch.
    Time,
}

/// How values are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxisScale {
    /// Evenly.
    Linear,
    /// By powers of ten; values that are not above zero are placed at the start.
    Log,
}

impl Axis {
    /// The place of a value, from 0 to 1; values outside the range are placed at its ends.
    fn place(&self, value: f64) -> f64 {
        let (from, to) = self.range;
        let part = match self.scale {
            AxisScale::Linear => (value - from) / (to - from),
            AxisScale::Log => (value.max(from).ln() - from.ln()) / (to.ln() - from.ln()),
        };
        if part.is_finite() {
            part.clamp(0.0, 1.0)
        } else {
            0.0
        }
    }

    /// About `count` round values, each with its text.
    fn ticks(&self, count: usize) -> Vec<(f64, String)> {
        let (from, to) = self.range;
        if !(from.is_finite() && to.is_finite() && from < to) {
            return Vec::new();
        }
        match (self.scale, self.unit) {
            (AxisScale::Log, unit) => decades(from, to, count)
                .into_iter()
                .map(|value| (value, written(value, value, unit)))
                .collect(),
            (AxisScale::Linear, AxisUnit::Time) => {
                let step = pick(&TIME_STEPS, (to - from) / count as f64);
                multiples(from, to, step)
                    .map(|value| (value, moment(value, step)))
                    .collect()
            }
            (AxisScale::Linear, unit) => {
                let step = round_step((to - from) / count as f64);
                multiples(from, to, step)
                    .map(|value| (value, written(value, step, unit)))
                    .collect()
            }
        }
    }

    /// The range from zero to a round number not below `most`.
    #[must_use]
    pub fn up_to(most: f64) -> (f64, f64) {
        if !(most.is_finite() && most > 0.0) {
            return (0.0, 1.0);
        }
        let step = round_step(most / 4.0);
        (0.0, (most / step).ceil() * step)
    }
}

fn multiples(from: f64, to: f64, step: f64) -> impl Iterator<Item = f64> {
    let first = (from / step).ceil();
    (0..MOST_TICKS)
        .map(move |at| (first + f64::from(at)) * step)
        .take_while(move |value| *value <= to + step * 1e-9)
}

/// 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0].into_iter();
    times
        .map(|times| times * power)
        .find(|step| *step >= least * (1.0 - 1e-9))
        .unwrap_or(power * 10.0)
}

fn pick(steps: &[f64], least: f64) -> f64 {
    let found = steps.iter().find(|step| **step >= least).copied();
    found.unwrap_or_else(|| round_step(least / DAY) * DAY)
}

/// Powers of ten, and their multiples by 2 and 5 where there is room.
fn decades(from: f64, to: f64, count: usize) -> Vec<f64> {
    let times: &[f64] = match to.log10() - from.log10() {
        span if span * 3.0 <= count as f64 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let first = from.log10().floor();
    let every = ((to.log10() - first) / count as f64).ceil().max(1.0);
    (0..MOST_TICKS)
        .map(|at| 10f64.powf(first + f64::from(at) * every))
        .take_while(|power| *power <= to)
        .flat_map(|power| times.iter().map(move |times| times * power))
        .filter(|value| (from * (1.0 - 1e-9)..=to * (1.0 + 1e-9)).contains(value))
        .collect()
}

/// A value with as many decimals as it takes to tell it from the next, `step` away.
fn written(value: f64, step: f64, unit: AxisUnit) -> String {
    let (value, step, sign) = match unit {
        AxisUnit::Share => (value * 100.0, step * 100.0, " %"),
        AxisUnit::Number | AxisUnit::Time => (value, step, ""),
    };
    let (value, step, letter) = match value.abs() {
        large if large >= 1e9 => (value / 1e9, step / 1e9, "G"),
        large if large >= 1e6 => (value / 1e6, step / 1e6, "M"),
        large if large >= 1e4 => (value / 1e3, step / 1e3, "k"),
        _ => (value, step, ""),
    };
    let decimals = (0..9)
        .find(|decimals| {
            let scaled = step.abs() * 10f64.powi(*decimals);
            (scaled - scaled.round()).abs() < 1e-6 * scaled.max(1.0) && scaled >= 0.5
        })
        .unwrap_or(0);
    let decimals = usize::try_from(decimals).unwrap_or(0);
    format!("{value:.decimals$}{letter}{sign}")
}

/// A time in UTC, as exact as it takes to tell it from the next, `step` milliseconds away.
fn moment(value: f64, step: f64) -> String {
    let format = match step {
        step if step >= DAY => "%d %b",
        step if step >= 60_000.0 => "%H:%M",
        step if step >= 1_000.0 => "%H:%M:%S",
        _ => "%H:%M:%S%.3f",
    };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a time of day fits, and other times are not shown"
    )]
    let moment = Timestamp::from_millisecond(value as i64).unwrap_or_default();
    let zoned = moment.to_zoned(TimeZone::UTC);
    zoned.strftime(format).to_string()
}

const DAY: f64 = 86_400_000.0;

/// Round steps between times, in milliseconds.
const TIME_STEPS: [f64; 29] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3, 60e3,
    120e3, 300e3, 600e3, 900e3, 1800e3, 3600e3, 7200e3, 10_800e3, 21_600e3, 43_200e3, 86_400e3,
    172_800e3, 604_800e3,
];

/// The most ticks, whatever the range.
const MOST_TICKS: i32 = 50;

#[cfg(test)]
#[path = "tests/plot.rs"]
mod tests;
