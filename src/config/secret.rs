//! Values that no log line, report or API response may contain.
//!
//! What is a secret follows from its type in the model, not from its name. Names count in two places only, because the
//! type cannot know: header fields and variables that carry credentials.
//!
//! Which parts of the files hold secrets, so that nothing that quotes the files quotes them.
//!
//! Decoding notes every node of a secret type here. A file that is not YAML has no types: there the names on the line
//! and around it decide, and more is hidden than need be.

#[cfg(test)]
#[path = "tests/secret_hidden.rs"]
mod hidden_tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use super::source::{Excerpt, Node, NodeKind, Span};

/// A password, a token or another credential.
// No `Display`, no `Serialize`, no `Deref`: `expose` is the only way to the text, and easy to search for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(Box<str>);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// The text, to be sent or compared, never to be shown.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// What is shown instead.
pub(super) const HIDDEN: &str = "***";

/// Whether a header field or a variable of this name carries a credential.
pub(super) fn is_credential(name: &str) -> bool {
    const WORDS: [&str; 10] = [
        "auth",
        "cookie",
        "credential",
        "jwt",
        "key",
        "passw",
        "secret",
        "session",
        "signature",
        "token",
    ];
    let name = name.to_ascii_lowercase();
    WORDS.iter().any(|word| name.contains(word))
}

/// Whether a text is one variable and nothing else, and so says nothing by itself.
pub(super) fn is_variable(text: &str) -> bool {
    let name = text.strip_prefix('$').unwrap_or_default();
    let name = name
        .strip_prefix('{')
        .and_then(|name| name.strip_suffix('}'))
        .unwrap_or(name);
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A text without these ranges of it, which are in order.
pub(super) fn without(text: &str, ranges: &[Range<usize>]) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut at = 0;
    for range in ranges {
        shown.push_str(text.get(at..range.start).unwrap_or_default());
        shown.push_str(HIDDEN);
        at = range.end;
    }
    shown.push_str(text.get(at..).unwrap_or_default());
    shown
}

/// The ranges of all `user:password` before an `@` in a text, such as those of URLs.
pub(super) fn logins(text: &str) -> Vec<Range<usize>> {
    let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | ',' | '[' | '{');
    let mut found = Vec::new();
    let mut from = 0;
    for (at, _) in text.match_indices('@') {
        let before = text.get(from..at).unwrap_or_default();
        let word = before.rfind(is_end).map_or(0, |end| end + 1);
        let word = before.get(word..).unwrap_or_default();
        let login = match word.rsplit_once("://") {
            Some((_, login)) => Some(login),
            None => Some(word).filter(|word| word.contains(':')),
        };
        // Behind a slash it is a part of a path.
        if let Some(login) = login.filter(|login| !login.is_empty() && !login.contains('/')) {
            found.push(at - login.len()..at);
        }
        from = at + 1;
    }
    found
}

/// The secrets of the files that were read.
#[derive(Debug, Default)]
pub(super) struct SecretIndex {
    /// By file and first byte.
    values: BTreeMap<(usize, usize), SecretNode>,
    /// Texts of hidden keys.
    keys: HashSet<Secret>,
    /// Files that are not YAML, with the names around the place where reading them ended.
    unread: HashMap<usize, Vec<String>>,
}

/// One node with a secret in it.
#[derive(Debug)]
struct SecretNode {
    end: usize,
    /// Its text as it was decoded; none where that was not possible.
    text: Option<Secret>,
    /// What of the text is secret; all of it for `None`.
    part: Option<Range<usize>>,
    /// Where in the file the text begins, if it stands there as it was decoded.
    verbatim: Option<usize>,
}

impl SecretIndex {
    /// Hides a node and everything below it.
    pub(super) fn add(&mut self, node: &Node) {
        match &node.kind {
            NodeKind::Mapping(pairs) => {
                for (key, value) in pairs {
                    self.add(key);
                    self.add(value);
                }
            }
            NodeKind::Sequence(items) => items.iter().for_each(|item| self.add(item)),
            NodeKind::Null | NodeKind::Scalar(_) | NodeKind::Unset => self.add_part(node, None),
        }
    }

