//! Requests that can be read in two ways.
//!
//! hyper makes up its mind about some of them and shows only the outcome: of two equal lengths it keeps one, next to
//! a transfer coding it drops the length, and what stands behind a `#` it forgets. Whoever stands before or behind
//! us may have made up its mind otherwise, which is what smuggling lives on. `serve` sees the bytes and raises the
//! doubt here, the road asks before it does anything else.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is wrong with a request that hyper would take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Ambiguity {
    /// Whoever goes by the other one sees another request.
    #[error("client sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time")]
    BothLengths = 1,
    /// A target has no such part: some cut it off, others take it for a piece of the path.
    #[error("client sent a target with a \"#\"")]
    Fragment = 2,
    /// Equal or not: nobody sends two by accident.
    #[error("client sent duplicate \"Content-Length\" header")]
    TwoLengths = 3,
}

/// The doubt about one of a connection's requests; the first is the last, the connection ends with it.
// One word, so that asking costs a load: the number of the request, and which doubt.
#[derive(Debug, Default)]
pub struct AmbiguityFlag(AtomicU64);

impl AmbiguityFlag {
    /// Says that the connection's `request`-th request is doubtful.
    pub fn raise(&self, request: u64, doubt: Ambiguity) {
        self.0.store(request << 8 | doubt as u64, Ordering::Relaxed);
    }

    /// What was said of the connection's `request`-th request.
    #[must_use]
    pub fn about(&self, request: u64) -> Option<Ambiguity> {
        let raised = self.0.load(Ordering::Relaxed);
        if raised >> 8 != request {
            return None;
        }
        [
            Ambiguity::BothLengths,
            Ambiguity::Fragment,
            Ambiguity::TwoLengths,
        ]
        .into_iter()
        .find(|doubt| *doubt as u64 == raised & 0xff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubt_is_about_one_request() {
        let doubts = AmbiguityFlag::default();
        assert_eq!(doubts.about(1), None);
        doubts.raise(2, Ambiguity::TwoLengths);
        assert_eq!(doubts.about(1), None);
        assert_eq!(doubts.about(2), Some(Ambiguity::TwoLengths));
        assert_eq!(doubts.about(3), None);
    }
}
