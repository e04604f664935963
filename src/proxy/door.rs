//! A listening address through all generations.
//!
//! Plans count their listeners anew, and an address may stand elsewhere in the next one. So whoever serves its connections
//! holds a door, and every generation knows which of its listeners a door leads to. Where an address is no longer listened
//! on, those who came through its door are served to their end by the last generation that knew it.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;

use super::Generation;

/// The way in by one address.
#[derive(Debug)]
pub struct ListenerHandle {
    number: usize,
    live: Arc<ArcSwap<Generation>>,
    last: OnceLock<Arc<Generation>>,
}

impl ListenerHandle {
    /// A door of this number. No two have the same while somebody may still come through either.
    #[must_use]
    pub fn new(number: usize, live: Arc<ArcSwap<Generation>>) -> Self {
        Self {
            number,
            live,
            last: OnceLock::new(),
        }
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// The generation that whoever comes in now is served by, and which of its listeners this is.
    #[must_use]
    #[inline]
    pub fn enter(&self) -> (Arc<Generation>, usize) {
        // `load_full`, not `load`: arc-swap's guards are few and meant to be short, and this one lives across awaits.
        let live = self.live.load_full();
        match live.listener(self.number) {
            Some(listener) => (live, listener),
            None => self.enter_closed(live),
        }
    }

    /// From now on `last` is what those are served by who came through it.
    pub fn close(&self, last: Arc<Generation>) {
        // Closed twice is closed.
        drop(self.last.set(last));
    }

    #[cold]
    fn enter_closed(&self, live: Arc<Generation>) -> (Arc<Generation>, usize) {
        let live = self.last.get().cloned().unwrap_or(live);
        let listener = live.listener(self.number).unwrap_or_default();
        (live, listener)
    }
}
