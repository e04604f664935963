//! Plots as SVG: lines, areas, bars and dots over two axes, and the lines that limits are.
//!
//! No script and nothing from outside: a plot is a text that any browser and any page with Markdown shows, in light
//! and in dark. Every text that is put into it is escaped here, because some of it was chosen by strangers.

mod axis;
mod draw;

pub use axis::{Axis, AxisScale, AxisUnit};

/// A plot.
#[derive(Debug, Clone)]
pub struct Plot {
    /// What stands above it.
    pub title: String,
    /// Width and height; text is 13 high.
    pub size: (f64, f64),
    /// From left to right.
    pub x: Axis,
    /// From the bottom up.
    pub y: Axis,
    /// Drawn in this order, the last on top.
    pub series: Vec<Series>,
    /// Lines across the whole plot.
    pub marks: Vec<GuideLine>,
}

/// Points that belong together.
#[derive(Debug, Clone)]
pub struct Series {
    /// What the legend says; nothing for none.
    pub name: String,
    /// How it is drawn.
    pub shape: SeriesStyle,
    /// In which colour.
    pub hue: Color,
    /// Each with where it begins and where it ends from the bottom up; only areas and bars begin above zero.
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

/// A colour, by what it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Color {
    /// What waits.
    Delay,
    /// As text.
    Ink,
    /// What passes.
    Pass,
    /// What is turned away.
    Refuse,
    /// One of several that stand for nothing in particular.
    Other(u8),
}

/// A line across the plot.
#[derive(Debug, Clone)]
pub struct GuideLine {
    /// Where.
    pub at: GuidePosition,
    /// What is written at it.
    pub label: String,
}

/// Where a [`GuideLine`] is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GuidePosition {
    /// Upright, at this value of the horizontal axis.
    X(f64),
    /// Level, at this value of the vertical axis.
    Y(f64),
}

/// Where a plot is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlotTheme {
    /// In a file of its own, which brings its colours.
    Alone,
    /// In a page that has [`STYLE`] already.
    Page,
}

impl Point {
    /// A point on the ground.
    #[must_use]
    pub fn at(x: f64, y: f64) -> Self {
        Self { x, y, base: 0.0 }
    }
}

impl Color {
    /// The name of its class.
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
    pub fn svg(&self, place: PlotTheme) -> String {
        draw::plot(self, place)
    }
}

/// Makes text safe to stand in SVG and HTML, between tags and inside quotes.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in visible(text).chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            letter => safe.push(letter),
        }
    }
    safe
}

/// Replaces what acts on a terminal, turns the direction of text around or hides in it: one key could look like
/// another.
#[must_use]
pub fn visible(text: &str) -> String {
    text.chars()
        .map(|letter| match letter {
            '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' => '\u{fffd}',
            letter if letter.is_control() => '\u{fffd}',
            letter => letter,
        })
        .collect()
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
