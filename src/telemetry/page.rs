//! A page of numbers in Prometheus' text format.
//!
//! Written by hand: a scrape walks counters that live where they are counted, and what is left of a client
//! library then is three escaping rules and the demand that a family's samples stand together.

use std::fmt;

use super::HistogramSnapshot;

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

    /// Adds a sample of something that only grows.
    pub fn counter(
        &mut self,
        name: &'static str,
        help: &str,
        labels: &[(&str, &str)],
        n: impl Into<SampleValue>,
    ) {
        self.sample("counter", name, help, labels, n.into());
    }

    /// Adds a sample of something that goes up and down.
    pub fn gauge(
        &mut self,
        name: &'static str,
        help: &str,
        labels: &[(&str, &str)],
        n: impl Into<SampleValue>,
    ) {
        self.sample("gauge", name, help, labels, n.into());
    }

    /// Adds what a histogram says.
    pub fn histogram(
        &mut self,
        name: &'static str,
        help: &str,
        labels: &[(&str, &str)],
        reading: &HistogramSnapshot,
    ) {
        let text = &mut self.family("histogram", name, help).text;
        let mut all = 0;
        for (bound, within) in &reading.within {
            all = *within;
            let labels = labels.iter().copied().chain([("le", *bound)]);
            line(text, [name, "_bucket"], labels, SampleValue::Unsigned(all));
        }
        let labels = labels.iter().copied();
        line(
            text,
            [name, "_sum"],
            labels.clone(),
            SampleValue::Float(reading.sum),
        );
        line(text, [name, "_count"], labels, SampleValue::Unsigned(all));
    }

    /// The whole page; its type is [`Exposition::CONTENT_TYPE`].
    #[must_use]
    pub fn finish(self) -> String {
        self.families
            .into_iter()
            .map(|family| family.text)
            .collect()
    }

    fn sample(
        &mut self,
        kind: &str,
        name: &'static str,
        help: &str,
        labels: &[(&str, &str)],
        n: SampleValue,
    ) {
        let text = &mut self.family(kind, name, help).text;
        line(text, [name, ""], labels.iter().copied(), n);
    }

    fn family(&mut self, kind: &str, name: &'static str, help: &str) -> &mut MetricFamily {
        let known = self.families.iter().position(|family| family.name == name);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_family_stand_together_under_one_head() {
        let mut page = Exposition::new();
        page.counter(
            "a_total",
            "First.",
            &[("zone", "x"), ("verdict", "pass")],
            3_u64,
        );
        page.gauge("b", "Second.", &[], -1_i64);
        page.counter(
            "a_total",
            "First.",
            &[("zone", "y"), ("verdict", "pass")],
            4_usize,
        );
        assert_eq!(
            page.finish(),
            "# HELP a_total First.\n# TYPE a_total counter\n\
             a_total{zone=\"x\",verdict=\"pass\"} 3\na_total{zone=\"y\",verdict=\"pass\"} 4\n\
             # HELP b Second.\n# TYPE b gauge\nb -1\n"
        );
    }

    #[test]
    fn a_histogram_is_one_family_of_three_names() {
        let mut page = Exposition::new();
        let reading = HistogramSnapshot {
            within: vec![("0.1", 2), ("+Inf", 3)],
            sum: 1.25,
        };
        page.histogram("h_seconds", "H.", &[("zone", "x")], &reading);
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
        page.gauge(
            "g",
            "A \"help\"\nof \\ two lines.",
            &[("l", "a\"} 1\nb\\")],
            0_u32,
        );
        assert_eq!(
            page.finish(),
            "# HELP g A \"help\"\\nof \\\\ two lines.\n# TYPE g gauge\ng{l=\"a\\\"} 1\\nb\\\\\"} 0\n"
        );
    }

    #[test]
    fn floats_are_written_as_prometheus_reads_them() {
        let mut page = Exposition::new();
        page.gauge("g", "G.", &[], 0.25);
        page.gauge("g", "G.", &[], f64::INFINITY);
        page.gauge("g", "G.", &[], f64::NAN);
        assert!(page.finish().ends_with("g 0.25\ng +Inf\ng NaN\n"));
    }
}
