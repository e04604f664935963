//! Which files a configuration is made of, to be looked at for changes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

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
            if super::include::is_pattern(&text)
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
mod tests {
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