    /// Hides a part of a node's text.
    pub(super) fn add_part(&mut self, node: &Node, part: Option<Range<usize>>) {
        let scalar = match &node.kind {
            NodeKind::Scalar(scalar) => Some(scalar),
            _ => None,
        };
        if scalar.is_some_and(|scalar| scalar.text.is_empty()) {
            return;
        }
        let value = SecretNode {
            end: node.span.end,
            text: scalar.map(|scalar| Secret::new(scalar.text.as_str())),
            part,
            verbatim: scalar.and_then(|scalar| scalar.verbatim),
        };
        let place = (node.span.file, node.span.start);
        // What is secret for one use of an anchor is so for all.
        match self.values.get_mut(&place) {
            Some(known) if value.part.is_none() => known.part = None,
            Some(_) => {}
            None => {
                self.values.insert(place, value);
            }
        }
    }

    /// Hides a key of a mapping.
    pub(super) fn add_key(&mut self, text: &str, span: Span) {
        self.keys.insert(Secret::new(text));
        self.add_text(text, span);
    }

    /// Hides a text that stands here.
    pub(super) fn add_text(&mut self, text: &str, span: Span) {
        self.values.insert(
            (span.file, span.start),
            SecretNode {
                end: span.end,
                text: Some(Secret::new(text)),
                part: None,
                verbatim: None,
            },
        );
    }

    /// Hides a value that is not decoded, if it may be a secret by its name or by those of the mappings around it.
    pub(super) fn add_undecoded(&mut self, key: &Node, value: &Node, around: &[String]) {
        match around.iter().any(|name| may_hold(name)) {
            true => self.add(value),
            false => self.add_by_name(key, value),
        }
    }

    /// Hides what follows a colon in a key, if it may be a secret: `{ token:abc }` is one key without a value.
    pub(super) fn add_key_with_colon(&mut self, key: &Node, around: &[String]) {
        let text = key.text().unwrap_or_default();
        if let Some((name, _)) = text.split_once(':')
            && (is_credential(name) || around.iter().any(|name| may_hold(name)))
        {
            self.add_part(key, Some(name.len() + 1..text.len()));
        }
    }

    /// Hides what looks like a secret by its names, where no type is known.
    pub(super) fn add_by_name(&mut self, key: &Node, value: &Node) {
        let name = key.text().unwrap_or_default();
        if is_secret_key(name) {
            self.add(value);
            return;
        }
        match &value.kind {
            NodeKind::Mapping(pairs) => {
                for (key, value) in pairs {
                    self.add_by_name(key, value);
                }
            }
            NodeKind::Sequence(items) => {
                for item in items {
                    self.add_by_name(key, item);
                }
            }
            NodeKind::Null | NodeKind::Scalar(_) | NodeKind::Unset => {}
        }
    }

    /// Notes a file that is not YAML; `around` are the keys of the mappings that were open where reading it ended.
    pub(super) fn add_unread(&mut self, file: usize, around: Vec<String>) {
        self.unread.insert(file, around);
    }

    /// A node's text with its secrets replaced; `None` if it has none.
    pub(super) fn shown(&self, node: &Node) -> Option<String> {
        let value = self.values.get(&(node.span.file, node.span.start))?;
        let text = node.text()?;
        Some(match &value.part {
            None => HIDDEN.to_owned(),
            Some(part) => without(text, std::slice::from_ref(part)),
        })
    }

    /// A line of a file with its secrets replaced, and what is marked in it; `source` is the whole file.
    pub(super) fn line(
        &self,
        excerpt: &Excerpt<'_>,
        file: usize,
        source: &str,
    ) -> (String, Range<usize>) {
        let line = excerpt.start..excerpt.start + excerpt.text.len();
        let mut ranges = logins(excerpt.text);
        if let Some(around) = self.unread.get(&file) {
            let before = source.get(..excerpt.start).unwrap_or_default();
            ranges.extend(by_name(excerpt.text, before, around));
        }
        // A value of many lines may begin before this one. Values do not overlap, so the last that begins before it
        // is the only one that can reach into it.
        let first = self.values.range((file, 0)..(file, line.start)).next_back();
        let within = self.values.range((file, line.start)..=(file, line.end));
        for ((_, start), value) in first.into_iter().chain(within) {
            let hidden = value.place(*start, source);
            let start = hidden.start.max(line.start);
            let end = hidden.end.min(line.end);
            if start < end {
                ranges.push(start - line.start..end - line.start);
            }
        }
        let ranges = merged(ranges);
        let marked = moved(&ranges, excerpt.marked.start, RangeSide::Start)
            ..moved(&ranges, excerpt.marked.end, RangeSide::End);
        (without(excerpt.text, &ranges), marked)
    }

