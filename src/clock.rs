//! The time, and limits on time.
//!
//! Below `proxy` the time is always an argument, so that limits can be tested, replayed and simulated without sleeping.
//! [`Clock`] is the one place that asks the machine.
//!
//! Every read and every write of a connection has a time limit, and hardly any is ever reached. So moving a [`Deadline`] only
//! writes a number; the runtime's timer is armed at the first real wait, and armed again if it fires before the limit.
//!
//! A limit on single pauses does not bound the whole: a byte a second never pauses for long and never ends. So
//! [`MinRateTimer`] adds up the time spent waiting as a debt; bytes pay it off at the minimum rate, and the debt may not exceed
//! the longest pause. A client that keeps the rate on average may pause as before.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tokio::time::{Instant, Sleep};

/// A moment, in whole milliseconds since the clock was started. Never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// The moment `later` than this one.
    pub fn after(self, later: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(later.as_millis()).unwrap_or(u64::MAX)),
        )
    }

    /// How long ago `earlier` was; zero when it lies ahead.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// Tells the time: the machine's, or one set by hand.
#[derive(Clone, Debug)]
pub struct Clock(TimeSource);

#[derive(Clone, Debug)]
enum TimeSource {
    // tokio's instant rather than std's: under a paused runtime it follows the paused time.
    Machine(Instant),
    #[cfg(test)]
    Hand(std::sync::Arc<std::sync::atomic::AtomicU64>),
}

impl Clock {
    /// The machine's monotonic clock, counted from now.
    pub fn machine() -> Self {
        Self(TimeSource::Machine(Instant::now()))
    }

    /// The present moment.
    pub fn now(&self) -> Millis {
        match &self.0 {
            TimeSource::Machine(start) => {
                Millis(u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX))
            }
            #[cfg(test)]
            TimeSource::Hand(hand) => Millis(hand.load(std::sync::atomic::Ordering::Relaxed)),
        }
    }

    /// The time of day, since the Unix epoch; for log lines, never for decisions.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that may ask"
    )]
    pub fn wall() -> Duration {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default()
    }
}

/// One second of local time, in the forms that logs write.
#[derive(Debug, Default)]
pub struct LogSecond {
    unix: Option<u64>,
    /// `16/Nov/2026:01:58:24 +0100`
    pub common: String,
    /// `2026-11-16T01:58:24`
    pub iso: String,
    /// `+01:00`
    pub offset: String,
    /// `2026/11/16 01:58:24`
    pub slashed: String,
}

impl LogSecond {
    fn new(unix: u64, zone: TimeZone) -> Self {
        let moment = i64::try_from(unix).ok();
        let moment = moment.and_then(|second| Timestamp::from_second(second).ok());
        let local = moment.unwrap_or_default().to_zoned(zone);
        let format = |format| local.strftime(format).to_string();
        Self {
            unix: Some(unix),
            common: format("%d/%b/%Y:%H:%M:%S %z"),
            iso: format("%Y-%m-%dT%H:%M:%S"),
            offset: format("%:z"),
            slashed: format("%Y/%m/%d %H:%M:%S"),
        }
    }

    /// The present second, made once on each thread, and the milliseconds into it.
    // Formatting a date costs more than the rest of a log line, and all lines of a second share it.
    pub fn now() -> (Rc<Self>, u32) {
        thread_local! {
            static SECOND: RefCell<Rc<LogSecond>> = RefCell::default();
        }
        let wall = Clock::wall();
        let unix = wall.as_secs();
        let second = SECOND.try_with(|second| {
            let mut second = second.borrow_mut();
            if second.unix != Some(unix) {
                *second = Rc::new(Self::new(unix, TimeZone::system()));
            }
            Rc::clone(&second)
        });
        // A thread that is ending has lost its cache already.
        let second = second.unwrap_or_else(|_| Rc::new(Self::new(unix, TimeZone::system())));
        (second, wall.subsec_millis())
    }
}

/// A time limit that can be moved cheaply and awaited by polling.
#[derive(Debug, Default)]
pub struct Deadline {
    due: Option<Instant>,
    // Boxed so that what holds a deadline stays small and movable; made on the first real wait.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Deadline {
    /// Sets the limit to `after` from now, unless one is already running.
    pub fn start(&mut self, after: Duration) {
        if self.due.is_none() {
            self.due = Instant::now().checked_add(after);
        }
    }

    /// Sets the limit to an absolute moment.
    pub fn set(&mut self, due: Instant) {
        self.due = Some(due);
    }

    /// There is no limit until the next [`Deadline::start`].
    pub fn clear(&mut self) {
        self.due = None;
    }

    /// Ready once the limit has passed; registers the task to be woken when it does.
    pub fn poll_passed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(due) = self.due else {
            return Poll::Pending;
        };
        loop {
            let sleep = self
                .sleep
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
            // Armed for later than the limit: it must be pulled in. Armed for earlier is fine, it
            // fires, finds the limit moved and is armed again: one timer operation instead of one a read.
            if sleep.deadline() > due {
                sleep.as_mut().reset(due);
            }
            ready!(sleep.as_mut().poll(context));
            if Instant::now() >= due {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(due);
        }
    }
}

/// A minimum rate, in bytes a second; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinRate(pub u64);

/// How far behind the minimum rate the other side is.
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
            let debt = match least.0 {
                0 => Duration::ZERO,
                _ => self.debt,
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
        // Without a wait the clock is not read.
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use jiff::tz::Offset;

    use super::*;

    impl Clock {
        /// A clock that stands still until it is set.
        pub(crate) fn by_hand(start: Millis) -> Self {
            Self(TimeSource::Hand(Arc::new(AtomicU64::new(start.0))))
        }

        /// Moves a clock made with [`Clock::by_hand`]; the machine's cannot be moved.
        pub(crate) fn set(&self, now: Millis) {
            if let TimeSource::Hand(hand) = &self.0 {
                hand.store(now.0, Ordering::Relaxed);
            }
        }
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    async fn late(pace: &mut MinRateTimer, within: u64, least: u64) -> Option<TooSlow> {
        let waiting = poll_fn(|context| pace.poll_late(PATIENCE, MinRate(least), context));
        let within = Duration::from_secs(within);
        tokio::time::timeout(within, waiting).await.ok()
    }

    /// Seconds until a client that sends `bytes` every `pause` seconds is given up.
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
    async fn a_client_that_keeps_the_rate_may_pause() {
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

    #[test]
    fn a_second_reads_as_in_nginx_logs() {
        let second = LogSecond::new(1_794_794_603, TimeZone::UTC);
        assert_eq!(second.common, "16/Nov/2026:02:03:23 +0000");
        assert_eq!(second.slashed, "2026/11/16 02:03:23");
        assert_eq!(second.iso + &second.offset, "2026-11-16T02:03:23+00:00");

        let west = Offset::from_seconds(-(3 * 3600 + 1800)).unwrap();
        let second = LogSecond::new(1_794_794_603, TimeZone::fixed(west));
        assert_eq!(second.common, "15/Nov/2026:22:33:23 -0330");
        assert_eq!(second.iso + &second.offset, "2026-11-15T22:33:23-03:30");
    }
}
