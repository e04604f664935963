//! Access logs through the same limits, on the log's own clock.
//!
//! What would these limits have done to that traffic? A log is read line by line ([`format`] knows how lines look, `input`
//! how files are packed), put into the order in which requests came (`order`), and every request is made again and taken
//! to its server and location (`request`). There the very limits of the road are asked, with time as an argument, and
//! what they say is counted (`tally`). The same configuration and log give the same answer always: zones have a secret
//! that is none, and nothing is told in the order of a hash map.

mod concurrency;
mod evaluate;
mod fields;
mod format;
mod input;
mod log_format;
mod order;
mod plot;
mod report;
pub mod run;
mod stats;
mod suggest;

pub use self::evaluate::ReplayVerdict;
pub use self::fields::MissingFields;
pub use self::format::FormatError;
pub use self::input::{BadLine, InputError};
pub use self::plot::axis::{Axis, AxisScale, AxisUnit};
pub use self::plot::{
    Color, GuideLine, GuidePosition, Plot, PlotTheme, Point, STYLE, Series, SeriesStyle,
};
pub use self::report::{ReplayReport, duration, number, percent};
pub use self::run::{
    ReplayError, ReplayOptions, ReplayProgress, RequestObserver, SuggestOptions, run,
};
pub use self::stats::{KeyStats, LongWait, Timeline, TimelineBin, VerdictCounts};
