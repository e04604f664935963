//! Metrics: how one is declared, how it is counted, and how a page of them is written in Prometheus's text format.
//!
//! A [`Metric`] is declared with [`metrics!`] beside what it counts, and never registered: a scrape walks counters that live
//! where they are counted, and what is left of a client library then is three escaping rules and the demand that a family's
//! samples stand together.
//!
//! What every event loop counts is counted in a place of each loop's own ([`PerLoop`]): two loops that counted in one place
//! would take turns owning it at every request, and a scrape, which comes every few seconds, can just as well add up.
//!
//! A [`Histogram`] counts times by length. All have the same bounds: two pictures of weir can then be laid over each other,
//! and the bounds that services promise (10 ms, 100 ms, a second) are among them.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// A metric: the name, type and labels of all its series.
#[derive(Debug)]
pub struct Metric {
    kind: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The names of its labels, in the order in which samples give their values.
    pub labels: &'static [&'static str],
    /// What it counts, in a sentence.
    pub help: &'static str,
}

impl Metric {
    /// Something that only grows.
    pub(crate) const fn counter(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self {
            kind: "counter",
            name,
            labels,
            help,
        }
    }

    /// Something that goes up and down.
    pub(crate) const fn gauge(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self {
            kind: "gauge",
            ..Self::counter(name, labels, help)
        }
    }

    /// Times by length.
    pub(crate) const fn histogram(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self {
            kind: "histogram",
            ..Self::counter(name, labels, help)
        }
    }

    /// `counter`, `gauge` or `histogram`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }
}

/// Declares metrics, each as `NAME = type("name", [labels], "help");`, and the list of them.
macro_rules! metrics {
    (
        $(#[$doc:meta])*
        $visibility:vis $list:ident:
        $($name:ident = $kind:ident($series:literal, [$($label:literal),*], $help:literal);)*
    ) => {
        $(static $name: $crate::telemetry::Metric =
            $crate::telemetry::Metric::$kind($series, &[$($label),*], $help);)*
        $(#[$doc])*
        $visibility static $list: &[&$crate::telemetry::Metric] = &[$(&$name),*];
    };
}
pub(crate) use metrics;

/// A page being written.
#[derive(Debug, Default)]
pub struct Exposition {
    families: Vec<MetricFamily>,
}

#[derive(Debug)]
struct MetricFamily {
    name: &'static str,
    text: String,
}

/// The value of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SampleValue {
    /// With a fraction.
    Float(f64),
    /// May be below zero.
    Signed(i64),
    /// A count.
    Unsigned(u64),
}

impl Exposition {
    /// An empty page.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a sample; `values` are those of the metric's labels, in their order.
    pub fn sample(&mut self, metric: &'static Metric, values: &[&str], n: impl Into<SampleValue>) {
        let text = &mut self.family(metric).text;
        line(text, [metric.name, ""], labels(metric, values), n.into());
    }

    /// Adds what a histogram says; `values` are those of the metric's labels, in their order.
    pub fn histogram(
        &mut self,
        metric: &'static Metric,
        values: &[&str],
        reading: &HistogramSnapshot,
    ) {
        let name = metric.name;
        let text = &mut self.family(metric).text;
        let mut all = 0;
        for (bound, within) in &reading.within {
            all = *within;
            let labels = labels(metric, values).chain([("le", *bound)]);
            line(text, [name, "_bucket"], labels, SampleValue::Unsigned(all));
        }
        let sum = SampleValue::Float(reading.sum);
        line(text, [name, "_sum"], labels(metric, values), sum);
        let all = SampleValue::Unsigned(all);
        line(text, [name, "_count"], labels(metric, values), all);
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
            escape(help, Quotes::Plain, &mut text);
            text.push_str("\n# TYPE ");
            text.push_str(name);
            text.push(' ');
            text.push_str(kind);
            text.push('\n');
            self.families.push(MetricFamily { name, text });
            self.families.len() - 1
        });
        &mut self.families[index]
    }

    /// What a scraper expects as `Content-Type`.
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";
}

impl fmt::Display for SampleValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Float(n) if n == f64::INFINITY => f.write_str("+Inf"),
            Self::Float(n) if n == f64::NEG_INFINITY => f.write_str("-Inf"),
            Self::Float(n) => n.fmt(f),
            Self::Signed(n) => n.fmt(f),
            Self::Unsigned(n) => n.fmt(f),
        }
    }
}

impl From<f64> for SampleValue {
    fn from(n: f64) -> Self {
        Self::Float(n)
    }
}

impl From<i64> for SampleValue {
    fn from(n: i64) -> Self {
        Self::Signed(n)
    }
}

impl From<u32> for SampleValue {
    fn from(n: u32) -> Self {
        Self::Unsigned(u64::from(n))
    }
}

impl From<u64> for SampleValue {
    fn from(n: u64) -> Self {
        Self::Unsigned(n)
    }
}

impl From<usize> for SampleValue {
    fn from(n: usize) -> Self {
        Self::Unsigned(n as u64)
    }
}

