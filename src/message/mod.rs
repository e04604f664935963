//! What can be said about one HTTP message: the common vocabulary of the rooms above.

pub mod answer;
pub mod body;
pub mod chunks;
pub mod client;
pub mod doubt;
pub mod drain;
pub mod exchange;
pub mod frames;
pub mod grpc;
pub mod headers;
pub mod incoming;
pub mod interim;
pub mod line;
pub mod peer;
pub mod proxied;
mod real_ip;
pub mod stalled;
pub mod stock;
pub mod target;
#[cfg(test)]
pub(crate) mod testing;
pub mod tls;
pub mod trace;
pub mod tunnel;
pub mod upload;
pub mod vars;

pub use body::{Body, Tail};
pub use client::{Client, Remote};
pub use drain::drain;
pub use exchange::{Attempt, Ending, Exchange, LimitStatus, NoAnswer};
pub use incoming::Incoming;
pub use interim::Interim;
pub use line::{Line, Phase};
pub use peer::Peer;
pub use proxied::Proxied;
pub use stalled::{Refill, RefillSlot};
pub use stock::{Completion, Lines, Stock};
pub use tls::Tls;
pub use tunnel::Tunnel;
pub use upload::Upload;
