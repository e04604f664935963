//! Is a server well? Asked beside the requests, so that they need not find out.
//!
//! One task for each server does the asking, for the whole process; what it finds out bars the server from being
//! picked, or lets it back.

mod probe;
mod tally;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

pub use self::probe::CheckFailure;
use self::tally::{CheckStreak, HealthChange};
use super::backend::Backend;
use super::condition::UnavailableReason;
use crate::config::plan::HealthCheck;
use crate::telemetry::panics;

/// What is known of a server's health.
#[derive(Debug)]
pub struct Health {
    check: HealthCheck,
    tally: Mutex<CheckStreak>,
    healthy: AtomicBool,
    passed: AtomicU64,
    failed: AtomicU64,
}

impl Health {
    /// What is known of a server that was never checked, or goes on from what was found out by checks of another kind.
    pub(super) fn new(check: &HealthCheck, known: Option<&Self>) -> Self {
        let tally = known.map_or_else(
            || CheckStreak::new(check),
            |known| known.tally.lock().under(check),
        );
        let counted = |of: fn(&Self) -> u64| AtomicU64::new(known.map_or(0, of));
        Self {
            check: check.clone(),
            healthy: AtomicBool::new(tally.is_healthy()),
            tally: Mutex::new(tally),
            passed: counted(Self::passed),
            failed: counted(Self::failed),
        }
    }

    /// Whether it counts as healthy.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// How many checks went well.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// How many did not.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// From one check to the next, as a rule.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.check.interval
    }

    /// How long to wait until the next check, somewhat different each time.
    #[must_use]
    pub fn pause(&self) -> Duration {
        let spread = self.check.interval * self.check.jitter.0 / 1000;
        let early = self.check.interval.saturating_sub(spread);
        early + (2 * spread).mul_f64(fastrand::f64())
    }
}

/// Checks a server once; nothing happens to one that is not to be checked.
pub async fn check(upstream: &str, backend: &Backend) {
    let Some(health) = &backend.health else {
        return;
    };
    let timeout = health.check.timeout;
    let found = {
        let asking = tokio::time::timeout(timeout, probe::ask(backend, &health.check));
        let mut asking = pin!(asking);
        let failed = |panic| Ok(Err(CheckFailure::Panicked(panic)));
        let asked = poll_fn(|context| panics::poll(asking.as_mut(), context, failed)).await;
        asked.unwrap_or(Err(CheckFailure::Timeout))
    };
    if let Err(CheckFailure::Panicked(panic)) = &found {
        let server = &*backend.name;
        tracing::error!(upstream, server, "health check panicked: {panic}");
    }
    let counter = match found {
        Ok(()) => &health.passed,
        Err(_) => &health.failed,
    };
    counter.fetch_add(1, Ordering::Relaxed);
    let change = health.tally.lock().note(found.is_ok());
    let server = &*backend.name;
    match (change, found) {
        (Some(HealthChange::Rise), _) => {
            health.healthy.store(true, Ordering::Relaxed);
            backend.unbar(UnavailableReason::Unhealthy);
            tracing::info!(upstream, server, "upstream server is healthy");
        }
        (Some(HealthChange::Fall), Err(reason)) => {
            health.healthy.store(false, Ordering::Relaxed);
            backend.bar(UnavailableReason::Unhealthy);
            tracing::warn!(upstream, server, "upstream server is unhealthy: {reason}");
        }
        (_, Err(reason)) => {
            tracing::debug!(upstream, server, "health check failed: {reason}");
        }
        (_, Ok(())) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::{CallShare, CheckKind, HttpVersion, InitialHealth};

    #[test]
    fn pauses_differ_by_no_more_than_they_may() {
        let check = HealthCheck {
            kind: CheckKind::Tcp,
            port: None,
            tls: None,
            version: HttpVersion::One,
            interval: Duration::from_secs(10),
            jitter: CallShare(200),
            timeout: Duration::from_secs(1),
            rise: 2,
            fall: 3,
            initial: InitialHealth::Up,
        };
        let health = Health::new(&check, None);
        let pauses: Vec<_> = (0..1_000).map(|_| health.pause()).collect();
        let within = Duration::from_secs(8)..=Duration::from_secs(12);
        assert!(pauses.iter().all(|pause| within.contains(pause)));
        let (least, most) = (pauses.iter().min(), pauses.iter().max());
        assert!(least < Some(&Duration::from_secs(9)) && most > Some(&Duration::from_secs(11)));
    }
}
