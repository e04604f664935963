//! Access log, error log, metrics and traces, and the supervision of background tasks.
//!
//! An event loop never waits for a log or a collector: lines and spans go to buffers that threads of their own write out.
//! When such a thread cannot keep up, lines and spans are dropped and counted, and traffic goes on.

mod access_log;
mod background;
mod counters;
mod error_log;
mod log_writer;
mod metrics;
#[cfg(feature = "otel")]
mod otlp;
mod refusals;
mod spans;
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
