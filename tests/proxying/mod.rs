//! Forwarding: headers are rewritten as a gateway must, bodies are streamed, and framing is never trusted.

mod bodies;
mod framing;
mod headers;
mod max_forwards;
mod messages;
mod redirects;
mod responses;
mod return_directive;
mod uri;

use crate::support::{Origin, Weir};

/// A weir that forwards everything, with more settings for its one location.
fn forwarding(origin: &Origin, settings: &str) -> Weir {
    Weir::before(
        origin,
        &format!(
            "servers:
- listen: LISTEN
  locations:
  - {{ path: /, {settings} proxy_pass: 'http://ORIGIN' }}
"
        ),
    )
}
