//! A started program: what it used, and its end on every way out.

use std::fs;
use std::io::{Error, Result};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tokio::time::Instant;

/// Longer than any of them takes to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(15);

/// A running program, killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    pub(crate) child: Child,
}

impl Process {
    pub(crate) fn spawn(name: impl Into<String>, mut command: Command) -> Result<Self> {
        let name = name.into();
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| Error::new(error.kind(), format!("{name}: {error}")))?;
        Ok(Self { name, child })
    }

    pub(crate) fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Waits until it accepts connections at `address`.
    pub(crate) fn await_listening(&mut self, address: SocketAddr) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                return Err(self.failed(&format!("ended at once, {status}")));
            }
            if Instant::now() > deadline {
                return Err(self.failed("does not listen"));
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Time on a core of all its threads and those of its children, in nanoseconds.
    pub(crate) fn cpu(&self) -> u64 {
        tree(self.child.id()).into_iter().map(cpu).sum()
    }

    /// Memory of it and its children in KB, what is shared counted in parts.
    pub(crate) fn memory(&self) -> u64 {
        tree(self.child.id()).into_iter().map(memory).sum()
    }

    fn failed(&self, what: &str) -> Error {
        Error::other(format!("{} {what}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, which is as good.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A process and all that descend from it.
fn tree(id: u32) -> Vec<u32> {
    let mut found = vec![id];
    let mut next = 0;
    while let Some(id) = found.get(next) {
        next += 1;
        let children: Vec<u32> = threads(*id)
            .flat_map(|thread| {
                let children = fs::read_to_string(thread.join("children")).unwrap_or_default();
                let ids = children.split_whitespace().filter_map(|id| id.parse().ok());
                ids.collect::<Vec<_>>()
            })
            .collect();
        found.extend(children);
    }
    found
}

fn threads(id: u32) -> impl Iterator<Item = std::path::PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{id}/task"));
    tasks
        .into_iter()
        .flatten()
        .flatten()
        .map(|task| task.path())
}

fn cpu(id: u32) -> u64 {
    threads(id)
        .filter_map(|thread| {
            let text = fs::read_to_string(thread.join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        })
        .sum()
}

fn memory(id: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{id}/smaps_rollup")).unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .and_then(|size| size.trim().strip_suffix(" kB")?.parse().ok())
        .unwrap_or_default()
}
