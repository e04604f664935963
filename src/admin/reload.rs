//! Reloads of the configuration: how one is requested, its result, and the metrics of all so far.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use crate::api::{ReloadFailure, ReloadReport};
use crate::clock::Clock;
use crate::config::Report;
use crate::telemetry::{Exposition, metrics};

metrics! {
    /// The metrics of reloads.
    pub(super) RELOAD_METRICS:
    CONFIG_GENERATION = gauge("weir_config_generation", [], "Number of the configuration in force: 1 at the start, one more with every reload.");
    CONFIG_LAST_RELOAD_SUCCESS_TIMESTAMP_SECONDS = gauge("weir_config_last_reload_success_timestamp_seconds", [], "When the configuration in force took effect, in seconds since 1970.");
    CONFIG_LAST_RELOAD_SUCCESSFUL = gauge("weir_config_last_reload_successful", [], "Whether the last reload succeeded.");
    CONFIG_RELOAD_FAILURES_TOTAL = counter("weir_config_reload_failures_total", [], "Reloads that changed nothing because the configuration has errors.");
}

/// Requests reloads, and knows the results of those so far.
#[derive(Debug)]
pub struct ReloadHandle {
    requests: mpsc::UnboundedSender<ReloadRequest>,
    generation: AtomicU64,
    /// When the present generation took effect, in seconds since 1970.
    since: AtomicU64,
    failed: AtomicBool,
    failures: AtomicU64,
}

/// A requested reload; the result goes to the sender, if there is one.
pub type ReloadRequest = Option<oneshot::Sender<Result<ReloadReport, ReloadFailure>>>;

impl ReloadHandle {
    /// The handle at the first generation, and the receiver of requests for the next.
    #[must_use]
    pub fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<ReloadRequest>) {
        let (requests, receiver) = mpsc::unbounded_channel();
        let reloads = Self {
            requests,
            generation: AtomicU64::new(1),
            since: AtomicU64::new(Clock::wall().as_secs()),
            failed: AtomicBool::new(false),
            failures: AtomicU64::new(0),
        };
        (Arc::new(reloads), receiver)
    }

    /// Requests a reload without waiting for its result.
    pub fn ask(&self) {
        // There is no receiver when the process is about to end.
        drop(self.requests.send(None));
    }

    /// Requests a reload and waits for its result; `None` when the process is about to end.
    pub async fn ask_and_wait(&self) -> Option<Result<ReloadReport, ReloadFailure>> {
        let (sender, result) = oneshot::channel();
        self.requests.send(Some(sender)).ok()?;
        result.await.ok()
    }

    /// Number of the generation in force.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Records that another generation is in force; its report has the warnings of the files and then `changes`.
    pub fn succeeded(&self, report: &Report, changes: Vec<String>) -> ReloadReport {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        self.since.store(Clock::wall().as_secs(), Ordering::Relaxed);
        self.failed.store(false, Ordering::Relaxed);
        ReloadReport {
            generation,
            warnings: report.lines().chain(changes).collect(),
        }
    }

    /// Records that a reload failed: the generation in force stays.
    pub fn failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn describe(&self, page: &mut Exposition) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let successful = u64::from(!self.failed.load(Ordering::Relaxed));
        for (metric, value) in [
            (&CONFIG_GENERATION, self.generation()),
            (
                &CONFIG_LAST_RELOAD_SUCCESS_TIMESTAMP_SECONDS,
                count(&self.since),
            ),
            (&CONFIG_LAST_RELOAD_SUCCESSFUL, successful),
            (&CONFIG_RELOAD_FAILURES_TOTAL, count(&self.failures)),
        ] {
            page.sample(metric, &[], value);
        }
    }
}

impl ReloadFailure {
    /// The files have errors.
    #[must_use]
    pub fn of(report: &Report) -> Self {
        Self {
            error: REFUSED.into(),
            problems: report.lines().collect(),
            report: report.to_string(),
        }
    }

    /// Another error, shown with all its causes.
    #[must_use]
    pub fn because(error: &dyn std::error::Error) -> Self {
        let causes = std::iter::successors(Some(error), |error| error.source());
        let causes: Vec<_> = causes.map(ToString::to_string).collect();
        let text = causes.join(": ");
        Self {
            error: REFUSED.into(),
            report: format!("error: {text}"),
            problems: vec![text],
        }
    }
}

const REFUSED: &str = "the new configuration was rejected; the present one stays in force";
