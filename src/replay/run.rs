//! The replay itself: every line of the logs before the limits it would have met.

use std::path::PathBuf;
use std::sync::Arc;

use super::evaluate::{Evaluator, ReplayVerdict};
use super::fields::{FieldPlan, MissingFields, location_confs};
use super::format::InputFormat;
use super::input::LogMerger;
use super::log_format::TimePrecision;
use super::order::{LogEntry, ReorderWindow, TimeBucket};
use super::report::{ConnReplayMode, ReplayReport};
use super::{format, input};
use crate::config::plan::Plan;
use crate::store::fix_secret;

/// What to replay, and what to find out.
#[derive(Debug, Clone, Default)]
pub struct ReplayOptions {
    /// The logs; `-` is standard input.
    pub files: Vec<PathBuf>,
    /// How their lines look; none to find out from the first ones.
    pub format: Option<String>,
    /// The host of requests whose log does not name it.
    pub host: Option<String>,
    /// How far out of order lines may be, in seconds.
    pub window: u32,
    /// How many keys to tell of, for each zone.
    pub top: usize,
    /// Whether to find better numbers.
    pub suggest: Option<SuggestOptions>,
    /// Whether to find out what other rates would have refused.
    pub curves: bool,
}

/// What better numbers are to be found.
#[derive(Debug, Clone)]
pub struct SuggestOptions {
    /// For this zone only.
    pub zone: Option<String>,
    /// The share of requests that may be refused, in millionths.
    pub at_most_millionths: u64,
}

/// How far a replay has come.
#[derive(Debug, Clone, Copy)]
pub struct ReplayProgress {
    /// Bytes read of all files, packed as they are.
    pub bytes: u64,
    /// Lines read.
    pub lines: u64,
}

