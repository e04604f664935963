//! `weir reload`: has a running weir read its configuration again, and says what came of it.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::json;

use super::admin::{Call, Reach};

#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Print the answer as it came
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(default)]
    error: String,
    #[serde(default)]
    report: String,
    #[serde(default)]
    generation: u64,
    #[serde(default)]
    warnings: Vec<String>,
}

/// 0 if the configuration is in force, 1 if everything is as it was.
pub(super) fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let admin = flags.reach.admin()?;
    let (status, text) = admin.answer(&Call::post("/api/reload", json!({})), PATIENCE)?;
    let well = match status {
        200 => true,
        // The configuration is wrong, and not the question.
        422 => false,
        _ => return Err(admin.refused(status, &text)),
    };
    if flags.json {
        anstream::println!("{text}");
    } else {
        let answer: Answer = admin.read(&text)?;
        for warning in &answer.warnings {
            anstream::eprintln!("warning: {warning}");
        }
        match (well, answer.report.is_empty()) {
            (true, _) => anstream::println!("configuration {} is in force", answer.generation),
            (false, true) => anstream::eprintln!("weir: {}", answer.error),
            (false, false) => anstream::eprintln!("{}\n", answer.report),
        }
    }
    Ok(match well {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Names may have to be looked up.
const PATIENCE: Duration = Duration::from_secs(120);
