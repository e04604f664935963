//! What passes between client and backend: heads rewritten as a gateway must, bodies streamed, framing never trusted.

mod bodies;
mod framing;
mod headers;
mod max_forwards;
mod messages;
mod redirects;
mod responses;
mod returned;
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
