//! Access logs through the same limits, on the log's own clock.
//!
//! What would these limits have done to that traffic? A log is read line by line ([`format`] knows how lines look, `input`
//! how files are packed), put into the order in which requests came (`order`), and every request is made again and taken
//! to its server and location (`request`). There the very limits of the road are asked, with time as an argument, and
//! what they say is counted (`tally`). The same configuration and log give the same answer always: zones have a secret
//! that is none, and nothing is told in the order of a hash map.

mod format;
mod input;
mod judge;
mod line;
mod needs;
mod order;
mod places;
pub mod plot;
mod read;
pub mod report;
mod request;
mod run;
pub mod suggest;
mod tally;
mod timeline;

pub use format::FormatError;
pub use input::InputError;
pub use judge::ReplayVerdict;
pub use needs::MissingFields;
pub use read::BadLine;
pub use report::ReplayReport;
pub use run::{ReplayError, ReplayOptions, ReplayProgress, RequestObserver, SuggestOptions, run};
pub use tally::{KeyStats, LongWait, ReplayVerdictKind, VerdictCounts};
pub use timeline::{Timeline, TimelineBin};
