//! Text becomes a plan; no sockets, no runtime, no clock.

pub mod plan;
