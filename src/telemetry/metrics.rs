//! Metrics: how they are declared, counted, and written in Prometheus's text format.
//!
//! A [`Metric`] is declared with [`metrics!`] beside the code that counts it and is never registered: a scrape walks the
//! counters where they are.
//!
//! Every event loop has counters of its own ([`PerLoop`]). Shared ones would move between processor caches with every
//! request, and a scrape, which comes every few seconds, can add them up.
//!
//! All [`Histogram`]s have the same bounds, so that any two graphs can be laid over each other; common objectives (10 ms,
//! 100 ms, a second) are among them.

use std::fmt::Display;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::text::Append as _;

/// A metric: the name, type and labels of all its series.
#[derive(Debug)]
pub struct Metric {
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The names of its labels, in the order in which samples have their values.
    pub labels: &'static [&'static str],
    /// What it counts, in a sentence.
    pub help: &'static str,
}

/// Declares metrics, each as `NAME = type("name", [labels], "help");`, and the list of them.
macro_rules! metrics {
    (
        $(#[$doc:meta])*
        $visibility:vis $list:ident:
        $($name:ident = $kind:ident($series:literal, [$($label:literal),*], $help:literal);)*
    ) => {
        $(static $name: $crate::telemetry::Metric = $crate::telemetry::Metric {
            kind: stringify!($kind),
            name: $series,
            labels: &[$($label),*],
            help: $help,
        };)*
        $(#[$doc])*
        $visibility static $list: &[&$crate::telemetry::Metric] = &[$(&$name),*];
    };
}
pub(crate) use metrics;

/// Declares an enum whose values are a metric's label, each as `Variant = "label"`.
macro_rules! labels {
    ($(#[$doc:meta])* $enum:ident: $($(#[$variant_doc:meta])* $variant:ident = $label:literal,)*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $enum {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $enum {
            const LABELS: &[&str] = &[$($label),*];
        }
    };
}
pub(super) use labels;

/// A page of metrics.
#[derive(Debug, Default)]
pub struct Exposition {
    families: Vec<MetricFamily>,
}

#[derive(Debug)]
struct MetricFamily {
    name: &'static str,
    text: String,
}

impl Exposition {
    /// An empty page.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a sample; `labels` are the values of the metric's labels, in order.
    pub fn sample(&mut self, metric: &'static Metric, labels: &[&str], value: impl Display) {
        let text = &mut self.family(metric).text;
        line(text, [metric.name, ""], label_pairs(metric, labels), value);
    }

    /// Adds a sample for each of these counters; `names` has the value of the last label for each.
    pub(super) fn samples<T: Default>(
        &mut self,
        metric: &'static Metric,
        labels: &[&str],
        names: &[&str],
        cells: &PerLoop<T>,
        counters: fn(&T) -> &[AtomicU64],
    ) {
        for (index, name) in names.iter().enumerate() {
            let count = cells.sum(|cell| &counters(cell)[index]);
            self.sample(metric, &[labels, &[name]].concat(), count);
        }
    }

    /// Adds a histogram; `labels` are the values of the metric's labels, in order.
    pub fn histogram(
        &mut self,
        metric: &'static Metric,
        labels: &[&str],
        snapshot: &HistogramSnapshot,
    ) {
        let name = metric.name;
        let text = &mut self.family(metric).text;
        let mut all = 0;
        for (bound, count) in &snapshot.buckets {
            all = *count;
            let labels = label_pairs(metric, labels).chain([("le", *bound)]);
            line(text, [name, "_bucket"], labels, all);
        }
        let labels = || label_pairs(metric, labels);
        line(text, [name, "_sum"], labels(), snapshot.sum);
        line(text, [name, "_count"], labels(), all);
    }

    /// The whole page; its type is [`Exposition::CONTENT_TYPE`].
    #[must_use]
    pub fn finish(self) -> String {
        self.families
            .into_iter()
            .map(|family| family.text)
            .collect()
    }

    fn family(&mut self, metric: &'static Metric) -> &mut MetricFamily {
        let Metric {
            name, help, kind, ..
        } = metric;
        let known = self.families.iter().position(|family| family.name == *name);
        let index = known.unwrap_or_else(|| {
            let mut text = format!("# HELP {name} ");
            escape(help, false, &mut text);
            write!(text, "\n# TYPE {name} {kind}\n");
            self.families.push(MetricFamily { name, text });
            self.families.len() - 1
        });
        &mut self.families[index]
    }

    /// What a scraper expects as `Content-Type`.
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";
}

/// The labels of a sample with their values.
fn label_pairs<'l>(
    metric: &'static Metric,
    values: &'l [&'l str],
) -> impl Iterator<Item = (&'l str, &'l str)> {
    debug_assert_eq!(metric.labels.len(), values.len(), "{}", metric.name);
    metric.labels.iter().copied().zip(values.iter().copied())
}

