//! `weir run`: a configuration, or the demo, until stopped.
//!
//! `weir check`: what `nginx -t` does.
//!
//! `weir health`: one question to the admin listener, for container health checks.
//!
//! `weir man` and `weir completions`: made from the command line's own definition, so they cannot go stale.
//!
//! `weir schema`: the JSON Schema of the YAML, for editors.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::client::AdminOptions;
use super::{Flags, output};
use crate::app::{App, ConfigSource, Error, StartOptions};
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
        // Before they are read: what changes meanwhile is then noticed.
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
    // Held to the end: what is left in the logs is written when it goes.
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
weir demo: http://127.0.0.1:8080, an echo upstream behind it. Each address gets 10 requests a second and a
burst of 120; /slow two at a time; /queue makes the excess wait.
Dashboard: http://127.0.0.1:9900/ (its token is demo), metrics: http://127.0.0.1:9900/metrics

  curl -i http://127.0.0.1:8080/hello
      passes, and shows what the upstream was sent

  curl -s -o /dev/null -w '%{http_code} ' 'http://127.0.0.1:8080/?[1-140]'
      121 times 200 (the burst and one), one more every 100 ms, the rest 429 with Retry-After

  oha -n 60 -c 30 http://127.0.0.1:8080/queue
      21 times 200, one every 100 ms, because the excess waits; 39 times 429: no more than 20 may wait

Ctrl-C stops it. With your own configuration: weir run --config weir.yaml
";

/// Reads a configuration and says what it thinks of it.
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
    let verdict = match report.errors() {
        0 => Ok(()),
        problems => Err(problems),
    };
    // Nowhere is left to complain to when standard error is gone; the exit status still tells.
    let told = tell(path, &report, verdict);
    if verdict.is_ok() && told.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn tell(path: &Path, report: &config::Report, verdict: Result<(), usize>) -> std::io::Result<()> {
    if !report.is_empty() {
        output::draw(report)?;
    }
    let mut stderr = std::io::stderr().lock();
    match verdict {
        Ok(()) => writeln!(stderr, "weir: configuration {} is fine", path.display()),
        Err(1) => writeln!(stderr, "weir: 1 problem in {}", path.display()),
        Err(problems) => writeln!(stderr, "weir: {problems} problems in {}", path.display()),
    }
}

#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    /// Ask whether it takes requests, which it does not while it starts or stops
    #[arg(long)]
    ready: bool,
    #[command(flatten)]
    reach: AdminOptions,
}

/// Asks whether it works, or whether it is ready for requests; fails if the answer is not 200.
pub(super) fn health(flags: &HealthArgs) -> anyhow::Result<()> {
    let (path, well) = match flags.ready {
        true => ("/readyz", "ready"),
        false => ("/healthz", "well"),
    };
    let admin = flags.reach.admin()?;
    let yes = admin.says_yes(path)?;
    anyhow::ensure!(
        yes,
        "{} answers, but not that it is {well}",
        admin.address()
    );
    Ok(())
}

/// Writes what a shell reads to complete our command line to standard output.
///
/// # Errors
///
/// What writing there fails with.
pub(super) fn complete(shell: Shell) -> std::io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Flags::command(), "weir", &mut script);
    std::io::stdout().lock().write_all(&script)
}

/// Writes the manual page to standard output, or one for each verb to a folder.
pub(super) fn print(dir: Option<&Path>) -> anyhow::Result<()> {
    if let Some(dir) = dir {
        clap_mangen::generate_to(Flags::command(), dir)
            .with_context(|| format!("cannot write to {}", dir.display()))
    } else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Flags::command()).render(&mut page)?;
        Ok(std::io::stdout().lock().write_all(&page)?)
    }
}

/// Writes the schema to standard output.
///
/// # Errors
///
/// What writing there fails with.
pub(super) fn schema() -> std::io::Result<()> {
    std::io::stdout()
        .lock()
        .write_all(config::schema().as_bytes())
}

#[cfg(test)]
mod manual_tests {

    use super::*;

    #[test]
    fn every_verb_has_a_page_and_is_completed() {
        let pages = tempfile::tempdir().unwrap();
        print(Some(pages.path())).unwrap();
        let command = Flags::command();
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Flags::command(), "weir", &mut script);
        let script = String::from_utf8(script).unwrap();
        for verb in command.get_subcommands() {
            let name = verb.get_name();
            let page = pages.path().join(format!("weir-{name}.1"));
            let text = std::fs::read_to_string(&page).unwrap();
            assert!(text.contains(".TH"), "{name}");
            assert!(script.contains(&format!("weir,{name})")), "{name}");
        }
    }
}

#[cfg(test)]
mod schema_tests {

    #[test]
    fn the_schema_in_conf_is_the_one_we_print() {
        assert!(
            include_str!("../../conf/weir.schema.json") == crate::config::schema(),
            "run `weir schema > conf/weir.schema.json`"
        );
    }
}
