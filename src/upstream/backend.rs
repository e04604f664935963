//! One server of an upstream: where it is, what the plan says of it, and what it has been asked so far.
//!
//! Shared by all event loops, so what changes here is counted with relaxed atomics; its standing with the
//! balancer, which has to be consistent, lives in `balance`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use http::StatusCode;
use parking_lot::Mutex;

use super::pool;
use crate::config::plan;

/// A server that can be asked.
#[derive(Debug)]
pub struct Backend {
    /// Its place among the backends of its upstream.
    pub(super) index: usize,
    /// Where it is.
    pub address: Address,
    /// As `$upstream_addr` shows it: `ip:port` or `unix:/path`.
    pub name: Arc<str>,
    /// What the plan says of it; where its `address` is a name, this backend is one of that name's addresses.
    pub server: plan::UpstreamServer,
    pub(super) keep: pool::Rules,
    active: AtomicU32,
    opened: AtomicU64,
    reused: AtomicU64,
    answers: [AtomicU64; STATUSES],
}

/// Where a backend is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// A request in progress at a backend, over when dropped.
// Not `Clone`: two owners would end one request twice.
#[derive(Debug)]
pub(super) struct Lease {
    backend: Arc<Backend>,
    /// Where it is told that a full backend has room again.
    vacancies: Option<Arc<Vacancies>>,
}

/// Backends of an upstream that were full and have room again, until its balancer hears of it.
#[derive(Debug, Default)]
pub(super) struct Vacancies {
    // Spares the balancer the lock: mostly there is nothing to hear.
    any: AtomicBool,
    list: Mutex<Vec<usize>>,
}

impl Backend {
    pub(super) fn new(
        index: usize,
        address: Address,
        server: &plan::UpstreamServer,
        keep: pool::Rules,
    ) -> Self {
        Self {
            index,
            name: match &address {
                Address::Tcp(address) => address.to_string().into(),
                Address::Unix(path) => format!("unix:{}", path.display()).into(),
            },
            address,
            server: server.clone(),
            keep,
            active: AtomicU32::new(0),
            opened: AtomicU64::new(0),
            reused: AtomicU64::new(0),
            answers: [const { AtomicU64::new(0) }; STATUSES],
        }
    }

    /// Requests in progress.
    pub fn active(&self) -> u32 {
        self.active.load(Ordering::Relaxed)
    }

    /// Connections made so far.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Requests so far that went over a kept connection.
    pub fn reused(&self) -> u64 {
        self.reused.load(Ordering::Relaxed)
    }

    /// How many requests ended with which status, those without any left out. A failed one has the status its
    /// failure stands for.
    pub fn answers(&self) -> impl Iterator<Item = (u16, u64)> {
        (FIRST_STATUS..)
            .zip(&self.answers)
            .map(|(status, count)| (status, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
    }

    /// Whether it has as much to do as `max_conns` allows.
    pub(super) fn is_full(&self) -> bool {
        self.server.max_conns > 0 && self.active() >= self.server.max_conns
    }

    /// Begins a request.
    pub(super) fn lease(self: &Arc<Self>) -> Lease {
        self.active.fetch_add(1, Ordering::Relaxed);
        Lease {
            backend: Arc::clone(self),
            vacancies: None,
        }
    }

    pub(super) fn count_opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_reused(&self) {
        self.reused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_answer(&self, status: StatusCode) {
        // A status over 599 is none that HTTP defines; it is passed on, and not counted.
        let counter = self
            .answers
            .get(usize::from(status.as_u16() - FIRST_STATUS));
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Lease {
    /// From now on, its end is told if it leaves room where there was none.
    pub(super) fn announce(&mut self, vacancies: &Arc<Vacancies>) {
        self.vacancies = Some(Arc::clone(vacancies));
    }
}

impl std::ops::Deref for Lease {
    type Target = Arc<Backend>;

    fn deref(&self) -> &Arc<Backend> {
        &self.backend
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let before = self.backend.active.fetch_sub(1, Ordering::Relaxed);
        if let Some(vacancies) = &self.vacancies
            && before == self.backend.server.max_conns
        {
            vacancies.list.lock().push(self.backend.index);
            vacancies.any.store(true, Ordering::Release);
        }
    }
}

impl Vacancies {
    /// Tells every vacancy since the last time.
    pub(super) fn take(&self, mut each: impl FnMut(usize)) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        // First this: what is added after it is told now or the next time.
        self.any.store(false, Ordering::Release);
        self.list.lock().drain(..).for_each(&mut each);
    }
}

const FIRST_STATUS: u16 = 100;
const STATUSES: usize = 500;
