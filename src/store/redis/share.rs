//! A gateway's part of a limit, for the time that it counts alone.

use crate::config::plan::Excess;
use crate::store::algorithm::Terms;
use crate::store::algorithm::blocks::Blocks;
use crate::store::algorithm::fixed_window::FixedWindow;
use crate::store::algorithm::leaky_bucket::LeakyBucket;
use crate::store::algorithm::paced::Paced;
use crate::store::algorithm::sliding_log::SlidingLog;
use crate::store::algorithm::sliding_window::SlidingWindow;
use crate::store::algorithm::token_bucket::TokenBucket;

/// The numbers of one of so many gateways.
///
/// A burst stays what it is: what each key has left of it is divided when it is first asked for.
pub(super) fn of(terms: &Terms, gateways: u32) -> Terms {
    let part = |limit: Excess| {
        let part = limit.0 / u64::from(gateways.max(1));
        Excess(part.max(Excess::ONE.0).min(limit.0))
    };
    match *terms {
        Terms::Blocks(numbers) => Terms::Blocks(Blocks {
            limit: part(numbers.limit),
            ..numbers
        }),
        Terms::Bursty(numbers) => Terms::Bursty(numbers.shared_by(gateways)),
        Terms::FixedWindow(numbers) => Terms::FixedWindow(FixedWindow {
            limit: part(numbers.limit),
            ..numbers
        }),
        Terms::Gcra(numbers) => Terms::Gcra(numbers.shared_by(gateways)),
        Terms::LeakyBucket(numbers) => Terms::LeakyBucket(LeakyBucket {
            rate: numbers.rate.shared_by(gateways),
            ..numbers
        }),
        Terms::Paced(numbers) => Terms::Paced(Paced {
            rate: numbers.rate.shared_by(gateways),
            ..numbers
        }),
        Terms::SlidingLog(numbers) => Terms::SlidingLog(SlidingLog {
            limit: part(numbers.limit),
            ..numbers
        }),
        Terms::SlidingWindow(numbers) => Terms::SlidingWindow(SlidingWindow {
            limit: part(numbers.limit),
            ..numbers
        }),
        Terms::TokenBucket(numbers) => Terms::TokenBucket(TokenBucket {
            rate: numbers.rate.shared_by(gateways),
            ..numbers
        }),
        Terms::WarmUp(numbers) => Terms::WarmUp(numbers.shared_by(gateways)),
    }
}
