//! `weir replay`: exact and reproducible reports from every kind of log, and clear errors about logs that cannot be read.

mod connections;
mod errors;
mod formats;
mod live;
mod page;
mod reports;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::weir::BINARY;

/// A configuration and logs in a directory of their own.
struct Desk {
    directory: TempDir,
}

/// 2026-11-16 02:00:00 UTC
const START: u64 = 1_794_794_400;

/// One address may ask once in two seconds.
const HALF: &str = "
limit_req_zones: { perip: { key: $binary_remote_addr, size: 1m, rate: 30r/m } }
servers: [ { listen: 8080, limit_req: { zone: perip, nodelay: true }, return: 200 } ]
";

impl Desk {
    fn new(yaml: &str) -> Self {
        let desk = Self {
            directory: tempfile::tempdir().expect("it can be written"),
        };
        desk.put("weir.yaml", yaml);
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn put(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).expect("it can be written");
    }

    fn command(&self, binary: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary);
        command
            .args(["replay", "--config", "weir.yaml"])
            .args(arguments);
        command.current_dir(self.directory.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(BINARY, arguments)
            .output()
            .expect("the binary can be run")
    }

    /// The same with something on standard input.
    fn run_with(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(BINARY, arguments);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary can be run");
        let mut stdin = child.stdin.take().expect("a pipe");
        let input = input.to_vec();
        let writing = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().expect("it ends");
        writing
            .join()
            .expect("it does not panic")
            .expect("it is read");
        output
    }

    fn json(&self, arguments: &[&str]) -> Value {
        parsed(&self.run(&[&["--json"], arguments].concat()))
    }

    /// The verdicts on every request, in the order they were given.
    fn each(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.run(&[&["--each", "-"], arguments].concat());
        let text = told(&output);
        text.lines()
            .map(|line| serde_json::from_str(line).expect("a line of JSON"))
            .collect()
    }
}

/// Standard output of a run that went well.
fn told(output: &Output) -> String {
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{wrong}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn parsed(output: &Output) -> Value {
    serde_json::from_str(&told(output)).expect("JSON")
}

/// A line of combined; `second` after [`START`].
fn combined(address: &str, second: u64, target: &str) -> String {
    let time = jiff::Timestamp::from_second(i64::try_from(START + second).expect("a time"))
        .expect("a time");
    let time = time.strftime("%d/%b/%Y:%H:%M:%S +0000");
    format!("{address} - - [{time}] \"GET {target} HTTP/1.1\" 200 42 \"-\" \"curl/8\"\n")
}

/// What a zone said: pass, delay, refuse and how many keys.
fn counts(report: &Value, zone: &str) -> [u64; 4] {
    let zone = &report["zones"][zone];
    ["pass", "delay", "refuse", "keys"].map(|name| {
        zone[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name} in {zone}"))
    })
}