/// The labels of a sample with their values.
fn labels<'l>(
    metric: &'static Metric,
    values: &'l [&'l str],
) -> impl Iterator<Item = (&'l str, &'l str)> {
    debug_assert_eq!(metric.labels.len(), values.len(), "{}", metric.name);
    metric.labels.iter().copied().zip(values.iter().copied())
}

/// Writes one sample.
fn line<'l>(
    text: &mut String,
    [name, part]: [&str; 2],
    labels: impl Iterator<Item = (&'l str, &'l str)>,
    n: SampleValue,
) {
    text.push_str(name);
    text.push_str(part);
    let mut before = '{';
    for (label, value) in labels {
        text.push(before);
        text.push_str(label);
        text.push_str("=\"");
        escape(value, Quotes::Escaped, text);
        text.push('"');
        before = ',';
    }
    if before == ',' {
        text.push('}');
    }
    text.push(' ');
    text.push_str(&n.to_string());
    text.push('\n');
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Quotes {
    Escaped,
    Plain,
}

fn escape(text: &str, quotes: Quotes, out: &mut String) {
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes == Quotes::Escaped => out.push_str("\\\""),
            other => out.push(other),
        }
    }
}

/// A `T` for every event loop, made by the loop itself when it first counts.
// Boxed one by one: they are then memory of the loop's own, and no two share a cache line.
#[derive(Debug)]
pub(super) struct PerLoop<T>([OnceLock<Box<T>>; CELLS]);

impl<T: Default> PerLoop<T> {
    /// None yet.
    pub(super) const fn new() -> Self {
        Self([const { OnceLock::new() }; CELLS])
    }

    /// That of the present thread.
    #[inline]
    pub(super) fn mine(&self) -> &T {
        self.0[index()].get_or_init(Box::default)
    }

    /// What all have counted.
    pub(super) fn sum(&self, counter: impl Fn(&T) -> &AtomicU64) -> u64 {
        let made = self.0.iter().filter_map(OnceLock::get);
        made.map(|cell| counter(cell).load(Ordering::Relaxed)).sum()
    }
}

/// One more.
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

/// More loops than this share cells, which is slower and still right.
const CELLS: usize = 32;

/// Times, counted by length.
#[derive(Debug)]
pub struct Histogram(PerLoop<HistogramCell>);

#[derive(Debug, Default)]
struct HistogramCell {
    // The last one is for those over all bounds.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

/// What a [`Histogram`] says at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramSnapshot {
    /// For each bound, as Prometheus writes it, how many took no longer.
    pub(super) within: Vec<(&'static str, u64)>,
    /// How long all took together, in seconds.
    pub(super) sum: f64,
}

impl Histogram {
    /// Nothing was timed yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(PerLoop::new())
    }

    /// Something took so long.
    #[inline]
    pub fn observe(&self, taken: Duration) {
        let micros = taken.as_secs().saturating_mul(1_000_000) + u64::from(taken.subsec_micros());
        let cell = self.0.mine();
        // Most are short: from below, the first step is mostly the last.
        let bucket = BOUNDS.iter().position(|(bound, _)| micros <= *bound);
        count(&cell.buckets[bucket.unwrap_or(BOUNDS.len())]);
        cell.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// What it says now.
    #[must_use]
    pub fn read(&self) -> HistogramSnapshot {
        let names = BOUNDS.iter().map(|(_, name)| *name).chain(["+Inf"]);
        let within = names.enumerate().scan(0, |total, (bucket, name)| {
            *total += self.0.sum(|cell| &cell.buckets[bucket]);
            Some((name, *total))
        });
        HistogramSnapshot {
            within: within.collect(),
            sum: Duration::from_micros(self.0.sum(|cell| &cell.micros)).as_secs_f64(),
        }
    }
}

impl HistogramSnapshot {
    /// For each bound, in seconds as it is written, how many took no longer; the last is for all.
    #[must_use]
    pub fn within(&self) -> &[(&'static str, u64)] {
        &self.within
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// In microseconds, and as they are written in seconds.
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
    fn samples_of_a_family_stand_together_under_one_head() {
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
    fn a_list_has_every_metric_that_is_declared_with_it() {
        let names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names, ["a_total", "b", "h_seconds", "g", "g"]);
    }

    #[test]
    fn a_histogram_is_one_family_of_three_names() {
        let mut page = Exposition::new();
        let reading = HistogramSnapshot {
            within: vec![("0.1", 2), ("+Inf", 3)],
            sum: 1.25,
        };
        page.histogram(&H, &["x"], &reading);
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
    fn what_threads_count_apart_is_added_up() {
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
    fn a_time_counts_for_its_bound_and_all_above() {
        let histogram = Histogram::new();
        for millis in [0, 1, 2, 100, 101, 61_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let reading = histogram.read();
        let within = |bound| {
            let found = reading.within.iter().find(|(name, _)| *name == bound);
            found.unwrap().1
        };
        assert_eq!(within("0.001"), 2);
        assert_eq!(within("0.0025"), 3);
        assert_eq!(within("0.1"), 4);
        assert_eq!(within("0.25"), 5);
        assert_eq!(within("60"), 5);
        assert_eq!(within("+Inf"), 6);
        assert!((reading.sum - 61.204).abs() < 1e-9, "{}", reading.sum);
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
