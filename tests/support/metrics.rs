//! A strict parser of `/metrics`: anything that Prometheus's text format does not allow fails the test.

use std::collections::{BTreeMap, BTreeSet};

use super::{Client, Weir, eventually, get};

/// A page of numbers.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// The text it was read from.
    pub(crate) page: String,
    /// What each family is: `counter`, `gauge` or `histogram`.
    pub(crate) families: BTreeMap<String, String>,
    pub(crate) samples: Vec<Sample>,
}

/// One line of it.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// The sum of all samples of this name that have these labels, as in `name{label="value"}`; it has to be a whole number,
/// and there has to be one.
pub(crate) fn metric(weir: &Weir, series: &str) -> u64 {
    let metrics = Metrics::of(weir);
    let value = metrics.value(series);
    let value = value.unwrap_or_else(|| panic!("no {series} in\n{}", metrics.page));
    assert_eq!(value.fract(), 0.0, "{series}");
    value as u64
}

impl Metrics {
    /// What a weir says now.
    pub(crate) fn of(weir: &Weir) -> Self {
        // It may listen a moment later than the gateway itself.
        eventually("the admin listener", || {
            Client::try_connect(weir.admin_address()).is_ok()
        });
        Self::read(get(weir.admin_address(), "/metrics").text())
    }

    /// The sum of all samples of this name that have these labels; `None` where there are none.
    pub(crate) fn value(&self, series: &str) -> Option<f64> {
        let (name, labels, rest) = series_of(series);
        assert_eq!(rest, "", "{series}");
        let found = self.samples.iter().filter(|sample| {
            let mut labels = labels.iter();
            sample.name == name
                && labels.all(|(label, value)| sample.labels.get(label) == Some(value))
        });
        found.map(|sample| sample.value).reduce(|a, b| a + b)
    }

    /// Reads a page; panics where it is not as Prometheus wants it.
    pub(crate) fn read(page: String) -> Self {
        assert!(page.ends_with('\n'), "the last line ends:\n{page}");
        let mut families = BTreeMap::new();
        let mut helped = BTreeSet::new();
        let mut samples = Vec::new();
        let mut seen = BTreeSet::new();
        let mut present = String::new();
        for line in page.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, text) = help.split_once(' ').expect(line);
                assert!(!text.is_empty() && helped.insert(name.to_owned()), "{line}");
                present = name.to_owned();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect(line);
                assert_eq!(name, present, "a type stands under its help");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(families.insert(name.to_owned(), kind.to_owned()).is_none());
            } else {
                let sample = Sample::read(line);
                let kind = families.get(&present).map(String::as_str);
                let family = match kind {
                    Some("histogram") => {
                        let name = &sample.name;
                        let parts = ["_bucket", "_sum", "_count"];
                        parts
                            .iter()
                            .find_map(|part| name.strip_suffix(part))
                            .expect(line)
                    }
                    _ => &sample.name,
                };
                assert_eq!(family, present, "a family stands together: {line}");
                let key = format!("{} {:?}", sample.name, sample.labels);
                assert!(seen.insert(key), "twice: {line}");
                samples.push(sample);
            }
        }
        let metrics = Self {
            page,
            families,
            samples,
        };
        metrics.check_histograms();
        metrics
    }

    /// Buckets only grow, end with all, and all is what is counted.
    fn check_histograms(&self) {
        let mut last: BTreeMap<String, f64> = BTreeMap::new();
        for sample in &self.samples {
            let mut labels = sample.labels.clone();
            let bound = labels.remove("le");
            if let Some(family) = sample.name.strip_suffix("_bucket") {
                let bound = bound.expect("a bucket has a bound");
                assert!(bound == "+Inf" || bound.parse::<f64>().is_ok(), "{bound}");
                let before = last.insert(format!("{family} {labels:?}"), sample.value);
                assert!(
                    before.is_none_or(|before| before <= sample.value),
                    "{sample:?}"
                );
            } else if let Some(family) = sample.name.strip_suffix("_count")
                && self.families.get(family).map(String::as_str) == Some("histogram")
            {
                assert_eq!(
                    last.get(&format!("{family} {labels:?}")),
                    Some(&sample.value)
                );
            }
        }
    }
}

impl Sample {
    fn read(line: &str) -> Self {
        let (name, labels, rest) = series_of(line);
        let value = rest.strip_prefix(' ').expect(line);
        assert!(!value.contains(' ') && !name.is_empty(), "{line}");
        Self {
            name,
            labels,
            value: value
                .parse()
                .unwrap_or_else(|_| panic!("no number: {line}")),
        }
    }
}

/// The name and the labels that a text begins with, and what comes after them.
fn series_of(text: &str) -> (String, BTreeMap<String, String>, &str) {
    let word = |text: &str| {
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
        text.find(|c| !legal(c)).unwrap_or(text.len())
    };
    let (name, mut rest) = text.split_at(word(text));
    let mut labels = BTreeMap::new();
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            let (label, after) = inside.split_at(word(inside));
            let quoted = after.strip_prefix("=\"").expect(text);
            let (value, after) = unquoted(quoted);
            assert!(
                !label.is_empty() && labels.insert(label.to_owned(), value).is_none(),
                "{text}"
            );
            match after.strip_prefix(',') {
                Some(more) => inside = more,
                None => {
                    rest = after.strip_prefix('}').expect(text);
                    break;
                }
            }
        }
    }
    (name.to_owned(), labels, rest)
}

/// A text up to its quote, without its escapes.
fn unquoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => return (value, characters.as_str()),
            '\\' => match characters.next() {
                Some('n') => value.push('\n'),
                Some(escaped @ ('\\' | '"')) => value.push(escaped),
                other => panic!("no such escape: {other:?} in {text}"),
            },
            other => value.push(other),
        }
    }
    panic!("not closed: {text}")
}
