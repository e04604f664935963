//! Who has been asked for one request.

/// The servers a request has been to; nobody is asked twice.
#[derive(Debug, Default)]
pub(in crate::upstream) struct Round {
    // Nearly every request is answered by the first: no allocation for it.
    first: Option<usize>,
    others: Vec<usize>,
    /// No primary could be asked, and none is asked any more.
    pub(super) backups: bool,
}

impl Round {
    /// Those asked so far, in their order.
    pub(super) fn tried(&self) -> impl Iterator<Item = usize> + Clone {
        self.first.iter().chain(&self.others).copied()
    }

    /// How many those are.
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    pub(super) fn mark(&mut self, index: usize) {
        match self.first {
            None => self.first = Some(index),
            Some(_) => self.others.push(index),
        }
    }
}
