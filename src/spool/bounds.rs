//! How much is buffered by all requests together, and how much may be.
//!
//! Whether temporary files can be made where the configuration wants them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};

use super::disk;
use crate::clock::Clock;
use crate::config::plan::{BufferBounds, Plan};
use crate::config::{Report, Severity};
use crate::telemetry::{Exposition, RateLimitedLog, metrics};

metrics! {
    /// The metrics of all buffers.
    pub BUFFER_METRICS:
    BUFFER_BYTES = gauge("weir_buffer_bytes", ["resource"], "What slow clients have yet to send or to take, as it is buffered in memory and in files.");
    BUFFER_LIMIT_BYTES = gauge("weir_buffer_limit_bytes", ["resource"], "How much may be buffered in memory and in files.");
    BUFFER_FULL_TOTAL = counter("weir_buffer_full_total", ["reason"], "Requests and responses that were not buffered any further: memory or disk was used up, or a file could not be written.");
}

/// The bounds of all buffers of a process, and what is in use of them. One for all generations.
#[derive(Debug)]
pub struct BufferPool {
    memory: PoolUsage,
    disk: PoolUsage,
    short_of_memory: RateLimitedLog,
    short_of_disk: RateLimitedLog,
    broken_disk: RateLimitedLog,
    clock: Clock,
}

#[derive(Debug, Default)]
struct PoolUsage {
    limit: AtomicU64,
    used: AtomicU64,
}

/// What a buffer takes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BufferResource {
    Disk,
    Memory,
}

/// What one buffer has in use, given back when dropped.
// Not `Clone`: two owners would give it back twice.
pub(super) struct BufferCharge {
    bounds: Arc<BufferPool>,
    resource: BufferResource,
    bytes: u64,
}

impl BufferPool {
    /// Bounds with nothing in use.
    #[must_use]
    pub fn new(plan: BufferBounds) -> Arc<Self> {
        let bounds = Self {
            memory: PoolUsage::default(),
            disk: PoolUsage::default(),
            short_of_memory: RateLimitedLog::new(),
            short_of_disk: RateLimitedLog::new(),
            broken_disk: RateLimitedLog::new(),
            clock: Clock::machine(),
        };
        bounds.set(plan);
        Arc::new(bounds)
    }

    /// Changes the bounds. What is in use stays in use, even if it is more.
    pub fn set(&self, plan: BufferBounds) {
        self.memory.limit.store(plan.memory, Ordering::Relaxed);
        self.disk.limit.store(plan.disk, Ordering::Relaxed);
    }

    /// Adds the metrics of all buffers to a page.
    pub fn describe(&self, page: &mut Exposition) {
        for (resource, usage) in [("disk", &self.disk), ("memory", &self.memory)] {
            let labels = [resource];
            page.sample(&BUFFER_BYTES, &labels, usage.used.load(Ordering::Relaxed));
            page.sample(
                &BUFFER_LIMIT_BYTES,
                &labels,
                usage.limit.load(Ordering::Relaxed),
            );
        }
        for (reason, warning) in [
            ("disk", &self.short_of_disk),
            ("error", &self.broken_disk),
            ("memory", &self.short_of_memory),
        ] {
            page.sample(&BUFFER_FULL_TOTAL, &[reason], warning.total());
        }
    }

    /// Counts a buffer that grows no further for want of this, and says so once a minute.
    pub(super) fn note_full(&self, resource: BufferResource) {
        let (warning, name) = match resource {
            BufferResource::Disk => (&self.short_of_disk, "disk"),
            BufferResource::Memory => (&self.short_of_memory, "memory"),
        };
        let limit = self.usage(resource).limit.load(Ordering::Relaxed);
        // A limit of nothing was asked for, and is no news.
        if limit == 0 {
            return;
        }
        if let Some(times) = warning.note(self.clock.now()) {
            tracing::warn!(
                times,
                limit,
                "`{name}` of `buffers` is used up: slow clients slow upstreams down"
            );
        }
    }

    /// Counts a file that could not be written, and says so once a minute.
    pub(super) fn note_broken(&self, directory: &Path, error: &io::Error) {
        if let Some(times) = self.broken_disk.note(self.clock.now()) {
            let directory = directory.display();
            tracing::warn!(
                times,
                %directory,
                "temporary file cannot be written: {error}; slow clients slow upstreams down"
            );
        }
    }

    fn usage(&self, resource: BufferResource) -> &PoolUsage {
        match resource {
            BufferResource::Disk => &self.disk,
            BufferResource::Memory => &self.memory,
        }
    }
}

impl BufferCharge {
    /// Nothing yet.
    pub(super) fn new(bounds: &Arc<BufferPool>, resource: BufferResource) -> Self {
        Self {
            bounds: Arc::clone(bounds),
            resource,
            bytes: 0,
        }
    }

    pub(super) fn bounds(&self) -> &Arc<BufferPool> {
        &self.bounds
    }

    /// Whether anything is left.
    pub(super) fn has_room(&self) -> bool {
        let usage = self.usage();
        usage.used.load(Ordering::Relaxed) < usage.limit.load(Ordering::Relaxed)
    }

    /// Whether most of it is in use.
    pub(super) fn is_short(&self) -> bool {
        let usage = self.usage();
        let limit = usage.limit.load(Ordering::Relaxed);
        usage.used.load(Ordering::Relaxed) > limit - limit / 4
    }

    /// So much is in use from now on, whether there is room for it or not.
    pub(super) fn set(&mut self, bytes: u64) {
        let used = &self.usage().used;
        if bytes > self.bytes {
            used.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// So much is in use from now on, if there is room for it.
    pub(super) fn raise(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let usage = self.usage();
        let limit = usage.limit.load(Ordering::Relaxed);
        // Counted first: two that come at once are both in the number.
        let before = usage.used.fetch_add(more, Ordering::Relaxed);
        if more > 0 && before.saturating_add(more) > limit {
            usage.used.fetch_sub(more, Ordering::Relaxed);
            return false;
        }
        self.bytes += more;
        true
    }

    fn usage(&self) -> &PoolUsage {
        self.bounds.usage(self.resource)
    }
}

impl fmt::Debug for BufferCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {:?}", self.bytes, self.resource)
    }
}

impl Drop for BufferCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Tries every directory for temporary files that is named and adds what is wrong with it to the report.
pub fn check_buffers(plan: &Plan, report: &mut Report) {
    for directory in &plan.temp_paths {
        if let Err(error) = disk::open(&directory.path) {
            let path = directory.path.display();
            let sentence = format!("no file can be made in `{path}`: {error}");
            let hint = "name a directory that is there and that weir may write to";
            report.note(Severity::Error, directory.span, sentence, Some(hint));
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn used(bounds: &BufferPool) -> (u64, u64) {
        let used = |usage: &PoolUsage| usage.used.load(Ordering::Relaxed);
        (used(&bounds.memory), used(&bounds.disk))
    }

    #[test]
    fn what_is_dropped_is_given_back() {
        let bounds = BufferPool::new(BufferBounds {
            memory: 100,
            disk: 50,
        });
        let mut memory = BufferCharge::new(&bounds, BufferResource::Memory);
        let mut disk = BufferCharge::new(&bounds, BufferResource::Disk);
        memory.set(70);
        assert!(memory.has_room() && !memory.is_short());
        memory.set(120);
        assert!(!memory.has_room() && memory.is_short());
        assert!(disk.raise(50) && !disk.raise(51) && disk.raise(10));
        assert_eq!(used(&bounds), (120, 50));
        drop((memory, disk));
        assert_eq!(used(&bounds), (0, 0));
    }
}
