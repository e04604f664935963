//! Polls the running weir once a second and carries out the user's commands, beside the drawing: a slow response must not
//! make keys slow. What changed between two polls becomes rates and, from the metrics' sums, latencies.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anstyle::Style;

use super::terminal::KeyEvent;
use crate::api::{
    KeySort, KeyState, Refusal, Refusals, Status, TopKey, Upstream, VerdictCounts, VerdictRates,
    Zone, ZoneDetail,
};
use crate::cli::client::{AdminClient, ApiRequest};
use crate::cli::output::{BAD, DOUBTFUL, FAINT, GOOD, number};
use crate::cli::verbs::{limits, requests};
use crate::clock::{Clock, Millis};

/// What `top` reacts to.
#[derive(Debug)]
pub(super) enum UiEvent {
    /// A command succeeded.
    Done(String),
    /// A command failed, and why.
    Failed(String),
    Inspected(String, Box<KeyState>),
    Polled(Box<Snapshot>),
    /// The running weir does not respond any more.
    Lost(String),
    Press(KeyEvent),
    /// The window has another size.
    Resize,
    Stop,
}

/// The state of the running weir at one moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// When, on the clock of this process.
    pub(super) at: Millis,
    pub(super) status: Status,
    pub(super) zones: Vec<Zone>,
    pub(super) upstreams: Vec<Upstream>,
    pub(super) latencies: LatencySums,
    /// The latest last.
    pub(super) refusals: Vec<Refusal>,
    /// The selected zone.
    pub(super) open: Option<ZoneSnapshotDetail>,
}

/// The selected zone and its keys.
#[derive(Debug)]
pub(super) struct ZoneSnapshotDetail {
    pub(super) detail: ZoneDetail,
    pub(super) keys: Vec<TopKey>,
}

/// A command of the user.
#[derive(Debug)]
pub(super) enum PollCommand {
    /// Change something; `done` is shown on success.
    Do { request: ApiRequest, done: String },
    /// Show the state of a key.
    Inspect { zone: String, key: String },
    /// Select this zone, with its keys in this order.
    Watch { zone: String, sort: KeySort },
}

/// Polls the running weir.
#[derive(Debug)]
pub(super) struct Poller {
    admin: AdminClient,
    clock: Clock,
    watched: Option<(String, KeySort)>,
}

impl Poller {
    pub(super) fn new(admin: AdminClient) -> Self {
        Self {
            admin,
            clock: Clock::machine(),
            watched: None,
        }
    }

    /// The state at this moment.
    pub(super) fn poll(&self) -> anyhow::Result<Snapshot> {
        let admin = &self.admin;
        let status = admin.fetch(&ApiRequest::get("/api/status"))?;
        let at = self.clock.now();
        let zones: Vec<Zone> = admin.fetch(&ApiRequest::get("/api/zones"))?;
        let upstreams = admin.fetch(&ApiRequest::get("/api/upstreams"))?;
        // All else is worth showing without it.
        let metrics = admin.text(&ApiRequest::get("/metrics")).unwrap_or_default();
        let Refusals { refusals, .. } = admin.fetch(&requests::last(REFUSALS))?;
        // A reload may have removed the zone.
        let is_there =
            |watched: &(String, KeySort)| zones.iter().any(|zone| zone.name == watched.0);
        let watched = self.watched.clone().filter(is_there);
        let watched = watched.or_else(|| Some((zones.first()?.name.clone(), KeySort::Now)));
        let open = match &watched {
            Some((zone, sort)) => Some(ZoneSnapshotDetail {
                detail: admin.fetch(&limits::zone_detail(zone))?,
                keys: admin.fetch(&limits::busiest(zone, *sort, KEYS))?,
            }),
            None => None,
        };
        Ok(Snapshot {
            at,
            status,
            zones,
            upstreams,
            latencies: latency_sums(&metrics),
            refusals,
            open,
        })
    }

