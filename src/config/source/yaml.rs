//! YAML events become a tree, with `${NAME}` filled in from the environment. The only file that knows the YAML crate.
//!
//! nginx writes its variables `$name` or `${name}`, always in lower case; environment variables are written in upper case
//! everywhere. So the case decides: `${HOME}` is the environment, `${remote_addr}` is left for the templates. `$HOME`
//! without braces is never the environment.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use granit::{Event, ScalarStyle, StructureStyle};
use serde_yaml::granit_parser as granit;

use super::{Node, NodeKind, Scalar, Span};
use crate::config::report::{Diagnostic, Report};

/// Most nodes in all files together, aliases unfolded.
const MAX_NODES: usize = 1_000_000;

/// Deepest nesting: the tree is walked by recursion.
const MAX_DEPTH: usize = 64;

/// Where `${NAME}` comes from.
pub(crate) type EnvLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What all files of a configuration have in common while they are parsed.
pub(super) struct YamlReader<'a> {
    env: EnvLookup<'a>,
    pub(super) report: &'a mut Report,
    nodes: usize,
}

impl<'a> YamlReader<'a> {
    pub(super) fn new(env: EnvLookup<'a>, report: &'a mut Report) -> Self {
        Self {
            env,
            report,
            nodes: 0,
        }
    }

    /// Notes an error.
    pub(super) fn error(&mut self, span: Span, sentence: impl Into<String>, hint: Option<String>) {
        self.report.add(Diagnostic::new(span, sentence).hint(hint));
    }
}

/// Parses one file; `None` when its syntax is wrong, which is then reported.
pub(super) fn parse(file: usize, text: &str, reader: &mut YamlReader<'_>) -> Option<Node> {
    let mut builder = TreeBuilder {
        file,
        text,
        reader,
        open: Vec::new(),
        root: None,
        anchors: HashMap::new(),
    };
    let options = granit::options! { emit_comments: false, emit_unresolved_aliases: true };
    for event in granit::Parser::new_from_str_with_options(text, options) {
        let outcome = match event {
            Ok((event, span)) => builder.event(event, span),
            Err(error) => {
                builder.syntax_error(&error);
                Err(Aborted)
            }
        };
        if outcome.is_err() {
            let around = builder.around();
            builder.reader.report.hidden_mut().add_unread(file, around);
            return None;
        }
    }
    Some(builder.root.unwrap_or(Node {
        span: Span {
            file,
            ..Span::NOWHERE
        },
        kind: NodeKind::Null,
    }))
}

/// No use in going on; the reason is reported.
struct Aborted;

/// A collection whose end has not come yet.
struct OpenNode {
    kind: Collection,
    style: StructureStyle,
    span: Span,
    anchor: usize,
}

enum Collection {
    Mapping {
        pairs: Vec<(Node, Node)>,
        /// Where each key stands: maps of networks run to a hundred thousand of them.
        known: HashMap<String, Span>,
        /// The key whose value comes next.
        key: Option<Node>,
    },
    Sequence(Vec<Node>),
}

struct TreeBuilder<'t, 'r, 'a> {
    file: usize,
    text: &'t str,
    reader: &'r mut YamlReader<'a>,
    open: Vec<OpenNode>,
    root: Option<Node>,
    anchors: HashMap<usize, Node>,
}

