//! `include`: other files' mappings merged into the one that names them.
//!
//! Done on the tree, before anybody knows what the keys mean, so that it works in every mapping alike: mappings
//! merge, lists are appended, and anything else said twice is a complaint that names both places, because with
//! silent overriding nobody could say which of two files wins.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::{ConfigReader, identity, read};
use crate::config::report::Diagnostic;
use crate::config::span::Span;
use crate::config::tree::{Node, NodeKind};

/// Deepest chain of files that include files.
const MAX_DEPTH: usize = 16;

/// Most files in all: a glob may match a directory somebody put a million files into.
const MAX_FILES: usize = 1024;

/// Whether a name stands for all files that it matches.
pub(super) fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

impl ConfigReader<'_> {
    /// Replaces every `include` below `node` by what it names.
    pub(super) fn resolve_includes(
        &mut self,
        node: &mut Node,
        path: &Path,
        above: &mut Vec<PathBuf>,
    ) {
        match &mut node.kind {
            NodeKind::Sequence(items) => {
                for item in items {
                    self.resolve_includes(item, path, above);
                }
            }
            NodeKind::Mapping(pairs) => {
                for (key, value) in pairs.iter_mut() {
                    if key.text() != Some("include") {
                        self.resolve_includes(value, path, above);
                    }
                }
                let at = pairs
                    .iter()
                    .position(|(key, _)| key.text() == Some("include"));
                if let Some(at) = at {
                    let (_, names) = pairs.remove(at);
                    for (name, span) in self.names(&names) {
                        self.include(&name, span, pairs, path, above);
                    }
                }
            }
            NodeKind::Null | NodeKind::Scalar(_) | NodeKind::Unset => {}
        }
    }

    /// The names or patterns that an `include` gives.
    fn names(&mut self, value: &Node) -> Vec<(String, Span)> {
        let items = match &value.kind {
            NodeKind::Sequence(items) => items.as_slice(),
            _ => std::slice::from_ref(value),
        };
        let mut names = Vec::new();
        for item in items {
            match item.text() {
                Some(text) => names.push((text.to_owned(), item.span)),
                None if matches!(item.kind, NodeKind::Unset) => {}
                None => self.complain(
                    item.span,
                    format!(
                        "`include` takes the name of a file, not {}",
                        item.describe()
                    ),
                    None,
                ),
            }
        }
        names
    }

    fn include(
        &mut self,
        name: &str,
        span: Span,
        into: &mut Vec<(Node, Node)>,
        from: &Path,
        above: &mut Vec<PathBuf>,
    ) {
        let wanted = from.parent().unwrap_or_else(|| Path::new("")).join(name);
        for file in self.matching(name, &wanted, span) {
            if above.contains(&identity(&file)) {
                let sentence = format!("`{}` includes itself", file.display());
                self.complain(span, sentence, None);
            } else if above.len() > MAX_DEPTH {
                let sentence = format!("files include files deeper than {MAX_DEPTH} levels");
                self.complain(span, sentence, None);
            } else if self.report.sources().len() >= MAX_FILES {
                self.complain(span, format!("more than {MAX_FILES} files"), None);
                return;
            } else {
                self.include_file(&file, span, into, above);
            }
        }
    }

    /// The files a name or pattern stands for. A pattern may match none, as in nginx.
    fn matching(&mut self, name: &str, wanted: &Path, span: Span) -> Vec<PathBuf> {
        self.names.push(wanted.to_owned());
        if !is_pattern(name) {
            return vec![wanted.to_owned()];
        }
        match glob::glob(&wanted.to_string_lossy()) {
            Ok(found) => found.filter_map(Result::ok).take(MAX_FILES).collect(),
            Err(error) => {
                let sentence = format!("`{name}` is not a pattern: {}", error.msg);
                self.complain(span, sentence, None);
                Vec::new()
            }
        }
    }

    fn include_file(
        &mut self,
        file: &Path,
        span: Span,
        into: &mut Vec<(Node, Node)>,
        above: &mut Vec<PathBuf>,
    ) {
        let text = match read(file) {
            Ok(text) => text,
            Err(reason) => {
                let sentence = format!("cannot read `{}`: {reason}", file.display());
                self.complain(span, sentence, None);
                return;
            }
        };
        let Some(mut root) = self.parse(file, text) else {
            return;
        };
        above.push(identity(file));
        self.resolve_includes(&mut root, file, above);
        above.pop();
        match root.kind {
            NodeKind::Mapping(pairs) => self.merge(into, pairs, &mut Vec::new()),
            NodeKind::Null | NodeKind::Unset => {}
            NodeKind::Scalar(_) | NodeKind::Sequence(_) => {
                if let NodeKind::Scalar(_) = root.kind {
                    // Perhaps a file with a token.
                    self.report.hidden_mut().add(&root);
                }
                let sentence = format!(
                    "an included file must be a mapping, not {}",
                    root.describe()
                );
                self.complain(root.span, sentence, None);
            }
        }
    }

    /// Merges mappings; `around` are the keys of those that they stand in.
    fn merge(
        &mut self,
        into: &mut Vec<(Node, Node)>,
        from: Vec<(Node, Node)>,
        around: &mut Vec<String>,
    ) {
        let mut places: HashMap<String, usize> = into
            .iter()
            .enumerate()
            .map(|(index, (key, _))| (key.text().unwrap_or_default().to_owned(), index))
            .collect();
        for (key, value) in from {
            let name = key.text().unwrap_or_default().to_owned();
            let Some((first, known)) = places.get(&name).and_then(|index| into.get_mut(*index))
            else {
                places.insert(name, into.len());
                into.push((key, value));
                continue;
            };
            let span = value.span;
            match (&mut known.kind, value.kind) {
                (NodeKind::Mapping(known), NodeKind::Mapping(more)) => {
                    around.push(name);
                    self.merge(known, more, around);
                    around.pop();
                }
                (NodeKind::Sequence(known), NodeKind::Sequence(more)) => known.extend(more),
                (_, kind) => {
                    let value = Node { span, kind };
                    let hidden = self.report.hidden_mut();
                    hidden.add_undecoded(&key, &value, around);
                    let place = self.report.sources().place(first.span);
                    self.report.add(
                        Diagnostic::new(key.span, format!("`{name}` is given twice"))
                            .help(format!("it was given first at {place}")),
                    );
                }
            }
        }
    }
}
