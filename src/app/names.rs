//! Looks the names of upstreams up again, for as long as the gateway runs.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::clock::{Clock, Millis};
use crate::proxy::Live;

/// Looks up whose time has come, each on a thread of its own: one that takes long holds up no other.
pub(super) async fn refresh(live: Arc<ArcSwap<Live>>, clock: Clock) {
    loop {
        let present = live.load_full();
        for upstream in &present.upstreams {
            for lookup in upstream.lookups(clock.now()) {
                let (upstream, clock) = (Arc::clone(upstream), clock.clone());
                tokio::task::spawn_blocking(move || {
                    let found = lookup.run();
                    upstream.resolved(lookup.server, found, clock.now());
                });
            }
        }
        let next = present.upstreams.iter();
        let next: Option<Millis> = next.filter_map(|upstream| upstream.next_lookup()).min();
        drop(present);
        let pause = next.map_or(LOOK, |next| next.since(clock.now()));
        tokio::time::sleep(pause.clamp(PAUSE, LOOK)).await;
    }
}

/// How often it is looked whether there are other names to look up.
const LOOK: Duration = Duration::from_secs(1);
/// From one round to the next at least.
const PAUSE: Duration = Duration::from_millis(10);
