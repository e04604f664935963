//! Reading the configuration again: who asks, what came of it, and what is known of it afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use crate::clock::Clock;
use crate::config::Report;
use crate::telemetry::Exposition;

/// What is known of the generations so far, and the way to ask for the next one.
#[derive(Debug)]
pub struct ReloadHandle {
    asked: mpsc::UnboundedSender<ReloadRequest>,
    generation: AtomicU64,
    /// When the one in force was put in force, in seconds since 1970.
    since: AtomicU64,
    failed: AtomicBool,
    failures: AtomicU64,
}

/// Somebody wants the configuration to be read again; whoever waits for the answer is told.
pub type ReloadRequest = Option<oneshot::Sender<Result<ReloadReport, ReloadFailure>>>;

/// It is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReloadReport {
    /// Its number; the one that weir was started with is 1.
    pub generation: u64,
    /// What is doubtful about it, a line each.
    pub warnings: Vec<String>,
}

/// It is not, and everything is as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReloadFailure {
    /// That it was not done.
    error: &'static str,
    /// What is wrong, a line each.
    pub problems: Vec<String>,
    /// The same with the lines of the files it is about, where it is about lines.
    report: String,
}

impl ReloadHandle {
    /// The first generation is in force; and where those are heard who ask for the next.
    #[must_use]
    pub fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<ReloadRequest>) {
        let (asked, heard) = mpsc::unbounded_channel();
        let reloads = Self {
            asked,
            generation: AtomicU64::new(1),
            since: AtomicU64::new(Clock::wall().as_secs()),
            failed: AtomicBool::new(false),
            failures: AtomicU64::new(0),
        };
        (Arc::new(reloads), heard)
    }

    /// Asks for the configuration to be read again, without waiting for what comes of it.
    pub fn ask(&self) {
        // Nobody hears it when the process is about to end.
        drop(self.asked.send(None));
    }

    /// Asks, and waits for what comes of it; `None` when the process is about to end.
    pub async fn ask_and_wait(&self) -> Option<Result<ReloadReport, ReloadFailure>> {
        let (answer, answered) = oneshot::channel();
        self.asked.send(Some(answer)).ok()?;
        answered.await.ok()
    }

    /// Number of the generation in force.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Another generation is in force; with what is to be said of the change besides what is doubtful in its files.
    pub fn succeeded(&self, report: &Report, changes: Vec<String>) -> ReloadReport {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        self.since.store(Clock::wall().as_secs(), Ordering::Relaxed);
        self.failed.store(false, Ordering::Relaxed);
        ReloadReport {
            generation,
            warnings: report.lines().chain(changes).collect(),
        }
    }

    /// The one in force stays.
    pub fn failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn describe(&self, page: &mut Exposition) {
        page.gauge(
            "weir_config_generation",
            "Number of the configuration in force: 1 at the start, one more with every reload.",
            &[],
            self.generation(),
        );
        page.gauge(
            "weir_config_last_reload_success_timestamp_seconds",
            "When the configuration in force was put in force.",
            &[],
            self.since.load(Ordering::Relaxed),
        );
        page.gauge(
            "weir_config_last_reload_successful",
            "Whether the last reload succeeded.",
            &[],
            u64::from(!self.failed.load(Ordering::Relaxed)),
        );
        page.counter(
            "weir_config_reload_failures_total",
            "Reloads that changed nothing because something was wrong with the configuration.",
            &[],
            self.failures.load(Ordering::Relaxed),
        );
    }
}

impl ReloadFailure {
    /// Because of what is written in the files.
    #[must_use]
    pub fn of(report: &Report) -> Self {
        Self {
            error: REFUSED,
            problems: report.lines().collect(),
            report: report.to_string(),
        }
    }

    /// Because of something else, told with all its causes.
    #[must_use]
    pub fn because(error: &dyn std::error::Error) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        Self {
            error: REFUSED,
            problems: vec![text.clone()],
            report: format!("error: {text}"),
        }
    }
}

const REFUSED: &str = "the configuration was not taken, everything is as it was";