impl TreeBuilder<'_, '_, '_> {
    fn event(&mut self, event: Event<'_>, span: granit::Span) -> Result<(), Aborted> {
        let tagged = match &event {
            Event::Scalar(.., tag)
            | Event::SequenceStart(.., tag)
            | Event::MappingStart(.., tag) => tag.as_ref().is_some_and(|tag| tag.is_custom()),
            _ => false,
        };
        let span = self.span(span);
        if tagged {
            self.reader.error(span, "tags have no meaning here", None);
        }
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                self.reader.error(
                    span,
                    "a second document",
                    Some("a configuration is one document: take out the `---`".to_owned()),
                );
                Err(Aborted)
            }
            Event::Scalar(text, style, anchor, _) => {
                let node = self.scalar(&text, style, span);
                self.put(node, anchor)
            }
            Event::SequenceStart(style, anchor, _) => {
                self.begin(Collection::Sequence(Vec::new()), style, anchor, span)
            }
            Event::MappingStart(style, anchor, _) => {
                let empty = Collection::Mapping {
                    pairs: Vec::new(),
                    known: HashMap::new(),
                    key: None,
                };
                self.begin(empty, style, anchor, span)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(span),
            Event::Alias(id) => self.alias(id, span),
            Event::UnresolvedAlias(name) => self.no_such_anchor(&name, span),
            _ => Ok(()),
        }
    }

    fn span(&self, span: granit::Span) -> Span {
        let range = span.byte_range().unwrap_or(0..0);
        Span {
            file: self.file,
            start: range.start,
            end: range.end,
        }
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, span: Span) -> Node {
        let quoted = style != ScalarStyle::Plain;
        let source = self.text.get(span.start..span.end).unwrap_or_default();
        if !quoted && (source.is_empty() || matches!(text, "~" | "null" | "")) {
            return Node {
                span,
                kind: NodeKind::Null,
            };
        }
        let offset = source.find(text).filter(|offset| *offset <= 1);
        let filled = fill(text, self.reader.env);
        let whole = filled.unset.is_empty();
        for (name, place) in filled.unset {
            let part = offset.map_or(span, |offset| Span {
                file: span.file,
                start: span.start + offset + place.start,
                end: span.start + offset + place.end,
            });
            self.reader.error(
                part,
                format!("the environment variable `{name}` is not set"),
                Some(format!("set it, or give a default: `${{{name}:-…}}`")),
            );
        }
        if !whole {
            return Node {
                span,
                kind: NodeKind::Unset,
            };
        }
        let unchanged = filled.text == text;
        Node {
            span,
            kind: NodeKind::Scalar(Scalar {
                text: filled.text.into_owned(),
                quoted,
                verbatim: offset
                    .filter(|_| unchanged)
                    .map(|offset| span.start + offset),
            }),
        }
    }

    fn begin(
        &mut self,
        kind: Collection,
        style: StructureStyle,
        anchor: usize,
        span: Span,
    ) -> Result<(), Aborted> {
        if self.open.len() >= MAX_DEPTH {
            return self.too_deep(span);
        }
        self.open.push(OpenNode {
            kind,
            style,
            span,
            anchor,
        });
        Ok(())
    }

    fn end(&mut self, end: Span) -> Result<(), Aborted> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let kind = match open.kind {
            Collection::Sequence(items) => NodeKind::Sequence(items),
            Collection::Mapping { pairs, .. } => NodeKind::Mapping(self.merged(pairs)),
        };
        let span = self.collection_span(open.style, open.span, end, &kind);
        self.put(Node { span, kind }, open.anchor)
    }

    /// What stands for a collection on one line: itself if it fits, else its beginning.
    fn collection_span(
        &self,
        style: StructureStyle,
        start: Span,
        end: Span,
        kind: &NodeKind,
    ) -> Span {
        let whole = Span {
            end: end.end,
            ..start
        };
        let one_line = self
            .text
            .get(whole.start..whole.end)
            .is_some_and(|text| !text.contains('\n'));
        match (style, kind) {
            (StructureStyle::Flow, _) if one_line => whole,
            (StructureStyle::Flow, _) => start,
            (_, NodeKind::Mapping(pairs)) => pairs.first().map_or(start, |(key, _)| key.span),
            (_, NodeKind::Sequence(items)) => items.first().map_or(start, |item| item.span),
            _ => start,
        }
    }

    /// Takes `<<` out of a mapping and puts in what it names, where the mapping does not say otherwise.
    fn merged(&mut self, pairs: Vec<(Node, Node)>) -> Vec<(Node, Node)> {
        let is_merge =
            |key: &Node| matches!(&key.kind, NodeKind::Scalar(s) if s.text == "<<" && !s.quoted);
        let (merges, mut own): (Vec<_>, Vec<_>) =
            pairs.into_iter().partition(|(key, _)| is_merge(key));
        let name = |key: &Node| key.text().unwrap_or_default().to_owned();
        let mut given: HashSet<String> = own.iter().map(|(key, _)| name(key)).collect();
        for (_, value) in merges {
            let sources = match value.kind {
                NodeKind::Sequence(items) => items,
                _ => vec![value],
            };
            for source in sources {
                let NodeKind::Mapping(inherited) = source.kind else {
                    let sentence = "`<<` takes a mapping or a list of mappings";
                    self.reader.error(source.span, sentence, None);
                    continue;
                };
                for (key, value) in inherited {
                    if given.insert(name(&key)) {
                        own.push((key, value));
                    }
                }
            }
        }
        own
    }

    fn alias(&mut self, id: usize, span: Span) -> Result<(), Aborted> {
        let Some(node) = self.anchors.get(&id) else {
            self.reader
                .error(span, "an alias inside what it stands for", None);
            return Err(Aborted);
        };
        // Weighed before it is copied: an alias of aliases of aliases must not get to unfold.
        if self.reader.nodes + node.weight() > MAX_NODES {
            return self.too_many(span);
        }
        // And measured: what is walked by recursion must not get deeper by being put together from pieces.
        if self.open.len() + node.depth() > MAX_DEPTH {
            return self.too_deep(span);
        }
        let node = node.clone();
        self.reader.nodes += node.weight();
        self.put(node, 0)
    }

    /// Goes on: nearly always it is `*.example.com` or `*:80` without quotes, and the rest is fine.
    fn no_such_anchor(&mut self, name: &str, span: Span) -> Result<(), Aborted> {
        self.reader.error(
            span,
            format!("no anchor `&{name}` stands before this"),
            Some(format!(
                "a text that begins with `*` needs quotes: `\"*{name}\"`"
            )),
        );
        let kind = NodeKind::Unset;
        self.put(Node { span, kind }, 0)
    }

    fn too_many(&mut self, span: Span) -> Result<(), Aborted> {
        self.reader
            .error(span, format!("more than {MAX_NODES} values"), None);
        Err(Aborted)
    }

    fn too_deep(&mut self, span: Span) -> Result<(), Aborted> {
        self.reader
            .error(span, format!("nested deeper than {MAX_DEPTH} levels"), None);
        Err(Aborted)
    }

    /// Puts a finished node where it belongs.
    fn put(&mut self, node: Node, anchor: usize) -> Result<(), Aborted> {
        self.reader.nodes += 1;
        if self.reader.nodes > MAX_NODES {
            return self.too_many(node.span);
        }
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        if self.awaits_key() && node.text().is_some_and(|text| text.contains(':')) {
            let around = self.around();
            let hidden = self.reader.report.hidden_mut();
            hidden.add_key_with_colon(&node, &around);
        }
        match self.open.last_mut().map(|open| &mut open.kind) {
            None => self.root = Some(node),
            Some(Collection::Sequence(items)) => items.push(node),
            Some(Collection::Mapping { pairs, known, key }) => match key.take() {
                None => *key = Some(node),
                Some(name) => match name.text().map(ToOwned::to_owned) {
                    None if matches!(name.kind, NodeKind::Unset) => {}
                    None => {
                        let hidden = self.reader.report.hidden_mut();
                        hidden.add(&name);
                        hidden.add(&node);
                        let sentence = format!("a key must be text, not {}", name.describe());
                        self.reader.error(name.span, sentence, None);
                    }
                    Some(text) => match known.entry(text) {
                        Entry::Occupied(first) => {
                            let first = *first.get();
                            let around = self.around();
                            let hidden = self.reader.report.hidden_mut();
                            hidden.add_undecoded(&name, &node, &around);
                            self.duplicate(&name, first);
                        }
                        Entry::Vacant(entry) => {
                            entry.insert(name.span);
                            pairs.push((name, node));
                        }
                    },
                },
            },
        }
        Ok(())
    }

    /// Whether the next node is a key of a mapping.
    fn awaits_key(&self) -> bool {
        let open = self.open.last().map(|open| &open.kind);
        matches!(open, Some(Collection::Mapping { key: None, .. }))
    }

    /// The keys of all open mappings whose values have not ended.
    fn around(&self) -> Vec<String> {
        let keys = self.open.iter().filter_map(|open| match &open.kind {
            Collection::Mapping { key, .. } => key.as_ref()?.text(),
            Collection::Sequence(_) => None,
        });
        keys.map(str::to_owned).collect()
    }

    fn duplicate(&mut self, name: &Node, first: Span) {
        let place = self.reader.report.sources().place(first);
        self.reader.error(
            name.span,
            format!("{} is given twice", name.describe()),
            Some(format!("it was given first at {place}")),
        );
    }

    fn syntax_error(&mut self, error: &granit::ScanError) {
        let at = error.marker().byte_offset().unwrap_or(self.text.len());
        let before = self.text.get(..at).unwrap_or_default();
        let indent = before.rsplit('\n').next().unwrap_or_default();
        let rest = self.text.get(at..).unwrap_or_default();
        let tab = indent.contains('\t') || rest.starts_with('\t');
        let reason = error.kind().to_string();
        let hint = if tab {
            Some("YAML is indented with spaces; a tab cannot stand here".to_owned())
        } else if reason.contains("mapping values are not allowed") {
            Some("the indentation may be off, or a text with `: ` in it may need quotes".to_owned())
        } else {
            None
        };
        let next = rest.chars().next().map_or(0, char::len_utf8);
        let span = Span {
            file: self.file,
            start: at,
            end: at + next,
        };
        self.reader
            .error(span, format!("this is not YAML: {reason}"), hint);
    }
}

