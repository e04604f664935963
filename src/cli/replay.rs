//! `weir replay`: what a configuration's limits would have done to the traffic of an access log.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use super::output::{self, usage_error};
use crate::clock::{Clock, Millis};
use crate::config::amend;
use crate::config::plan::Plan;
use crate::replay::{
    ReplayError, ReplayOptions, ReplayProgress, ReplayReport, ReplayVerdict, SuggestOptions,
};
use crate::text::visible;
use crate::{config, replay};

/// The logs, and how the result is shown.
#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// The configuration
    #[arg(short, long, default_value = "weir.yaml")]
    config: PathBuf,
    /// Format of the lines: combined, common, json, or the text of nginx's log_format; detected by default
    #[arg(short, long)]
    format: Option<String>,
    /// Host of all requests, for a log without it
    #[arg(long)]
    host: Option<String>,
    /// How far lines may be out of order
    #[arg(long, default_value = "30s", value_parser = window)]
    window: u32,
    /// Number of keys to show of each zone
    #[arg(long, default_value_t = 10)]
    top: usize,
    /// Find the smallest rate and burst, for all zones or for one
    #[arg(long, value_name = "ZONE", num_args = 0..=1, default_missing_value = "")]
    suggest: Option<String>,
    /// The share of requests that a suggested limit may refuse
    #[arg(long, value_name = "SHARE", default_value = "0.1%", value_parser = millionths)]
    refuse_at_most: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write an HTML page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write a line of JSON for every request; - for standard output, instead of the report
    #[arg(long, value_name = "FILE")]
    each: Option<PathBuf>,
    /// Access logs, plain or compressed with gzip or zstd; - for standard input
    #[arg(value_name = "LOG")]
    files: Vec<PathBuf>,
}

/// Replays. The exit status is 2 for an invalid configuration, command line or format, and 1 for a log that cannot be read.
pub(super) fn run(mut args: ReplayArgs) -> anyhow::Result<ExitCode> {
    let plan = match config::load(&args.config) {
        Ok((plan, report)) => {
            if !report.is_empty() {
                output::draw(&report)?;
            }
            plan
        }
        Err(report) => {
            output::draw(&report)?;
            return Ok(ExitCode::from(2));
        }
    };
    args.split_suggest(&plan);
    if args.files.is_empty() {
        return Err(usage_error(
            "no log given: name a file, or - for standard input",
        ));
    }
    let zones: Vec<String> = plan
        .req_zones
        .iter()
        .map(|zone| zone.name.to_string())
        .collect();
    match args.replay(plan)? {
        Ok(report) => args.show(&report),
        Err(error) => Err(explain(error, &zones)),
    }
}

impl ReplayArgs {
    /// `--suggest access.log` means all zones, and a log.
    fn split_suggest(&mut self, plan: &Plan) {
        if let Some(zone) = &mut self.suggest
            && !zone.is_empty()
            && !plan.req_zones.iter().any(|known| *known.name == **zone)
            && (self.files.is_empty() || zone == "-" || Path::new(zone.as_str()).is_file())
        {
            self.files.insert(0, std::mem::take(zone).into());
        }
    }

    fn replay(&self, plan: Plan) -> anyhow::Result<Result<ReplayReport, ReplayError>> {
        let mut bar = ProgressBar::new(&self.files);
        let mut watch = |progress| bar.show(progress);
        let replayed = match &self.each {
            None => replay::run(plan, &self.options(), &mut watch, None),
            Some(path) => {
                let mut sink = sink(path)?;
                let mut each = |verdict: &ReplayVerdict<'_>| line(verdict, &mut sink);
                let replayed = replay::run(plan, &self.options(), &mut watch, Some(&mut each));
                sink.flush().context("cannot write the verdicts")?;
                replayed
            }
        };
        bar.clear();
        Ok(replayed)
    }

    fn show(&self, report: &ReplayReport) -> anyhow::Result<ExitCode> {
        if let Some(path) = &self.html {
            std::fs::write(path, report.page())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if self.each.as_deref() != Some(Path::new("-")) {
            let text = if self.json {
                report.json()?
            } else {
                report.table()
            };
            match io::stdout().lock().write_all(text.as_bytes()) {
                // The reader has what it needs.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                written => written?,
            }
        }
        Ok(match report.damaged.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    fn options(&self) -> ReplayOptions {
        ReplayOptions {
            files: self.files.clone(),
            format: self.format.clone(),
            host: self.host.clone(),
            window: self.window,
            top: self.top,
            suggest: self.suggest.as_ref().map(|zone| SuggestOptions {
                zone: Some(zone.clone()).filter(|zone| !zone.is_empty()),
                at_most_millionths: self.refuse_at_most,
            }),
            curves: self.html.is_some(),
        }
    }
}

/// The error of a replay, with advice.
fn explain(error: ReplayError, zones: &[String]) -> anyhow::Error {
    let text = match error {
        ReplayError::Missing(missing) => {
            let advice: Vec<String> = missing.iter().map(replay::MissingFields::advice).collect();
            advice.join("\nweir: ")
        }
        ReplayError::Format(error) => error.to_string(),
        ReplayError::Unrecognised { line } => format!(
            "the log is neither combined nor common nor JSON; it begins with\n  {}\n  = help: describe its lines with --format, \
             as in nginx's log_format",
            visible(&line)
        ),
        ReplayError::Zone(name) => {
            let zones = match zones.is_empty() {
                true => "there are none".to_owned(),
                false => format!("the zones are {}", zones.join(", ")),
            };
            format!("there is no limit_req zone \"{name}\"; {zones}")
        }
        other => return other.into(),
    };
    usage_error(text)
}

fn sink(path: &Path) -> anyhow::Result<Box<dyn Write>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufWriter::new(io::stdout())));
    }
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Box::new(BufWriter::new(file)))
}

