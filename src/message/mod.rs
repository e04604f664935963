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

pub use body::{ResponseBody, ResponseGuard};
pub use client::{ClientAddr, RemoteAddr};
pub use drain::drain;
pub use exchange::{Attempt, CloseConnection, LimitStatus, RequestRecord, ResponseEnd};
pub use incoming::IncomingBody;
pub use interim::InterimResponse;
pub use line::{ConnectionPhase, ConnectionState};
pub use peer::ClientConnection;
pub use proxied::ProxyHeader;
pub use stalled::{ReadAhead, ReadAheadSlot};
pub use stock::{Prebuilt, PrebuiltResponse, RawHeaders};
pub use tls::TlsInfo;
pub use tunnel::Tunnel;
pub use upload::RequestBody;
