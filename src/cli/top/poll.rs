//! Polls the running weir once a second and carries out the user's commands, beside the drawing: a slow response must not
//! make keys slow. What changed between two polls becomes rates and, from the metrics' sums, latencies.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anstyle::Style;

use super::UiEvent;
use super::state::joined;
use crate::api::{
    KeySort, KeyState, Refusal, Refusals, Status, TopKey, Upstream, VerdictCounts, VerdictRates,
    Zone, ZoneDetail,
};
use crate::cli::client::{AdminClient, ApiRequest, escape};
use crate::cli::output::{BAD, DOUBTFUL, FAINT, GOOD};
use crate::cli::verbs::{self, limits};
use crate::clock::{Clock, Millis};
use crate::replay;

/// What is seen in one look.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// When, on our own clock.
    pub(super) at: Millis,
    pub(super) status: Status,
    pub(super) zones: Vec<Zone>,
    pub(super) upstreams: Vec<Upstream>,
    pub(super) latencies: LatencySums,
    /// The latest last.
    pub(super) refusals: Vec<Refusal>,
    /// The zone that is looked into.
    pub(super) open: Option<ZoneSnapshotDetail>,
}

/// A zone that is looked into.
#[derive(Debug)]
pub(super) struct ZoneSnapshotDetail {
    pub(super) detail: ZoneDetail,
    pub(super) keys: Vec<TopKey>,
}

/// What the user wants.
#[derive(Debug)]
pub(super) enum PollCommand {
    /// Change something; `done` is said when it is.
    Do { call: ApiRequest, done: String },
    /// Show where a key stands.
    Inspect { zone: String, key: String },
    /// Look into this zone, with its keys in this order.
    Watch { zone: String, sort: KeySort },
}

