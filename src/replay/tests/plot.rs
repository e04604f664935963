//! Plots: their SVG is well-formed and escaped, and their ticks are round values.

use super::*;

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
fn every_text_is_escaped() {
    for shape in [
        SeriesStyle::Area,
        SeriesStyle::Bars(1.0),
        SeriesStyle::Dots,
        SeriesStyle::Line,
        SeriesStyle::Step,
    ] {
        for place in [PlotTheme::Alone, PlotTheme::Page] {
            let svg = sample(shape).svg(place);
            assert!(!svg.contains("<script"), "{svg}");
            assert!(!svg.contains("<b>"), "{svg}");
            assert!(!svg.contains("NaN"), "{svg}");
            assert!(svg.contains("&lt;script&gt;"), "{svg}");
        }
    }
}

#[test]
fn every_tag_is_closed() {
    let svg = sample(SeriesStyle::Step).svg(PlotTheme::Alone);
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
fn only_a_plot_alone_brings_its_colours() {
    assert!(
        sample(SeriesStyle::Line)
            .svg(PlotTheme::Alone)
            .contains("prefers-color-scheme")
    );
    assert!(
        !sample(SeriesStyle::Line)
            .svg(PlotTheme::Page)
            .contains("<style")
    );
}

fn axis(unit: AxisUnit, scale: AxisScale, range: (f64, f64)) -> Axis {
    Axis {
        label: String::new(),
        unit,
        scale,
        range,
    }
}

fn texts(axis: &Axis, count: usize) -> Vec<String> {
    axis.ticks(count)
        .into_iter()
        .map(|(_, text)| text)
        .collect()
}

#[test]
fn ticks_are_round_numbers() {
    let number = axis(AxisUnit::Number, AxisScale::Linear, (0.0, 7.0));
    assert_eq!(texts(&number, 4), ["0", "2", "4", "6"]);
    let share = axis(AxisUnit::Share, AxisScale::Linear, (0.0, 0.01));
    assert_eq!(texts(&share, 4), ["0.0 %", "0.5 %", "1.0 %"]);
    let large = axis(AxisUnit::Number, AxisScale::Linear, (0.0, 60_000.0));
    assert_eq!(texts(&large, 4), ["0", "20k", "40k", "60k"]);
}

#[test]
fn times_are_as_exact_as_the_step_between_them() {
    let start = 1_794_794_400_000.0;
    let hour = axis(
        AxisUnit::Time,
        AxisScale::Linear,
        (start, start + 3_600_000.0),
    );
    assert_eq!(
        texts(&hour, 4),
        ["02:00", "02:15", "02:30", "02:45", "03:00"]
    );
    let minute = axis(AxisUnit::Time, AxisScale::Linear, (start, start + 60_000.0));
    assert_eq!(texts(&minute, 4)[..2], ["02:00:00", "02:00:15"]);
    let month = axis(
        AxisUnit::Time,
        AxisScale::Linear,
        (start, start + 30.0 * DAY),
    );
    assert!(
        texts(&month, 5)[0].ends_with("Nov"),
        "{:?}",
        texts(&month, 5)
    );
}

#[test]
fn powers_of_ten_are_spread_evenly() {
    let log = axis(AxisUnit::Number, AxisScale::Log, (1.0, 10_000.0));
    assert_eq!(texts(&log, 5), ["1", "10", "100", "1000", "10k"]);
    assert!((log.place(100.0) - 0.5).abs() < 1e-9);
    let short = axis(AxisUnit::Number, AxisScale::Log, (1.0, 10.0));
    assert_eq!(texts(&short, 5), ["1", "2", "5", "10"]);
}

#[test]
fn any_range_can_be_drawn() {
    for range in [
        (0.0, 0.0),
        (1.0, 0.0),
        (f64::NAN, 1.0),
        (0.0, f64::INFINITY),
        (-1e300, 1e300),
        (1.0, 1.0 + 1e-12),
    ] {
        for scale in [AxisScale::Linear, AxisScale::Log] {
            for unit in [AxisUnit::Number, AxisUnit::Share, AxisUnit::Time] {
                let axis = axis(unit, scale, range);
                assert!(axis.ticks(5).len() <= 200, "{axis:?}");
                assert!((0.0..=1.0).contains(&axis.place(0.5)), "{axis:?}");
            }
        }
    }
}
