//! Health checks in the running gateway: one task for each server that is to be checked.
//!
//! Not per event loop: what is found out holds for all of them, and a backend should not be asked once for each core.
//!
//! Looks the names of upstreams up again, for as long as the gateway runs.
//!
//! TLS in the running gateway: handshakes within their time, and files that change while it runs.

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
    let mut running: HashMap<usize, HealthCheckTask> = HashMap::new();
    loop {
        let present = generation.load_full();
        running.retain(|_, task| task.backend.strong_count() > 0);
        let mut wanted = HashMap::new();
        for upstream in &present.upstreams {
            for backend in upstream.backends().iter().filter(|backend| {
                backend.health.is_some() && !backend.is_barred_by(UnavailableReason::Draining)
            }) {
                let key = Arc::as_ptr(backend).addr();
                let task = running
                    .remove(&key)
                    .unwrap_or_else(|| HealthCheckTask::start(upstream.name(), backend));
                wanted.insert(key, task);
            }
        }
        // What is left is no longer in use; its tasks end with it.
        running = wanted;
        drop(present);
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

/// How often it is looked whether there are other servers to check.
const CHECKS_INTERVAL: Duration = Duration::from_secs(1);

/// Looks up whose time has come, each on a thread of its own: one that takes long holds up no other.
pub(super) async fn refresh_names(generation: Arc<ArcSwap<Generation>>, clock: Clock) {
    let done = Arc::new(Notify::new());
    loop {
        let present = generation.load_full();
        for upstream in &present.upstreams {
            for lookup in upstream.lookups(clock.now()) {
                let (upstream, clock) = (Arc::clone(upstream), clock.clone());
                let done = Arc::clone(&done);
                tokio::task::spawn_blocking(move || {
                    // Whatever happens to it has to be told, or the name is never looked up again.
                    let found = telemetry::catch_panic(|| lookup.run())
                        .unwrap_or_else(|panic| Err(io::Error::other(panic)));
                    upstream.resolved(lookup.server, found, clock.now());
                    done.notify_one();
                });
            }
        }
        let next = present.upstreams.iter();
        let next: Option<Millis> = next.filter_map(|upstream| upstream.next_lookup()).min();
        drop(present);
        let pause = next.map_or(NAMES_INTERVAL, |next| next.since(clock.now()));
        // What has just been found may expire before this wait ends.
        tokio::select! {
            () = tokio::time::sleep(pause.clamp(PAUSE, NAMES_INTERVAL)) => {}
            () = done.notified() => {}
        }
    }
}

/// How often it is looked whether there are other names to look up.
const NAMES_INTERVAL: Duration = Duration::from_secs(1);
/// From one round to the next at least, unless something was found.
const PAUSE: Duration = Duration::from_millis(10);

/// Looks at certificates, keys and lists again and again, for as long as the gateway runs.
pub(super) async fn refresh_certificates(generation: Arc<ArcSwap<Generation>>) {
    loop {
        tokio::time::sleep(CERTIFICATES_INTERVAL).await;
        let generation = generation.load_full();
        // Elsewhere: a file system may take its time.
        blocking(move || generation.tls.refresh(tell)).await;
    }
}

fn tell(file: PathBuf, refreshed: ReloadResult) {
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

/// How often files are looked at.
const CERTIFICATES_INTERVAL: Duration = Duration::from_secs(2);
