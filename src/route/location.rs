//! `location`: `=`, `^~`, `~`, `~*`, prefix, in nginx's order of preference.
//!
//! Prefixes stand sorted, each knowing the longest other one it begins with. Whatever prefix of a path is in the
//! list, the last entry not after that path begins with it too: so one binary search finds the neighbourhood and a
//! few steps outwards the longest match, without hashing and however many locations there are.

use std::collections::HashMap;

use regex::bytes::Regex;

use crate::config::plan::PathRule;

/// The locations of one server.
#[derive(Debug)]
pub struct Locations<T> {
    found: Vec<T>,
    exact: HashMap<Box<[u8]>, usize>,
    prefixes: Vec<Prefix>,
    expressions: Vec<(Regex, usize)>,
    /// Paths that a location names with one more slash, and that no location names itself.
    slashless: HashMap<Box<[u8]>, usize>,
}

#[derive(Debug)]
struct Prefix {
    path: Box<[u8]>,
    found: usize,
    stops: bool,
    /// The longest other prefix this one begins with.
    outer: Option<usize>,
}

impl<T> Locations<T> {
    /// Sorts locations by kind. Of two equal paths the first wins.
    pub fn build(locations: impl IntoIterator<Item = (PathRule, T)>) -> Self {
        let mut found = Vec::new();
        let mut exact = HashMap::new();
        let mut prefixes = Vec::new();
        let mut expressions = Vec::new();
        for (index, (rule, value)) in locations.into_iter().enumerate() {
            found.push(value);
            let (path, stops) = match rule {
                PathRule::Exact(path) => {
                    exact.entry(path.into_boxed_bytes()).or_insert(index);
                    continue;
                }
                PathRule::Expression(expression) => {
                    expressions.push((expression, index));
                    continue;
                }
                PathRule::Prefix(path) => (path, false),
                PathRule::PrefixFirst(path) => (path, true),
            };
            prefixes.push(Prefix {
                path: path.into_boxed_bytes(),
                found: index,
                stops,
                outer: None,
            });
        }
        nest(&mut prefixes);
        Self {
            slashless: slashless(&exact, &prefixes),
            found,
            exact,
            prefixes,
            expressions,
        }
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
        if self.slashless.is_empty() {
            return None;
        }
        self.found.get(*self.slashless.get(path)?)
    }

    fn index(&self, path: &[u8]) -> Option<usize> {
        if !self.exact.is_empty()
            && let Some(index) = self.exact.get(path)
        {
            return Some(*index);
        }
        let prefix = self.longest_prefix(path);
        if prefix.is_none_or(|prefix| !prefix.stops) {
            let mut expressions = self.expressions.iter();
            if let Some((_, index)) = expressions.find(|(expression, _)| expression.is_match(path))
            {
                return Some(*index);
            }
        }
        prefix.map(|prefix| prefix.found)
    }

    fn longest_prefix(&self, path: &[u8]) -> Option<&Prefix> {
        let after = self
            .prefixes
            .partition_point(|prefix| *prefix.path <= *path);
        let mut prefix = &self.prefixes[after.checked_sub(1)?];
        let shared = prefix
            .path
            .iter()
            .zip(path)
            .take_while(|(a, b)| a == b)
            .count();
        while prefix.path.len() > shared {
            prefix = &self.prefixes[prefix.outer?];
        }
        Some(prefix)
    }
}

/// Sorts prefixes and links each to the one around it.
fn nest(prefixes: &mut Vec<Prefix>) {
    prefixes.sort_by(|a, b| a.path.cmp(&b.path));
    prefixes.dedup_by(|later, first| later.path == first.path);
    let mut around: Vec<usize> = Vec::new();
    for index in 0..prefixes.len() {
        while let Some(&outer) = around.last()
            && !prefixes[index].path.starts_with(&prefixes[outer].path)
        {
            around.pop();
        }
        prefixes[index].outer = around.last().copied();
        around.push(index);
    }
}

fn slashless(exact: &HashMap<Box<[u8]>, usize>, prefixes: &[Prefix]) -> HashMap<Box<[u8]>, usize> {
    let named = |path: &[u8]| {
        exact.contains_key(path)
            || prefixes
                .binary_search_by(|prefix| (*prefix.path).cmp(path))
                .is_ok()
    };
    let exact = exact.iter().map(|(path, index)| (path, *index));
    let prefixes = prefixes.iter().map(|prefix| (&prefix.path, prefix.found));
    // A path both exact and a prefix is taken from the exact one, as it would be found.
    prefixes
        .chain(exact)
        .filter_map(|(path, index)| Some((path.strip_suffix(b"/")?, index)))
        .filter(|(path, _)| !path.is_empty() && !named(path))
        .map(|(path, index)| (path.into(), index))
        .collect()
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
