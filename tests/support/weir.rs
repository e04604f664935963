//! The real binary, run as a user runs it: a file, a process, sockets and signals.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::time::Duration;

use tempfile::TempDir;

use super::ports::Port;
use super::process::Process;
use super::{Origin, PATIENCE};

/// A running weir.
#[derive(Debug)]
pub(crate) struct Weir {
    process: Process,
    ports: Vec<Port>,
}

/// The binary under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_weir");

impl Weir {
    /// Starts one with this configuration. In it `LISTEN`, `LISTEN2` and `ADMIN` stand for free addresses, `PORT` for
    /// the port of the first, and `DIR` for a directory of its own.
    pub(crate) fn start(yaml: &str) -> Self {
        Self::start_as(yaml, |_| {})
    }

    /// The same, with something changed about how it is run.
    pub(crate) fn start_as(yaml: &str, change: impl FnOnce(&mut Command)) -> Self {
        let directory = tempfile::tempdir().expect("the temporary directory can be written");
        let ports: Vec<_> = (0..3).map(|_| Port::claim()).collect();
        let yaml = filled_in(yaml, &ports, directory.path());
        let file = write(&directory, &yaml);
        let mut command = Command::new(BINARY);
        command.arg("run").arg("--config").arg(file);
        change(&mut command);
        let mut process = Process::spawn("weir", command, directory);
        let address = match yaml.contains("listen: \"[::1]:") {
            true => SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), ports[0].number()),
            false => ports[0].address(),
        };
        assert!(process.accepts(address), "weir does not start with\n{yaml}");
        Self { process, ports }
    }

    /// As [`Weir::start`], with `ORIGIN` standing for the backend's address.
    pub(crate) fn before(origin: &Origin, yaml: &str) -> Self {
        Self::start(&yaml.replace("ORIGIN", &origin.address().to_string()))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.ports[0].address()
    }

    pub(crate) fn second_address(&self) -> SocketAddr {
        self.ports[1].address()
    }

    pub(crate) fn admin_address(&self) -> SocketAddr {
        self.ports[2].address()
    }

    pub(crate) fn port(&self) -> u16 {
        self.ports[0].number()
    }

    /// What it said on standard output: the access log where it goes to `-`.
    pub(crate) fn stdout(&self) -> String {
        self.process.file("stdout")
    }

    /// What it said on standard error: the error log.
    pub(crate) fn stderr(&self) -> String {
        self.process.file("stderr")
    }

    /// A file in its directory.
    pub(crate) fn file(&self, name: &str) -> String {
        self.process.file(name)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.process.directory().join(name)
    }

    /// Waits for the first line of standard output that contains `text`, and gives it.
    pub(crate) fn access_line(&self, text: &str) -> String {
        line_with(text, "access log", || self.stdout())
    }

    /// Waits for the first line of standard error that contains `text`, and gives it.
    pub(crate) fn error_line(&self, text: &str) -> String {
        line_with(text, "error log", || self.stderr())
    }

    /// Puts another configuration in the place of its own, as an editor would: at one moment. Words stand for the same as
    /// in [`Weir::start`].
    pub(crate) fn rewrite(&self, yaml: &str) {
        self.rewrite_file("weir.yaml", yaml);
    }

    /// The same with a file of any name in its directory.
    pub(crate) fn rewrite_file(&self, name: &str, yaml: &str) {
        let yaml = filled_in(yaml, &self.ports, self.process.directory());
        let beside = self.path(&format!("{name}.new"));
        write_file(&beside, &yaml);
        std::fs::rename(&beside, self.path(name)).expect("the directory can be written");
    }

    /// Has it read this configuration, which it takes.
    pub(crate) fn reload(&self, yaml: &str) {
        let generation = self.generation();
        self.rewrite(yaml);
        self.signal("HUP");
        super::eventually("the next generation", || self.generation() > generation);
    }

    /// Has it read this configuration, which it does not take; what it says.
    pub(crate) fn reload_refused(&self, yaml: &str) -> String {
        let before = self.stderr().len();
        self.rewrite(yaml);
        self.signal("HUP");
        let said = || self.stderr().split_off(before);
        super::eventually("a refusal", || {
            said().contains("everything stays as it was")
        });
        said()
    }

    /// How often it has taken another configuration.
    fn generation(&self) -> usize {
        self.stderr().matches("is in force").count()
    }

    pub(crate) fn signal(&self, signal: &str) {
        self.process.signal(signal);
    }

    /// Its number for the system.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.exit_status().is_some()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.wait(PATIENCE).expect("weir ends")
    }

    pub(crate) fn resident(&self) -> u64 {
        self.process.resident()
    }

    /// How many descriptors it has open.
    pub(crate) fn descriptors(&self) -> usize {
        self.process.descriptors()
    }
}

/// Runs the binary to its end.
pub(crate) fn output(arguments: &[&str]) -> Output {
    Command::new(BINARY)
        .args(arguments)
        .output()
        .expect("the binary can be run")
}

/// Runs the demo, or whatever else is run by hand.
pub(crate) fn spawn(arguments: &[&str]) -> Process {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let mut command = Command::new(BINARY);
    command.args(arguments).current_dir(directory.path());
    Process::spawn("weir", command, directory)
}

fn filled_in(yaml: &str, ports: &[Port], directory: &Path) -> String {
    yaml.replace("LISTEN2", &ports[1].address().to_string())
        .replace("LISTEN", &ports[0].address().to_string())
        .replace("ADMIN", &ports[2].address().to_string())
        .replace("PORT", &ports[0].number().to_string())
        .replace("DIR", &directory.display().to_string())
}

fn write(directory: &TempDir, yaml: &str) -> PathBuf {
    let file = directory.path().join("weir.yaml");
    write_file(&file, yaml);
    file
}

fn write_file(file: &Path, text: &str) {
    std::fs::write(file, text).expect("the directory can be written");
}

fn line_with(text: &str, place: &str, read: impl Fn() -> String) -> String {
    let mut found = None;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while found.is_none() && tokio::time::Instant::now() < deadline {
        found = read().lines().find(|l| l.contains(text)).map(str::to_owned);
        std::thread::sleep(Duration::from_millis(5));
    }
    found.unwrap_or_else(|| panic!("no {text:?} in the {place}:\n{}", read()))
}