/// Writes one sample.
fn line<'l>(
    text: &mut String,
    [name, suffix]: [&str; 2],
    labels: impl Iterator<Item = (&'l str, &'l str)>,
    value: impl Display,
) {
    write!(text, "{name}{suffix}");
    let mut before = '{';
    for (label, value) in labels {
        write!(text, "{before}{label}=\"");
        escape(value, true, text);
        text.push('"');
        before = ',';
    }
    if before == ',' {
        text.push('}');
    }
    match &*value.to_string() {
        "inf" => writeln!(text, " +Inf"),
        "-inf" => writeln!(text, " -Inf"),
        value => writeln!(text, " {value}"),
    }
}

fn escape(text: &str, quotes: bool, out: &mut String) {
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            other => out.push(other),
        }
    }
}

/// A `T` for every event loop, made by the loop itself when it first counts.
// Boxed one by one, so that no two share a cache line.
#[derive(Debug)]
pub(super) struct PerLoop<T>([OnceLock<Box<T>>; CELLS]);

impl<T: Default> PerLoop<T> {
    /// None yet.
    pub(super) const fn new() -> Self {
        Self([const { OnceLock::new() }; CELLS])
    }

    /// The one of this thread.
    #[inline]
    pub(super) fn mine(&self) -> &T {
        self.0[index()].get_or_init(Box::default)
    }

    /// The sum of all.
    pub(super) fn sum(&self, counter: impl Fn(&T) -> &AtomicU64) -> u64 {
        let made = self.0.iter().filter_map(OnceLock::get);
        made.map(|cell| counter(cell).load(Ordering::Relaxed)).sum()
    }
}

/// Increments a counter.
#[inline]
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[inline]
fn index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % CELLS;
    }
    MINE.try_with(|mine| *mine).unwrap_or(0)
}

/// The number of cells; more loops than this share them, which is slower and still exact.
const CELLS: usize = 32;

/// Durations, counted in buckets.
#[derive(Debug)]
pub struct Histogram(PerLoop<HistogramCell>);

#[derive(Debug, Default)]
struct HistogramCell {
    // The last one is for durations over all bounds.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

/// The counts of a [`Histogram`] at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramSnapshot {
    /// For each bound, in seconds as text, how many durations were no longer; the last is for all.
    pub buckets: Vec<(&'static str, u64)>,
    /// The sum of all durations, in seconds.
    pub sum: f64,
}

impl Histogram {
    /// A histogram without durations.
    #[must_use]
    pub const fn new() -> Self {
        Self(PerLoop::new())
    }

