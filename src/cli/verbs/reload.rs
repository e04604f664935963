//! `weir reload`: has a running weir read its configuration again, and says what came of it.

use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::json;

use super::AdminArgs;
use crate::cli::admin::ApiRequest;
use crate::cli::page;
use crate::replay::plot::visible;

#[derive(Debug, Args)]
pub(in crate::cli) struct ReloadArgs {
    #[command(flatten)]
    ask: AdminArgs,
}

/// It is in force.
#[derive(Debug, Deserialize)]
struct Reloaded {
    generation: u64,
    warnings: Vec<String>,
}

/// It is not, and everything is as it was.
#[derive(Debug, Deserialize)]
struct Refused {
    error: String,
    problems: Vec<String>,
    report: String,
}

impl ReloadArgs {
    /// Fails if everything is as it was.
    pub(super) fn run(self) -> anyhow::Result<()> {
        let admin = self.ask.reach.admin()?;
        let (status, text) = admin.answer(&ApiRequest::post("/api/reload", json!({})), PATIENCE)?;
        if self.ask.json && matches!(status, 200 | 422) {
            page::print_json(&text)?;
        }
        match status {
            200 if self.ask.json => Ok(()),
            200 => {
                let reloaded: Reloaded = admin.read(&text)?;
                for warning in &reloaded.warnings {
                    anstream::eprintln!("warning: {}", visible(warning));
                }
                let generation = reloaded.generation;
                Ok(page::print(&format!(
                    "configuration {generation} is in force\n"
                ))?)
            }
            422 => {
                let refused: Refused = admin.read(&text)?;
                let mut lines: Vec<_> = refused.report.lines().map(visible).collect();
                if lines.is_empty() {
                    lines.extend(refused.problems.iter().map(|problem| visible(problem)));
                }
                if !self.ask.json && !lines.is_empty() {
                    anstream::eprintln!("{}\n", lines.join("\n"));
                }
                Err(anyhow::anyhow!(visible(&refused.error)))
            }
            status => Err(admin.refused(status, &text)),
        }
    }
}

/// Files are read, names are looked up, logs opened.
const PATIENCE: Duration = Duration::from_secs(120);