    /// A sentence about what stands at one of these places, without the secrets that it quotes.
    pub(super) fn sentence(&self, sentence: &str, about: &[Option<Span>]) -> String {
        let secrets = self.at(about);
        let clean = unquoted(sentence, |quoted| {
            secrets.iter().any(|value| value.is_in(quoted))
        });
        without(&clean, &logins(&clean))
    }

    /// The same for a hint, which says what to write instead: only a whole secret counts, not what looks like one.
    pub(super) fn hint(&self, hint: &str, about: &[Option<Span>]) -> String {
        let secrets = self.at(about);
        let secrets = secrets.iter().filter_map(|value| value.secret());
        unquoted(hint, |quoted| {
            let is_in = |secret: &str| secret.len() > 3 && quoted.contains(secret);
            secrets
                .clone()
                .any(|secret| quoted == secret || is_in(secret))
        })
    }

    /// A path through the file's keys to one of these places, without the hidden ones.
    pub(super) fn path(&self, path: &str, about: &[Option<Span>]) -> String {
        let secrets = self.at(about);
        let secrets = secrets.iter().filter_map(|value| value.secret());
        let path = secrets.fold(path.to_owned(), |path, secret| match secret {
            "" => path,
            secret => path.replace(secret, HIDDEN),
        });
        let Some((before, key)) = ["values.", "overrides."]
            .iter()
            .find_map(|parent| Some(path.split_at(path.find(parent)? + parent.len())))
        else {
            return path;
        };
        let ends = key.match_indices('.').map(|(at, _)| at).chain([key.len()]);
        for end in ends {
            let (name, rest) = key.split_at(end);
            if self.keys.contains(&Secret::new(name)) {
                return format!("{before}{HIDDEN}{rest}");
            }
        }
        path
    }

    /// What is hidden at these places.
    fn at(&self, places: &[Option<Span>]) -> Vec<&SecretNode> {
        let before = places.iter().flatten().filter_map(|span| {
            let mut before = self.values.range((span.file, 0)..=(span.file, span.start));
            let (_, value) = before.next_back()?;
            (value.end > span.start || value.end == span.end).then_some(value)
        });
        before.collect()
    }
}

impl SecretNode {
    /// What is hidden in the file.
    fn place(&self, start: usize, source: &str) -> Range<usize> {
        match (&self.part, self.verbatim) {
            (Some(part), Some(verbatim)) => verbatim + part.start..verbatim + part.end,
            // A reference to the environment says nothing by itself.
            _ if source.get(start..self.end).is_some_and(is_reference) => start..start,
            _ => start..self.end,
        }
    }

    /// What is secret of its text.
    fn secret(&self) -> Option<&str> {
        let text = self.text.as_ref()?.expose();
        match &self.part {
            Some(part) => text.get(part.clone()),
            None => Some(text),
        }
    }

    /// Whether a quotation says anything of the secret.
    fn is_in(&self, quoted: &str) -> bool {
        let quoted = quoted.trim_end_matches('…');
        self.secret().is_some_and(|secret| {
            let is_part = secret.contains(quoted) || quoted.contains(secret);
            is_part && !quoted.is_empty() && !secret.is_empty()
        })
    }
}

/// A sentence in which quotations are replaced that are secret.
fn unquoted(sentence: &str, is_secret: impl Fn(&str) -> bool) -> String {
    let pieces = sentence.split('`').enumerate();
    let clean: Vec<&str> = pieces
        .map(|(index, piece)| match index % 2 == 1 && is_secret(piece) {
            true => HIDDEN,
            false => piece,
        })
        .collect();
    clean.join("`")
}

