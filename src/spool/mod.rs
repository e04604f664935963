//! Bytes that wait for a slow client: in memory first, then in a file, within bounds over all requests.
//!
//! [`BodyWriter`] takes a request's body in before a backend is asked, and [`StoredBody`] sends it, as often as needed.
//! [`Backlog`] holds what of a response its client cannot take yet. Both write to a `Spill` beyond what
//! they may keep in memory, both count what they hold in [`Bounds`], and files are touched by threads of their own only:
//! a disk that is slow, full or gone holds up what waits for it and no event loop.

mod backlog;
mod body;
mod bounds;
mod check;
mod disk;
mod pieces;
mod spill;
#[cfg(test)]
mod tests;
mod threads;

pub use backlog::Backlog;
pub use body::{BodyWriter, Room, StoredBody};
pub use bounds::Bounds;
pub use check::check;
