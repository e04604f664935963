//! Buffers for text that is needed only for a moment: what a map looks up, what a header field will say.
//!
//! No request should allocate for these, so each thread keeps them. There is more than one, because a map's source may
//! be another map.

use std::cell::RefCell;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = RefCell::default();
}

/// Lends an empty buffer that has grown before.
pub(in crate::message) fn with_buffer<R>(work: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    // Borrowed only to take one and to give it back: the work may ask for another.
    let mut buffer = BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default();
    buffer.clear();
    let result = work(&mut buffer);
    BUFFERS.with_borrow_mut(|buffers| buffers.push(buffer));
    result
}
