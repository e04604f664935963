//! Files become one tree: YAML is parsed, `${ENV}` filled in, includes merged.
//!
//! This folder is the only place that knows the YAML crate, and together with `include` the only place of
//! the room that opens files. Everything a file can do to us is bounded here: its size, how deep it nests, how
//! many nodes its aliases unfold to, how many files it pulls in.
//!
//! `include`: other files' mappings merged into the one that names them.
//!
//! Done on the tree, before anybody knows what the keys mean, so that it works in every mapping alike: mappings
//! merge, lists are appended, and anything else said twice is a complaint that names both places, because with
//! silent overriding nobody could say which of two files wins.
//!
//! `${NAME}` in a scalar, filled in from the environment.
//!
//! nginx writes its variables `$name` or `${name}`, always in lower case; environment variables are written in
//! upper case everywhere. So the case decides: `${HOME}` is the environment, `${remote_addr}` is left for the
//! templates. `$HOME` without braces is never the environment.
//!
//! Which files a configuration is made of, to be looked at for changes.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{Node, NodeKind, Span, yaml};
use crate::config::report::{Diagnostic, Report};

/// Largest file; far beyond what people write, small enough not to hurt.
const MAX_BYTES: u64 = 16 << 20;

/// Most nodes in all files together, aliases unfolded.
pub(super) const MAX_NODES: usize = 1_000_000;

/// Where `${NAME}` comes from.
pub(in crate::config) type EnvLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads files into one tree.
pub(in crate::config) struct ConfigReader<'a> {
    pub(super) env: EnvLookup<'a>,
    pub(super) report: &'a mut Report,
    pub(super) nodes: usize,
    /// Every file and pattern that was asked for.
    names: Vec<PathBuf>,
}

impl<'a> ConfigReader<'a> {
    /// A reader that complains to `report`.
    pub(in crate::config) fn new(env: EnvLookup<'a>, report: &'a mut Report) -> Self {
        Self {
            env,
            report,
            nodes: 0,
            names: Vec::new(),
        }
    }

    /// All that was asked for so far, to be looked at for changes.
    pub(in crate::config) fn watch(self) -> ConfigFiles {
        ConfigFiles::new(self.names)
    }

    /// The tree of a file with all it includes.
    pub(in crate::config) fn file(&mut self, path: &Path) -> Option<Node> {
        self.names.push(path.to_owned());
        let text = match read(path) {
            Ok(text) => text,
            Err(reason) => {
                self.report.add(Diagnostic::nowhere(format!(
                    "cannot read {}: {reason}",
                    path.display()
                )));
                return None;
            }
        };
        self.text(path, text)
    }

    /// The tree of a text with all it includes, relative to `path`.
    pub(in crate::config) fn text(&mut self, path: &Path, text: String) -> Option<Node> {
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
            .report
            .sources_mut()
            .add(path.display().to_string(), text.clone());
        yaml::parse(file, &text, self)
    }

    pub(super) fn complain(
        &mut self,
        span: Span,
        sentence: impl Into<String>,
        hint: Option<String>,
    ) {
        self.report.add(Diagnostic::new(span, sentence).hint(hint));
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

/// What became of a scalar.
pub(super) struct Interpolated<'a> {
    /// Its text.
    pub(super) text: Cow<'a, str>,
    /// Names that are not set, each with its place in the original text.
    pub(super) unset: Vec<(String, std::ops::Range<usize>)>,
}

/// Fills in what is named in `text`.
pub(super) fn fill<'a>(text: &'a str, env: &dyn Fn(&str) -> Option<String>) -> Interpolated<'a> {
    let mut filled = String::new();
    let mut unset = Vec::new();
    let mut rest = text;
    let mut found = false;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((reference, behind)) = parse(after) else {
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
fn parse(after: &str) -> Option<(EnvReference<'_>, &str)> {
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
    pub(super) fn new(names: Vec<PathBuf>) -> Self {
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
mod env_tests {

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
