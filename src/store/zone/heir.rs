//! A zone whose numbers change: everybody's state is kept.
//!
//! What is remembered of a key does not depend on the rate it is held to, so a zone goes on under other numbers. Where its
//! memory is divided otherwise, its keys move over one shard at a time. Requests that began under the old numbers are led
//! after them, so that no charge and no refund is lost on the way.

use std::sync::Arc;

use super::{RateZone, ZoneKeys};
use crate::config::plan::CountRefused;
use crate::store::algorithm::LimitSpec;

/// The same keys as each kind of state has them.
macro_rules! inherited {
    ($zone:expr, $slowest:expr, $size:expr, $refused:expr, [$($kind:ident),*]) => {
        match (&$zone.keys, *$slowest) {
            $((ZoneKeys::$kind(keys), LimitSpec::$kind(slowest)) => {
                ZoneKeys::$kind(keys.heir($size, slowest, $refused))
            })*
            _ => return None,
        }
    };
}

impl RateZone {
    /// This zone with other numbers, or in other memory; `None` where what is remembered makes no sense by these numbers.
    #[must_use]
    pub fn heir(&self, size: usize, slowest: &LimitSpec, refused: CountRefused) -> Option<Self> {
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
    pub fn makes_sense_by(&self, slowest: &LimitSpec) -> bool {
        match (&self.keys, slowest) {
            // Its blocks are counted from the beginning of time, and are as many as fit in a window.
            (ZoneKeys::Blocks(keys), LimitSpec::Blocks(new)) => {
                let old = keys.slowest();
                old.window == new.window && old.precision == new.precision
            }
            (ZoneKeys::Bursty(_), LimitSpec::Bursty(_))
            | (ZoneKeys::FixedWindow(_), LimitSpec::FixedWindow(_))
            | (ZoneKeys::Gcra(_), LimitSpec::Gcra(_))
            | (ZoneKeys::LeakyBucket(_), LimitSpec::LeakyBucket(_))
            | (ZoneKeys::Paced(_), LimitSpec::Paced(_))
            | (ZoneKeys::SlidingLog(_), LimitSpec::SlidingLog(_))
            | (ZoneKeys::SlidingWindow(_), LimitSpec::SlidingWindow(_))
            | (ZoneKeys::TokenBucket(_), LimitSpec::TokenBucket(_))
            | (ZoneKeys::WarmUp(_), LimitSpec::WarmUp(_)) => true,
            _ => false,
        }
    }
}
