//! Bytes in memory, in the order they came in and in hardly more memory than they take.
//!
//! A piece of a message is a slice of what was read with it. A few bytes may hold on to all of a large read buffer, so
//! small pieces are copied together and only large ones kept as they came.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Some bytes, in order.
#[derive(Debug, Default)]
pub(super) struct ByteQueue {
    full: VecDeque<Bytes>,
    // What came last, while more may be added to it.
    open: BytesMut,
    length: usize,
}

impl ByteQueue {
    /// How many bytes there are.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Adds bytes at the end.
    pub(super) fn push(&mut self, mut data: Bytes) {
        self.length += data.len();
        while !data.is_empty() {
            if data.len() >= LARGE {
                self.close();
                self.full.push_back(data);
                return;
            }
            if self.open.capacity() == self.open.len() {
                self.close();
                self.open = BytesMut::with_capacity(BLOCK);
            }
            let room = self.open.capacity() - self.open.len();
            let some = data.split_to(room.min(data.len()));
            self.open.extend_from_slice(&some);
        }
    }

    /// Takes some bytes off the front.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let piece = match self.full.pop_front() {
            Some(piece) => piece,
            None if self.open.is_empty() => return None,
            None => std::mem::take(&mut self.open).freeze(),
        };
        self.length -= piece.len();
        Some(piece)
    }

    /// Takes all of them.
    pub(super) fn take(&mut self) -> VecDeque<Bytes> {
        self.close();
        self.length = 0;
        std::mem::take(&mut self.full)
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            let full = std::mem::take(&mut self.open);
            self.full.push_back(full.freeze());
        }
    }
}

/// Copied bytes are gathered into blocks of this size.
const BLOCK: usize = 4096;

/// Read buffers are at most twice as large.
const LARGE: usize = 32 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_are_gathered_and_the_order_stays() {
        let mut pieces = ByteQueue::default();
        let mut expected = Vec::new();
        for (number, length) in (0..).zip([1, 4095, 1, 5000, LARGE, 3, LARGE + 1, 9000]) {
            let data = vec![number; length];
            expected.extend_from_slice(&data);
            pieces.push(data.into());
        }
        assert_eq!(pieces.len(), expected.len());
        assert!(pieces.full.len() < 10, "{}", pieces.full.len());
        let mut all = Vec::new();
        while let Some(piece) = pieces.pop() {
            all.extend_from_slice(&piece);
        }
        assert!(all == expected && pieces.len() == 0);
    }

    #[test]
    fn a_byte_holds_on_to_no_more_than_a_block() {
        let mut pieces = ByteQueue::default();
        let read = Bytes::from(vec![7; 2 * LARGE]);
        pieces.push(read.slice(..1));
        assert!(read.is_unique(), "the buffer it came in is free again");
    }
}
