//! Looks the names of upstreams up again, for as long as the gateway runs.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use crate::clock::{Clock, Millis};
use crate::proxy::Generation;
use crate::telemetry::panics;

/// Looks up whose time has come, each on a thread of its own: one that takes long holds up no other.
pub(super) async fn refresh(live: Arc<ArcSwap<Generation>>, clock: Clock) {
    let done = Arc::new(Notify::new());
    loop {
        let present = live.load_full();
        for upstream in &present.upstreams {
            for lookup in upstream.lookups(clock.now()) {
                let (upstream, clock) = (Arc::clone(upstream), clock.clone());
                let done = Arc::clone(&done);
                tokio::task::spawn_blocking(move || {
                    // Whatever happens to it has to be told, or the name is never looked up again.
                    let found = panics::catch(|| lookup.run())
                        .unwrap_or_else(|panic| Err(io::Error::other(panic)));
                    upstream.resolved(lookup.server, found, clock.now());
                    done.notify_one();
                });
            }
        }
        let next = present.upstreams.iter();
        let next: Option<Millis> = next.filter_map(|upstream| upstream.next_lookup()).min();
        drop(present);
        let pause = next.map_or(LOOK, |next| next.since(clock.now()));
        // What has just been found may hold for a shorter time than anybody waits here.
        tokio::select! {
            () = tokio::time::sleep(pause.clamp(PAUSE, LOOK)) => {}
            () = done.notified() => {}
        }
    }
}

/// How often it is looked whether there are other names to look up.
const LOOK: Duration = Duration::from_secs(1);
/// From one round to the next at least, unless something was found.
const PAUSE: Duration = Duration::from_millis(10);
