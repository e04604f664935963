//! Bytes that wait for a slow client: in memory first, then in a file, within bounds over all requests.
//!
//! [`SpoolWriter`] reads a request's body before a backend is asked, and [`SpooledBody`] sends it as often as needed.
//! [`ResponseBuffer`] holds what a client cannot take yet of a response. Both write to a temporary file what they may not
//! keep in memory, and both charge what they hold to [`BufferPool`]. Only threads of their own touch files: a disk that is
//! slow, full or gone delays the requests that wait for it, and no event loop.

mod body;
mod storage;
#[cfg(test)]
mod tests;

pub use self::body::{ResponseBuffer, SpoolWriter, SpooledBody};
pub use self::storage::{BUFFER_METRICS, BufferPool, check_buffers};
