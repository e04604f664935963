//! What the system knows of this process, under the names that Prometheus's own libraries use.
//!
//! Read from `/proc` when somebody asks; where there is none, nothing is said.

use std::fs;

use super::Exposition;

/// Writes what can be found out, and which weir this is.
pub fn describe(page: &mut Exposition) {
    page.gauge(
        "weir_build_info",
        "1; which weir this is.",
        &[("version", env!("CARGO_PKG_VERSION"))],
        1_u32,
    );
    if let Some(times) = times() {
        page.counter(
            "process_cpu_seconds_total",
            "User and system time the process has taken.",
            &[],
            times.cpu,
        );
        page.gauge(
            "process_start_time_seconds",
            "When the process was started, in seconds since 1970.",
            &[],
            times.start,
        );
    }
    if let Some(bytes) = resident() {
        page.gauge(
            "process_resident_memory_bytes",
            "Memory of the process that is in use.",
            &[],
            bytes,
        );
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        page.gauge(
            "process_open_fds",
            "Descriptors the process has open.",
            &[],
            open.count(),
        );
    }
    if let Some(most) = most_open() {
        page.gauge(
            "process_max_fds",
            "Descriptors it may have open.",
            &[],
            most,
        );
    }
}

struct CpuTimes {
    cpu: f64,
    start: f64,
}

fn times() -> Option<CpuTimes> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name before it may contain anything, brackets too.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks =
        |field: usize| -> Option<f64> { Some(fields.get(field)?.parse::<f64>().ok()? / HERTZ) };
    let machine = fs::read_to_string("/proc/stat").ok()?;
    let booted = machine
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?;
    Some(CpuTimes {
        cpu: ticks(USER)? + ticks(SYSTEM)?,
        start: booted.trim().parse::<f64>().ok()? + ticks(STARTED)?,
    })
}

fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

fn most_open() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What Linux counts times of processes in, whatever its own clock does.
const HERTZ: f64 = 100.0;

/// Fields of `/proc/self/stat`, counted from the one after the name.
const USER: usize = 11;
const SYSTEM: usize = 12;
const STARTED: usize = 19;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn what_the_system_says_makes_sense() {
        let times = times().unwrap();
        assert!(times.cpu >= 0.0);
        let age = Clock::wall().as_secs_f64() - times.start;
        assert!((-2.0..3600.0).contains(&age), "{age}");
        assert!(resident().unwrap() > 100_000);
        assert!(most_open().unwrap() >= 3);
    }
}
