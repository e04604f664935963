//! The machine: its cores and who runs on which, its programs, its name for the report.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Cores to run on. The load is kept off the proxies' core: what it used there would not be charged
/// to them, but they would wait for it.
#[derive(Debug)]
pub(crate) struct Cores {
    proxy: Option<String>,
    load: Option<String>,
}

impl Cores {
    /// Of the cores this process may use the first for proxies and the next two for the load; on a machine with one
    /// core, or without taskset, no process is pinned.
    pub(crate) fn allowed() -> Self {
        let status = read("/proc/self/status");
        let list = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
            .unwrap_or_default();
        let mut cores = list.trim().split(',').flat_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.parse::<u32>().unwrap_or_default();
            number(first)..=number(last)
        });
        let proxy = cores.next().map(|core| core.to_string());
        let load: Vec<_> = cores.take(2).map(|core| core.to_string()).collect();
        match find("taskset").is_some() && !load.is_empty() {
            true => Self {
                proxy,
                load: Some(load.join(",")),
            },
            false => Self {
                proxy: None,
                load: None,
            },
        }
    }

    pub(crate) fn are_pinned(&self) -> bool {
        self.proxy.is_some()
    }

    pub(crate) fn for_proxy(&self, program: &Path) -> Command {
        on(self.proxy.as_deref(), program)
    }

    pub(crate) fn for_load(&self, program: &Path) -> Command {
        on(self.load.as_deref(), program)
    }
}

/// A command for `program` on these cores that ends with us, however we end.
fn on(cores: Option<&str>, program: &Path) -> Command {
    let mut words: Vec<PathBuf> = Vec::new();
    if let Some(setpriv) = find("setpriv") {
        words.extend([setpriv, "--pdeathsig".into(), "KILL".into(), "--".into()]);
    }
    if let (Some(taskset), Some(cores)) = (find("taskset"), cores) {
        words.extend([taskset, "-c".into(), cores.into()]);
    }
    words.push(program.into());
    let mut command = Command::new(words.remove(0));
    command.args(words);
    command
}

/// Where a program is. Debian keeps proxies where only root's PATH looks.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    std::env::split_paths(&format!("{path}:/usr/sbin:/usr/local/sbin"))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Cores, processor and kernel in one line.
pub(crate) fn describe() -> String {
    let processor = read("/proc/cpuinfo");
    let model = processor
        .lines()
        .find(|line| line.starts_with("model name"))
        .and_then(|line| line.split_once(':'))
        .map_or("unknown processor", |(_, model)| model.trim());
    let cores = cores();
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{model}, {cores} cores, Linux {}", kernel.trim())
}

/// How many wanted a core over the last minute.
pub(crate) fn load() -> String {
    let load = read("/proc/loadavg");
    load.split(' ').next().unwrap_or_default().to_owned()
}

/// Whether a load from before we began leaves less than half of the machine to us.
pub(crate) fn is_busy(load: &str) -> bool {
    load.parse::<f64>()
        .is_ok_and(|load| load > cores() as f64 / 2.0)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}
