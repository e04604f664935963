//! `location`: `=`, `^~`, `~`, `~*`, prefix, in nginx's order of preference.
//!
//! Everything that is told by the path's own bytes is found in one walk along it: the longest prefix, the exact
//! location, and whether only a slash is missing. Expressions are tried one after the other, as in nginx, but only
//! those that can match a path with this beginning.

use regex::bytes::Regex;

use super::expression::beginning;
use super::trie::Trie;
use crate::config::plan::PathRule;

/// The locations of one server.
#[derive(Debug)]
pub struct Locations<T> {
    found: Vec<T>,
    paths: Trie<PathEntries>,
    expressions: Vec<(Regex, usize)>,
    slashless: bool,
}

/// The locations of one path, by index.
#[derive(Debug, Default)]
struct PathEntries {
    exact: Option<usize>,
    prefix: Option<PrefixEntry>,
    /// Of the path with one more slash, if there is none of this one.
    slashless: Option<usize>,
    /// Expressions that match only paths with this beginning.
    begin_here: Vec<usize>,
    /// All that can match a path with this beginning; `None` for those of the longest shorter one.
    candidates: Option<Box<[usize]>>,
}

#[derive(Debug, Clone, Copy)]
struct PrefixEntry {
    found: usize,
    /// No expression is tried where this is the longest.
    stops: bool,
}

impl<T> Locations<T> {
    /// Sorts locations by kind. Of two equal paths the first wins.
    pub fn build(locations: impl IntoIterator<Item = (PathRule, T)>) -> Self {
        let mut all = Self {
            found: Vec::new(),
            paths: Trie::new(),
            expressions: Vec::new(),
            slashless: false,
        };
        for (found, (rule, value)) in locations.into_iter().enumerate() {
            all.found.push(value);
            let (path, stops) = match rule {
                PathRule::Exact(path) => {
                    let named = all.paths.entry(path.as_bytes());
                    named.exact.get_or_insert(found);
                    continue;
                }
                PathRule::Expression(expression) => {
                    let named = all.paths.entry(&beginning(&expression));
                    named.begin_here.push(all.expressions.len());
                    all.expressions.push((expression, found));
                    continue;
                }
                PathRule::Prefix(path) => (path, false),
                PathRule::PrefixFirst(path) => (path, true),
            };
            let named = all.paths.entry(path.as_bytes());
            named.prefix.get_or_insert(PrefixEntry { found, stops });
        }
        all.note_slashless();
        all.note_candidates();
        all
    }

    /// What holds at a normalised path.
    #[must_use]
    pub fn find(&self, path: &[u8]) -> Option<&T> {
        self.found.get(self.index(path)?)
    }

    /// The location that is this path with a slash at its end, where no other names this very path. nginx answers such
    /// a path with a 301 if the location forwards.
    #[must_use]
    pub fn redirects_to_slash(&self, path: &[u8]) -> Option<&T> {
        if !self.slashless {
            return None;
        }
        let mut slashless = None;
        self.paths.walk(path, |named, rest| {
            if rest.is_empty() {
                slashless = named.slashless;
            }
        });
        self.found.get(slashless?)
    }

    fn index(&self, path: &[u8]) -> Option<usize> {
        let (mut exact, mut prefix, mut candidates) = (None, None, None);
        self.paths.walk(path, |named, rest| {
            if rest.is_empty() {
                exact = named.exact;
            }
            prefix = named.prefix.or(prefix);
            candidates = named.candidates.as_deref().or(candidates);
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
        prefix.map(|prefix| prefix.found)
    }

    /// Adds to the expressions that begin somewhere those that begin before, all in the file's order.
    fn note_candidates(&mut self) {
        let mut all: Vec<(Box<[u8]>, Vec<usize>)> = Vec::new();
        self.paths.each(&mut |path, named: &PathEntries| {
            if named.begin_here.is_empty() {
                return;
            }
            let mut candidates = Vec::new();
            self.paths.walk(path, |named, _| {
                candidates.extend_from_slice(&named.begin_here)
            });
            candidates.sort_unstable();
            all.push((path.into(), candidates));
        });
        for (path, candidates) in all {
            self.paths.entry(&path).candidates = Some(candidates.into());
        }
    }

    /// Remembers every path that a location names with one more slash, and that no location names itself.
    fn note_slashless(&mut self) {
        let mut slashless: Vec<(Box<[u8]>, usize)> = Vec::new();
        self.paths.each(&mut |path, named: &PathEntries| {
            // A path both exact and a prefix is taken from the exact one, as it would be found.
            let found = named
                .exact
                .or_else(|| named.prefix.map(|prefix| prefix.found));
            if let (Some(found), Some(path)) = (found, path.strip_suffix(b"/"))
                && !path.is_empty()
            {
                slashless.push((path.into(), found));
            }
        });
        for (path, found) in slashless {
            let named = self.paths.entry(&path);
            if named.exact.is_none() && named.prefix.is_none() {
                named.slashless = Some(found);
                self.slashless = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
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
