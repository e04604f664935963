//! May a backend be asked? One word on each backend answers, whoever has a say in it.
//!
//! An operator, a health check, a circuit breaker and the resolver each have a bar of their own, and none has to know
//! of the others: a backend is asked when no bar is up. Balancers do not look at the word for every pick. Who is not
//! asked stands aside, and whoever moves a bar leaves a notice that the balancer finds before its next pick.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use parking_lot::Mutex;

use super::queue::RequestQueue;

/// A reason not to ask a backend. Several may hold at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum UnavailableReason {
    /// Its circuit breaker is open.
    Breaker = 1,
    /// An operator said so: `down` in the file.
    Down = 2,
    /// An operator lets it finish what it has.
    Drained = 16,
    /// It is leaving: its name no longer has its address.
    Draining = 4,
    /// Its health check failed.
    Unhealthy = 8,
}

/// The bars that are up.
#[derive(Debug, Default)]
pub(super) struct Availability(AtomicU8);

/// Backends of an upstream of which a balancer has to think again, until it does.
#[derive(Debug, Default)]
pub(super) struct ChangeList {
    // Spares the balancer the lock: mostly there is nothing to hear.
    any: AtomicBool,
    list: Mutex<Vec<usize>>,
    /// Who waits for a change.
    queue: Option<Arc<RequestQueue>>,
}

impl Availability {
    /// Whether no bar is up.
    pub(super) fn is_clear(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Whether this bar is up.
    pub(super) fn has(&self, bar: UnavailableReason) -> bool {
        self.0.load(Ordering::Relaxed) & bar as u8 != 0
    }

    /// Puts a bar up or takes it down; whether that changed if the backend may be asked.
    pub(super) fn set(&self, bar: UnavailableReason, up: bool) -> bool {
        let bit = bar as u8;
        let (before, after) = if up {
            let before = self.0.fetch_or(bit, Ordering::Relaxed);
            (before, before | bit)
        } else {
            let before = self.0.fetch_and(!bit, Ordering::Relaxed);
            (before, before & !bit)
        };
        (before == 0) != (after == 0)
    }
}

impl ChangeList {
    pub(super) fn new(queue: Option<Arc<RequestQueue>>) -> Self {
        Self {
            queue,
            ..Self::default()
        }
    }

    /// Something has changed about a backend.
    pub(super) fn post(&self, index: usize) {
        self.list.lock().push(index);
        self.any.store(true, Ordering::Release);
        if let Some(queue) = &self.queue {
            queue.call();
        }
    }

    /// Hands over every notice since the last time.
    pub(super) fn take(&self, mut each: impl FnMut(usize)) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        // First this: what is added after it is told now or the next time.
        self.any.store(false, Ordering::Release);
        self.list.lock().drain(..).for_each(&mut each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_bar_up_and_the_last_one_down_make_a_difference() {
        let condition = Availability::default();
        assert!(condition.set(UnavailableReason::Unhealthy, true));
        assert!(!condition.set(UnavailableReason::Breaker, true));
        assert!(!condition.set(UnavailableReason::Unhealthy, true));
        assert!(!condition.set(UnavailableReason::Unhealthy, false));
        assert!(
            condition.has(UnavailableReason::Breaker)
                && !condition.has(UnavailableReason::Unhealthy)
        );
        assert!(!condition.is_clear());
        assert!(condition.set(UnavailableReason::Breaker, false));
        assert!(condition.is_clear());
    }

    #[test]
    fn a_notice_is_handed_over_once() {
        let notices = ChangeList::default();
        notices.post(3);
        notices.post(5);
        let mut heard = Vec::new();
        notices.take(|index| heard.push(index));
        notices.take(|index| heard.push(index));
        assert_eq!(heard, [3, 5]);
    }
}
