//! The plots of a zone.

use super::{VerdictCounts, ZoneReport};
use crate::replay::plot::{
    Axis, AxisScale, AxisUnit, Color, GuideLine, GuidePosition, Plot, Point, Series, SeriesStyle,
};

/// Those that there is something to show in.
pub(super) fn of(zone: &ZoneReport) -> impl Iterator<Item = Plot> {
    let plots = [Some(demand(zone)), busiest(zone), peaks(zone), curve(zone)];
    plots.into_iter().flatten()
}

/// Requests a second, by what became of them.
fn demand(zone: &ZoneReport) -> Plot {
    let width = zone.timeline.width() as f64;
    let cells: Vec<_> = zone.timeline.cells().collect();
    let layer =
        |name: &str, hue, from: fn(&VerdictCounts) -> u64, to: fn(&VerdictCounts) -> u64| {
            let points = cells.iter().flat_map(|(at, cell)| {
                let (base, y) = (
                    from(&cell.counts) as f64 / width,
                    to(&cell.counts) as f64 / width,
                );
                let start = *at as f64;
                // Level to the end of the cell: what happened then happened in all of it.
                [start, start + width * 1000.0].map(|x| Point { x, y, base })
            });
            Series {
                name: name.to_owned(),
                shape: SeriesStyle::Area,
                hue,
                points: points.collect(),
            }
        };
    let most = cells
        .iter()
        .map(|(_, cell)| cell.counts.total())
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

/// The busiest key of every moment against what one key may have.
fn busiest(zone: &ZoneReport) -> Option<Plot> {
    let rate = zone.rate?;
    let width = zone.timeline.width() as f64 * 1000.0;
    let points: Vec<_> = zone
        .timeline
        .cells()
        .flat_map(|(at, cell)| {
            [at as f64, at as f64 + width].map(|x| Point::at(x, cell.busiest.into()))
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

/// How many keys had which busiest second.
fn peaks(zone: &ZoneReport) -> Option<Plot> {
    let most = zone.peaks.last()?.0;
    // Twofold steps, so that one key of a thousand and a thousand keys of one both can be seen.
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

/// Which share would be refused at which rate.
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
            at: GuidePosition::X(suggestion.best.per_second()),
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
    let mut cells = zone.timeline.cells().map(|(at, _)| at as f64);
    let first = cells.next().unwrap_or(0.0);
    let last = cells.last().unwrap_or(first) + width;
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