    /// Sends snapshots and executes commands, until one of the channels is closed.
    pub(super) fn run(mut self, commands: &Receiver<PollCommand>, send: impl Fn(UiEvent) -> bool) {
        let failed = |error: anyhow::Error| UiEvent::Failed(format!("{error:#}"));
        let mut next = self.clock.now().after(PERIOD);
        loop {
            let wait = next.since(self.clock.now());
            let event = match commands.recv_timeout(wait) {
                Ok(PollCommand::Watch { zone, sort }) => {
                    self.watched = Some((zone, sort));
                    // Soon, but not for each step through the list.
                    next = next.min(self.clock.now().after(SOON));
                    None
                }
                Ok(PollCommand::Do { request, done }) => {
                    next = next.min(self.clock.now().after(SOON));
                    let changed = self.admin.text(&request);
                    Some(changed.map_or_else(failed, |_| UiEvent::Done(done)))
                }
                Ok(PollCommand::Inspect { zone, key }) => {
                    let request = ApiRequest::get(limits::path(&zone, &key));
                    let state = self.admin.fetch::<KeyState>(&request);
                    let inspected = |state| UiEvent::Inspected(zone, Box::new(state));
                    Some(state.map_or_else(failed, inspected))
                }
                Err(RecvTimeoutError::Timeout) => {
                    next = self.clock.now().after(PERIOD);
                    Some(match self.poll() {
                        Ok(snapshot) => UiEvent::Polled(Box::new(snapshot)),
                        Err(error) => UiEvent::Lost(format!("{error:#}")),
                    })
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if event.is_some_and(|event| !send(event)) {
                return;
            }
        }
    }
}

/// A name inside another, in one text.
pub(super) fn joined(outer: &str, inner: &str) -> String {
    format!("{outer}\n{inner}")
}

const PERIOD: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(80);
const REFUSALS: u16 = 100;
const KEYS: u16 = 40;

/// The last counts of a zone, key or server, and its rates so far.
#[derive(Debug, Default)]
struct RateSeries {
    last: Option<VerdictCounts>,
    rates: VecDeque<VerdictRates>,
    /// Polls since it was last seen.
    unseen: usize,
}

/// The rates of zones, keys or servers, by name.
#[derive(Debug, Default)]
pub(super) struct RateHistory(HashMap<String, RateSeries>);

impl RateHistory {
    /// Adds the counts of a poll `seconds` after the one before.
    pub(super) fn take<'a>(
        &mut self,
        seconds: f64,
        counts: impl Iterator<Item = (&'a str, VerdictCounts)>,
    ) {
        for series in self.0.values_mut() {
            series.unseen += 1;
        }
        for (name, now) in counts {
            let series = self.0.entry(name.to_owned()).or_default();
            series.unseen = 0;
            let Some(before) = series.last.replace(now) else {
                continue;
            };
            // Counters may start again after a reload or a restart.
            let each =
                |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds.max(0.001);
            series.rates.push_back(VerdictRates {
                pass: each(before.pass, now.pass),
                delay: each(before.delay, now.delay),
                refuse: each(before.refuse, now.refuse),
            });
            if series.rates.len() > KEPT {
                series.rates.pop_front();
            }
        }
        self.0.retain(|_, series| series.unseen < KEPT);
    }

    /// The rates at the last poll.
    pub(super) fn now(&self, name: &str) -> VerdictRates {
        self.recent(name, 1)
    }

    /// The mean of the last polls.
    pub(super) fn recent(&self, name: &str, polls: usize) -> VerdictRates {
        let Some(series) = self.0.get(name) else {
            return VerdictRates::default();
        };
        let last: Vec<_> = series.rates.iter().rev().take(polls).collect();
        let mean = |of: fn(&VerdictRates) -> f64| {
            let sum: f64 = last.iter().map(|rate| of(rate)).sum();
            sum / last.len().max(1) as f64
        };
        VerdictRates {
            pass: mean(|rate| rate.pass),
            delay: mean(|rate| rate.delay),
            refuse: mean(|rate| rate.refuse),
        }
    }

    /// The demand of the last polls as a line of bars: as plain text, and in the colours of the verdicts.
    pub(super) fn spark(&self, name: &str, width: usize) -> (String, String) {
        let Some(series) = self.0.get(name) else {
            return (" ".repeat(width), " ".repeat(width));
        };
        let shown: Vec<_> = series.rates.iter().rev().take(width).rev().collect();
        let most = shown.iter().map(|rate| rate.total()).fold(1.0, f64::max);
        let mut plain = " ".repeat(width - shown.len());
        let mut painted = plain.clone();
        for rate in shown {
            let bar = bar(rate.total() / most);
            let style = colour(*rate);
            plain.push(bar);
            painted.push_str(&format!("{style}{bar}{style:#}"));
        }
        (plain, painted)
    }
}

fn bar(share: f64) -> char {
    if share <= 0.0 {
        return '·';
    }
    // A cast of a float keeps to the range of what it is cast to.
    let eighth = (share * 8.0).ceil() as usize;
    BARS[eighth.clamp(1, BARS.len()) - 1]
}

fn colour(rates: VerdictRates) -> Style {
    match rates {
        VerdictRates { refuse, .. } if refuse > 0.0 => BAD,
        VerdictRates { delay, .. } if delay > 0.0 => DOUBTFUL,
        VerdictRates { pass, .. } if pass > 0.0 => GOOD,
        _ => FAINT,
    }
}

/// A rate as text: large ones as whole numbers.
pub(super) fn rate(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 9.95 => format!("{value:.1}"),
        value => number(value.round() as u64),
    }
}

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Polls that are kept: a minute.
const KEPT: usize = 60;

/// Total seconds and number of requests, by upstream and server.
pub(super) type LatencySums = HashMap<String, (f64, f64)>;

/// The latencies of backends.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    last: LatencySums,
    now: HashMap<String, f64>,
}

