//! Who has been asked for one request, and where the search for the next one stands.

/// The servers a request has been to; nobody is asked twice.
#[derive(Debug, Default)]
pub(in crate::upstream) struct TriedPeers {
    // Nearly every request is answered by the first: no allocation for it.
    first: Option<usize>,
    others: Vec<usize>,
    /// No primary could be asked, and none is asked any more.
    pub(super) backups: bool,
    /// Where servers are sought by what the request is. Boxed: most are not.
    pub(super) search: Option<Box<HashSearch>>,
}

/// A search for a server that goes on where it has stopped, from one try to the next.
#[derive(Debug, Default)]
pub(super) struct HashSearch {
    /// What is hashed.
    pub(super) key: Vec<u8>,
    /// Where the search has got to.
    pub(super) hash: u64,
    /// How often it has been hashed.
    pub(super) hashed: u32,
    /// How often it found somebody who could not be asked.
    pub(super) misses: u32,
}

impl TriedPeers {
    /// Those asked so far, in their order.
    pub(super) fn tried(&self) -> impl Iterator<Item = usize> + Clone {
        self.first.iter().chain(&self.others).copied()
    }

    /// How many those are.
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    /// Whether nobody was.
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Nobody could be asked, which may have changed: the search begins again. Who was asked stays asked.
    pub(in crate::upstream) fn begin_again(&mut self) {
        self.backups = false;
        if let Some(search) = &mut self.search {
            (search.hash, search.hashed, search.misses) = (0, 0, 0);
        }
    }

    pub(super) fn mark(&mut self, index: usize) {
        match self.first {
            None => self.first = Some(index),
            Some(_) => self.others.push(index),
        }
    }
}

impl HashSearch {
    /// One more could not be asked.
    pub(super) fn miss(&mut self) {
        self.misses += 1;
    }

    /// Whether it has missed so often that who has a turn is asked; nginx's number.
    pub(super) fn is_over(&self) -> bool {
        self.misses > 20
    }
}
