//! A lock that nobody holds for longer than a lookup takes.
//!
//! Who finds it taken looks again for a while: going to sleep and being woken takes twenty times as long as the wait.

use parking_lot::{Mutex, MutexGuard};

// Two cache lines of its own: threads on neighbouring locks would otherwise take turns on one.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct ShardLock<T>(Mutex<T>);

impl<T> ShardLock<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        if let Some(guard) = self.0.try_lock() {
            return guard;
        }
        self.lock_taken()
    }

    #[cold]
    fn lock_taken(&self) -> MutexGuard<'_, T> {
        for _ in 0..LOOKS {
            // Looked at before it is tried: trying takes the cache line away from who holds it.
            if !self.0.is_locked()
                && let Some(guard) = self.0.try_lock()
            {
                return guard;
            }
            std::hint::spin_loop();
        }
        self.0.lock()
    }
}

/// Some microseconds. Whoever holds the lock for longer was sent to sleep by the system.
const LOOKS: u32 = 100;
