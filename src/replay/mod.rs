//! Access logs through the same limits, on the log's own clock.

pub mod plot;