/// What became of a scalar.
struct Interpolated<'a> {
    /// Its text.
    text: Cow<'a, str>,
    /// Names that are not set, each with its place in the original text.
    unset: Vec<(String, std::ops::Range<usize>)>,
}

/// Fills in what is named in `text`.
fn fill<'a>(text: &'a str, env: EnvLookup<'_>) -> Interpolated<'a> {
    let mut filled = String::new();
    let mut unset = Vec::new();
    let mut rest = text;
    let mut found = false;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((reference, behind)) = parse_reference(after) else {
            filled.push_str(before);
            filled.push_str("${");
            rest = after;
            continue;
        };
        found = true;
        filled.push_str(before);
        match (env(reference.name), reference.default) {
            // As in a shell, `:-` stands in for a variable that is empty, too.
            (Some(value), default) if !value.is_empty() || default.is_none() => {
                filled.push_str(&value);
            }
            (_, Some(default)) => filled.push_str(default),
            (_, None) => {
                let start = text.len() - rest.len() + before.len();
                unset.push((reference.name.to_owned(), start..text.len() - behind.len()));
            }
        }
        rest = behind;
    }
    filled.push_str(rest);
    Interpolated {
        text: if found {
            Cow::Owned(filled)
        } else {
            Cow::Borrowed(text)
        },
        unset,
    }
}

