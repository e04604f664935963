//! Gates that hold responses until a test opens them: a response is slow for as long as the test needs it to be, not for
//! a guessed time.

use std::collections::HashMap;
use std::io;

use parking_lot::{Condvar, Mutex};

use super::PATIENCE;

/// All gates of one backend, by name.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    gates: Mutex<HashMap<String, Gate>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Gate {
    waiting: usize,
    open: bool,
}

impl Gates {
    /// Waits until the gate is open; one that stays closed is not passed.
    pub(crate) fn pass(&self, name: &str) -> io::Result<()> {
        let mut gates = self.gates.lock();
        gates.entry(name.to_owned()).or_default().waiting += 1;
        self.changed.notify_all();
        while !gates[name].open {
            if self.changed.wait_for(&mut gates, PATIENCE).timed_out() {
                break;
            }
        }
        let open = gates.get_mut(name).is_some_and(|gate| {
            gate.waiting -= 1;
            gate.open
        });
        self.changed.notify_all();
        match open {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Opens a gate for those who wait and all who come.
    pub(crate) fn open(&self, name: &str) {
        self.gates.lock().entry(name.to_owned()).or_default().open = true;
        self.changed.notify_all();
    }

    /// Waits until `count` wait behind the gate.
    pub(crate) fn await_waiting(&self, name: &str, count: usize) {
        let mut gates = self.gates.lock();
        while gates.get(name).map_or(0, |gate| gate.waiting) != count {
            assert!(
                !self.changed.wait_for(&mut gates, PATIENCE).timed_out(),
                "{} instead of {count} wait behind gate {name}",
                gates.get(name).map_or(0, |gate| gate.waiting),
            );
        }
    }

    /// How many wait behind the gate.
    pub(crate) fn waiting(&self, name: &str) -> usize {
        self.gates.lock().get(name).map_or(0, |gate| gate.waiting)
    }
}
