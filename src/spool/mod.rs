//! Bytes that wait for a slow client: in memory first, then in a file, within bounds over all requests.
//!
//! [`SpoolWriter`] takes a request's body in before a backend is asked, and [`SpooledBody`] sends it, as often as needed.
//! [`ResponseBuffer`] holds what of a response its client cannot take yet. Both write to a `Spill` beyond what
//! they may keep in memory, both count what they hold in [`BufferPool`], and files are touched by threads of their own only:
//! a disk that is slow, full or gone holds up what waits for it and no event loop.

mod body;
mod bounds;
mod disk;
#[cfg(test)]
mod tests;

pub use self::body::{ResponseBuffer, SpoolWriter, SpooledBody, WriteSpace};
pub use self::bounds::{BUFFER_METRICS, BufferPool, check_buffers};
