//! Letting a key begin anew: what this gateway holds for it, and what it was told of it, is gone.

use super::{ZoneLeases, class};
use crate::store::key::Key;

impl ZoneLeases {
    /// Forgets a key by whichever numbers it is held to.
    pub fn forget_key(&self, key: &Key) {
        // Every rule's numbers have an account of their own, in a place of its own: nobody asks for this often.
        for table in &self.tables {
            table.lock().retain(|entry| {
                let own = self.seeds.apart(key, class(&entry.account.terms));
                own.packed != entry.key
            });
        }
    }
}
