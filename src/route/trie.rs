//! Paths by their beginnings: one walk along a path meets every stored path that it begins with.
//!
//! What many paths have in common stands there once, so a walk takes as many steps as there are places on its way
//! where stored paths part, however many there are in all.

/// Values by path.
#[derive(Debug)]
pub(super) struct Trie<T> {
    // The root first; it stands for the empty path.
    nodes: Vec<TrieNode<T>>,
}

#[derive(Debug)]
struct TrieNode<T> {
    /// What leads here from the node above.
    label: Box<[u8]>,
    value: Option<T>,
    /// The nodes below by the first byte of their labels, sorted.
    below: Vec<(u8, u32)>,
}

impl<T> Trie<T> {
    pub(super) fn new() -> Self {
        Self {
            nodes: vec![TrieNode::new(b"")],
        }
    }

    /// The value of a path, made where there is none.
    pub(super) fn entry(&mut self, mut path: &[u8]) -> &mut T
    where
        T: Default,
    {
        let mut at = 0;
        while let Some(&byte) = path.first() {
            match self.nodes[at].below(byte) {
                Ok(next) => {
                    let shared = shared(&self.nodes[next].label, path);
                    self.split(next, shared);
                    (at, path) = (next, &path[shared..]);
                }
                Err(place) => {
                    let next = self.nodes.len();
                    self.nodes.push(TrieNode::new(path));
                    self.nodes[at].below.insert(place, (byte, narrow(next)));
                    (at, path) = (next, &[]);
                }
            }
        }
        self.nodes[at].value.get_or_insert_default()
    }

    /// Shows every value on the way along a path, the shortest path's first, with what is left of this one there.
    pub(super) fn walk<'t>(&'t self, mut path: &[u8], mut see: impl FnMut(&'t T, &[u8])) {
        let mut node = &self.nodes[0];
        loop {
            if let Some(value) = &node.value {
                see(value, path);
            }
            let Some(Ok(next)) = path.first().map(|byte| node.below(*byte)) else {
                return;
            };
            node = &self.nodes[next];
            let Some(rest) = path.strip_prefix(&*node.label) else {
                return;
            };
            path = rest;
        }
    }

    /// Every value with its path.
    pub(super) fn each(&self, see: &mut impl FnMut(&[u8], &T)) {
        self.each_under(0, &mut Vec::new(), see);
    }

    fn each_under(&self, at: usize, path: &mut Vec<u8>, see: &mut impl FnMut(&[u8], &T)) {
        let node = &self.nodes[at];
        path.extend_from_slice(&node.label);
        if let Some(value) = &node.value {
            see(path, value);
        }
        for (_, next) in &node.below {
            self.each_under(*next as usize, path, see);
        }
        path.truncate(path.len() - node.label.len());
    }

    /// Ends a node's label after so many bytes, and hangs the rest of it below.
    fn split(&mut self, at: usize, length: usize) {
        let next = self.nodes.len();
        let node = &mut self.nodes[at];
        let (label, rest) = node.label.split_at(length);
        let Some(&byte) = rest.first() else {
            return;
        };
        let rest = TrieNode {
            label: rest.into(),
            value: node.value.take(),
            below: std::mem::replace(&mut node.below, vec![(byte, narrow(next))]),
        };
        node.label = label.into();
        self.nodes.push(rest);
    }
}

impl<T> TrieNode<T> {
    fn new(label: &[u8]) -> Self {
        Self {
            label: label.into(),
            value: None,
            below: Vec::new(),
        }
    }

    /// The node below whose label begins with this byte, or where it belongs.
    fn below(&self, byte: u8) -> Result<usize, usize> {
        self.below
            .binary_search_by_key(&byte, |(first, _)| *first)
            .map(|place| self.below[place].1 as usize)
    }
}

/// How many bytes two texts have in common at their beginning.
fn shared(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

fn narrow(node: usize) -> u32 {
    u32::try_from(node).expect("no configuration has as many locations")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_walk_meets_exactly_the_paths_it_begins_with(
            paths in prop::collection::btree_set("[ab/]{0,6}", 0..40),
            path in "[ab/]{0,8}",
        ) {
            let mut trie: Trie<String> = Trie::new();
            for path in &paths {
                trie.entry(path.as_bytes()).clone_from(path);
            }
            let mut met: Vec<(&String, usize)> = Vec::new();
            trie.walk(path.as_bytes(), |value, rest| met.push((value, rest.len())));
            let expected: Vec<_> = paths
                .iter()
                .filter(|stored| path.starts_with(stored.as_str()))
                .map(|stored| (stored, path.len() - stored.len()))
                .collect();
            prop_assert_eq!(met, expected);
        }

        #[test]
        fn every_value_is_found_again(paths in prop::collection::btree_set("[ab/]{0,6}", 0..40)) {
            let mut trie: Trie<String> = Trie::new();
            for path in &paths {
                trie.entry(path.as_bytes()).clone_from(path);
            }
            let mut found = BTreeSet::new();
            trie.each(&mut |path, value| {
                assert_eq!(path, value.as_bytes());
                found.insert(value.clone());
            });
            prop_assert_eq!(found, paths);
        }
    }
}