impl Latencies {
    /// Adds the sums of another poll.
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

    /// The mean between the last two polls, in seconds.
    pub(super) fn now(&self, name: &str) -> Option<f64> {
        self.now.get(name).copied()
    }
}

/// The sums on a page of metrics.
fn latency_sums(page: &str) -> LatencySums {
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

    fn counts(pass: u64, refuse: u64) -> VerdictCounts {
        VerdictCounts {
            pass,
            delay: 0,
            refuse,
        }
    }

    #[test]
    fn a_rate_is_the_difference_between_two_polls() {
        let mut history = RateHistory::default();
        history.take(1.0, [("perip", counts(100, 0))].into_iter());
        assert_eq!(
            history.now("perip"),
            VerdictRates::default(),
            "nothing to compare with yet"
        );
        history.take(2.0, [("perip", counts(120, 40))].into_iter());
        let now = history.now("perip");
        assert_eq!((now.pass, now.refuse, now.total()), (10.0, 20.0, 30.0));
        let (plain, painted) = history.spark("perip", 4);
        assert_eq!(plain, "   █");
        assert!(painted.contains("31m█"), "{painted:?}");
        history.take(1.0, [("perip", counts(1, 0))].into_iter());
        assert_eq!(
            history.now("perip"),
            VerdictRates::default(),
            "the counter started again"
        );
    }

    #[test]
    fn series_that_are_gone_are_dropped() {
        let mut history = RateHistory::default();
        history.take(1.0, [("gone", counts(1, 1))].into_iter());
        for _ in 0..KEPT {
            history.take(1.0, [].into_iter());
        }
        assert!(history.0.is_empty());
    }

    #[test]
    fn small_rates_have_a_decimal() {
        assert_eq!(rate(0.0), "0");
        assert_eq!(rate(0.52), "0.5");
        assert_eq!(rate(9.99), "10");
        assert_eq!(rate(1234.4), "1\u{202f}234");
    }

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
    fn a_latency_is_the_mean_between_two_polls() {
        let name = joined("app", "127.0.0.1:9001");
        let mut latencies = Latencies::default();
        latencies.take(latency_sums(&page(1.0, 10)));
        assert_eq!(latencies.now(&name), None, "nothing to compare with yet");
        latencies.take(latency_sums(&page(1.5, 20)));
        assert_eq!(latencies.now(&name), Some(0.05));
        latencies.take(latency_sums(&page(1.5, 20)));
        assert_eq!(latencies.now(&name), None, "no requests");
        latencies.take(latency_sums(&page(0.1, 1)));
        assert_eq!(latencies.now(&name), None, "the counter started again");
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
