//! The real Redis: started, stopped, frozen and queried by the tests.

use std::net::SocketAddr;
use std::process::Command;

use super::ports::Port;
use super::process::Process;
use super::{PATIENCE, eventually};

/// A running `redis-server`.
#[derive(Debug)]
pub(crate) struct Redis {
    process: Process,
    port: Port,
    options: Vec<String>,
}

impl Redis {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// One with further options, as on its command line.
    pub(crate) fn with(options: &[&str]) -> Self {
        let options: Vec<_> = options.iter().map(|option| (*option).to_owned()).collect();
        let port = Port::claim();
        let process = spawn(&port, &options);
        Self {
            process,
            port,
            options,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Sends it a signal: `STOP`, `CONT`, `KILL`.
    pub(crate) fn signal(&self, signal: &str) {
        self.process.signal(signal);
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(&mut self) {
        self.process.signal("KILL");
        self.process.wait(PATIENCE).expect("it ends");
    }

    /// Starts it again on the same port, knowing nothing.
    pub(crate) fn restart(&mut self) {
        self.process = spawn(&self.port, &self.options);
    }

    /// What `redis-cli` says.
    pub(crate) fn cli(&self, arguments: &[&str]) -> String {
        cli(self.port(), arguments)
    }

    /// A number of `INFO`.
    pub(crate) fn info(&self, name: &str) -> u64 {
        let text = self.cli(&["INFO", "all"]);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.and_then(|number| number.trim().parse().ok())
            .unwrap_or_else(|| panic!("no {name} in {text}"))
    }
}

/// What `redis-cli` says on a port.
pub(crate) fn cli(port: u16, arguments: &[&str]) -> String {
    let output = Command::new("redis-cli")
        .args(["-p", &port.to_string()])
        .args(arguments)
        .output()
        .expect("redis-cli is installed");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn spawn(port: &Port, options: &[String]) -> Process {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let mut command = Command::new("redis-server");
    command
        .args(["--port", &port.number().to_string()])
        .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .arg("--dir")
        .arg(directory.path())
        .args(options);
    let mut process = Process::spawn("redis-server", command, directory);
    assert!(
        process.accepts(port.address()),
        "redis-server does not start"
    );
    // Accepting is not answering yet.
    eventually("redis-server answers", || {
        !cli(port.number(), &["PING"]).is_empty()
    });
    process
}
