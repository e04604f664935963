//! The replay: from the lines of the logs to the report.

use std::sync::Arc;

use super::evaluate::{Evaluator, ReplayOptions, RequestObserver};
use super::fields::{FieldPlan, MissingFields, location_confs};
use super::format::{FormatError, InputFormat};
use super::input::{InputError, LogMerger};
use super::order::{LogEntry, ReorderWindow, TimeBucket};
use super::report::{ConnReplayMode, ReplayReport};
use super::time::TimePrecision;
use crate::config::plan::Plan;
use crate::store::fix_secret;

/// How far a replay has come.
#[derive(Debug, Clone, Copy)]
pub struct ReplayProgress {
    /// Bytes read of all files, compressed as they are.
    pub bytes: u64,
    /// Lines read.
    pub lines: u64,
}

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A verdict could not be written.
    #[error("cannot write the verdicts")]
    Each(#[source] std::io::Error),
    /// The format is malformed.
    #[error("this is not a log format")]
    Format(#[from] FormatError),
    /// A log could not be opened.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The log lacks variables that the limits need.
    #[error("the log does not have what the limits need to know")]
    Missing(Vec<MissingFields>),
    /// The format was not given, and no line has a known one.
    #[error("the log is neither combined nor common nor JSON")]
    Unrecognised {
        /// Its first line.
        line: String,
    },
    /// There is no such zone.
    #[error("there is no limit_req zone \"{0}\"")]
    Zone(String),
}

/// Replays logs. `watch` is called with the progress now and then, `each` with the result of every request.
///
/// # Errors
/// When a file cannot be opened, its format is unknown, or it lacks variables that the limits need.
pub fn run<'a>(
    mut plan: Plan,
    options: &'a ReplayOptions,
    watch: &mut dyn FnMut(ReplayProgress),
    each: Option<RequestObserver<'a>>,
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
        // Without lines no variable is missing.
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
    let mut pipeline = Pipeline {
        by_end: ReorderWindow::new(options.window),
        by_start: needs.took.map(|_| ReorderWindow::new(options.window)),
        evaluator: Evaluator::new(Arc::new(plan), &needs, options, logs.names(), each),
        spread: false,
    };
    let mut requests = 0_u64;
    while logs.next(|entry, texts| pipeline.put(entry, texts)) {
        requests += 1;
        if requests.is_multiple_of(WATCH_EVERY) {
            pipeline.evaluator.check().map_err(ReplayError::Each)?;
            watch(ReplayProgress {
                bytes: logs.read(),
                lines: logs.stats.lines,
            });
        }
    }
    pipeline.finish();
    pipeline.evaluator.check().map_err(ReplayError::Each)?;
    let mut report = pipeline.report();
    report.connections = match (connected, needs.took) {
        (true, Some(_)) => ConnReplayMode::Replayed,
        (true, None) => ConnReplayMode::NotReplayed,
        (false, _) => ConnReplayMode::None,
    };
    let stats = logs.stats;
    (report.lines, report.skipped) = (stats.lines, stats.skipped);
    (report.bad, report.damaged) = (stats.bad, stats.damaged);
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
        return Ok(format.with_keys_of(fitting.map_or(b"", |line| line)));
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

/// Sorts requests into the order in which they came, and evaluates them.
struct Pipeline<'a> {
    /// By when they ended, as logs are written.
    by_end: ReorderWindow,
    /// By when they came, where the log says how long they took.
    by_start: Option<ReorderWindow>,
    evaluator: Evaluator<'a>,
    /// Whether a time is only known to the second.
    spread: bool,
}

impl Pipeline<'_> {
    fn put(&mut self, entry: LogEntry, texts: &[u8]) {
        self.spread |= entry.precision == TimePrecision::Second;
        let Self {
            by_end,
            by_start,
            evaluator,
            ..
        } = self;
        by_end.put(entry, texts, |bucket| {
            pass_on(bucket, by_start.as_mut(), evaluator)
        });
    }

    fn finish(&mut self) {
        let Self {
            by_end,
            by_start,
            evaluator,
            ..
        } = self;
        by_end.finish(|bucket| pass_on(bucket, by_start.as_mut(), evaluator));
        if let Some(by_start) = by_start {
            by_start.finish(|bucket| pass_on(bucket, None, evaluator));
        }
        evaluator.finish();
    }

    fn report(self) -> ReplayReport {
        let by_start = self
            .by_start
            .as_ref()
            .map_or((0, 0), |by_start| (by_start.late, by_start.latest));
        let mut report = self.evaluator.report();
        report.spread = self.spread;
        report.late = self.by_end.late + by_start.0;
        report.latest = u64::try_from(self.by_end.latest.max(by_start.1)).unwrap_or(0);
        report
    }
}

/// Passes requests on to the window by start, or to the evaluator.
fn pass_on(
    bucket: &TimeBucket,
    mut by_start: Option<&mut ReorderWindow>,
    evaluator: &mut Evaluator<'_>,
) {
    for (entry, texts) in bucket.iter() {
        let Some(by_start) = &mut by_start else {
            evaluator.evaluate(entry, texts);
            continue;
        };
        let mut entry = *entry;
        entry.at -= i64::from(entry.took.unwrap_or(0));
        by_start.put(entry, texts, |bucket| pass_on(bucket, None, evaluator));
    }
}

/// Requests between two calls with the progress.
const WATCH_EVERY: u64 = 1 << 16;
