//! How slow the other side may be.
//!
//! A limit on every single pause does not bound the whole: a byte a second never pauses for long and never ends. So the
//! time spent waiting is added up as a debt, what comes or goes pays it off at a least rate, and the debt may
//! never grow beyond what one pause may last. Whoever keeps the rate on average may pause as long as ever.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use super::Deadline;

/// A least rate, in bytes a second; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinRate(pub u64);

/// How far behind its least rate the other side is.
#[derive(Debug, Default)]
pub struct MinRateTimer {
    debt: Duration,
    // Since when the other side is waited for.
    since: Option<Instant>,
    limit: Deadline,
}

/// Why the other side is not waited for any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooSlow {
    /// Nothing happened for too long.
    Paused,
    /// Too little happened for too long.
    Slow,
}

impl MinRateTimer {
    /// The other side is waited for: ready when that has lasted `patience` since the last byte, or together with
    /// earlier waits that were not made up for.
    pub fn poll_late(
        &mut self,
        patience: Duration,
        least: MinRate,
        context: &mut Context<'_>,
    ) -> Poll<TooSlow> {
        if self.since.is_none() {
            let now = Instant::now();
            let debt = if least.0 == 0 {
                Duration::ZERO
            } else {
                self.debt
            };
            self.since = Some(now);
            match now.checked_add(patience.saturating_sub(debt)) {
                Some(due) => self.limit.set(due),
                None => self.limit.clear(),
            }
        }
        ready!(self.limit.poll_passed(context));
        let waited = self.since.map_or(patience, |since| since.elapsed());
        Poll::Ready(if waited < patience {
            TooSlow::Slow
        } else {
            TooSlow::Paused
        })
    }

    /// So many bytes have come, or gone.
    pub fn moved(&mut self, bytes: usize, least: MinRate) {
        // Whoever is never waited for costs no look at the clock.
        if let Some(since) = self.since.take() {
            self.debt += since.elapsed();
            self.limit.clear();
        }
        if self.debt > Duration::ZERO {
            let paid = (bytes as u64)
                .saturating_mul(1_000_000)
                .checked_div(least.0);
            self.debt = self
                .debt
                .saturating_sub(paid.map_or(Duration::MAX, Duration::from_micros));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    async fn late(pace: &mut MinRateTimer, within: u64, least: u64) -> Option<TooSlow> {
        let waiting = poll_fn(|context| pace.poll_late(PATIENCE, MinRate(least), context));
        let within = Duration::from_secs(within);
        tokio::time::timeout(within, waiting).await.ok()
    }

    /// Seconds until somebody who sends `bytes` every `pause` seconds is given up.
    async fn lasts(pause: u64, bytes: usize, least: u64) -> Option<(TooSlow, u64)> {
        let (mut pace, began) = (MinRateTimer::default(), Instant::now());
        for _ in 0..1000 {
            if let Some(late) = late(&mut pace, pause, least).await {
                return Some((late, began.elapsed().as_secs()));
            }
            pace.moved(bytes, MinRate(least));
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn a_byte_a_second_comes_to_an_end() {
        assert_eq!(lasts(1, 1, 100).await, Some((TooSlow::Slow, 60)));
        assert_eq!(lasts(1, 50, 100).await, Some((TooSlow::Slow, 119)));
        assert_eq!(lasts(1, 1, 0).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_keeps_the_rate_may_pause() {
        assert_eq!(lasts(1, 100, 100).await, None);
        assert_eq!(lasts(59, 5900, 100).await, None);
        assert_eq!(lasts(61, 1_000_000, 100).await, Some((TooSlow::Paused, 60)));
    }

    /// What was sent fast long ago is no credit for later.
    #[tokio::test(start_paused = true)]
    async fn a_fast_beginning_does_not_buy_a_slow_end() {
        let mut pace = MinRateTimer::default();
        pace.moved(1 << 40, MinRate(100));
        let mut seconds = 0;
        while late(&mut pace, 1, 100).await.is_none() {
            pace.moved(1, MinRate(100));
            seconds += 1;
        }
        assert!((59..=62).contains(&seconds), "{seconds}");
    }
}
