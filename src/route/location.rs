//! `location`: `=`, `^~`, `~`, `~*`, prefix, in nginx's order of preference.
//!
//! One walk along the path through a trie of prefixes finds all that the path's own bytes decide: the longest prefix, the
//! exact location, and whether only a slash is missing. The walk takes as many steps as there are branches on its way,
//! however many locations there are.
//!
//! Expressions are tried one after the other, as in nginx, but only those that can match a path with this prefix. Most
//! of them name a folder first, as in `^/api/v[12]/`, so a thousand of them cost what one costs.

use regex::bytes::Regex;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{HirKind, Look};

use crate::config::plan::PathRule;

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
    pub(super) fn walk<'t>(&'t self, mut path: &[u8], mut visit: impl FnMut(&'t T, &[u8])) {
        let mut node = &self.nodes[0];
        loop {
            if let Some(value) = &node.value {
                visit(value, path);
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
    pub(super) fn each(&self, visit: &mut impl FnMut(&[u8], &T)) {
        self.each_under(0, &mut Vec::new(), visit);
    }

    fn each_under(&self, at: usize, path: &mut Vec<u8>, visit: &mut impl FnMut(&[u8], &T)) {
        let node = &self.nodes[at];
        path.extend_from_slice(&node.label);
        if let Some(value) = &node.value {
            visit(path, value);
        }
        for (_, next) in &node.below {
            self.each_under(*next as usize, path, visit);
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

/// The bytes without which a path cannot match; empty where it can begin with anything.
pub(super) fn required_prefix(expression: &Regex) -> Box<[u8]> {
    // As the configuration compiles them: on bytes, and with the case that counts written into it.
    let mut parser = ParserBuilder::new().unicode(false).utf8(false).build();
    let Ok(tree) = parser.parse(expression.as_str()) else {
        return Box::default();
    };
    let HirKind::Concat(parts) = tree.kind() else {
        return Box::default();
    };
    match &**parts {
        [start, first, ..] if *start.kind() == HirKind::Look(Look::Start) => match first.kind() {
            HirKind::Literal(literal) => literal.0.clone(),
            _ => Box::default(),
        },
        _ => Box::default(),
    }
}

/// The locations of one server.
#[derive(Debug)]
pub struct Locations<T> {
    values: Vec<T>,
    paths: Trie<PathEntries>,
    expressions: Vec<(Regex, usize)>,
    without_slash: bool,
}

/// The locations of one path, by index.
#[derive(Debug, Default)]
struct PathEntries {
    exact: Option<usize>,
    prefix: Option<PrefixEntry>,
    /// Of the path with one more slash, if there is none of this one.
    without_slash: Option<usize>,
    /// Expressions that match only paths with this beginning.
    expressions_here: Vec<usize>,
    /// All that can match a path with this beginning; `None` for those of the longest shorter one.
    candidates: Option<Box<[usize]>>,
}

#[derive(Debug, Clone, Copy)]
struct PrefixEntry {
    index: usize,
    /// No expression is tried where this is the longest.
    stops: bool,
}

impl<T> Locations<T> {
    /// Sorts locations by kind. Of two equal paths the first wins.
    pub fn build(locations: impl IntoIterator<Item = (PathRule, T)>) -> Self {
        let mut all = Self {
            values: Vec::new(),
            paths: Trie::new(),
            expressions: Vec::new(),
            without_slash: false,
        };
        for (index, (rule, value)) in locations.into_iter().enumerate() {
            all.values.push(value);
            let (path, stops) = match rule {
                PathRule::Exact(path) => {
                    let entries = all.paths.entry(path.as_bytes());
                    entries.exact.get_or_insert(index);
                    continue;
                }
                PathRule::Expression(expression) => {
                    let entries = all.paths.entry(&required_prefix(&expression));
                    entries.expressions_here.push(all.expressions.len());
                    all.expressions.push((expression, index));
                    continue;
                }
                PathRule::Prefix(path) => (path, false),
                PathRule::PrefixFirst(path) => (path, true),
            };
            let entries = all.paths.entry(path.as_bytes());
            entries.prefix.get_or_insert(PrefixEntry { index, stops });
        }
        all.add_slash_redirects();
        all.add_candidates();
        all
    }

    /// What holds at a normalised path.
    #[must_use]
    pub fn find(&self, path: &[u8]) -> Option<&T> {
        self.values.get(self.find_index(path)?)
    }

    /// The location that is this path with a slash at its end, where no other names this very path. nginx answers such
    /// a path with a 301 if the location forwards.
    #[must_use]
    pub fn redirects_to_slash(&self, path: &[u8]) -> Option<&T> {
        if !self.without_slash {
            return None;
        }
        let mut without_slash = None;
        self.paths.walk(path, |entries, rest| {
            if rest.is_empty() {
                without_slash = entries.without_slash;
            }
        });
        self.values.get(without_slash?)
    }

    fn find_index(&self, path: &[u8]) -> Option<usize> {
        let (mut exact, mut prefix, mut candidates) = (None, None, None);
        self.paths.walk(path, |entries, rest| {
            if rest.is_empty() {
                exact = entries.exact;
            }
            prefix = entries.prefix.or(prefix);
            candidates = entries.candidates.as_deref().or(candidates);
        });
        if exact.is_some() {
            return exact;
        }
        if prefix.is_none_or(|prefix| !prefix.stops) {
            let mut expressions = candidates
                .into_iter()
                .flatten()
                .map(|at| &self.expressions[*at]);
            if let Some((_, index)) = expressions.find(|(expression, _)| expression.is_match(path))
            {
                return Some(*index);
            }
        }
        prefix.map(|prefix| prefix.index)
    }

    /// Adds to the expressions that begin somewhere those that begin before, all in the file's order.
    fn add_candidates(&mut self) {
        let mut all: Vec<(Box<[u8]>, Vec<usize>)> = Vec::new();
        self.paths.each(&mut |path, entries: &PathEntries| {
            if entries.expressions_here.is_empty() {
                return;
            }
            let mut candidates = Vec::new();
            self.paths.walk(path, |entries, _| {
                candidates.extend_from_slice(&entries.expressions_here)
            });
            candidates.sort_unstable();
            all.push((path.into(), candidates));
        });
        for (path, candidates) in all {
            self.paths.entry(&path).candidates = Some(candidates.into());
        }
    }

    /// Remembers every path that a location names with one more slash, and that no location names itself.
    fn add_slash_redirects(&mut self) {
        let mut without_slash: Vec<(Box<[u8]>, usize)> = Vec::new();
        self.paths.each(&mut |path, entries: &PathEntries| {
            // A path both exact and a prefix is taken from the exact one, as it would be found.
            let index = entries
                .exact
                .or_else(|| entries.prefix.map(|prefix| prefix.index));
            if let (Some(index), Some(path)) = (index, path.strip_suffix(b"/"))
                && !path.is_empty()
            {
                without_slash.push((path.into(), index));
            }
        });
        for (path, index) in without_slash {
            let entries = self.paths.entry(&path);
            if entries.exact.is_none() && entries.prefix.is_none() {
                entries.without_slash = Some(index);
                self.without_slash = true;
            }
        }
    }
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
            let mut index = BTreeSet::new();
            trie.each(&mut |path, value| {
                assert_eq!(path, value.as_bytes());
                index.insert(value.clone());
            });
            prop_assert_eq!(index, paths);
        }
    }
}

#[cfg(test)]
mod expression_tests {

    use super::*;

    #[test]
    fn only_what_is_certain_is_said() {
        for (expression, expected) in [
            ("^/api/v[12]/", "/api/v"),
            ("^/api$", "/api"),
            (r"^/a\.b+", "/a."),
            ("^/(?:a|b)", "/"),
            ("/api/", ""),
            ("(?i)^/api/", "/"),
            ("(?i)^/a", "/"),
            ("(?i)^a", ""),
            ("(?m)^/api/", ""),
            ("^/api/|^/b", ""),
            ("^(/api/)", ""),
            ("^/a*", "/"),
            (r"\.(gif|jpg)$", ""),
            ("^", ""),
            ("", ""),
        ] {
            let index = required_prefix(&Regex::new(expression).unwrap());
            assert_eq!(String::from_utf8_lossy(&index), expected, "{expression}");
        }
    }
}

#[cfg(test)]
mod location_tests {

    use proptest::prelude::*;

    use super::*;

    fn rule(text: &str) -> PathRule {
        match text.split_once(' ') {
            Some(("=", path)) => PathRule::Exact(path.into()),
            Some(("^~", path)) => PathRule::PrefixFirst(path.into()),
            Some(("~", expression)) => PathRule::Expression(Regex::new(expression).unwrap()),
            Some(("~*", expression)) => {
                PathRule::Expression(Regex::new(&format!("(?i){expression}")).unwrap())
            }
            _ => PathRule::Prefix(text.into()),
        }
    }

    fn locations<'a>(texts: &[&'a str]) -> Locations<&'a str> {
        Locations::build(texts.iter().map(|text| (rule(text), *text)))
    }

    fn find<'a>(locations: &Locations<&'a str>, path: &str) -> Option<&'a str> {
        locations.find(path.as_bytes()).copied()
    }

    /// The example in nginx's document on `location`: configurations A to E.
    #[test]
    fn nginx_documented_example_holds() {
        let all = locations(&[
            "= /",
            "/",
            "/documents/",
            "^~ /images/",
            r"~* \.(gif|jpg|jpeg)$",
        ]);
        assert_eq!(find(&all, "/"), Some("= /"));
        assert_eq!(find(&all, "/index.html"), Some("/"));
        assert_eq!(find(&all, "/documents/document.html"), Some("/documents/"));
        assert_eq!(find(&all, "/images/1.gif"), Some("^~ /images/"));
        assert_eq!(
            find(&all, "/documents/1.jpg"),
            Some(r"~* \.(gif|jpg|jpeg)$")
        );
        assert_eq!(
            find(&all, "/documents/1.JPG"),
            Some(r"~* \.(gif|jpg|jpeg)$")
        );
    }

    #[test]
    fn expressions_are_tried_in_the_files_order() {
        let all = locations(&["/", "~ ^/a", "~ ^/ab", "~ b$"]);
        assert_eq!(find(&all, "/ab"), Some("~ ^/a"));
        assert_eq!(find(&all, "/xb"), Some("~ b$"));
        assert_eq!(find(&all, "/x"), Some("/"));
    }

    #[test]
    fn only_the_longest_prefix_can_stop_the_search_for_expressions() {
        let all = locations(&["^~ /a/", "/a/b/", "~ x$"]);
        assert_eq!(find(&all, "/a/x"), Some("^~ /a/"));
        assert_eq!(find(&all, "/a/b/x"), Some("~ x$"));
        assert_eq!(find(&all, "/a/b/y"), Some("/a/b/"));
    }

    #[test]
    fn a_prefix_need_not_end_at_a_slash() {
        let all = locations(&["/a", "/ab/", "/abc"]);
        assert_eq!(find(&all, "/a"), Some("/a"));
        assert_eq!(find(&all, "/ab"), Some("/a"));
        assert_eq!(find(&all, "/ab/c"), Some("/ab/"));
        assert_eq!(find(&all, "/abcd"), Some("/abc"));
        assert_eq!(find(&all, "/A"), None);
        assert_eq!(find(&all, "/"), None);
    }

    #[test]
    fn without_any_match_nothing_is_found() {
        assert_eq!(find(&locations(&[]), "/"), None);
        assert_eq!(find(&locations(&["= /x", "~ y"]), "/"), None);
    }

    #[test]
    fn of_two_equal_paths_the_first_wins() {
        let all = Locations::build([("/a", 1), ("/a", 2)].map(|(path, n)| (rule(path), n)));
        assert_eq!(all.find(b"/a"), Some(&1));
    }

    #[test]
    fn a_path_without_its_last_slash_is_known_unless_a_location_names_it() {
        let all = locations(&[
            "/",
            "/user/",
            "= /exact/",
            "/both",
            "/both/",
            "= /own",
            "/own/",
            "~ ^/user$",
        ]);
        let redirects = |path: &str| all.redirects_to_slash(path.as_bytes()).copied();
        assert_eq!(redirects("/user"), Some("/user/"));
        assert_eq!(redirects("/exact"), Some("= /exact/"));
        for path in ["/both", "/own", "/user/", "/", "", "/use"] {
            assert_eq!(redirects(path), None, "{path}");
        }
    }

    proptest! {
        /// Leaving expressions out by their beginnings never changes which is found.
        #[test]
        fn the_first_expression_that_matches_is_found(
            expressions in prop::collection::vec(r"(\(\?i\))?\^?[aAb/]{0,4}(\.|[ab]\*|\$)?", 0..12),
            path in "/[aAb/]{0,6}",
        ) {
            let rules: Vec<_> = expressions.iter().map(|text| Regex::new(text).unwrap()).collect();
            let first = rules.iter().position(|rule| rule.is_match(path.as_bytes()));
            let all = Locations::build(rules.into_iter().map(PathRule::Expression).zip(0..));
            prop_assert_eq!(all.find(path.as_bytes()).copied(), first);
        }

        #[test]
        fn the_longest_prefix_is_what_a_plain_search_finds(
            paths in prop::collection::btree_set("/[ab/]{0,6}", 0..40),
            path in "/[ab/]{0,8}",
        ) {
            let all = Locations::build(paths.iter().map(|p| (PathRule::Prefix(p.as_str().into()), p)));
            let plain = paths.iter().filter(|p| path.starts_with(p.as_str())).max_by_key(|p| p.len());
            prop_assert_eq!(all.find(path.as_bytes()).copied(), plain);
        }
    }
}
