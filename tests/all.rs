//! Tests of the whole: the real binary, real sockets, real signals, and the real nginx beside it.
//!
//! One binary for all of them, because linking costs more than running them.

mod parity;
mod support;
