//! Background tasks of the running gateway: health checks, names of upstreams, and certificates.
//!
//! One health check runs for each server, not one per event loop: its result holds for all of them, and a backend should
//! not be checked once for each core.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::clock::{Clock, Millis};
use crate::proxy::Generation;
use crate::telemetry::{BackgroundTask, blocking, supervise};
use crate::tls::ReloadResult;
use crate::upstream::{Backend, UnavailableReason};
use crate::{telemetry, upstream};

/// Keeps a task running for every server of the live generation that is to be checked.
pub(super) async fn run(generation: Arc<ArcSwap<Generation>>) {
    let mut tasks: HashMap<usize, HealthCheckTask> = HashMap::new();
    loop {
        let live = generation.load_full();
        tasks.retain(|_, task| task.backend.strong_count() > 0);
        let mut wanted = HashMap::new();
        for upstream in &live.upstreams {
            for backend in upstream.backends().iter().filter(|backend| {
                backend.health.is_some() && !backend.has(UnavailableReason::Draining)
            }) {
                let key = Arc::as_ptr(backend).addr();
                let task = tasks
                    .remove(&key)
                    .unwrap_or_else(|| HealthCheckTask::start(upstream.name(), backend));
                wanted.insert(key, task);
            }
        }
        // What is left is no longer in use; its tasks end with it.
        tasks = wanted;
        drop(live);
        tokio::time::sleep(CHECKS_INTERVAL).await;
    }
}

struct HealthCheckTask {
    backend: Weak<Backend>,
    task: AbortHandle,
}

impl HealthCheckTask {
    fn start(upstream: &str, backend: &Arc<Backend>) -> Self {
        let upstream = upstream.to_owned();
        let weak = Arc::downgrade(backend);
        let task = tokio::spawn({
            let weak = Weak::clone(&weak);
            let check = async move || check(&upstream, &weak).await;
            supervise(BackgroundTask::HealthCheck, check)
        });
        Self {
            backend: weak,
            task: task.abort_handle(),
        }
    }
}

impl Drop for HealthCheckTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Checks a server for as long as there is one, the first time at once.
async fn check(upstream: &str, backend: &Weak<Backend>) {
    while let Some(backend) = backend.upgrade() {
        upstream::check_health(upstream, &backend).await;
        let Some(pause) = backend.health.as_ref().map(|health| health.pause()) else {
            return;
        };
        drop(backend);
        tokio::time::sleep(pause).await;
    }
}

/// The interval of looking for other servers to check.
const CHECKS_INTERVAL: Duration = Duration::from_secs(1);

/// Looks up the names that are due, each on a thread of its own: a slow one delays no other.
pub(super) async fn refresh_names(generation: Arc<ArcSwap<Generation>>, clock: Clock) {
    let done = Arc::new(Notify::new());
    loop {
        let live = generation.load_full();
        for upstream in &live.upstreams {
            for lookup in upstream.lookups(clock.now()) {
                let (upstream, clock) = (Arc::clone(upstream), clock.clone());
                let done = Arc::clone(&done);
                tokio::task::spawn_blocking(move || {
                    // Every lookup has to report its end, or the name is never looked up again.
                    let found = telemetry::catch_panic(|| lookup.run())
                        .unwrap_or_else(|panic| Err(io::Error::other(panic)));
                    upstream.resolved(lookup.server, found, clock.now());
                    done.notify_one();
                });
            }
        }
        let next = live.upstreams.iter();
        let next: Option<Millis> = next.filter_map(|upstream| upstream.next_lookup()).min();
        drop(live);
        let pause = next.map_or(NAMES_INTERVAL, |next| next.since(clock.now()));
        // What has just been found may expire before this wait ends.
        tokio::select! {
            () = tokio::time::sleep(pause.clamp(PAUSE, NAMES_INTERVAL)) => {}
            () = done.notified() => {}
        }
    }
}

/// The interval of looking for other names to look up.
const NAMES_INTERVAL: Duration = Duration::from_secs(1);
/// From one round to the next at least, unless something was found.
const PAUSE: Duration = Duration::from_millis(10);

/// Looks at certificates, keys and lists again and again, for as long as the gateway runs.
pub(super) async fn refresh_certificates(generation: Arc<ArcSwap<Generation>>) {
    loop {
        tokio::time::sleep(CERTIFICATES_INTERVAL).await;
        let generation = generation.load_full();
        // Elsewhere: a file system may take its time.
        blocking(move || generation.tls.refresh(log_refresh)).await;
    }
}

fn log_refresh(file: PathBuf, refreshed: ReloadResult) {
    let file = file.display();
    match refreshed {
        ReloadResult::Same => {}
        ReloadResult::Renewed => {
            tracing::info!(%file, "certificates were read again and are in use")
        }
        ReloadResult::Kept(error) => {
            tracing::error!(%file, "{error}; what was read before stays in use");
        }
    }
}

/// The interval of checking files for changes.
const CERTIFICATES_INTERVAL: Duration = Duration::from_secs(2);
