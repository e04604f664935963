//! A started program: stopped when dropped; its output is shown when the test fails.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use tempfile::TempDir;
use tokio::time::Instant;

use super::PATIENCE;

/// A program running in a directory of its own.
#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    directory: TempDir,
}

impl Process {
    /// Starts `command` with its output going to files in `directory`.
    pub(crate) fn spawn(name: &'static str, command: Command, directory: TempDir) -> Self {
        Self::spawn_reading(Stdio::null(), name, command, directory)
    }

    /// The same with something for its standard input.
    pub(crate) fn spawn_reading(
        input: Stdio,
        name: &'static str,
        mut command: Command,
        directory: TempDir,
    ) -> Self {
        let output = |file: &str| {
            File::create(directory.path().join(file)).expect("the directory can be written")
        };
        let child = command
            .stdin(input)
            .stdout(output("stdout"))
            .stderr(output("stderr"))
            .spawn()
            .unwrap_or_else(|error| panic!("{name} could not be started: {error}"));
        Self {
            name,
            child,
            directory,
        }
    }

    /// Whether it accepts connections at `address` before it ends or patience does.
    pub(crate) fn accepts(&mut self, address: SocketAddr) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None);
            if socket.is_ok_and(|s| s.connect(&SockAddr::from(address)).is_ok()) {
                return true;
            }
            if self.exit_status().is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// How it ended, if it has.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the child is ours")
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, most: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + most;
        loop {
            let status = self.exit_status();
            if status.is_some() || Instant::now() > deadline {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends a signal by name (`TERM`).
    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("sh")
            .args(["-c", &format!("kill -{signal} {}", self.child.id())])
            .status()
            .expect("there is a shell");
        assert!(status.success(), "{} is already gone", self.name);
    }

    /// What it wrote to a file in its directory; empty as long as there is none.
    pub(crate) fn file(&self, name: &str) -> String {
        let bytes = std::fs::read(self.directory.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Bytes of memory it has resident.
    pub(crate) fn resident(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("it is running");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .expect("Linux reports it");
        let kilobytes: u64 = line
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .expect("a number of kB");
        kilobytes * 1024
    }

    /// How many descriptors it has open.
    pub(crate) fn descriptors(&self) -> usize {
        let path = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(path).expect("it is running").count()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            let report = format!(
                "--- {} said\n{}{}--- end\n",
                self.name,
                self.file("stdout"),
                self.file("stderr")
            );
            std::io::stderr().write_all(report.as_bytes()).ok();
        }
    }
}
