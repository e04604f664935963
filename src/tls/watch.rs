//! Files that may change while weir runs.
//!
//! Looked at again and again rather than watched: what certificates are renewed by writes in place, renames over them or
//! swaps a link to a whole folder, as Kubernetes does, and only looking sees all of that. A change is taken up when it
//! has stood still from one look to the next, so that nothing half written is read.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::files::Error;
use crate::config::{FileStamp, stamp};

/// Something made from files, and made again when they change.
#[derive(Debug)]
pub(super) struct Reloadable<T> {
    current: RwLock<Arc<T>>,
    watch: Mutex<FileWatch>,
}

/// What a look at the files has led to.
#[derive(Debug)]
pub enum ReloadResult {
    /// They changed and cannot be used; what was made before stays.
    Kept(Error),
    /// They changed, and what is made from them is in use.
    Renewed,
    /// They are as they were.
    Same,
}

#[derive(Debug)]
struct FileWatch {
    files: Vec<PathBuf>,
    used: Vec<FileStamp>,
    seen: Vec<FileStamp>,
}

impl<T> Reloadable<T> {
    /// Makes it for the first time.
    pub(super) fn new(
        files: Vec<PathBuf>,
        make: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Self, Error> {
        // Before they are read: what changes meanwhile is then noticed.
        let used: Vec<_> = files.iter().map(|file| stamp(file)).collect();
        Ok(Self {
            current: RwLock::new(Arc::new(make()?)),
            watch: Mutex::new(FileWatch {
                seen: used.clone(),
                files,
                used,
            }),
        })
    }

    /// As it is now.
    pub(super) fn get(&self) -> Arc<T> {
        Arc::clone(&self.current.read())
    }

    /// Looks at the files, and makes it again if they have changed and stood still since the last look.
    pub(super) fn refresh(&self, make: impl FnOnce() -> Result<T, Error>) -> ReloadResult {
        if !self.watch.lock().has_changed() {
            return ReloadResult::Same;
        }
        match make() {
            Ok(made) => {
                *self.current.write() = Arc::new(made);
                ReloadResult::Renewed
            }
            Err(error) => ReloadResult::Kept(error),
        }
    }
}

impl FileWatch {
    /// Whether there is a change to take up. True once for each: a file that cannot be used is not tried again until
    /// it changes.
    fn has_changed(&mut self) -> bool {
        let now: Vec<_> = self.files.iter().map(|file| stamp(file)).collect();
        let settled = now == self.seen;
        self.seen = now;
        if !settled || self.seen == self.used {
            return false;
        }
        self.used.clone_from(&self.seen);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_change_is_taken_up_once_and_when_it_stands_still() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a");
        fs::write(&path, "one").unwrap();
        let read = || Ok(fs::read_to_string(&path).unwrap());
        let watched = Reloadable::new(vec![path.clone()], read).unwrap();
        assert!(matches!(watched.refresh(read), ReloadResult::Same));

        fs::write(&path, "three").unwrap();
        assert!(
            matches!(watched.refresh(read), ReloadResult::Same),
            "too soon"
        );
        assert!(matches!(watched.refresh(read), ReloadResult::Renewed));
        assert!(matches!(watched.refresh(read), ReloadResult::Same));
        assert_eq!(*watched.get(), "three");
    }

    #[test]
    fn a_swapped_link_to_a_folder_is_a_change() {
        let home = tempfile::tempdir().unwrap();
        let link = home.path().join("data");
        for name in ["1", "2"] {
            fs::create_dir(home.path().join(name)).unwrap();
            fs::write(home.path().join(name).join("a"), name).unwrap();
        }
        std::os::unix::fs::symlink("1", &link).unwrap();
        let path = link.join("a");
        let read = || Ok(fs::read_to_string(&path).unwrap());
        let watched = Reloadable::new(vec![path.clone()], read).unwrap();

        let next = home.path().join("next");
        std::os::unix::fs::symlink("2", &next).unwrap();
        fs::rename(&next, &link).unwrap();
        watched.refresh(read);
        assert!(matches!(watched.refresh(read), ReloadResult::Renewed));
        assert_eq!(*watched.get(), "2");
    }
}
