//! Files become one tree: each is parsed, its `include` merged in; and which files these are, to be looked at for changes.
//!
//! Everything a file can do to us is bounded here and in `yaml`: its size, how deep it nests, how many nodes its aliases
//! unfold to, how many files it pulls in.
//!
//! Includes are merged on the tree, before the meaning of keys is known, so that they work in every mapping alike: mappings
//! merge, lists are appended, and anything else given twice is an error that names both places, because with silent
//! overriding it would be unclear which of two files wins.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::yaml::{self, EnvLookup, YamlReader};
use super::{Node, NodeKind, Span};
use crate::config::report::{Diagnostic, Report};

/// Largest file; far beyond what people write, small enough not to hurt.
const MAX_BYTES: u64 = 16 << 20;

/// Reads files into one tree.
pub(crate) struct ConfigReader<'a> {
    yaml: YamlReader<'a>,
    /// Every file and pattern that was asked for.
    names: Vec<PathBuf>,
}

impl<'a> ConfigReader<'a> {
    /// A reader that notes errors in `report`.
    pub(crate) fn new(env: EnvLookup<'a>, report: &'a mut Report) -> Self {
        Self {
            yaml: YamlReader::new(env, report),
            names: Vec::new(),
        }
    }

    /// All that was asked for so far, to be looked at for changes.
    pub(crate) fn watch(self) -> ConfigFiles {
        ConfigFiles::new(self.names)
    }

    /// The tree of a file with all it includes.
    pub(crate) fn file(&mut self, path: &Path) -> Option<Node> {
        self.names.push(path.to_owned());
        let text = match read(path) {
            Ok(text) => text,
            Err(reason) => {
                self.yaml.report.add(Diagnostic::nowhere(format!(
                    "cannot read {}: {reason}",
                    path.display()
                )));
                return None;
            }
        };
        self.text(path, text)
    }

    /// The tree of a text with all it includes, relative to `path`.
    pub(crate) fn text(&mut self, path: &Path, text: String) -> Option<Node> {
        let mut root = self.parse(path, text)?;
        let mut above = vec![identity(path)];
        self.resolve_includes(&mut root, path, &mut above);
        Some(root)
    }

    fn parse(&mut self, path: &Path, text: String) -> Option<Node> {
        // Bytes the parser would skip without counting would shift every position after them.
        let text = match text.strip_prefix('\u{feff}') {
            Some(rest) => rest.to_owned(),
            None => text,
        };
        let file = self
            .yaml
            .report
            .sources_mut()
            .add(path.display().to_string(), text.clone());
        yaml::parse(file, &text, &mut self.yaml)
    }
}

/// What tells one file from another, however its name is written.
fn identity(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// A file's text, or why there is none.
fn read(path: &Path) -> Result<String, String> {
    use std::io::Read;

    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("it is larger than {} MiB", MAX_BYTES >> 20));
    }
    String::from_utf8(bytes)
        .map_err(|error| format!("byte {} is not UTF-8", error.utf8_error().valid_up_to()))
}

/// Deepest chain of files that include files.
const MAX_DEPTH: usize = 16;

/// Most files in all: a glob may match a directory of a million files.
const MAX_FILES: usize = 1024;

/// Whether a name stands for all files that it matches.
fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

impl ConfigReader<'_> {
    /// Replaces every `include` below `node` by what it names.
    fn resolve_includes(&mut self, node: &mut Node, path: &Path, above: &mut Vec<PathBuf>) {
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
                None => self.yaml.error(
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
                self.yaml.error(span, sentence, None);
            } else if above.len() > MAX_DEPTH {
                let sentence = format!("files include files deeper than {MAX_DEPTH} levels");
                self.yaml.error(span, sentence, None);
            } else if self.yaml.report.sources().len() >= MAX_FILES {
                self.yaml
                    .error(span, format!("more than {MAX_FILES} files"), None);
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
                self.yaml.error(span, sentence, None);
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
                self.yaml.error(span, sentence, None);
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
                    self.yaml.report.hidden_mut().add(&root);
                }
                let sentence = format!(
                    "an included file must be a mapping, not {}",
                    root.describe()
                );
                self.yaml.error(root.span, sentence, None);
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
                    let hidden = self.yaml.report.hidden_mut();
                    hidden.add_undecoded(&key, &value, around);
                    let place = self.yaml.report.sources().place(first.span);
                    self.yaml.report.add(
                        Diagnostic::new(key.span, format!("`{name}` is given twice"))
                            .help(format!("it was given first at {place}")),
                    );
                }
            }
        }
    }
}

/// What a file looks like from outside, the one behind a link; `None` while there is none.
pub type FileStamp = Option<[i64; 6]>;

/// What the files of a configuration looked like.
pub type FileStamps = BTreeMap<PathBuf, FileStamp>;

/// The files of a configuration: those it was read from, those it could not be, and those a pattern may match one day.
#[derive(Debug, Clone)]
pub struct ConfigFiles {
    names: Vec<PathBuf>,
    used: FileStamps,
}

impl ConfigFiles {
    /// Files and patterns.
    fn new(names: Vec<PathBuf>) -> Self {
        let mut watch = Self {
            names,
            used: FileStamps::new(),
        };
        watch.used = watch.look();
        watch
    }

    /// What they looked like when they were found.
    #[must_use]
    pub fn used(&self) -> &FileStamps {
        &self.used
    }

    /// What they look like now.
    #[must_use]
    pub fn look(&self) -> FileStamps {
        let mut stamps = FileStamps::new();
        for name in &self.names {
            let text = name.to_string_lossy();
            if is_pattern(&text)
                && let Ok(found) = glob::glob(&text)
            {
                stamps.extend(found.filter_map(Result::ok).map(|path| {
                    let stamp = stamp(&path);
                    (path, stamp)
                }));
            } else {
                stamps.insert(name.clone(), stamp(name));
            }
        }
        stamps
    }
}

/// What a file looks like from outside.
#[must_use]
pub fn stamp(path: &Path) -> FileStamp {
    let file = fs::metadata(path).ok()?;
    Some([
        i64::try_from(file.dev()).unwrap_or(-1),
        i64::try_from(file.ino()).unwrap_or(-1),
        i64::try_from(file.size()).unwrap_or(-1),
        file.mtime(),
        file.mtime_nsec(),
        // A file moved here from elsewhere keeps its other times.
        file.ctime() * 1_000_000_000 + file.ctime_nsec(),
    ])
}

#[cfg(test)]
mod watch_tests {

    use super::*;

    #[test]
    fn all_files_are_known_and_new_ones_are_noticed() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        fs::write(
            at("weir.yaml"),
            "include: [ 'more/*.yaml', 'missing.yaml' ]\n",
        )
        .unwrap();
        fs::create_dir(at("more")).unwrap();
        fs::write(at("more/a.yaml"), "{}").unwrap();
        let watch = crate::config::watch(&at("weir.yaml"));
        let known: Vec<_> = watch.used().keys().cloned().collect();
        assert_eq!(
            known,
            [at("missing.yaml"), at("more/a.yaml"), at("weir.yaml")]
        );
        assert_eq!(watch.look(), *watch.used());

        for name in ["missing.yaml", "more/b.yaml"] {
            fs::write(at(name), "{}").unwrap();
            assert_ne!(watch.look(), *watch.used(), "{name}");
            fs::remove_file(at(name)).unwrap();
            assert_eq!(watch.look(), *watch.used());
        }
        fs::write(at("new"), "{}").unwrap();
        fs::rename(at("new"), at("more/a.yaml")).unwrap();
        assert_ne!(watch.look(), *watch.used());
    }
}
