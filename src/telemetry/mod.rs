//! What we tell operators: the access log, the error log and the numbers.
//!
//! One decision shapes the room: an event loop never waits for a log. Lines are handed to a [`LogWriter`],
//! which takes them to their file on a thread of its own; when that thread cannot keep up, lines are
//! dropped and counted, and traffic goes on.

mod access;
pub mod background;
mod cells;
mod context;
mod counters;
mod error_log;
mod histogram;
mod lag;
mod listener;
mod page;
pub mod panics;
pub mod process;
mod refusals;
mod stamp;
pub mod traces;
mod warning;
mod writer;

pub use access::{AccessLog, Error};
pub use background::{BackgroundTask, supervise};
pub use context::{about, about_connection};
pub use counters::{COUNTERS, Counters, LimitedBy, SlowPart};
pub use error_log::{ErrorDestination, LogGuard, set_level, start};
pub use histogram::{Histogram, HistogramSnapshot};
pub use lag::{LoopLag, describe_loops, lags, watch_lag};
pub use listener::{ActiveConnection, HandshakeResult, ListenerCounters, ProxyHeaderFailure};
pub use page::{Exposition, SampleValue};
pub use refusals::{REFUSALS, RefusalLog, RefusalRecord};
pub use traces::Tracer;
pub use warning::RateLimitedLog;
pub use writer::{Destination, LogSink, LogWriter};
