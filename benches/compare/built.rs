//! The weir that users get.
//!
//! Not the one cargo built for a bench: that one has the features of the tests' crates too, tokio's clock that tests can
//! stop among them, and every reading of it costs.

use std::io::{Error, Result};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Builds it, if it is not there.
pub(crate) fn weir() -> Result<PathBuf> {
    let output = Command::new(env!("CARGO"))
        .args(["build", "--release", "--bin", "weir"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    told.lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .ok_or_else(|| Error::other("cargo build --release made no weir"))
}
