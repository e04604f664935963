//! The commands about the process as a whole: `run`, `check`, `health`, `status`, `reload`, and `man`, `completions` and
//! `schema`, which print what the binary knows of itself.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Command};
use clap_complete::Shell;
use serde_json::json;

use super::client::{AdminArgs, AdminOptions, ApiRequest};
use super::output::{self, lag, number, span, verdicts};
use crate::api::{ReloadFailure, ReloadReport, Status, Store};
use crate::app::{App, ConfigSource, Error, StartOptions};
use crate::text::visible;
use crate::{app, config, spool, telemetry, tls};

/// Runs the gateway. 2 if the configuration does not compile, 1 if it fails while starting or running.
pub(super) fn run(path: Option<&Path>, watch: bool) -> anyhow::Result<ExitCode> {
    let mut start = StartOptions::new(|| match path {
        Some(path) => Ok(ConfigSource::File(path.to_owned())),
        None => app::start_demo()
            .map(ConfigSource::Demo)
            .map_err(Error::Start),
    })?;
    if watch {
        // Before the files are read, so that a change in between is noticed.
        start.watch = start.source.watch();
    }
    let plan = match start.source.load() {
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
    // Held to the end: dropping it writes the remaining log lines.
    telemetry::install_hook();
    let logs = telemetry::start_error_log(plan.log.level).context("cannot start the logs")?;
    let app = App::build(plan, start, logs.writer().clone())?;
    if path.is_none() {
        anstream::println!("{GREETING}");
    }
    app.run()?;
    Ok(ExitCode::SUCCESS)
}

const GREETING: &str = "\
weir demo: http://127.0.0.1:8080 in front of an echo upstream. Each address may send 10 requests a second
with a burst of 120, and two at a time to /slow; requests to /queue are delayed instead of refused.
Dashboard: http://127.0.0.1:9900/ (token: demo), metrics: http://127.0.0.1:9900/metrics

  curl -i http://127.0.0.1:8080/hello
      passes, and shows the request that the upstream received

  curl -s -o /dev/null -w '%{http_code} ' 'http://127.0.0.1:8080/?[1-140]'
      121 times 200 (the burst and one), one more every 100 ms, the rest 429 with Retry-After

  oha -n 60 -c 30 http://127.0.0.1:8080/queue
      21 times 200, one every 100 ms, because the excess is delayed; 39 times 429: at most 20 may wait

Ctrl-C stops it. With your own configuration: weir run --config weir.yaml
";

/// Checks a configuration, as `nginx -t` does.
#[must_use]
pub(super) fn check(path: &Path) -> ExitCode {
    let report = match config::load(path) {
        Ok((plan, mut report)) => {
            tls::check(&plan, &mut report, config::Severity::Error);
            spool::check_buffers(&plan, &mut report);
            report
        }
        Err(report) => report,
    };
    let (errors, path) = (report.errors(), path.display());
    let summary = match errors {
        0 => format!("weir: configuration {path} is valid"),
        1 => format!("weir: 1 problem in {path}"),
        errors => format!("weir: {errors} problems in {path}"),
    };
    let drawn = match report.is_empty() {
        true => Ok(()),
        false => output::draw(&report),
    };
    let printed = drawn.and_then(|()| writeln!(std::io::stderr().lock(), "{summary}"));
    // Where standard error is gone, the exit status still tells.
    match errors == 0 && printed.is_ok() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    /// Ask whether it accepts requests, which it does not while it starts or stops
    #[arg(long)]
    ready: bool,
    #[command(flatten)]
    admin: AdminOptions,
}

/// Asks whether the process works, or accepts requests; fails unless the status is 200.
pub(super) fn health(args: &HealthArgs) -> anyhow::Result<()> {
    let (path, state) = match args.ready {
        true => ("/readyz", "ready"),
        false => ("/healthz", "healthy"),
    };
    let admin = args.admin.client()?;
    let (status, _) = admin.respond(&ApiRequest::get(path), Duration::from_secs(10))?;
    anyhow::ensure!(status == 200, "{} is not {state}", admin.address);
    Ok(())
}

/// Shows the status of a running weir and its stores.
pub(super) fn status(args: &AdminArgs) -> anyhow::Result<()> {
    let request = ApiRequest::get("/api/status");
    args.show_with(&request, |admin, status: Status, output| {
        let stores: Vec<Store> = admin.fetch(&ApiRequest::get("/api/store"))?;
        for line in status_lines(&status, &stores) {
            output.line(visible(&line));
        }
        Ok(())
    })
}

fn status_lines(status: &Status, stores: &[Store]) -> Vec<String> {
    let ready = match status.ready {
        true => "ready",
        false => "starting or stopping",
    };
    let reloaded = match status.generation.saturating_sub(1) {
        0 => "never reloaded".to_owned(),
        1 => "reloaded once".to_owned(),
        times => format!("reloaded {} times", number(times)),
    };
    let mut lines = vec![
        format!("weir {}, pid {}: {ready}", status.version, status.pid),
        format!("up           {}, {reloaded}", span(status.uptime)),
        format!(
            "connections  {} open, {} accepted",
            number(status.connections.active),
            number(status.connections.accepted)
        ),
        format!("requests     {}", number(status.requests.total)),
        format!("limits       {}", verdicts(status.limits)),
        format!(
            "event loops  {}, at most {} late; {} in the last minute",
            status.loops.len(),
            lag(status.lag()),
            lag(status.worst_lag())
        ),
    ];
    for store in stores {
        let state = match (store.degraded, &store.why) {
            (false, _) => "available".to_owned(),
            (true, Some(why)) => format!("degraded: {why}"),
            (true, None) => "degraded".to_owned(),
        };
        lines.push(format!("store        {}: {state}", store.name));
    }
    lines
}

/// Has a running weir reload its configuration; fails if that fails.
pub(super) fn reload(args: &AdminArgs) -> anyhow::Result<()> {
    let admin = args.options.client()?;
    let request = ApiRequest::with_body("POST", "/api/reload", &json!({}));
    let (status, text) = admin.respond(&request, RELOAD_TIMEOUT)?;
    if args.json && matches!(status, 200 | 422) {
        output::print_json(&text)?;
    }
    match status {
        200 if args.json => Ok(()),
        200 => {
            let report: ReloadReport = admin.parse(&text)?;
            for warning in &report.warnings {
                anstream::eprintln!("warning: {}", visible(warning));
            }
            let generation = report.generation;
            Ok(output::print(&format!(
                "configuration {generation} is in force\n"
            ))?)
        }
        422 => {
            let failure: ReloadFailure = admin.parse(&text)?;
            let mut lines: Vec<_> = failure.report.lines().map(visible).collect();
            if lines.is_empty() {
                lines.extend(failure.problems.iter().map(|problem| visible(problem)));
            }
            if !args.json && !lines.is_empty() {
                anstream::eprintln!("{}\n", lines.join("\n"));
            }
            Err(anyhow::anyhow!(visible(&failure.error)))
        }
        status => Err(admin.error(status, &text)),
    }
}

/// A reload reads files, looks up names and opens logs.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(120);

/// Prints the completion script for a shell.
pub(super) fn completions(shell: Shell, mut command: Command) -> std::io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "weir", &mut script);
    std::io::stdout().lock().write_all(&script)
}

/// Prints the manual page, or writes one for each command to a folder.
pub(super) fn man(dir: Option<&Path>, command: Command) -> anyhow::Result<()> {
    if let Some(dir) = dir {
        clap_mangen::generate_to(command, dir)
            .with_context(|| format!("cannot write to {}", dir.display()))
    } else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        Ok(std::io::stdout().lock().write_all(&page)?)
    }
}
