//! The processor time of this thread.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A time on the thread's own clock, which stands still while other threads run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpu(Duration);

impl Cpu {
    pub(crate) fn now() -> Self {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Self(Duration::try_from(time).unwrap_or_default())
    }

    pub(crate) fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }
}