/// Looks, and looks again, until nobody wants to know.
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

    /// Everything at this moment.
    pub(super) fn look(&self) -> anyhow::Result<Snapshot> {
        let admin = &self.admin;
        let status = admin.ask(&ApiRequest::get("/api/status"))?;
        let at = self.clock.now();
        let zones: Vec<Zone> = admin.ask(&ApiRequest::get("/api/zones"))?;
        let upstreams = admin.ask(&ApiRequest::get("/api/upstreams"))?;
        // Everything else is worth seeing without it.
        let metrics = admin.text(&ApiRequest::get("/metrics")).unwrap_or_default();
        let Refusals { refusals, .. } = admin.ask(&verbs::last(REFUSALS))?;
        // A reload may have taken the zone away.
        let is_there =
            |watched: &(String, KeySort)| zones.iter().any(|zone| zone.name == watched.0);
        let watched = self.watched.clone().filter(is_there);
        let watched = watched.or_else(|| Some((zones.first()?.name.clone(), KeySort::Now)));
        let open = match &watched {
            Some((zone, sort)) => Some(ZoneSnapshotDetail {
                detail: admin.ask(&ApiRequest::get(format!("/api/zones/{}", escape(zone))))?,
                keys: admin.ask(&limits::busiest(zone, *sort, KEYS))?,
            }),
            None => None,
        };
        Ok(Snapshot {
            at,
            status,
            zones,
            upstreams,
            latencies: read(&metrics),
            refusals,
            open,
        })
    }

    /// Sends what it sees, and takes orders, for as long as there is somebody at the other ends.
    pub(super) fn run(mut self, orders: &Receiver<PollCommand>, tell: impl Fn(UiEvent) -> bool) {
        let mut next = self.clock.now().after(PERIOD);
        loop {
            let wait = next.since(self.clock.now());
            let event = match orders.recv_timeout(wait) {
                Ok(PollCommand::Watch { zone, sort }) => {
                    self.watched = Some((zone, sort));
                    // Soon, but not for each step of somebody who runs down the list.
                    next = next.min(self.clock.now().after(SOON));
                    None
                }
                Ok(PollCommand::Do { call, done }) => Some(match self.admin.text(&call) {
                    Ok(_) => {
                        next = next.min(self.clock.now().after(SOON));
                        UiEvent::Done(done)
                    }
                    Err(error) => UiEvent::failed(&error),
                }),
                Ok(PollCommand::Inspect { zone, key }) => Some(self.inspect(zone, &key)),
                Err(RecvTimeoutError::Timeout) => {
                    next = self.clock.now().after(PERIOD);
                    Some(match self.look() {
                        Ok(look) => UiEvent::Look(Box::new(look)),
                        Err(error) => UiEvent::Lost(format!("{error:#}")),
                    })
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if event.is_some_and(|event| !tell(event)) {
                return;
            }
        }
    }

    fn inspect(&self, zone: String, key: &str) -> UiEvent {
        match self
            .admin
            .ask::<KeyState>(&ApiRequest::get(limits::path(&zone, key)))
        {
            Ok(state) => UiEvent::Inspected(zone, Box::new(state)),
            Err(error) => UiEvent::failed(&error),
        }
    }
}

const PERIOD: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(80);
const REFUSALS: u16 = 100;
const KEYS: u16 = 40;

/// The last counts of something, and its paces so far.
#[derive(Debug, Default)]
struct RateSeries {
    last: Option<VerdictCounts>,
    paces: VecDeque<VerdictRates>,
    /// Looks in which it was not there.
    unseen: usize,
}

/// Everything that is followed, by its name.
#[derive(Debug, Default)]
pub(super) struct RateHistory(HashMap<String, RateSeries>);

impl RateHistory {
    /// Takes the counts of a look that came `seconds` after the one before.
    pub(super) fn take<'a>(
        &mut self,
        seconds: f64,
        counts: impl Iterator<Item = (&'a str, VerdictCounts)>,
    ) {
        for track in self.0.values_mut() {
            track.unseen += 1;
        }
        for (name, now) in counts {
            let track = self.0.entry(name.to_owned()).or_default();
            track.unseen = 0;
            let Some(before) = track.last.replace(now) else {
                continue;
            };
            // What counts anew after a reload or a restart counts down once.
            let each =
                |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds.max(0.001);
            track.paces.push_back(VerdictRates {
                pass: each(before.pass, now.pass),
                delay: each(before.delay, now.delay),
                refuse: each(before.refuse, now.refuse),
            });
            if track.paces.len() > KEPT {
                track.paces.pop_front();
            }
        }
        self.0.retain(|_, track| track.unseen < KEPT);
    }

    /// What it was at the last look.
    pub(super) fn now(&self, name: &str) -> VerdictRates {
        self.recent(name, 1)
    }

    /// The mean of the last looks.
    pub(super) fn recent(&self, name: &str, looks: usize) -> VerdictRates {
        let Some(track) = self.0.get(name) else {
            return VerdictRates::default();
        };
        let last: Vec<_> = track.paces.iter().rev().take(looks).collect();
        let mean = |of: fn(&VerdictRates) -> f64| {
            let sum: f64 = last.iter().map(|pace| of(pace)).sum();
            sum / last.len().max(1) as f64
        };
        VerdictRates {
            pass: mean(|pace| pace.pass),
            delay: mean(|pace| pace.delay),
            refuse: mean(|pace| pace.refuse),
        }
    }

    /// The demand of the last looks as a line of bars: the plain text, and the same in colours that say what became of it.
    pub(super) fn spark(&self, name: &str, width: usize) -> (String, String) {
        let Some(track) = self.0.get(name) else {
            return (" ".repeat(width), " ".repeat(width));
        };
        let shown: Vec<_> = track.paces.iter().rev().take(width).rev().collect();
        let most = shown.iter().map(|pace| pace.total()).fold(1.0, f64::max);
        let mut plain = " ".repeat(width - shown.len());
        let mut painted = plain.clone();
        for pace in shown {
            let bar = bar(pace.total() / most);
            let style = colour(*pace);
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

fn colour(pace: VerdictRates) -> Style {
    match pace {
        VerdictRates { refuse, .. } if refuse > 0.0 => BAD,
        VerdictRates { delay, .. } if delay > 0.0 => DOUBTFUL,
        VerdictRates { pass, .. } if pass > 0.0 => GOOD,
        _ => FAINT,
    }
}

/// A pace in a word: whole numbers where they are large.
pub(super) fn rate(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 9.95 => format!("{value:.1}"),
        value => replay::number(value.round() as u64),
    }
}

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Looks that are remembered: a minute.
const KEPT: usize = 60;

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
mod pace_tests {

    use super::*;

    fn counts(pass: u64, refuse: u64) -> VerdictCounts {
        VerdictCounts {
            pass,
            delay: 0,
            refuse,
        }
    }

    #[test]
    fn a_pace_is_what_came_between_two_looks() {
        let mut tracks = RateHistory::default();
        tracks.take(1.0, [("perip", counts(100, 0))].into_iter());
        assert_eq!(
            tracks.now("perip"),
            VerdictRates::default(),
            "nothing to compare with yet"
        );
        tracks.take(2.0, [("perip", counts(120, 40))].into_iter());
        let now = tracks.now("perip");
        assert_eq!((now.pass, now.refuse, now.total()), (10.0, 20.0, 30.0));
        let (plain, painted) = tracks.spark("perip", 4);
        assert_eq!(plain, "   █");
        assert!(painted.contains("31m█"), "{painted:?}");
        tracks.take(1.0, [("perip", counts(1, 0))].into_iter());
        assert_eq!(
            tracks.now("perip"),
            VerdictRates::default(),
            "it began anew"
        );
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut tracks = RateHistory::default();
        tracks.take(1.0, [("gone", counts(1, 1))].into_iter());
        for _ in 0..KEPT {
            tracks.take(1.0, [].into_iter());
        }
        assert!(tracks.0.is_empty());
    }

    #[test]
    fn small_paces_have_a_decimal() {
        assert_eq!(rate(0.0), "0");
        assert_eq!(rate(0.52), "0.5");
        assert_eq!(rate(9.99), "10");
        assert_eq!(rate(1234.4), "1\u{202f}234");
    }
}

#[cfg(test)]
mod latency_tests {

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