struct EnvReference<'a> {
    name: &'a str,
    default: Option<&'a str>,
}

/// What stands behind `${`, and what comes after its brace.
fn parse_reference(after: &str) -> Option<(EnvReference<'_>, &str)> {
    let (inside, behind) = after.split_once('}')?;
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let well_named = name
        .bytes()
        .all(|byte| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_'))
        && name.starts_with(|first: char| first.is_ascii_uppercase() || first == '_');
    well_named.then_some((EnvReference { name, default }, behind))
}

#[cfg(test)]
mod tests {

    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "PORT" => Some("8080".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn upper_case_is_the_environment_and_lower_case_is_not() {
        assert_eq!(fill("*:${PORT}", &env).text, "*:8080");
        assert_eq!(
            fill("${remote_addr}x$PORT", &env).text,
            "${remote_addr}x$PORT"
        );
        assert_eq!(fill("${", &env).text, "${");
    }

    #[test]
    fn a_default_stands_in_for_what_is_unset_or_empty() {
        assert_eq!(
            fill("${NONE:-a}${EMPTY:-b}${PORT:-c}${EMPTY}", &env).text,
            "ab8080"
        );
        assert!(fill("${NONE:-}", &env).unset.is_empty());
    }

    #[test]
    fn what_is_unset_is_told_with_its_place() {
        assert_eq!(fill("a${NONE}b", &env).unset, [("NONE".to_owned(), 1..8)]);
    }
}
