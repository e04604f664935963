//! `weir replay`: access logs run through the same limits, on the log's own clock.
//!
//! Logs are read line by line (`input`, `format`, `fields`) and sorted into the order in which requests came (`order`).
//! Every request is made again and routed to its location (`router`); there the limits that serve traffic are asked, with
//! time as an argument (`evaluate`), and their verdicts are counted (`stats`). The same configuration and log always give
//! the same report: zones hash with a fixed secret, and the order of a hash map never shows.

mod concurrency;
mod evaluate;
mod fields;
mod format;
mod input;
mod order;
mod plot;
mod report;
mod router;
mod run;
mod stats;
mod suggest;
mod time;

pub use self::evaluate::{
    ReplayOptions, ReplayVerdict, RequestObserver, RequestOutcome, SuggestOptions,
};
pub use self::fields::MissingFields;
pub use self::format::FormatError;
pub use self::input::{BadLine, InputError};
pub use self::plot::{
    Axis, AxisScale, AxisUnit, Color, GuideLine, GuidePosition, Plot, PlotTheme, Point, STYLE,
    Series, SeriesStyle,
};
pub use self::report::{ReplayReport, duration, number, percent};
pub use self::run::{ReplayError, ReplayProgress, run};
pub use self::stats::{KeyStats, LongWait, Timeline, TimelineBin, VerdictCounts};
