//! The plot in `docs/algorithms.md`, drawn by the code of the algorithms: it is drawn again here and compared.
//!
//! `WEIR_DRAW=1 cargo test --test all plots` writes the plot anew.

use std::time::Duration;

use weir::algorithm::AlgorithmParams;
use weir::algorithm::Cost;
use weir::algorithm::Delay;
use weir::algorithm::Excess;
use weir::algorithm::LimitSpec;
use weir::algorithm::Rate;
use weir::algorithm::Verdict;
use weir::clock::Millis;
use weir::replay::Axis;
use weir::replay::AxisScale;
use weir::replay::AxisUnit;
use weir::replay::Color;
use weir::replay::GuideLine;
use weir::replay::GuidePosition;
use weir::replay::Plot;
use weir::replay::PlotTheme;
use weir::replay::Point;
use weir::replay::STYLE;
use weir::replay::Series;
use weir::replay::SeriesStyle;
use weir::store::{Key, RateZone};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/algorithms.svg");

/// Width and height of one of the plots, and how many stand beside each other.
const PANEL: (f64, f64) = (420.0, 210.0);
const COLUMNS: usize = 2;

/// Height of the legend.
const LEGEND: f64 = 28.0;

/// The width of a bar, in milliseconds.
const BAR: u64 = 500;
const END: u64 = 20_000;
const BARS: usize = (END / BAR) as usize;

/// When requests come: 60 in one second, a pause, then 20 a second for eight seconds.
fn arrivals() -> Vec<u64> {
    let evenly = |from: u64, to: u64, count: u64| {
        (0..count).map(move |index| from + (to - from) * index / count)
    };
    evenly(1_000, 2_000, 60)
        .chain(evenly(8_000, 16_000, 160))
        .collect()
}

/// The verdicts in each bar.
struct Bars {
    pass: [u32; BARS],
    delay: [u32; BARS],
    refuse: [u32; BARS],
}

impl Bars {
    const EMPTY: Self = Self {
        pass: [0; BARS],
        delay: [0; BARS],
        refuse: [0; BARS],
    };
}

fn run(algorithm: &AlgorithmParams, burst: u32, delay: Delay) -> Bars {
    let terms = LimitSpec::new(algorithm, Excess::requests(burst), delay);
    let zone = RateZone::new("one", 1 << 20, &terms, false);
    let key = Key::from_bytes(b"client");
    let mut bars = Bars::EMPTY;
    let mut add = |which: fn(&mut Bars) -> &mut [u32], at: u64| {
        let bar = usize::try_from(at / BAR).expect("a small number");
        if let Some(count) = which(&mut bars).get_mut(bar) {
            *count += 1;
        }
    };
    for at in arrivals() {
        match zone.charge(&key, Millis(at), Cost::ONE, &terms).0 {
            Verdict::Pass { .. } => add(|bars| &mut bars.pass, at),
            Verdict::Delay { wait, .. } => {
                let wait = u64::try_from(wait.as_millis()).expect("a few seconds");
                add(|bars| &mut bars.delay, at + wait);
            }
            Verdict::Refuse { .. } => add(|bars| &mut bars.refuse, at),
        }
    }
    bars
}

fn panel(title: &str, bars: &Bars) -> Plot {
    let mut floor = [0; BARS];
    let mut series = Vec::new();
    for (hue, counts) in [
        (Color::Pass, &bars.pass),
        (Color::Delay, &bars.delay),
        (Color::Refuse, &bars.refuse),
    ] {
        let mut points = Vec::new();
        for (index, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let base = floor[index];
            floor[index] += count;
            points.push(Point {
                x: index as f64 * BAR as f64 / 1000.0,
                y: f64::from(floor[index]),
                base: f64::from(base),
            });
        }
        series.push(Series {
            name: String::new(),
            shape: SeriesStyle::Bars(BAR as f64 / 1000.0),
            hue,
            points,
        });
    }
    Plot {
        title: title.to_owned(),
        size: PANEL,
        x: Axis {
            label: "seconds".to_owned(),
            unit: AxisUnit::Number,
            scale: AxisScale::Linear,
            range: (0.0, END as f64 / 1000.0),
        },
        y: Axis {
            label: "requests in half a second".to_owned(),
            unit: AxisUnit::Number,
            scale: AxisScale::Linear,
            range: (0.0, 32.0),
        },
        series,
        marks: vec![GuideLine {
            at: GuidePosition::Y(5.0),
            label: String::new(),
        }],
    }
}

