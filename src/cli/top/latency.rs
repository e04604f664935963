//! How long backends take, read from the metrics: what came to the sums between two looks.

use std::collections::HashMap;

use super::view::joined;

/// Seconds that requests took all together, and how many they were, by upstream and server.
pub(super) type LatencySums = HashMap<String, (f64, f64)>;

/// What backends have taken so far, and take now.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    last: LatencySums,
    now: HashMap<String, f64>,
}

impl Latencies {
    /// Takes the sums of another look.
    pub(super) fn take(&mut self, sums: LatencySums) {
        self.now.clear();
        for (name, (seconds, count)) in &sums {
            let Some((seconds_before, count_before)) = self.last.get(name) else {
                continue;
            };
            let (seconds, count) = (seconds - seconds_before, count - count_before);
            if count > 0.0 && seconds >= 0.0 {
                self.now.insert(name.clone(), seconds / count);
            }
        }
        self.last = sums;
    }

    /// The mean of those between the last two looks, in seconds.
    pub(super) fn now(&self, name: &str) -> Option<f64> {
        self.now.get(name).copied()
    }
}

/// Finds the sums on a page of metrics.
pub(super) fn read(page: &str) -> LatencySums {
    let mut sums = LatencySums::new();
    for line in page.lines() {
        let Some(rest) = line.strip_prefix(HISTOGRAM) else {
            continue;
        };
        let Some((field, labels)) = rest.split_once('{') else {
            continue;
        };
        let Some((labels, value)) = labels.rsplit_once("} ") else {
            continue;
        };
        let (Some(upstream), Some(server)) = (label(labels, "upstream"), label(labels, "server"))
        else {
            continue;
        };
        let Ok(value) = value.trim().parse() else {
            continue;
        };
        let sum = sums.entry(joined(&upstream, &server)).or_default();
        match field {
            "_sum" => sum.0 = value,
            "_count" => sum.1 = value,
            _ => {}
        }
    }
    sums
}

/// The value of a label, its escapes undone.
fn label(labels: &str, name: &str) -> Option<String> {
    let (_, after) = labels.split_once(&format!("{name}=\""))?;
    let mut value = String::new();
    let mut letters = after.chars();
    loop {
        match letters.next()? {
            '"' => return Some(value),
            '\\' => value.push(match letters.next()? {
                'n' => '\n',
                letter => letter,
            }),
            letter => value.push(letter),
        }
    }
}

const HISTOGRAM: &str = "weir_upstream_latency_seconds";

#[cfg(test)]
mod tests {
    use super::*;

    fn page(sum: f64, count: u64) -> String {
        format!(
            "# TYPE weir_upstream_latency_seconds histogram
weir_upstream_latency_seconds_bucket{{upstream=\"app\",server=\"127.0.0.1:9001\",le=\"+Inf\"}} {count}
weir_upstream_latency_seconds_sum{{upstream=\"app\",server=\"127.0.0.1:9001\"}} {sum}
weir_upstream_latency_seconds_count{{upstream=\"app\",server=\"127.0.0.1:9001\"}} {count}
weir_upstream_latency_seconds_sum{{upstream=\"broken
weir_other 1
"
        )
    }

    #[test]
    fn a_latency_is_the_mean_of_what_came_between_two_looks() {
        let name = joined("app", "127.0.0.1:9001");
        let mut latencies = Latencies::default();
        latencies.take(read(&page(1.0, 10)));
        assert_eq!(latencies.now(&name), None, "nothing to compare with yet");
        latencies.take(read(&page(1.5, 20)));
        assert_eq!(latencies.now(&name), Some(0.05));
        latencies.take(read(&page(1.5, 20)));
        assert_eq!(latencies.now(&name), None, "nobody asked it");
        latencies.take(read(&page(0.1, 1)));
        assert_eq!(latencies.now(&name), None, "it began anew");
    }

    #[test]
    fn labels_are_read_with_their_escapes_undone() {
        assert_eq!(
            label(r#"upstream="a\"b\\c",server="d""#, "upstream").as_deref(),
            Some("a\"b\\c")
        );
        assert_eq!(label(r#"upstream="a"#, "upstream"), None);
    }
}
