//! What we tell operators: the access log, the error log and the numbers.
//!
//! One decision shapes the room: an event loop never waits for a log. Lines are handed to a [`Writer`],
//! which takes them to their file on a thread of its own; when that thread cannot keep up, lines are
//! dropped and counted, and traffic goes on.

mod access;
mod counters;
mod error_log;
mod lag;
mod page;
mod stamp;
mod warning;
mod writer;

pub use access::{AccessLog, Error};
pub use counters::{COUNTERS, Connection, Counters, Crowd, Handshake, ProxyHeader, Slow};
pub use error_log::{Guard, start};
pub use lag::{Lag, lags, watch_lag};
pub use page::{Number, Page};
pub use warning::Warning;
pub use writer::{Destination, Sink, Writer};
