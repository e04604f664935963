//! What weir has open and holds, from second to second.

use std::thread;
use std::time::Duration;

use super::Result;
use super::process::Process;

/// Descriptors and memory over time.
#[derive(Debug)]
pub(crate) struct Samples {
    /// Before the first request.
    idle: usize,
    all: Vec<(usize, u64)>,
}

impl Samples {
    pub(crate) fn begin(weir: &Process) -> Self {
        Self {
            idle: descriptors(weir),
            all: Vec::new(),
        }
    }

    pub(crate) fn take(&mut self, weir: &Process) {
        self.all.push((descriptors(weir), weir.memory()));
    }

    pub(crate) fn last(&self) -> String {
        let (descriptors, memory) = self.all.last().copied().unwrap_or_default();
        format!("{descriptors} descriptors, {memory} KB")
    }

    /// Prints how it went; an error if there was more and more.
    pub(crate) fn judge(&self, weir: &Process) -> Result<()> {
        // The first fifth is for getting to where it stays.
        let fifth = self.all.len() / 5;
        let (early, late) = (&self.all[fifth..2 * fifth], &self.all[4 * fifth..]);
        let most = |samples: &[(usize, u64)]| {
            let descriptors = samples.iter().map(|sample| sample.0).max();
            let memory = samples.iter().map(|sample| sample.1).max();
            (descriptors.unwrap_or(0), memory.unwrap_or(0))
        };
        let (early, late) = (most(early), most(late));
        println!("descriptors: at most {} early, {} late", early.0, late.0);
        println!("memory: at most {} KB early, {} KB late", early.1, late.1);
        let mut idle = descriptors(weir);
        // Kept connections are closed after three seconds.
        for _ in 0..20 {
            if idle <= self.idle + SPARE {
                break;
            }
            thread::sleep(Duration::from_secs(1));
            idle = descriptors(weir);
        }
        let before = self.idle;
        println!("descriptors with nothing to do: {before} before, {idle} after");
        if idle > before + SPARE {
            return Err("descriptors were left open".into());
        }
        if late.1 > early.1 + early.1 / 5 + 4096 {
            return Err("memory has grown".into());
        }
        if late.0 > 2 * early.0 + 50 {
            return Err("descriptors have grown".into());
        }
        Ok(())
    }
}

/// How many it has open.
fn descriptors(weir: &Process) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", weir.child.id()));
    open.map_or(0, Iterator::count)
}

/// A few checks may be under way at any time, and a look-up.
const SPARE: usize = 6;
