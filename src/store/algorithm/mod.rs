//! The ways of counting, one file each: pure functions from a state and the time to an answer.

pub mod leaky_bucket;
