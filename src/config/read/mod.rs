//! Files become one tree: YAML is parsed, `${ENV}` filled in, includes merged.
//!
//! This folder is the only place that knows the YAML crate, and together with `include` the only place of
//! the room that opens files. Everything a file can do to us is bounded here: its size, how deep it nests, how
//! many nodes its aliases unfold to, how many files it pulls in.

mod env;
mod include;
pub(super) mod watch;
mod yaml;

use std::path::{Path, PathBuf};

use super::report::{Diagnostic, Report};
use super::span::Span;
use super::tree::Node;

/// Largest file; far beyond what people write, small enough not to hurt.
const MAX_BYTES: u64 = 16 << 20;

/// Most nodes in all files together, aliases unfolded.
const MAX_NODES: usize = 1_000_000;

/// Where `${NAME}` comes from.
pub(super) type EnvLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads files into one tree.
pub(super) struct ConfigReader<'a> {
    env: EnvLookup<'a>,
    report: &'a mut Report,
    nodes: usize,
    /// Every file and pattern that was asked for.
    names: Vec<PathBuf>,
}

impl<'a> ConfigReader<'a> {
    /// A reader that complains to `report`.
    pub(super) fn new(env: EnvLookup<'a>, report: &'a mut Report) -> Self {
        Self {
            env,
            report,
            nodes: 0,
            names: Vec::new(),
        }
    }

    /// All that was asked for so far, to be looked at for changes.
    pub(super) fn watch(self) -> watch::ConfigFiles {
        watch::ConfigFiles::new(self.names)
    }

    /// The tree of a file with all it includes.
    pub(super) fn file(&mut self, path: &Path) -> Option<Node> {
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
    pub(super) fn text(&mut self, path: &Path, text: String) -> Option<Node> {
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

    fn complain(&mut self, span: Span, sentence: impl Into<String>, hint: Option<String>) {
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

    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
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
