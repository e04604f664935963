//! HTTP/1.1 as a client speaks it.
//!
//! Nothing in here waits, and nobody in here owns a connection: heads and chunks are taken off the front of what was
//! read, requests are written as far as they go. Whoever has the connection does the waiting, in one future,
//! so that an exchange costs no task, no channel and no wake-up of its own.

mod block;
mod chunked;
mod encode;
mod head;
mod reading;
mod sending;
mod stray;

pub(super) use encode::may_trail;
pub(super) use head::{HeadReader, ResponseHead};
pub(super) use reading::{BodyChunk, BodyFraming};
pub(super) use sending::{PendingBody, RequestFraming, RequestWriter};

#[cfg(test)]
mod tests;
