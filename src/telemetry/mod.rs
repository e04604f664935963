//! What we tell operators: the access log, the error log and the numbers.
//!
//! One decision shapes the room: an event loop never waits for a log. Lines are handed to a [`LogWriter`],
//! which takes them to their file on a thread of its own; when that thread cannot keep up, lines are
//! dropped and counted, and traffic goes on.

mod access_log;
mod background;
mod counters;
mod error_log;
mod log_writer;
mod metrics;
mod refusals;
mod stamp;
pub mod traces;

pub use self::access_log::{AccessLog, Error};
pub use self::background::{
    BackgroundTask, CaughtPanic, TASK_METRICS, blocking, catch_panic, install_hook, isolated,
    poll_catching_panic, supervise,
};
pub use self::counters::{
    ActiveConnection, COUNTERS, Counters, HandshakeResult, LISTENER_METRICS, LOOP_METRICS,
    LimitedBy, ListenerCounters, LoopLag, PROCESS_METRICS, PROCESS_WIDE_METRICS,
    ProxyHeaderFailure, SlowPart, describe_loops, describe_process, lags, watch_lag,
};
pub use self::error_log::{
    ErrorDestination, LogGuard, RateLimitedLog, about, about_connection, set_level, start_error_log,
};
pub use self::log_writer::{Destination, LOG_METRICS, LogSink, LogWriter};
pub(crate) use self::metrics::metrics;
pub use self::metrics::{Exposition, Histogram, HistogramSnapshot, Metric};
pub use self::refusals::{REFUSALS, RefusalLog, RefusalRecord};
pub use self::traces::Tracer;
