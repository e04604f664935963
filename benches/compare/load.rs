//! The load, by wrk or h2load, and what they tell.

use crate::Result;
use crate::cases::{Case, Job};
use crate::machine::{self, Cores};

/// What the client saw.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    /// Milliseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Answers that were not 2xx or 3xx.
    pub(crate) failures: u64,
    pub(crate) socket_errors: u64,
}

impl Seen {
    /// How many exchanges went otherwise than the case wants.
    pub(crate) fn wrong(&self, case: &Case) -> u64 {
        let answers = match case.job {
            Job::Refuse => self.requests.saturating_sub(self.failures),
            _ => self.failures,
        };
        answers + self.socket_errors
    }
}

/// Loads the proxy on `port` for so many seconds.
pub(crate) fn run(case: &Case, cores: &Cores, port: u16, seconds: u32) -> Result<Seen> {
    if case.job == Job::Http2 {
        return run_http2(case, cores, port, seconds);
    }
    let wrk = machine::find("wrk").ok_or("wrk is gone")?;
    let mut command = cores.for_load(&wrk);
    command
        .args(["-t1", "--latency", "--timeout", "10s"])
        .arg(format!("-c{}", case.connections))
        .arg(format!("-d{seconds}s"));
    if case.job == Job::Close {
        command.args(["-H", "Connection: close"]);
    }
    command.arg(format!("http://127.0.0.1:{port}{}", case.path));
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    read(&text).ok_or_else(|| format!("wrk said\n{text}").into())
}

/// The same over HTTP/2.
fn run_http2(case: &Case, cores: &Cores, port: u16, seconds: u32) -> Result<Seen> {
    let h2load = machine::find("h2load").ok_or("h2load is gone")?;
    let times = tempfile::NamedTempFile::new()?;
    let mut command = cores.for_load(&h2load);
    command
        .args(["-t1", "-m16", "--log-file"])
        .arg(times.path())
        .arg(format!("-c{}", case.connections))
        .arg(format!("-D{seconds}"))
        .arg(format!("http://127.0.0.1:{port}{}", case.path));
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let times = std::fs::read_to_string(times.path())?;
    read_http2(&text, &times, f64::from(seconds))
        .ok_or_else(|| format!("h2load said\n{text}").into())
}

/// `times` has a line for each request: when it began, its status, and how long it took in microseconds.
fn read_http2(text: &str, times: &str, seconds: f64) -> Option<Seen> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("requests: "))?;
    let count = |what: &str| -> Option<u64> {
        let mut parts = line.split(", ");
        let part = parts.find_map(|part| part.strip_suffix(what))?;
        part.trim().parse().ok()
    };
    let mut times: Vec<f64> = times
        .lines()
        .filter_map(|line| line.split('\t').nth(2)?.parse().ok())
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |percent: usize| times.get(times.len() * percent / 100).map(|us| us / 1000.0);
    Some(Seen {
        requests: count(" succeeded").filter(|requests| *requests > 0)?,
        seconds,
        p50: at(50)?,
        p99: at(99)?,
        failures: count(" failed")?,
        socket_errors: count(" errored")?,
    })
}

fn read(text: &str) -> Option<Seen> {
    let mut seen = Seen {
        requests: 0,
        seconds: 0.0,
        p50: f64::NAN,
        p99: f64::NAN,
        failures: 0,
        socket_errors: 0,
    };
    for line in text.lines().map(str::trim) {
        if let Some((requests, rest)) = line.split_once(" requests in ") {
            seen.requests = requests.parse().ok()?;
            seen.seconds = millis(rest.split(',').next()?)? / 1000.0;
        } else if let Some(time) = line.strip_prefix("50%") {
            seen.p50 = millis(time)?;
        } else if let Some(time) = line.strip_prefix("99%") {
            seen.p99 = millis(time)?;
        } else if let Some(number) = line.strip_prefix("Non-2xx or 3xx responses: ") {
            seen.failures = number.parse().ok()?;
        } else if let Some(errors) = line.strip_prefix("Socket errors: ") {
            seen.socket_errors = errors
                .split(|character: char| !character.is_ascii_digit())
                .filter_map(|number| number.parse::<u64>().ok())
                .sum();
        }
    }
    (seen.requests > 0 && seen.seconds > 0.0).then_some(seen)
}

/// `1.23ms` and its relatives.
fn millis(text: &str) -> Option<f64> {
    let text = text.trim();
    for (unit, factor) in [("us", 0.001), ("ms", 1.0), ("s", 1e3), ("m", 6e4)] {
        if let Some(number) = text.strip_suffix(unit).and_then(|n| n.parse::<f64>().ok()) {
            return Some(number * factor);
        }
    }
    None
}