    /// Counts a duration.
    #[inline]
    pub fn observe(&self, taken: Duration) {
        let micros = taken.as_secs().saturating_mul(1_000_000) + u64::from(taken.subsec_micros());
        let cell = self.0.mine();
        // Most durations are short, so the search from below ends early.
        let bucket = BOUNDS.iter().position(|(bound, _)| micros <= *bound);
        count(&cell.buckets[bucket.unwrap_or(BOUNDS.len())]);
        cell.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// The counts now.
    #[must_use]
    pub fn snapshot(&self) -> HistogramSnapshot {
        let names = BOUNDS.iter().map(|(_, name)| *name).chain(["+Inf"]);
        let buckets = names.enumerate().scan(0, |total, (bucket, name)| {
            *total += self.0.sum(|cell| &cell.buckets[bucket]);
            Some((name, *total))
        });
        HistogramSnapshot {
            buckets: buckets.collect(),
            sum: Duration::from_micros(self.0.sum(|cell| &cell.micros)).as_secs_f64(),
        }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// The bounds of all histograms: in microseconds, and in seconds as text.
const BOUNDS: [(u64, &str); 15] = [
    (1_000, "0.001"),
    (2_500, "0.0025"),
    (5_000, "0.005"),
    (10_000, "0.01"),
    (25_000, "0.025"),
    (50_000, "0.05"),
    (100_000, "0.1"),
    (250_000, "0.25"),
    (500_000, "0.5"),
    (1_000_000, "1"),
    (2_500_000, "2.5"),
    (5_000_000, "5"),
    (10_000_000, "10"),
    (30_000_000, "30"),
    (60_000_000, "60"),
];

#[cfg(test)]
mod tests {

    use super::*;

    metrics! {
        METRICS:
        A = counter("a_total", ["zone", "verdict"], "First.");
        B = gauge("b", [], "Second.");
        H = histogram("h_seconds", ["zone"], "H.");
        QUOTED = gauge("g", ["l"], "A \"help\"\nof \\ two lines.");
        G = gauge("g", [], "G.");
    }

    #[test]
    fn samples_of_a_metric_stand_together_under_one_header() {
        let mut page = Exposition::new();
        page.sample(&A, &["x", "pass"], 3_u64);
        page.sample(&B, &[], -1_i64);
        page.sample(&A, &["y", "pass"], 4_usize);
        assert_eq!(
            page.finish(),
            "# HELP a_total First.\n# TYPE a_total counter\n\
             a_total{zone=\"x\",verdict=\"pass\"} 3\na_total{zone=\"y\",verdict=\"pass\"} 4\n\
             # HELP b Second.\n# TYPE b gauge\nb -1\n"
        );
    }

    #[test]
    fn a_list_has_every_metric_declared_in_it() {
        let names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names, ["a_total", "b", "h_seconds", "g", "g"]);
    }

    #[test]
    fn a_histogram_is_one_family_of_three_names() {
        let mut page = Exposition::new();
        let snapshot = HistogramSnapshot {
            buckets: vec![("0.1", 2), ("+Inf", 3)],
            sum: 1.25,
        };
        page.histogram(&H, &["x"], &snapshot);
        assert_eq!(
            page.finish(),
            "# HELP h_seconds H.\n# TYPE h_seconds histogram\n\
             h_seconds_bucket{zone=\"x\",le=\"0.1\"} 2\nh_seconds_bucket{zone=\"x\",le=\"+Inf\"} 3\n\
             h_seconds_sum{zone=\"x\"} 1.25\nh_seconds_count{zone=\"x\"} 3\n"
        );
    }

    #[test]
    fn a_label_value_cannot_break_out_of_its_quotes() {
        let mut page = Exposition::new();
        page.sample(&QUOTED, &["a\"} 1\nb\\"], 0_u32);
        assert_eq!(
            page.finish(),
            "# HELP g A \"help\"\\nof \\\\ two lines.\n# TYPE g gauge\ng{l=\"a\\\"} 1\\nb\\\\\"} 0\n"
        );
    }

    #[test]
    fn floats_are_written_as_prometheus_reads_them() {
        let mut page = Exposition::new();
        page.sample(&G, &[], 0.25);
        page.sample(&G, &[], f64::INFINITY);
        page.sample(&G, &[], f64::NAN);
        assert!(page.finish().ends_with("g 0.25\ng +Inf\ng NaN\n"));
    }
}

#[cfg(test)]
mod cells_tests {

    use super::*;

    #[test]
    fn counts_of_all_threads_are_added_up() {
        let cells: PerLoop<AtomicU64> = PerLoop::new();
        std::thread::scope(|scope| {
            for _ in 0..2 * CELLS {
                scope.spawn(|| count(cells.mine()));
            }
        });
        assert_eq!(cells.sum(|counter| counter), 2 * CELLS as u64);
    }
}

#[cfg(test)]
mod histogram_tests {

    use super::*;

    #[test]
    fn a_duration_counts_for_its_bound_and_all_above() {
        let histogram = Histogram::new();
        for millis in [0, 1, 2, 100, 101, 61_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let snapshot = histogram.snapshot();
        let within = |bound| {
            let found = snapshot.buckets.iter().find(|(name, _)| *name == bound);
            found.unwrap().1
        };
        assert_eq!(within("0.001"), 2);
        assert_eq!(within("0.0025"), 3);
        assert_eq!(within("0.1"), 4);
        assert_eq!(within("0.25"), 5);
        assert_eq!(within("60"), 5);
        assert_eq!(within("+Inf"), 6);
        assert!((snapshot.sum - 61.204).abs() < 1e-9, "{}", snapshot.sum);
    }

    #[test]
    fn bounds_grow_and_are_written_as_the_seconds_they_are() {
        assert!(BOUNDS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (micros, name) in BOUNDS {
            assert_eq!(
                Duration::from_micros(micros).as_secs_f64().to_string(),
                name
            );
        }
    }
}
