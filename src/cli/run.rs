//! `weir run`: a configuration, or the demo, until stopped.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;

use super::paint;
use crate::app::{App, ConfigSource, Error, StartOptions, demo};
use crate::telemetry;

/// Runs the gateway. 2 if the configuration does not compile, 1 if it fails while starting or running.
pub(super) fn run(path: Option<&Path>, watch: bool) -> anyhow::Result<ExitCode> {
    let mut start = StartOptions::new(|| match path {
        Some(path) => Ok(ConfigSource::File(path.to_owned())),
        None => demo::start().map(ConfigSource::Demo).map_err(Error::Start),
    })?;
    if watch {
        // Before they are read: what changes meanwhile is then noticed.
        start.watch = start.source.watch();
    }
    let plan = match start.source.load() {
        Ok((plan, report)) => {
            if !report.is_empty() {
                paint::draw(&report)?;
            }
            plan
        }
        Err(report) => {
            paint::draw(&report)?;
            return Ok(ExitCode::from(2));
        }
    };
    // Held to the end: what is left in the logs is written when it goes.
    telemetry::panics::install_hook();
    let logs = telemetry::start(plan.log.level).context("cannot start the logs")?;
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