/// Why there is nothing to report.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A verdict could not be written.
    #[error("cannot write the verdicts")]
    Each(#[source] std::io::Error),
    /// The format that was given is none.
    #[error("this is not a log format")]
    Format(#[from] format::FormatError),
    /// A log could not be opened.
    #[error(transparent)]
    Input(#[from] input::InputError),
    /// The log does not have what the limits need to know.
    #[error("the log does not have what the limits need to know")]
    Missing(Vec<MissingFields>),
    /// No line looks like one of the formats that are known.
    #[error("the log is neither combined nor common nor JSON")]
    Unrecognised {
        /// Its first line.
        line: String,
    },
    /// There is no such zone.
    #[error("there is no limit_req zone \"{0}\"")]
    Zone(String),
}

/// Somebody who is told what became of every request.
pub type RequestObserver<'a> = &'a mut dyn FnMut(&ReplayVerdict<'_>) -> std::io::Result<()>;

/// Replays logs. `watch` is told how far it has come, now and then; `each` is told of every request.
///
/// # Errors
/// When nothing can be replayed: a file that cannot be opened, a format that is not known or does not have what the limits
/// need.
pub fn run(
    mut plan: Plan,
    options: &ReplayOptions,
    watch: &mut dyn FnMut(ReplayProgress),
    each: Option<RequestObserver<'_>>,
) -> Result<ReplayReport, ReplayError> {
    fix_secret();
    let wanted = options
        .suggest
        .as_ref()
        .and_then(|suggest| suggest.zone.as_deref());
    if let Some(name) =
        wanted.filter(|name| !plan.req_zones.iter().any(|zone| &*zone.name == *name))
    {
        return Err(ReplayError::Zone(name.to_owned()));
    }
    let mut logs = LogMerger::open(&options.files)?;
    let needs = match logs.first_lines() {
        // Nothing to read, so nothing is missing.
        first if first.is_empty() => FieldPlan::default(),
        first => {
            let format = format(options, &first)?;
            let needs = FieldPlan::find(&mut plan, &format, options.host.is_some())
                .map_err(ReplayError::Missing)?;
            logs.begin(&needs, &format);
            needs
        }
    };
    let connected = location_confs(&plan).any(|conf| !conf.limit_conn.is_empty());
    let mut road = Pipeline {
        ended: ReorderWindow::new(options.window),
        begun: needs.took.map(|_| ReorderWindow::new(options.window)),
        judge: Evaluator::new(Arc::new(plan), &needs, options, logs.names(), each),
        spread: false,
    };
    let mut requests = 0_u64;
    while logs.next(|entry, texts| road.put(entry, texts)) {
        requests += 1;
        if requests.is_multiple_of(WATCH_EVERY) {
            road.judge.check().map_err(ReplayError::Each)?;
            watch(ReplayProgress {
                bytes: logs.read(),
                lines: logs.found.lines,
            });
        }
    }
    road.finish();
    road.judge.check().map_err(ReplayError::Each)?;
    let mut report = road.report();
    report.connections = match (connected, needs.took) {
        (true, Some(_)) => ConnReplayMode::Replayed,
        (true, None) => ConnReplayMode::NotReplayed,
        (false, _) => ConnReplayMode::None,
    };
    report.files = logs.names();
    let found = logs.found;
    (report.lines, report.skipped) = (found.lines, found.skipped);
    (report.bad, report.damaged) = (found.bad, found.damaged);
    Ok(report)
}

/// The format that was given, or that of the first lines.
fn format(options: &ReplayOptions, first: &[Vec<u8>]) -> Result<InputFormat, ReplayError> {
    if let Some(text) = &options.format {
        let format = InputFormat::parse(text)?;
        let fitting = first
            .iter()
            .find(|line| format.fits(line))
            .or_else(|| first.first());
        return Ok(format.seen(fitting.map_or(b"", |line| line)));
    }
    let mut lines = first.iter();
    lines
        .find_map(|line| InputFormat::guess(line))
        .ok_or_else(|| ReplayError::Unrecognised {
            line: first
                .first()
                .map(|line| String::from_utf8_lossy(line).into_owned())
                .unwrap_or_default(),
        })
}

/// From the order of the log to the order in which requests came, and before the judge.
struct Pipeline<'a> {
    /// By when they ended, as logs are written.
    ended: ReorderWindow,
    /// By when they came, where that is known.
    begun: Option<ReorderWindow>,
    judge: Evaluator<'a>,
    spread: bool,
}

impl Pipeline<'_> {
    fn put(&mut self, entry: LogEntry, texts: &[u8]) {
        self.spread |= entry.exact == TimePrecision::Second;
        let Self {
            ended,
            begun,
            judge,
            ..
        } = self;
        ended.put(entry, texts, |basket| {
            pass_on(basket, begun.as_mut(), judge)
        });
    }

    fn finish(&mut self) {
        let Self {
            ended,
            begun,
            judge,
            ..
        } = self;
        ended.finish(|basket| pass_on(basket, begun.as_mut(), judge));
        if let Some(begun) = begun {
            begun.finish(|basket| pass_on(basket, None, judge));
        }
        judge.settle();
    }

    fn report(self) -> ReplayReport {
        let begun = self
            .begun
            .as_ref()
            .map_or((0, 0), |begun| (begun.late, begun.latest));
        let mut report = self.judge.report();
        report.spread = self.spread;
        report.late = self.ended.late + begun.0;
        report.latest = u64::try_from(self.ended.latest.max(begun.1)).unwrap_or(0);
        report
    }
}

fn pass_on(basket: &TimeBucket, mut begun: Option<&mut ReorderWindow>, judge: &mut Evaluator<'_>) {
    for (entry, texts) in basket.iter() {
        let Some(begun) = &mut begun else {
            judge.judge(entry, texts);
            continue;
        };
        let mut entry = *entry;
        entry.at -= i64::from(entry.took.unwrap_or(0));
        begun.put(entry, texts, |basket| pass_on(basket, None, judge));
    }
}

/// So many requests between two words about progress.
const WATCH_EVERY: u64 = 1 << 16;
