//! Plots as SVG: lines, areas, bars and dots over two axes, and the lines that limits are.
//!
//! No script and nothing from outside: a plot is a text that any browser and any page with Markdown shows, in light
//! and in dark. Every text that is put into it is escaped here, because some of it was chosen by strangers.
//!
//! A plot becomes text.

pub(super) mod axis;

use std::fmt::Write;

use crate::text::{escape_html, visible};

pub(super) use self::axis::Axis;

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
        plot(self, place)
    }
}

/// Makes text safe to stand in SVG and HTML, between tags and inside quotes.
#[must_use]
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

fn plot(plot: &Plot, place: PlotTheme) -> String {
    let (width, height) = plot.size;
    let legend = legend(plot);
    let frame = PlotArea {
        plot,
        left: 52.0,
        right: width - 14.0,
        top: if legend.is_empty() { 46.0 } else { 68.0 },
        bottom: height - 42.0,
    };
    let mut svg = String::new();
    let title = escape(&plot.title);
    write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         role=\"img\" aria-label=\"{title}\""
    )
    .expect(SURE);
    svg += &match place {
        PlotTheme::Alone => {
            format!(" width=\"{width:.0}\" height=\"{height:.0}\">\n<style>\n{STYLE}</style>\n")
        }
        PlotTheme::Page => ">\n".to_owned(),
    };
    writeln!(
        svg,
        "<text class=\"title\" x=\"4\" y=\"18\">{title}</text>{legend}"
    )
    .expect(SURE);
    frame.axes(&mut svg);
    for series in &plot.series {
        frame.series(series, &mut svg);
    }
    for mark in &plot.marks {
        frame.mark(mark, &mut svg);
    }
    svg += "</svg>\n";
    svg
}

/// The names of all series beside their colours.
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
        )
        .expect(SURE);
        // About what a letter is wide.
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
            )
            .expect(SURE);
        }
        let count = ((self.right - self.left) / 80.0).max(2.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a few dozen at most"
        )]
        for (value, text) in self.plot.x.ticks(count as usize) {
            let x = self.x(value);
            // The last one must not stick out.
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
            )
            .expect(SURE);
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
        )
        .expect(SURE);
    }

    fn series(&self, series: &Series, svg: &mut String) {
        let colour = format!("var(--{})", series.hue.class());
        match series.shape {
            SeriesStyle::Area => {
                let mut path = self.path(series.points.iter().copied());
                for point in series.points.iter().rev() {
                    write!(path, "L{:.1} {:.1}", self.x(point.x), self.y(point.base)).expect(SURE);
                }
                writeln!(
                    svg,
                    "<path class=\"area\" style=\"fill:{colour}\" d=\"{path}Z\"/>"
                )
                .expect(SURE);
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
                    )
                    .expect(SURE);
                }
            }
            SeriesStyle::Dots => {
                for point in &series.points {
                    writeln!(
                        svg,
                        "<circle style=\"fill:{colour}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/>",
                        self.x(point.x),
                        self.y(point.y)
                    )
                    .expect(SURE);
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
        )
        .expect(SURE);
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
            )
            .expect(SURE);
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
        )
        .expect(SURE);
    }
}

const SURE: &str = "a String takes every write";

#[cfg(test)]
mod tests {

    use super::axis::{Axis, AxisScale, AxisUnit};
    use super::{Color, *};

    fn sample(shape: SeriesStyle) -> Plot {
        let axis = |label: &str, to| Axis {
            label: label.to_owned(),
            unit: AxisUnit::Number,
            scale: AxisScale::Linear,
            range: (0.0, to),
        };
        Plot {
            title: "<script>alert(1)</script> & \"more\"".to_owned(),
            size: (480.0, 280.0),
            x: axis("seconds", 10.0),
            y: axis("requests", 5.0),
            series: vec![Series {
                name: "</text><b>".to_owned(),
                shape,
                hue: Color::Pass,
                points: vec![
                    Point::at(0.0, 1.0),
                    Point::at(5.0, 4.0),
                    Point::at(10.0, f64::NAN),
                ],
            }],
            marks: vec![
                GuideLine {
                    at: GuidePosition::X(3.0),
                    label: "x<y".to_owned(),
                },
                GuideLine {
                    at: GuidePosition::Y(2.0),
                    label: "limit".to_owned(),
                },
            ],
        }
    }

    #[test]
    fn nothing_in_it_can_leave_its_text() {
        for shape in [
            SeriesStyle::Area,
            SeriesStyle::Bars(1.0),
            SeriesStyle::Dots,
            SeriesStyle::Line,
            SeriesStyle::Step,
        ] {
            for place in [PlotTheme::Alone, PlotTheme::Page] {
                let svg = plot(&sample(shape), place);
                assert!(!svg.contains("<script"), "{svg}");
                assert!(!svg.contains("<b>"), "{svg}");
                assert!(!svg.contains("NaN"), "{svg}");
                assert!(svg.contains("&lt;script&gt;"), "{svg}");
            }
        }
    }

    #[test]
    fn every_tag_is_closed() {
        let svg = plot(&sample(SeriesStyle::Step), PlotTheme::Alone);
        for tag in ["svg", "text", "style"] {
            let (open, close) = (format!("<{tag}"), format!("</{tag}>"));
            assert_eq!(
                svg.matches(&open).count(),
                svg.matches(&close).count(),
                "{tag}"
            );
        }
        assert_eq!(
            svg.matches("<path").count() + svg.matches("<rect").count(),
            svg.matches("/>").count()
        );
    }

    #[test]
    fn only_a_plot_on_its_own_brings_its_colours() {
        assert!(
            plot(&sample(SeriesStyle::Line), PlotTheme::Alone).contains("prefers-color-scheme")
        );
        assert!(!plot(&sample(SeriesStyle::Line), PlotTheme::Page).contains("<style"));
    }
}
