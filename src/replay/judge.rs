//! Every request before its limits, and what they say written down.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::needs::{Needs, sites};
use super::order::Entry;
use super::places::{Arrived, Coming, Progress};
use super::report::{Kind, Report, Zone};
use super::request::{Court, Spot, Way};
use super::run::{Each, Options};
use super::suggest::{self, Arrivals};
use super::tally::{self, Event};
use crate::clock::Millis;
use crate::config::plan::{Algorithm, Delay, Excess, Plan, ReqRule};
use crate::limits::{self, Zones};
use crate::message::{Exchange, LimitStatus};
use crate::store::algorithm::Terms;

/// What became of one request.
#[derive(Debug, Clone, Copy)]
pub struct Verdict<'a> {
    /// Where its line stands.
    pub file: &'a str,
    /// See `file`.
    pub line: u64,
    /// When it came, in milliseconds since the Unix epoch.
    pub at: i64,
    /// In a word: pass, delay, refuse; unlimited, early or malformed where no limit was asked.
    pub word: &'static str,
    /// The zone that refused it.
    pub zone: Option<&'a str>,
    /// For how long it waits, in milliseconds.
    pub delay: Option<u64>,
    /// What `$limit_req_status` would say.
    pub limit_req: Option<LimitStatus>,
}

/// Judges requests in the order they came.
pub(super) struct Judge<'a> {
    plan: Arc<Plan>,
    zones: Zones,
    court: Court,
    /// Those of `limit_req`, then those of `limit_conn`.
    tallies: Vec<tally::Zone>,
    /// For each `limit_req` zone, where it is asked for.
    arrivals: Vec<Option<Arrivals>>,
    progress: Progress,
    /// Whether it is known how long requests took.
    timed: bool,
    options: Options,
    files: Vec<Box<str>>,
    report: Report,
    each: Option<Each<'a>>,
    failure: Option<io::Error>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(
        plan: Arc<Plan>,
        needs: &Needs,
        options: &Options,
        files: Vec<Box<str>>,
        each: Option<Each<'a>>,
    ) -> Self {
        let zones = Zones::build(&plan);
        let wanted = |name: &str| {
            let suggest = options.suggest.as_ref();
            options.curves
                || suggest
                    .is_some_and(|suggest| suggest.zone.as_deref().is_none_or(|only| only == name))
        };
        Self {
            court: Court::new(Arc::clone(&plan), &zones, needs, options.host.as_deref()),
            tallies: (0..plan.req_zones.len() + plan.conn_zones.len())
                .map(|_| tally::Zone::default())
                .collect(),
            arrivals: plan
                .req_zones
                .iter()
                .map(|zone| wanted(&zone.name).then(Arrivals::default))
                .collect(),
            zones,
            plan,
            progress: Progress::default(),
            timed: needs.took.is_some(),
            options: options.clone(),
            files,
            report: Report::default(),
            each,
            failure: None,
        }
    }

    /// What went wrong with telling.
    pub(super) fn check(&mut self) -> io::Result<()> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Judges one request. They come in order.
    pub(super) fn judge(&mut self, entry: &Entry, texts: &[u8]) {
        self.advance(entry.at);
        let now = Millis(u64::try_from(entry.at).unwrap_or(0));
        let outcome = match self.court.way(entry, texts, now) {
            Way::Early => Outcome::Early,
            Way::Malformed => Outcome::Malformed,
            Way::Limits(spot, exchange) => {
                let (tallies, arrivals) = (&mut self.tallies, &mut self.arrivals);
                let verdict =
                    spot.limits
                        .ask_requests_aloud(exchange, now, |exchange, rule, key, said| {
                            let zone = spot.req[rule];
                            let event = Event::new(said, entry.at, (entry.file, entry.line));
                            let label = || spot.limits.requests_label(rule, exchange);
                            let id = tallies[zone].count(key, event, label);
                            if let Some(arrivals) = &mut arrivals[zone]
                                && !spot.limits.has_own_numbers(rule, exchange)
                            {
                                arrivals.add(id, now.0);
                            }
                        });
                let status = exchange.limit_req;
                match verdict {
                    limits::Verdict::Refuse(refusal) => Outcome::Refuse(status, refusal),
                    verdict if self.timed && !spot.conn.is_empty() => {
                        let waited = wait(&verdict);
                        let coming = coming(spot, exchange, entry, waited);
                        self.progress.expect(coming);
                        return self.advance(entry.at);
                    }
                    verdict => Outcome::GoOn(status, wait(&verdict)),
                }
            }
        };
        self.conclude(entry, outcome);
    }

    /// Lets everybody take their places who is still to come.
    pub(super) fn settle(&mut self) {
        self.advance(i64::MAX);
    }

    /// Lets those take their places whose time has come.
    fn advance(&mut self, until: i64) {
        while let Some(Arrived {
            coming,
            said,
            refused,
        }) = self.progress.next(until)
        {
            let mut refusing = None;
            for (rule, word) in said {
                let zone = coming.spot.conn[rule];
                let (key, label) = &coming.keys[rule];
                let event = Event::new(word, coming.at, coming.line);
                self.tallies[self.plan.req_zones.len() + zone].count(key, event, || label.clone());
                if word == limits::Said::Refuse {
                    refusing = Some(zone);
                }
            }
            let (word, counter) = match (refused, coming.waited) {
                (true, _) => ("refuse", &mut self.report.requests.refuse),
                (false, Some(_)) => ("delay", &mut self.report.requests.delay),
                (false, None) => ("pass", &mut self.report.requests.pass),
            };
            *counter += 1;
            let plan = Arc::clone(&self.plan);
            self.tell(
                &Verdict {
                    file: "",
                    line: coming.line.1,
                    at: coming.at
                        - coming
                            .waited
                            .map_or(0, |waited| i64::try_from(waited).unwrap_or(0)),
                    word,
                    zone: refusing
                        .filter(|_| refused)
                        .map(|zone| &*plan.conn_zones[zone].name),
                    delay: coming.waited,
                    limit_req: coming.status,
                },
                coming.line.0,
            );
        }
    }

    /// Counts and tells what became of a request.
    fn conclude(&mut self, entry: &Entry, outcome: Outcome) {
        let report = &mut self.report;
        if !matches!(outcome, Outcome::Malformed) {
            report.span.get_or_insert((entry.at, entry.at)).1 = entry.at;
        }
        let (word, counter, status, delay) = match &outcome {
            Outcome::Early => ("early", &mut report.early, None, None),
            Outcome::Malformed => ("malformed", &mut report.malformed, None, None),
            Outcome::GoOn(None, _) => ("unlimited", &mut report.unlimited, None, None),
            Outcome::GoOn(status, None) => ("pass", &mut report.requests.pass, *status, None),
            Outcome::GoOn(status, delay) => ("delay", &mut report.requests.delay, *status, *delay),
            Outcome::Refuse(status, _) => ("refuse", &mut report.requests.refuse, *status, None),
        };
        *counter += 1;
        let verdict = Verdict {
            file: "",
            line: entry.line,
            at: entry.at,
            word,
            zone: match &outcome {
                Outcome::Refuse(_, refusal) => Some(refusal.zone()),
                _ => None,
            },
            delay,
            limit_req: status,
        };
        self.tell(&verdict, entry.file);
    }

    fn tell(&mut self, verdict: &Verdict<'_>, file: u32) {
        let Some(each) = &mut self.each else {
            return;
        };
        let file = self.files.get(file as usize).map_or("", |name| &**name);
        if let Err(error) = each(&Verdict { file, ..*verdict }) {
            self.failure.get_or_insert(error);
        }
    }

    /// All that was found out about the zones.
    pub(super) fn report(mut self) -> Report {
        let arrivals = std::mem::take(&mut self.arrivals);
        let mut zones = Vec::new();
        let tallies = std::mem::take(&mut self.tallies);
        let (req, conn) = tallies.split_at(self.plan.req_zones.len());
        for ((index, tally), arrivals) in req.iter().enumerate().zip(arrivals) {
            zones.push(self.requests_zone(index, tally, arrivals));
        }
        if self.timed {
            let conn = conn.iter().enumerate();
            zones.extend(conn.map(|(index, tally)| self.connections_zone(index, tally)));
        }
        self.report.zones = zones;
        self.report
    }

    fn requests_zone(&self, index: usize, tally: &tally::Zone, arrivals: Option<Arrivals>) -> Zone {
        let zone = &self.plan.req_zones[index];
        let rules: Vec<&ReqRule> = sites(&self.plan)
            .flat_map(|site| &site.limit_req)
            .filter(|rule| rule.zone == index)
            .collect();
        let burst = rules.iter().map(|rule| rule.burst).max();
        let rate = match zone.algorithm {
            Algorithm::LeakyBucket { rate } => Some(rate),
        };
        let whole = burst.map_or(0, |burst| {
            u32::try_from(burst.0 / Excess::ONE.0).unwrap_or(u32::MAX)
        });
        let mut told = self.zone(&zone.name, Kind::Requests, tally);
        told.allows = allows(&zone.algorithm.to_string(), &rules);
        told.rate = rate.map(suggest::per_second);
        told.quota = burst.map(|burst| Terms::new(&zone.algorithm, burst, Delay::Never).quota());
        told.evictions = self.zones.req[index].store.counts().evictions;
        if let Some(grouped) = arrivals.map(Arrivals::group) {
            told.curve = suggest::curve(&grouped, whole);
            let wanted = self.options.suggest.as_ref();
            let wanted = wanted.filter(|wanted| {
                wanted
                    .zone
                    .as_deref()
                    .is_none_or(|only| only == &*zone.name)
            });
            told.suggestion =
                wanted.and_then(|wanted| suggest::suggest(&grouped, wanted.at_most_millionths));
        }
        told
    }

    fn connections_zone(&self, index: usize, tally: &tally::Zone) -> Zone {
        let zone = &self.plan.conn_zones[index];
        let mut limits: Vec<u32> = sites(&self.plan)
            .flat_map(|site| &site.limit_conn)
            .filter(|rule| rule.zone == index)
            .map(|rule| rule.limit)
            .collect();
        limits.sort_unstable();
        limits.dedup();
        let limits: Vec<String> = limits.iter().map(u32::to_string).collect();
        let mut told = self.zone(&zone.name, Kind::Connections, tally);
        told.allows = format!("{} at once", limits.join(" or "));
        told.evictions = self.zones.conn[index].store.counts().evictions;
        told
    }

    fn zone(&self, name: &str, kind: Kind, tally: &tally::Zone) -> Zone {
        let hardest = tally.hardest();
        let mut peaks = BTreeMap::new();
        for key in &hardest {
            *peaks.entry(key.peak).or_default() += 1;
        }
        Zone {
            name: name.into(),
            kind,
            allows: String::new(),
            rate: None,
            quota: None,
            counts: tally.counts,
            evictions: 0,
            keys: tally.len(),
            forgotten: (tally.forgotten > 0).then_some(tally.forgotten_most),
            top: hardest
                .into_iter()
                .take(self.options.top)
                .cloned()
                .collect(),
            waits: tally.waits.clone(),
            timeline: tally.timeline.clone(),
            peaks: peaks.into_iter().collect(),
            curve: Vec::new(),
            suggestion: None,
        }
    }
}