/// Writes a line of JSON for a request.
fn line(verdict: &ReplayVerdict<'_>, sink: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *sink, verdict)?;
    sink.write_all(b"\n")
}

/// The progress on a terminal.
struct ProgressBar {
    /// Bytes of all files; `None` if unknown.
    total: Option<u64>,
    visible: bool,
    clock: Clock,
    next: Millis,
}

impl ProgressBar {
    fn new(files: &[PathBuf]) -> Self {
        let sizes = files.iter().map(|file| {
            let metadata = std::fs::metadata(file).ok()?;
            metadata.is_file().then_some(metadata.len())
        });
        let total: Option<u64> = sizes.sum();
        Self {
            total: total.filter(|total| *total > 0),
            visible: io::stderr().is_terminal(),
            clock: Clock::machine(),
            next: Millis(0),
        }
    }

    fn show(&mut self, progress: ReplayProgress) {
        let now = self.clock.now();
        if !self.visible || now < self.next {
            return;
        }
        self.next = Millis(now.0 + BETWEEN);
        let lines = progress.lines;
        let text = match self.total {
            Some(total) => {
                let done = progress.bytes.min(total) * WIDTH / total;
                let bar: String = (0..WIDTH)
                    .map(|at| if at < done { '█' } else { '░' })
                    .collect();
                format!(
                    "\r{bar} {:>3} %  {lines} lines ",
                    progress.bytes.min(total) * 100 / total
                )
            }
            None => format!("\r{lines} lines "),
        };
        self.write(&text);
    }

    fn clear(&mut self) {
        // Only if something was shown.
        if self.visible && self.next.0 > 0 {
            self.write("\r\u{1b}[2K");
        }
    }

    /// A bar that cannot be drawn is no failure.
    fn write(&mut self, text: &str) {
        let mut stderr = anstream::stderr().lock();
        let drawn = stderr
            .write_all(text.as_bytes())
            .and_then(|()| stderr.flush());
        self.visible = drawn.is_ok();
    }
}

/// A time as in the configuration, in whole seconds, rounded up.
fn window(text: &str) -> Result<u32, String> {
    let millis = amend::time(text)?.as_millis();
    u32::try_from(millis.div_ceil(1000))
        .ok()
        .filter(|seconds| *seconds <= 86_400)
        .ok_or_else(|| "the maximum is a day".to_owned())
}

/// `0.1%` or `0.001`, in millionths.
fn millionths(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a share; expected one such as `0.1%`");
    let (digits, places) = match text.strip_suffix('%') {
        Some(digits) => (digits.trim_end(), 4),
        None => (text, 6),
    };
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
    let right = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.len() + decimals.len() == 0
        || !right(whole)
        || !right(decimals)
        || decimals.len() > places
    {
        return Err(wrong());
    }
    let number: u64 = format!("{whole}{decimals:0<places$}")
        .parse()
        .map_err(|_| wrong())?;
    if number > 1_000_000 {
        return Err("the maximum is 100%".to_owned());
    }
    Ok(number)
}

const WIDTH: u64 = 32;

/// Milliseconds between two drawings.
const BETWEEN: u64 = 100;

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn shares_are_exact() {
        for (text, expected) in [
            ("0.1%", 1_000),
            ("0.001", 1_000),
            ("5%", 50_000),
            ("0", 0),
            ("100%", 1_000_000),
            ("1", 1_000_000),
            (".5 %", 5_000),
        ] {
            assert_eq!(millionths(text), Ok(expected), "{text}");
        }
        for text in ["", "%", "-1%", "101%", "1.5", "0.00001%", "x", "1e-3"] {
            assert!(millionths(text).is_err(), "{text}");
        }
    }

    #[test]
    fn windows_are_whole_seconds() {
        for (text, expected) in [
            ("30s", 30),
            ("2m", 120),
            ("0", 0),
            ("1h", 3_600),
            ("1500ms", 2),
        ] {
            assert_eq!(window(text), Ok(expected), "{text}");
        }
        for text in ["", "s", "-1s", "2w", "25h", "99999999999s"] {
            assert!(window(text).is_err(), "{text}");
        }
    }
}
