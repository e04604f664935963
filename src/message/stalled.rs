//! Reading on while a client takes nothing.
//!
//! A response is asked for its next piece when the client can take one. One that is buffered wants to be read while the
//! client cannot, too, and who notices that is the connection, in whose task all of it happens.

use std::fmt;
use std::sync::Arc;
use std::task::Context;

use parking_lot::Mutex;

/// A response that is read while its client takes nothing.
pub trait ReadAhead: fmt::Debug + Send + Sync {
    /// Reads what has come, as far as there is room for it; the task is woken when there is more to do.
    fn refill(&self, context: &mut Context<'_>);
}

/// Where a connection finds the response it is busy with, if that is one to be read meanwhile.
#[derive(Debug, Default)]
pub struct ReadAheadSlot(Mutex<Option<Arc<dyn ReadAhead>>>);

impl ReadAheadSlot {
    /// This is it from now on, or none is.
    pub fn set(&self, refill: Option<Arc<dyn ReadAhead>>) {
        *self.0.lock() = refill;
    }

    /// The client takes nothing at the moment.
    pub fn run(&self, context: &mut Context<'_>) {
        let refill = self.0.lock().clone();
        if let Some(refill) = refill {
            refill.refill(context);
        }
    }
}