/// What became of a request, before it is counted.
#[derive(Debug)]
enum Outcome {
    Early,
    /// Its `limit_req` status, and for how long it waits.
    GoOn(Option<LimitStatus>, Option<u64>),
    Malformed,
    Refuse(Option<LimitStatus>, limits::Refusal),
}

fn wait(verdict: &limits::Verdict) -> Option<u64> {
    match verdict {
        limits::Verdict::Delay(wait) => Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
        limits::Verdict::Pass | limits::Verdict::Refuse(_) => None,
    }
}

/// A request that wants its places after a wait.
fn coming(spot: &Arc<Spot>, exchange: &Exchange, entry: &Entry, waited: Option<u64>) -> Coming {
    let keys = (0..spot.conn.len()).map(|rule| {
        let mut key = Vec::new();
        spot.limits
            .with_connections_key(rule, exchange, |bytes| key.extend_from_slice(bytes));
        (key, spot.limits.connections_label(rule, exchange))
    });
    Coming {
        places: spot.limits.places(exchange),
        keys: keys.collect(),
        spot: Arc::clone(spot),
        at: entry.at + waited.map_or(0, |waited| i64::try_from(waited).unwrap_or(0)),
        took: entry.took.unwrap_or(0),
        line: (entry.file, entry.line),
        waited,
        status: exchange.limit_req,
    }
}

/// What a zone allows, in the words of its rules.
fn allows(rate: &str, rules: &[&ReqRule]) -> String {
    let mut all: Vec<String> = rules
        .iter()
        .map(|rule| {
            let burst = rule.burst.0 / Excess::ONE.0;
            match rule.delay {
                Delay::Never => format!("burst {burst} nodelay"),
                Delay::After(Excess(0)) => format!("burst {burst}"),
                Delay::After(after) => format!("burst {burst} delay {}", after.0 / Excess::ONE.0),
            }
        })
        .collect();
    all.sort_unstable();
    all.dedup();
    match &all[..] {
        [] => format!("{rate}, used nowhere"),
        all => format!("{rate}, {}", all.join(" or ")),
    }
}
