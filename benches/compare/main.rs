//! weir beside nginx and HAProxy, doing the same job in the same minutes.
//!
//! Speeds measured at different times cannot be compared: a busy neighbour moves all of them by more than they
//! differ. So every round loads each proxy in turn, the order changes from round to round, and what counts is the
//! ratio within a round. A run of all cases writes `docs/benchmarks.md` and its chart, won or lost.
//!
//! ```console
//! $ cargo bench --bench compare -- --rounds 7 --seconds 1 --cases small,refused
//! ```
#![expect(clippy::print_stdout, reason = "it is what a bench is for")]

mod backend;
mod bodies;
mod built;
mod cases;
mod chart;
mod idle;
mod load;
mod machine;
#[path = "../../tests/support/ports.rs"]
mod ports;
mod process;
mod proxies;
mod report;
mod rounds;
mod secure;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use machine::Cores;
use report::Outcome;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

const USAGE: &str = "\
cargo bench --bench compare -- [--rounds N] [--seconds N] [--cases NAME,NAME] [--weir PATH]

  --rounds N    how often each proxy is measured (7)
  --seconds N   how long each time (1)
  --cases LIST  of small, refused, large, close, http2, log, tls, handshake, idle, bodies (all; only then docs/benchmarks.md is written)
  --weir PATH   a weir other than the one `cargo build --release` makes";

/// What the command line asks for.
#[derive(Debug)]
struct Options {
    rounds: usize,
    seconds: u32,
    cases: Option<Vec<String>>,
    weir: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some(backend::ARGUMENT) => backend::serve(),
        Some("--help" | "-h") => {
            println!("{USAGE}");
            Ok(())
        }
        _ => options(&arguments).and_then(|options| compare(&options)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options(arguments: &[String]) -> Result<Options> {
    let mut options = Options {
        rounds: 7,
        seconds: 1,
        cases: None,
        weir: None,
    };
    let mut arguments = arguments.iter();
    while let Some(name) = arguments.next() {
        // cargo adds it for harnesses that can do other things too.
        if name == "--bench" {
            continue;
        }
        let value = arguments
            .next()
            .ok_or_else(|| format!("{name} is not understood\n\n{USAGE}"))?;
        match name.as_str() {
            "--rounds" => options.rounds = value.parse::<usize>()?.max(1),
            "--seconds" => options.seconds = value.parse::<u32>()?.max(1),
            "--cases" => options.cases = Some(value.split(',').map(str::to_owned).collect()),
            "--weir" => options.weir = Some(value.into()),
            _ => return Err(format!("{name} is not understood\n\n{USAGE}").into()),
        }
    }
    Ok(options)
}

fn compare(options: &Options) -> Result<()> {
    for (program, package) in [("wrk", "wrk"), ("h2load", "nghttp2-client")] {
        if machine::find(program).is_none() {
            let hint = format!("on Debian: apt-get install {package}");
            return Err(format!("{program} makes the load and is not installed; {hint}").into());
        }
    }
    let names = options.cases.as_ref().map(|names| {
        let names = names
            .iter()
            .filter(|name| *name != "idle" && *name != "bodies");
        names.cloned().collect::<Vec<_>>()
    });
    let chosen = cases::chosen(names.as_deref())?;
    let weir = match &options.weir {
        Some(path) => path.clone(),
        None => built::weir()?,
    };
    let cores = Cores::allowed();
    let backend = backend::Backend::start(&cores)?;
    let before = machine::load();
    let mut outcomes = Vec::new();
    for case in chosen {
        let proxies = rounds::measure(case, options, &weir, &cores, backend.port())?;
        let outcome = Outcome { case, proxies };
        println!("{}", report::section(&outcome));
        outcomes.push(outcome);
    }
    let mut idle = Vec::new();
    let all = options.cases.as_ref();
    let asked = |case: &str| all.is_none_or(|names| names.iter().any(|name| name == case));
    if asked("idle") {
        idle = idle::measure(&weir, &cores, backend.port())?;
        println!("{}", idle::section(&idle));
    }
    let mut bodies = Vec::new();
    if asked("bodies") {
        bodies = bodies::measure(options.rounds, &weir, &cores)?;
        println!("{}", bodies::section(&bodies));
    }
    let facts = report::Facts {
        rounds: options.rounds,
        seconds: options.seconds,
        versions: proxies::versions(&weir),
        pinned: cores.are_pinned(),
        load: (before, machine::load()),
    };
    if options.cases.is_some() || !outcomes.iter().all(Outcome::has_base) {
        println!("docs/benchmarks.md stays as it is: it takes all cases, and nginx.");
        return Ok(());
    }
    write(&facts, &outcomes, &idle, &bodies)?;
    println!("Written to docs/benchmarks.md and docs/benchmarks.svg.");
    Ok(())
}

/// Writes the page and its chart.
fn write(
    facts: &report::Facts,
    outcomes: &[Outcome],
    idle: &[idle::Idle],
    bodies: &[bodies::Bodies],
) -> Result<()> {
    let docs = Path::new(ROOT).join("docs");
    std::fs::write(
        docs.join("benchmarks.md"),
        [
            report::document(facts, outcomes),
            idle::section(idle),
            bodies::section(bodies),
        ]
        .join("\n"),
    )?;
    std::fs::write(docs.join("benchmarks.svg"), chart::draw(outcomes))?;
    Ok(())
}
