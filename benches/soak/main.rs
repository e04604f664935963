//! Ten minutes in which backends come and go, hang, reset, fail and flap under load, two of six well at any time.
//!
//! Every request can be served by some server, so every one has to be: with health checks, breakers, retries, a queue
//! and names that are looked up again, all at once. At the end weir may not have more open, or hold more, than at
//! the beginning. Fails if one of it is not so.
//!
//! ```console
//! $ cargo bench --bench soak -- --seconds 600
//! ```
#![expect(clippy::print_stdout, reason = "it is what a bench is for")]

mod backend;
#[path = "../compare/built.rs"]
mod built;
mod client;
#[expect(dead_code, reason = "tests have it do more")]
#[path = "../../tests/support/dns.rs"]
mod dns;
#[path = "../../tests/support/ports.rs"]
mod ports;
#[expect(dead_code, reason = "cycles are not counted here")]
#[path = "../compare/process.rs"]
mod process;
mod script;
mod watch;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use backend::{Backend, Mood};
use client::Tally;
use dns::Dns;
use ports::Port;
use process::Process;
use watch::Samples;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str = "\
cargo bench --bench soak -- [--seconds N] [--rate N] [--weir PATH]

  --seconds N   how long (600)
  --rate N      requests a second (400)
  --weir PATH   a weir other than the one `cargo build --release` makes";

/// What the backends are known by.
const NAME: &str = "backends.soak";
const BACKENDS: u8 = 6;
/// Half of them ask where there is a waiting line.
const CLIENTS: usize = 24;

#[derive(Debug)]
struct Options {
    seconds: u64,
    rate: u32,
    weir: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match options(&arguments).and_then(|options| soak(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options(arguments: &[String]) -> Result<Options> {
    let mut options = Options {
        seconds: 600,
        rate: 400,
        weir: None,
    };
    // cargo adds it for harnesses that can do other things too.
    let mut arguments = arguments.iter().filter(|name| *name != "--bench");
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match name.as_str() {
            "--seconds" => options.seconds = value.parse()?,
            "--rate" => options.rate = value.parse::<u32>()?.max(1),
            "--weir" => options.weir = Some(value.into()),
            _ => return Err(USAGE.into()),
        }
    }
    Ok(options)
}

fn soak(options: &Options) -> Result<()> {
    let binary = match &options.weir {
        Some(path) => path.clone(),
        None => built::weir()?,
    };
    let (listen, admin, port) = (Port::claim(), Port::claim(), Port::claim());
    let dns = Dns::start();
    let backends: Vec<_> = (2..2 + BACKENDS)
        .map(|last| Backend::start(([127, 0, 0, last], port.number()).into()))
        .collect();
    let addresses: Vec<_> = backends.iter().map(|one| one.address.ip()).collect();
    dns.set(NAME, &addresses, 1);
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("weir.yaml");
    std::fs::write(&file, configuration(&listen, &admin, &port, &dns))?;
    let log = folder.path().join("log");
    let mut command = Command::new(binary);
    command.arg("run").arg("--config").arg(file);
    command.stderr(std::fs::File::create(&log)?);
    let mut weir = Process::spawn("weir", command)?;
    weir.await_listening(listen.address())?;
    let mut samples = Samples::begin(&weir);
    let pause = Duration::from_secs(1) * u32::try_from(CLIENTS)? / options.rate;
    let stop = AtomicBool::new(false);
    let (changes, tallies) = thread::scope(|scope| {
        let script = scope.spawn(|| script::play(&backends, &dns, &stop));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let path = ["/free/", "/tight/"][number % 2];
                let (address, stop) = (listen.address(), &stop);
                scope.spawn(move || client::run(address, path, pause, number, stop))
            })
            .collect();
        for second in 0..options.seconds {
            thread::sleep(Duration::from_secs(1));
            samples.take(&weir);
            if second % 60 == 59 {
                println!("{} s: {}", second + 1, samples.last());
            }
        }
        stop.store(true, Ordering::Relaxed);
        let tallies: Vec<_> = clients
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        (script.join(), tallies)
    });
    let tallies: Vec<Tally> = tallies.into_iter().flatten().collect();
    let waited = client::metrics(admin.address(), "weir_upstream_queue_total")?;
    report(&tallies, &backends, changes.unwrap_or_default(), &log)?;
    println!("waiting line: {}", waited.join(", "));
    for backend in &backends {
        backend.set(Mood::Well);
    }
    samples.judge(&weir)
}

