//! Sessions that clients take up again: sealed in tickets they keep, or kept here.
//!
//! rustls seals and keeps them; that a session ends after `session_timeout` is added by a stamp in front of what it
//! seals or keeps.

use std::sync::Arc;
use std::time::Duration;

use rustls::server::{ProducesTickets, ServerSessionMemoryCache, StoresServerSessions};

use crate::clock::Clock;

/// Seals sessions; its keys change every six hours and are known to this process alone.
#[derive(Debug)]
pub(super) struct TicketKeys {
    seal: Arc<dyn ProducesTickets>,
    lifetime: Duration,
}

/// Keeps sessions, so many at most; the oldest make room.
#[derive(Debug)]
pub(super) struct SessionCache {
    kept: Arc<dyn StoresServerSessions>,
    lifetime: Duration,
}

impl TicketKeys {
    pub(super) fn new(lifetime: Duration) -> Result<Self, rustls::Error> {
        Ok(Self {
            seal: rustls::crypto::aws_lc_rs::Ticketer::new()?,
            lifetime,
        })
    }
}

impl ProducesTickets for TicketKeys {
    fn enabled(&self) -> bool {
        !self.lifetime.is_zero()
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.lifetime.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal.encrypt(&stamped(plain))
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        fresh(self.seal.decrypt(cipher)?, self.lifetime)
    }
}

impl SessionCache {
    pub(super) fn new(lifetime: Duration) -> Self {
        Self {
            kept: ServerSessionMemoryCache::new(MOST),
            lifetime,
        }
    }
}

impl StoresServerSessions for SessionCache {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.kept.put(key, stamped(&value))
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        fresh(self.kept.get(key)?, self.lifetime)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        fresh(self.kept.take(key)?, self.lifetime)
    }

    fn can_cache(&self) -> bool {
        !self.lifetime.is_zero()
    }
}

fn stamped(bytes: &[u8]) -> Vec<u8> {
    [&Clock::wall().as_secs().to_be_bytes(), bytes].concat()
}

fn fresh(mut stamped: Vec<u8>, lifetime: Duration) -> Option<Vec<u8>> {
    let made = u64::from_be_bytes(*stamped.first_chunk()?);
    let age = Clock::wall().as_secs().checked_sub(made)?;
    (age < lifetime.as_secs()).then(|| stamped.split_off(8))
}

/// What nginx keeps in 1m.
const MOST: usize = 4000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_over_after_its_time() {
        let minute = Duration::from_secs(60);
        assert_eq!(fresh(stamped(b"session"), minute).unwrap(), b"session");
        let mut old = stamped(b"session");
        old[..8].copy_from_slice(&(Clock::wall().as_secs() - 61).to_be_bytes());
        assert_eq!(fresh(old, minute), None);
        assert_eq!(fresh(b"short".to_vec(), minute), None);
    }

    #[test]
    fn a_ticket_opens_only_what_it_sealed() {
        let tickets = TicketKeys::new(Duration::from_secs(60)).unwrap();
        let others = TicketKeys::new(Duration::from_secs(60)).unwrap();
        let sealed = tickets.encrypt(b"session").unwrap();
        assert_eq!(tickets.decrypt(&sealed).unwrap(), b"session");
        assert_eq!(others.decrypt(&sealed), None);
    }
}
