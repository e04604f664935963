//! A zone whose numbers change: everybody's state is kept.
//!
//! What is remembered of a key does not depend on the rate it is held to, so a zone goes on under other numbers. Where its
//! memory is divided otherwise, its keys move over one shard at a time. Requests that began under the old numbers are led
//! after them, so that no charge and no refund is lost on the way.

use std::sync::Arc;

use super::{Kind, Zone};
use crate::config::plan::CountRefused;
use crate::store::algorithm::Terms;

/// The same keys as each kind of state has them.
macro_rules! inherited {
    ($zone:expr, $slowest:expr, $size:expr, $refused:expr, [$($kind:ident),*]) => {
        match (&$zone.keys, *$slowest) {
            $((Kind::$kind(keys), Terms::$kind(slowest)) => {
                Kind::$kind(keys.heir($size, slowest, $refused))
            })*
            _ => return None,
        }
    };
}

impl Zone {
    /// This zone with other numbers, or in other memory; `None` where what is remembered makes no sense by these numbers.
    #[must_use]
    pub fn heir(&self, size: usize, slowest: &Terms, refused: CountRefused) -> Option<Self> {
        if !self.makes_sense_by(slowest) {
            return None;
        }
        let keys = inherited!(
            self,
            slowest,
            size,
            refused,
            [
                Blocks,
                Bursty,
                FixedWindow,
                Gcra,
                LeakyBucket,
                Paced,
                SlidingLog,
                SlidingWindow,
                TokenBucket,
                WarmUp
            ]
        );
        Some(Self {
            name: Arc::clone(&self.name),
            delays: Arc::clone(&self.delays),
            keys,
        })
    }

    /// Whether what is remembered here can be read by these numbers.
    #[must_use]
    pub fn makes_sense_by(&self, slowest: &Terms) -> bool {
        match (&self.keys, slowest) {
            // Its blocks are counted from the beginning of time, and are as many as fit in a window.
            (Kind::Blocks(keys), Terms::Blocks(new)) => {
                let old = keys.slowest();
                old.window == new.window && old.precision == new.precision
            }
            (Kind::Bursty(_), Terms::Bursty(_))
            | (Kind::FixedWindow(_), Terms::FixedWindow(_))
            | (Kind::Gcra(_), Terms::Gcra(_))
            | (Kind::LeakyBucket(_), Terms::LeakyBucket(_))
            | (Kind::Paced(_), Terms::Paced(_))
            | (Kind::SlidingLog(_), Terms::SlidingLog(_))
            | (Kind::SlidingWindow(_), Terms::SlidingWindow(_))
            | (Kind::TokenBucket(_), Terms::TokenBucket(_))
            | (Kind::WarmUp(_), Terms::WarmUp(_)) => true,
            _ => false,
        }
    }
}
