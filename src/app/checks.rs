//! Health checks in the running gateway: one task for each server that is to be checked.
//!
//! Not per event loop: what is found out holds for all of them, and a backend should not be asked once for each core.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::task::AbortHandle;

use crate::proxy::Generation;
use crate::telemetry::{BackgroundTask, supervise};
use crate::upstream::{Backend, UnavailableReason, health};

/// Keeps a task running for every server of the live generation that is to be checked.
pub(super) async fn run(live: Arc<ArcSwap<Generation>>) {
    let mut running: HashMap<usize, HealthCheckTask> = HashMap::new();
    loop {
        let present = live.load_full();
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
        // What is left is asked for by nobody any more; its tasks end with it.
        running = wanted;
        drop(present);
        tokio::time::sleep(LOOK).await;
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
        health::check(upstream, &backend).await;
        let Some(pause) = backend.health.as_ref().map(|health| health.pause()) else {
            return;
        };
        drop(backend);
        tokio::time::sleep(pause).await;
    }
}

/// How often it is looked whether there are other servers to check.
const LOOK: Duration = Duration::from_secs(1);
