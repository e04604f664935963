//! What one request counts for, where a gateway cannot count with all the others.
//!
//! A gateway that counts alone takes each request for as many as there are gateways, as if each of the others had let
//! one pass, too. So it has its part of the rate, of a limit, and of what a key had left when it was last seen, and
//! what it knows of a key stays a picture of what all of them have let pass.

use crate::config::plan::{Cost, Excess};
use crate::store::algorithm::LimitSpec;

/// What a request costs that counts for `parts` of `whole`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostShare {
    /// What has to be left for it to pass.
    pub needs: Cost,
    /// What is charged beyond that once it has passed. A limit that is smaller than the fleet has no part for each
    /// gateway: one request passes whenever there is all of it, and is paid for later.
    pub owes: Cost,
}

impl CostShare {
    /// All of it.
    #[must_use]
    pub fn whole(self) -> Cost {
        Cost(self.needs.0.saturating_add(self.owes.0))
    }
}

/// The cost of a request that counts `whole / parts` times.
pub(super) fn of(cost: Cost, terms: &LimitSpec, whole: u32, parts: u32) -> CostShare {
    let (whole, parts) = (u128::from(whole.max(1)), u128::from(parts.max(1)));
    let counted = (u128::from(cost.0) * whole)
        .div_ceil(parts)
        .max(u128::from(cost.0));
    let counted = u64::try_from(counted).unwrap_or(u64::MAX);
    let quota = terms.quota().saturating_mul(Excess::ONE.0);
    let needs = counted.min(quota.max(cost.0));
    CostShare {
        needs: Cost(needs),
        owes: Cost(counted - needs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::{Delay, Rate};
    use crate::store::algorithm::leaky_bucket::LeakyBucket;

    fn terms(burst: u32) -> LimitSpec {
        LimitSpec::LeakyBucket(LeakyBucket {
            rate: Rate::per_second(1_000),
            burst: Excess::requests(burst),
            delay: Delay::Never,
        })
    }

    fn requests(cost: Cost) -> u64 {
        cost.0 / Excess::ONE.0
    }

    #[test]
    fn alone_a_request_counts_for_every_gateway() {
        let share = of(Cost::ONE, &terms(59), 3, 1);
        assert_eq!((requests(share.needs), requests(share.owes)), (3, 0));
        assert_eq!(requests(of(Cost::ONE, &terms(59), 1, 1).whole()), 1);
    }

    #[test]
    fn a_limit_smaller_than_the_fleet_lets_one_pass_and_has_it_paid_for() {
        let share = of(Cost::ONE, &terms(1), 5, 1);
        assert_eq!((requests(share.needs), requests(share.owes)), (2, 3));
    }

    #[test]
    fn what_costs_more_than_there_is_does_not_pass_for_less() {
        let cost = Cost(9 * Excess::ONE.0);
        assert_eq!(of(cost, &terms(1), 5, 1).needs, cost);
    }

    #[test]
    fn the_part_of_missing_gateways_is_left_to_them() {
        let share = of(Cost::ONE, &terms(59), 3, 2);
        assert_eq!(share.needs, Cost(Excess::ONE.0 * 3 / 2));
    }
}
