//! Which parts of the files hold secrets, so that nothing that quotes the files quotes them.
//!
//! Decoding notes every node of a secret type here. A file that is not YAML has no types: there the names on the line
//! and around it decide, and more is hidden than need be.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use super::secret::{HIDDEN, Secret, logins, without};
use super::span::{Excerpt, Span};
use super::tree::{Kind, Node};

/// The secrets of the files that were read.
#[derive(Debug, Default)]
pub(super) struct Hidden {
    /// By file and first byte.
    values: BTreeMap<(usize, usize), Value>,
    /// Texts of hidden keys.
    keys: HashSet<Secret>,
    /// Files that are not YAML, with the names around the place where reading them ended.
    unread: HashMap<usize, Vec<String>>,
}

/// One node with a secret in it.
#[derive(Debug)]
struct Value {
    end: usize,
    /// Its text as it was decoded; none where that was not possible.
    text: Option<Secret>,
    /// What of the text is secret; all of it for `None`.
    part: Option<Range<usize>>,
    /// Where in the file the text begins, if it stands there as it was decoded.
    verbatim: Option<usize>,
}

impl Hidden {
    /// Hides a node and everything below it.
    pub(super) fn add(&mut self, node: &Node) {
        match &node.kind {
            Kind::Mapping(pairs) => {
                for (key, value) in pairs {
                    self.add(key);
                    self.add(value);
                }
            }
            Kind::Sequence(items) => items.iter().for_each(|item| self.add(item)),
            Kind::Null | Kind::Scalar(_) | Kind::Unset => self.add_part(node, None),
        }
    }

    /// Hides a part of a node's text.
    pub(super) fn add_part(&mut self, node: &Node, part: Option<Range<usize>>) {
        let scalar = match &node.kind {
            Kind::Scalar(scalar) => Some(scalar),
            _ => None,
        };
        let value = Value {
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
            Value {
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

    /// Hides what looks like a secret by its names, where no type is known.
    pub(super) fn add_by_name(&mut self, key: &Node, value: &Node) {
        let name = key.text().unwrap_or_default();
        if is_secret_key(name) {
            self.add(value);
            return;
        }
        match &value.kind {
            Kind::Mapping(pairs) => {
                for (key, value) in pairs {
                    self.add_by_name(key, value);
                }
            }
            Kind::Sequence(items) => {
                for item in items {
                    self.add_by_name(key, item);
                }
            }
            Kind::Null | Kind::Scalar(_) | Kind::Unset => {}
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
            ranges.extend(by_name(excerpt.text, around));
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
        let marked = moved(&ranges, excerpt.marked.start, Side::Start)
            ..moved(&ranges, excerpt.marked.end, Side::End);
        (without(excerpt.text, &ranges), marked)
    }

    /// A sentence about what stands at one of these places, without the secrets that it quotes.
    pub(super) fn sentence(&self, sentence: &str, about: &[Option<Span>]) -> String {
        let secrets: Vec<&Value> = about
            .iter()
            .flatten()
            .flat_map(|span| {
                let before = self
                    .values
                    .range((span.file, 0)..=(span.file, span.start))
                    .next_back();
                before.filter(|(_, value)| value.end > span.start || value.end == span.end)
            })
            .map(|(_, value)| value)
            .collect();
        let clean: Vec<String> = sentence
            .split('`')
            .enumerate()
            .map(|(index, piece)| {
                let quoted = index % 2 == 1 && secrets.iter().any(|value| value.is_in(piece));
                match quoted {
                    true => HIDDEN.to_owned(),
                    false => without(piece, &logins(piece)),
                }
            })
            .collect();
        clean.join("`")
    }

    /// A path through the file's keys, without the hidden ones.
    pub(super) fn path(&self, path: &str) -> String {
        let Some((before, key)) = ["values.", "overrides."]
            .iter()
            .find_map(|parent| Some(path.split_at(path.find(parent)? + parent.len())))
        else {
            return path.to_owned();
        };
        let ends = key.match_indices('.').map(|(at, _)| at).chain([key.len()]);
        for end in ends {
            let (name, rest) = key.split_at(end);
            if self.keys.contains(&Secret::new(name)) {
                return format!("{before}{HIDDEN}{rest}");
            }
        }
        path.to_owned()
    }
}

impl Value {
    /// What is hidden in the file.
    fn place(&self, start: usize, source: &str) -> Range<usize> {
        match (&self.part, self.verbatim) {
            (Some(part), Some(verbatim)) => verbatim + part.start..verbatim + part.end,
            // A reference to the environment says nothing by itself.
            _ if source.get(start..self.end).is_some_and(is_reference) => start..start,
            _ => start..self.end,
        }
    }

    /// Whether a quotation says anything of the secret.
    fn is_in(&self, quoted: &str) -> bool {
        let quoted = quoted.trim_end_matches('…');
        self.text.as_ref().is_some_and(|text| {
            let text = text.expose();
            let text = match &self.part {
                Some(part) => text.get(part.clone()).unwrap_or(text),
                None => text,
            };
            !quoted.is_empty() && (text.contains(quoted) || quoted.contains(text))
        })
    }
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

/// What of a line may be secret by the names on it, or around it.
fn by_name(line: &str, around: &[String]) -> Option<Range<usize>> {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let mut names = line.split(|c| !is_name(c)).map(|name| {
        // Where it ends in the line that it is a part of.
        let end = name.as_ptr().addr() - line.as_ptr().addr() + name.len();
        (name, end)
    });
    let indent = line.len() - line.trim_start().len();
    let start = match around.iter().any(|name| may_hold(name)) {
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

/// Which side of a marked range a position is.
#[derive(Clone, Copy)]
enum Side {
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
fn moved(ranges: &[Range<usize>], position: usize, side: Side) -> usize {
    let mut moved = 0;
    let mut at = 0;
    for range in ranges {
        match side {
            Side::Start if position < range.start => break,
            // At the beginning of what is hidden nothing of it is marked.
            Side::End if position <= range.start => break,
            _ => {}
        }
        moved += range.start - at;
        if position < range.end {
            return match side {
                Side::Start => moved,
                Side::End => moved + HIDDEN.len(),
            };
        }
        moved += HIDDEN.len();
        at = range.end;
    }
    moved + (position - at)
}
