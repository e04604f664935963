//! How many retries an upstream is worth, and how long to wait before all its servers are asked again.
//!
//! A retry is a request more for servers that already fail. Where every request is tried twice, an overload doubles
//! itself; so `retry_budget` allows retries for a share of the requests of the last ten seconds, and a few each second
//! whatever came, so that little traffic can be retried too. The numbers are Finagle's and linkerd's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Millis;
use crate::config::plan;
use crate::config::plan::Backoff;

/// The budget of one upstream.
#[derive(Debug)]
pub(super) struct RetryBudget {
    plan: plan::RetryBudget,
    window: Mutex<BudgetWindow>,
    denied: AtomicU64,
}

/// What came in each of the last seconds.
#[derive(Debug, Default)]
struct BudgetWindow {
    slots: [BudgetSlot; SECONDS],
    /// The second in which it was last said that there is nothing left.
    told: Option<u64>,
}

#[derive(Debug, Default, Clone, Copy)]
struct BudgetSlot {
    second: u64,
    requests: u64,
    retries: u64,
}

/// Whether a request may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryGrant {
    /// It may not.
    Denied {
        /// And nobody was told yet.
        is_news: bool,
    },
    /// It may.
    Granted,
}

impl RetryBudget {
    pub(super) fn new(plan: plan::RetryBudget) -> Self {
        Self {
            plan,
            window: Mutex::default(),
            denied: AtomicU64::new(0),
        }
    }

    /// A request has come.
    pub(super) fn earn(&self, now: Millis) {
        self.window.lock().slot(now).requests += 1;
    }

    /// A request is to be sent again.
    pub(super) fn spend(&self, now: Millis) -> RetryGrant {
        let mut window = self.window.lock();
        let (requests, retries) = window.sums(now);
        let share = requests * u64::from(self.plan.percent) / 100;
        let least = u64::from(self.plan.least) * SECONDS as u64;
        if retries < share + least {
            window.slot(now).retries += 1;
            return RetryGrant::Granted;
        }
        self.denied.fetch_add(1, Ordering::Relaxed);
        let second = second(now);
        let is_news = window
            .told
            .is_none_or(|told| second >= told + SECONDS as u64);
        if is_news {
            window.told = Some(second);
        }
        RetryGrant::Denied { is_news }
    }

    /// How often there was nothing left.
    pub(super) fn denied(&self) -> u64 {
        self.denied.load(Ordering::Relaxed)
    }

    /// How all servers are asked again, where they are.
    pub(super) fn backoff(&self) -> Option<Backoff> {
        self.plan.backoff
    }
}

impl BudgetWindow {
    fn slot(&mut self, now: Millis) -> &mut BudgetSlot {
        let second = second(now);
        let slot = &mut self.slots[usize::try_from(second).unwrap_or_default() % SECONDS];
        if slot.second != second {
            *slot = BudgetSlot {
                second,
                ..BudgetSlot::default()
            };
        }
        slot
    }

    fn sums(&self, now: Millis) -> (u64, u64) {
        let now = second(now);
        self.slots
            .iter()
            .filter(|slot| slot.second + SECONDS as u64 > now)
            .fold((0, 0), |(requests, retries), slot| {
                (requests + slot.requests, retries + slot.retries)
            })
    }
}

/// How long to wait before the servers are asked for the `round`th time again: a part of what doubles with every
/// round, as `lot` falls. All of it at random, so that those who failed together do not come back together.
pub(super) fn pause(backoff: Backoff, round: u32, lot: u64) -> Duration {
    let most = backoff.base.saturating_mul(1 << round.min(16));
    let micros = u64::try_from(most.min(backoff.max).as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(lot % micros.saturating_add(1))
}

fn second(now: Millis) -> u64 {
    now.0 / 1000
}

/// How long is looked back.
const SECONDS: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(percent: u32, least: u32) -> RetryBudget {
        RetryBudget::new(plan::RetryBudget {
            percent,
            least,
            backoff: None,
        })
    }

    /// How many retries are granted at this moment, of so many.
    fn granted(budget: &RetryBudget, now: u64, of: usize) -> usize {
        (0..of)
            .filter(|_| budget.spend(Millis(now)) == RetryGrant::Granted)
            .count()
    }

    #[test]
    fn retries_are_a_share_of_the_requests() {
        let budget = budget(20, 0);
        for request in 0..1000 {
            budget.earn(Millis(5_000 + request));
        }
        assert_eq!(granted(&budget, 6_000, 1000), 200);
        assert_eq!(budget.denied(), 800);
    }

    #[test]
    fn a_few_are_granted_whatever_came() {
        let budget = budget(20, 3);
        assert_eq!(granted(&budget, 50_000, 100), 30);
        assert_eq!(granted(&budget, 59_999, 100), 0);
        assert_eq!(granted(&budget, 60_000, 100), 30);
    }

    #[test]
    fn what_came_long_ago_does_not_count() {
        let budget = budget(50, 0);
        for _ in 0..10 {
            budget.earn(Millis(1_000));
        }
        assert_eq!(granted(&budget, 10_999, 2), 2);
        assert_eq!(granted(&budget, 11_000, 2), 0);
        budget.earn(Millis(11_000));
        budget.earn(Millis(11_000));
        assert_eq!(
            granted(&budget, 11_000, 2),
            0,
            "two are spent, one is earned"
        );
        assert_eq!(granted(&budget, 20_999, 2), 1);
    }

    #[test]
    fn that_nothing_is_left_is_news_once_in_a_while() {
        let budget = budget(1, 0);
        let spend = |now| budget.spend(Millis(now));
        assert_eq!(spend(1_000), RetryGrant::Denied { is_news: true });
        assert_eq!(spend(10_999), RetryGrant::Denied { is_news: false });
        assert_eq!(spend(11_000), RetryGrant::Denied { is_news: true });
    }

    #[test]
    fn pauses_double_up_to_the_most_and_are_drawn_by_lot() {
        let backoff = Backoff {
            base: Duration::from_millis(25),
            max: Duration::from_millis(150),
        };
        let longest = |round| {
            let all = (0..2_000_000).step_by(7);
            all.map(|lot| pause(backoff, round, lot)).max()
        };
        for (round, millis) in [(0, 25), (1, 50), (2, 100), (3, 150), (40, 150)] {
            let longest = longest(round).unwrap();
            assert!(longest <= Duration::from_millis(millis));
            assert!(longest > Duration::from_millis(millis) * 99 / 100);
        }
        assert_eq!(pause(backoff, 0, 0), Duration::ZERO);
        assert_eq!(pause(backoff, 0, 10_000), Duration::from_millis(10));
    }
}
