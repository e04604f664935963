//! A gateway's part of a limit, for the time that it counts alone.

use crate::store::algorithm::Terms;
use crate::store::algorithm::leaky_bucket::LeakyBucket;

/// The numbers of one of so many gateways.
///
/// The burst stays what it is: nobody has a fresh one, because what each key had taken when the store was last heard
/// of is known, and from there on all of them together let pass what the rate allows.
pub(super) fn of(terms: &Terms, gateways: u32) -> Terms {
    match *terms {
        Terms::LeakyBucket(numbers) => Terms::LeakyBucket(LeakyBucket {
            rate: numbers.rate.shared_by(gateways),
            ..numbers
        }),
    }
}
