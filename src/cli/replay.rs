//! `weir replay`: what these limits would have done to that traffic.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use super::output;
use crate::clock::{Clock, Millis};
use crate::config::plan::Plan;
use crate::replay::{
    ReplayError, ReplayOptions, ReplayProgress, ReplayReport, ReplayVerdict, SuggestOptions,
};
use crate::text::visible;
use crate::{cli, config, replay};

/// What is replayed, and how it is told.
#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// The configuration
    #[arg(short, long, default_value = cli::DEFAULT_CONFIG)]
    config: PathBuf,
    /// How lines look: combined, common, json, or the text of nginx's log_format; found out if not given
    #[arg(short, long)]
    format: Option<String>,
    /// The host of all requests, for a log that does not name it
    #[arg(long)]
    host: Option<String>,
    /// How far out of order lines may be
    #[arg(long, default_value = "30s", value_parser = window)]
    window: u32,
    /// How many keys to show of each zone
    #[arg(long, default_value_t = 10)]
    top: usize,
    /// Find the smallest rate and burst, for all zones or for one
    #[arg(long, value_name = "ZONE", num_args = 0..=1, default_missing_value = "")]
    suggest: Option<String>,
    /// The share that may be refused by what is suggested
    #[arg(long, value_name = "SHARE", default_value = "0.1%", value_parser = millionths)]
    refuse_at_most: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write a line of JSON for every request; - for standard output, instead of the report
    #[arg(long, value_name = "FILE")]
    each: Option<PathBuf>,
    /// Access logs, plain or packed with gzip or zstd; - for standard input
    #[arg(value_name = "LOG")]
    files: Vec<PathBuf>,
}

/// Replays. 2 for a configuration, a command line or a format that makes no sense; 1 for a log that cannot be read.
pub(super) fn run(mut flags: ReplayArgs) -> anyhow::Result<ExitCode> {
    let plan = match config::load(&flags.config) {
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
    flags.sort_out_suggest(&plan);
    if flags.files.is_empty() {
        return wrong("which log? Name a file, or - for standard input");
    }
    let zones: Vec<String> = plan
        .req_zones
        .iter()
        .map(|zone| zone.name.to_string())
        .collect();
    match flags.replay(plan)? {
        Ok(report) => flags.tell(&report),
        Err(error) => explain(error, &zones),
    }
}

impl ReplayArgs {
    /// `--suggest access.log` means all zones, and a log.
    fn sort_out_suggest(&mut self, plan: &Plan) {
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

    fn tell(&self, report: &ReplayReport) -> anyhow::Result<ExitCode> {
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
                // Whoever reads it has seen enough.
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

/// Says what is wrong with the command line or the log.
fn explain(error: ReplayError, zones: &[String]) -> anyhow::Result<ExitCode> {
    match error {
        ReplayError::Missing(missing) => {
            let advice: Vec<String> = missing.iter().map(replay::MissingFields::advice).collect();
            wrong(&advice.join("\nweir: "))
        }
        ReplayError::Format(error) => wrong(&error.to_string()),
        ReplayError::Unrecognised { line } => wrong(&format!(
            "the log is neither combined nor common nor JSON; it begins with\n  {}\n  = help: tell with --format how its lines look, \
             in the words of nginx's log_format",
            visible(&line)
        )),
        ReplayError::Zone(name) => wrong(&format!(
            "there is no limit_req zone \"{name}\"; there is {}",
            if zones.is_empty() {
                "none".to_owned()
            } else {
                zones.join(", ")
            }
        )),
        other => Err(other.into()),
    }
}

fn wrong(sentence: &str) -> anyhow::Result<ExitCode> {
    Err(cli::UsageError(sentence.to_owned()).into())
}

fn sink(path: &Path) -> anyhow::Result<Box<dyn Write>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufWriter::new(io::stdout())));
    }
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Box::new(BufWriter::new(file)))
}

/// Writes the line of one request.
fn line(verdict: &ReplayVerdict<'_>, sink: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *sink, verdict)?;
    sink.write_all(b"\n")
}

/// How far it is, for somebody who sits before a terminal.
struct ProgressBar {
    /// Bytes of all files; `None` if nobody can know, or nobody looks.
    total: Option<u64>,
    visible: bool,
    clock: Clock,
    next: Millis,
}

impl ProgressBar {
    fn new(files: &[PathBuf]) -> Self {
        let sizes = files.iter().map(|file| {
            std::fs::metadata(file)
                .ok()
                .filter(std::fs::Metadata::is_file)
        });
        let sizes: Option<Vec<u64>> = sizes.map(|found| found.map(|found| found.len())).collect();
        Self {
            total: sizes
                .map(|sizes| sizes.iter().sum())
                .filter(|total| *total > 0),
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
        // Only where something was shown.
        if self.visible && self.next.0 > 0 {
            self.write("\r\u{1b}[2K");
        }
    }

    /// A bar that cannot be drawn is not worth failing for.
    fn write(&mut self, text: &str) {
        let mut stderr = anstream::stderr().lock();
        let drawn = stderr
            .write_all(text.as_bytes())
            .and_then(|()| stderr.flush());
        self.visible = drawn.is_ok();
    }
}

/// `30s`, `500ms`, `2m`: in whole seconds, rounded up.
fn window(text: &str) -> Result<u32, String> {
    let wrong = || format!("`{text}` is not a time; expected one as in `30s`");
    let (digits, seconds) = match text.trim_end_matches(|c: char| c.is_ascii_alphabetic()) {
        digits if text.ends_with("ms") => {
            return digits
                .parse::<u32>()
                .map(|ms| ms.div_ceil(1000))
                .map_err(|_| wrong());
        }
        digits => match text.strip_prefix(digits) {
            Some("" | "s") => (digits, 1),
            Some("m") => (digits, 60),
            Some("h") => (digits, 3600),
            _ => return Err(wrong()),
        },
    };
    let number: u32 = digits.parse().map_err(|_| wrong())?;
    number
        .checked_mul(seconds)
        .filter(|seconds| *seconds <= 86_400)
        .ok_or_else(|| "a day is the most".to_owned())
}

/// `0.1%` or `0.001`, in millionths.
fn millionths(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a share; expected one as in `0.1%`");
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
        return Err("more than all cannot be refused".to_owned());
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