/// Whether all of a scalar's source is `${NAME}`.
fn is_reference(source: &str) -> bool {
    let source = source.trim().trim_matches(['"', '\'']);
    let name = source.strip_prefix("${").and_then(|s| s.strip_suffix('}'));
    name.is_some_and(|name| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
}

/// Whether a key of this name is likely to hold a secret, wherever it stands.
// Fewer words than for header fields: a zone has a `key`, and a server a `session_timeout`.
fn is_secret_key(name: &str) -> bool {
    const SECTIONS: [&str; 3] = ["headers", "overrides", "values"];
    const WORDS: [&str; 8] = [
        "api_key",
        "authoriz",
        "cookie",
        "credential",
        "jwt",
        "passw",
        "secret",
        "token",
    ];
    let name = name.to_ascii_lowercase().replace('-', "_");
    WORDS.iter().any(|word| name.contains(word)) || SECTIONS.contains(&name.as_str())
}

/// Whether a secret may stand anywhere below a key of this name.
fn may_hold(name: &str) -> bool {
    const SECTIONS: [&str; 4] = ["admin", "proxy_set_header", "stores", "tracing"];
    is_secret_key(name) || SECTIONS.contains(&name)
}

/// What of a line may be secret by the names on it, before it or around it.
fn by_name(line: &str, before: &str, around: &[String]) -> Option<Range<usize>> {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let mut names = line.split(|c| !is_name(c)).map(|name| {
        // Where it ends in the line that it is a part of.
        let end = name.as_ptr().addr() - line.as_ptr().addr() + name.len();
        (name, end)
    });
    let indent = line.len() - line.trim_start().len();
    let within = around.iter().any(|name| may_hold(name)) || follows_secret(before);
    let start = match within {
        true => Some(indent),
        false => names
            .find(|(name, _)| may_hold(name))
            .map(|(_, behind)| behind),
    };
    let start = start.filter(|start| *start < line.len())?;
    let rest = line.get(start..)?;
    let value =
        rest.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, ':' | '"' | '\''));
    Some(line.len() - value.len()..line.len()).filter(|range| !range.is_empty())
}

/// Whether a secret may go on after these lines: the last key, or the last at the top level, may hold one.
fn follows_secret(before: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let may_hold = |line: &str| line.split(|c| !is_name(c)).any(may_hold);
    let mut keys = before.lines().rev().filter(|line| line.contains(':'));
    let last = keys.next();
    let top = last
        .into_iter()
        .chain(keys)
        .find(|line| line.starts_with(is_name));
    last.is_some_and(may_hold) || top.is_some_and(may_hold)
}

/// Which side of a marked range a position is.
#[derive(Clone, Copy)]
enum RangeSide {
    Start,
    End,
}

/// Ranges in order, those that overlap made one.
fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let overlap = next.start < last.end;
        if overlap {
            last.end = last.end.max(next.end);
        }
        overlap
    });
    ranges
}

/// Where a position of a text is once these ranges of it were replaced.
fn moved(ranges: &[Range<usize>], position: usize, side: RangeSide) -> usize {
    let mut moved = 0;
    let mut at = 0;
    for range in ranges {
        match side {
            RangeSide::Start if position < range.start => break,
            // At the beginning of what is hidden nothing of it is marked.
            RangeSide::End if position <= range.start => break,
            _ => {}
        }
        moved += range.start - at;
        if position < range.end {
            return match side {
                RangeSide::Start => moved,
                RangeSide::End => moved + HIDDEN.len(),
            };
        }
        moved += HIDDEN.len();
        at = range.end;
    }
    moved + (position - at)
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_secret_has_no_text_to_print() {
        assert_eq!(format!("{:?}", Some(Secret::new("s3cret"))), "Some(***)");
    }

    #[test]
    fn logins_are_found_in_urls_and_without_a_scheme() {
        for (text, expected) in [
            ("redis: redis://user:pass@h:1/0", vec!["user:pass"]),
            ("[redis://:a@h, 'rediss://:b@h']", vec![":a", ":b"]),
            ("otlp: user:pass@collector:4318", vec!["user:pass"]),
            ("proxy_pass: http://a/@b", vec![]),
            ("proxy_pass: http://a/x:y@b", vec![]),
            ("fallback: @named", vec![]),
            ("mail: a@b", vec![]),
        ] {
            let found: Vec<_> = logins(text)
                .into_iter()
                .map(|at| text.get(at).unwrap())
                .collect();
            assert_eq!(found, expected, "{text}");
        }
    }
}
