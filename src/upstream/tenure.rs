//! Whether an address is still one of its name's: what is kept of one that is not is of no use.
//!
//! A backend and every connection to it share one. The connections lie with the event loops, out of anybody's reach, and
//! see by it that they are to be closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The time in which a backend belongs to its upstream.
// None for those that never leave: nothing is shared for them, and nothing looked up.
#[derive(Debug, Clone, Default)]
pub(super) struct RetiredFlag(Option<Arc<AtomicBool>>);

impl RetiredFlag {
    /// One that may end.
    pub(super) fn limited() -> Self {
        Self(Some(Arc::default()))
    }

    /// Whether it is over.
    pub(super) fn is_over(&self) -> bool {
        let over = self.0.as_ref();
        over.is_some_and(|over| over.load(Ordering::Relaxed))
    }

    /// Ends it, or lets it go on after all.
    pub(super) fn set_over(&self, over: bool) {
        if let Some(flag) = &self.0 {
            flag.store(over, Ordering::Relaxed);
        }
    }
}