/// Ten a second with a burst of 20.
fn by_rate() -> [(&'static str, AlgorithmParams, u32, Delay); 4] {
    let rate = Rate::per_second(10_000);
    let leaky = AlgorithmParams::LeakyBucket { rate };
    let token = AlgorithmParams::TokenBucket { rate };
    let gcra = AlgorithmParams::Gcra { rate };
    let all = Delay::After(Excess(0));
    [
        ("leaky_bucket, burst 20, nodelay", leaky, 20, Delay::Never),
        ("leaky_bucket, burst 20", leaky, 20, all),
        ("token_bucket, burst 20", token, 20, Delay::Never),
        ("gcra, burst 20", gcra, 20, Delay::Never),
    ]
}

/// Ten a second as 50 in five seconds.
fn by_window() -> [(&'static str, AlgorithmParams); 4] {
    let (limit, window) = (50, Duration::from_secs(5));
    let sliding = AlgorithmParams::SlidingWindow { limit, window };
    let blocks = AlgorithmParams::Blocks {
        limit,
        window,
        precision: Duration::from_secs(1),
    };
    let fixed = AlgorithmParams::FixedWindow { limit, window };
    let log = AlgorithmParams::SlidingLog { limit, window };
    [
        ("fixed_window, 50 in 5s", fixed),
        ("sliding_window, 50 in 5s", sliding),
        ("sliding_window, 50 in 5s, precision 1s", blocks),
        ("sliding_log, 50 in 5s", log),
    ]
}

/// Ten a second, and two seconds to wait.
fn by_turns() -> [(&'static str, AlgorithmParams, u32); 3] {
    let rate = Rate::per_second(10_000);
    let max_wait = Duration::from_secs(2);
    let warm_up = AlgorithmParams::WarmUp {
        rate,
        warm_up: Duration::from_secs(4),
        max_wait,
    };
    let bursty = AlgorithmParams::Bursty { rate, max_wait };
    let paced = AlgorithmParams::Paced { rate, max_wait };
    [
        ("paced, max_wait 2s", paced, 0),
        ("bursty, max_wait 2s", bursty, 10),
        ("warm_up 4s, max_wait 2s", warm_up, 0),
    ]
}

fn panels() -> Vec<Plot> {
    let mut demand = Bars::EMPTY;
    for at in arrivals() {
        demand.pass[usize::try_from(at / BAR).expect("a small number")] += 1;
    }
    let mut first = panel("what comes", &demand);
    first.series.truncate(1);
    first.series[0].hue = Color::Ink;
    let mut panels = vec![first];
    for (title, algorithm, burst, delay) in by_rate() {
        panels.push(panel(title, &run(&algorithm, burst, delay)));
    }
    for (title, algorithm) in by_window() {
        panels.push(panel(title, &run(&algorithm, 0, Delay::Never)));
    }
    for (title, algorithm, burst) in by_turns() {
        panels.push(panel(title, &run(&algorithm, burst, Delay::Never)));
    }
    panels
}

fn picture() -> String {
    let panels = panels();
    let rows = panels.len().div_ceil(COLUMNS);
    let (width, height) = (PANEL.0 * COLUMNS as f64, PANEL.1 * rows as f64 + LEGEND);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n\
         <style>\n{STYLE}</style>\n<g class=\"plot\">"
    );
    for (x, hue, text) in [
        (4, "pass", "passes at once"),
        (140, "delay", "passes after a wait, where it leaves"),
        (400, "refuse", "is refused"),
    ] {
        svg += &format!(
            "<rect x=\"{x}\" y=\"6\" width=\"12\" height=\"12\" rx=\"2\" style=\"fill:var(--{hue})\"/>\
             <text class=\"small\" x=\"{}\" y=\"17\">{text}</text>",
            x + 17
        );
    }
    svg += "</g>\n";
    for (index, panel) in panels.iter().enumerate() {
        let (x, y) = (
            (index % COLUMNS) as f64 * PANEL.0,
            (index / COLUMNS) as f64 * PANEL.1 + LEGEND,
        );
        let place = format!(
            "<svg x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" ",
            PANEL.0, PANEL.1
        );
        svg += &panel.svg(PlotTheme::Page).replacen("<svg ", &place, 1);
    }
    svg + "</svg>\n"
}

#[test]
fn the_plot_of_the_algorithms_is_up_to_date() {
    let drawn = picture();
    if std::env::var_os("WEIR_DRAW").is_some() {
        std::fs::write(FILE, &drawn).expect("the picture can be written");
    }
    let kept = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(
        kept == drawn,
        "docs/algorithms.svg is not what is drawn; WEIR_DRAW=1 cargo test --test all plots"
    );
}

/// What is passed on of 20 a second where 10 are allowed: whichever way, about half, and never more than was allowed.
#[test]
fn in_the_long_run_all_algorithms_let_the_same_pass() {
    for panel in &panels()[1..] {
        let bars = panel.series[..2].iter().flat_map(|series| &series.points);
        let passed: f64 = bars
            .filter(|bar| bar.x >= 8.0)
            .map(|bar| bar.y - bar.base)
            .sum();
        assert!(
            (65.0..=130.0).contains(&passed),
            "{}: {passed}",
            panel.title
        );
    }
}