/// Two ways to the same backends: with as many requests at once as there are, and with few, and a line before them.
fn configuration(listen: &Port, admin: &Port, port: &Port, dns: &Dns) -> String {
    let group = "resolve: 1s
    keepalive_timeout: 3s
    health_check: { path: /healthz, interval: 250ms, timeout: 500ms, rise: 2, fall: 2 }
    breaker: { failure_ratio: 30%, min_calls: 5, open_for: 500ms, max_open_for: 1s, window: 5s }
    retry_budget: { share: 100%, min_per_second: 100, backoff: 20ms, backoff_max: 200ms }";
    format!(
        "workers: 2
log: {{ access: off }}
admin: {{ listen: '{admin}' }}
resolver: {{ address: '{dns}', ipv6: off, timeout: 2s }}
upstreams:
  free:
    {group}
    servers: ['{NAME}:{port}']
  tight:
    {group}
    balance: least_conn
    queue: {{ size: 1000, timeout: 20s }}
    servers: [{{ address: '{NAME}:{port}', max_conns: 1, slow_start: 2s }}]
servers:
- listen: '{listen}'
  proxy_connect_timeout: 1s
  proxy_read_timeout: 1s
  proxy_next_upstream: error timeout invalid_header http_503
  proxy_next_upstream_tries: 50
  proxy_next_upstream_timeout: 20s
  locations:
  - {{ path: /free/, proxy_pass: free }}
  - {{ path: /tight/, proxy_pass: tight }}
",
        dns = dns.address(),
        port = port.number(),
        admin = admin.address(),
        listen = listen.address(),
    )
}

/// Prints the results; an error if a request without a response could have had one.
fn report(tallies: &[Tally], backends: &[Arc<Backend>], changes: u64, log: &Path) -> Result<()> {
    let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum::<u64>();
    let (answered, cut) = (sum(|tally| tally.answered), sum(|tally| tally.cut));
    let lost = sum(|tally| tally.lost_count);
    let cuts: u64 = backends.iter().map(|backend| backend.cuts()).sum();
    let tries: u64 = backends.iter().map(|backend| backend.requests()).sum();
    println!("changes of backends: {changes}");
    println!("requests: {answered} answered, {lost} lost, {cut} cut short by backends");
    println!("requests at backends: {tries}, of which {cuts} were cut short");
    let mut times: Vec<u32> = tallies
        .iter()
        .flat_map(|tally| tally.times.clone())
        .collect();
    times.sort_unstable();
    for (name, share) in [("half", 500), ("99 %", 990), ("99.9 %", 999), ("all", 1000)] {
        let at = (times.len() * share / 1000).saturating_sub(1);
        let tenths = times.get(at).copied().unwrap_or_default();
        println!("{name} within {:.1} ms", f64::from(tenths) / 10.0);
    }
    let said = std::fs::read_to_string(log)?;
    for event in [
        "circuit breaker open",
        "is unhealthy",
        "upstream server added",
        "upstream server removed",
    ] {
        let count = said.lines().filter(|line| line.contains(event)).count();
        println!("\"{event}\": {count} times");
    }
    for what in tallies.iter().flat_map(|tally| &tally.lost) {
        println!("lost: {what}");
    }
    if said.contains("panicked") {
        return Err("weir panicked".into());
    }
    // The rest of a truncated response cannot be served; but only the backend may truncate one.
    match (lost, cut > cuts) {
        (0, false) => Ok(()),
        (0, true) => Err("more answers were cut short than backends have".into()),
        _ => Err(format!("{lost} requests were lost that could have been served").into()),
    }
}
