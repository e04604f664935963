//! Files without a name: gone when the process is, however it ends.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::threads::DiskJob;

/// A new file in this directory that only this process can reach. Blocks.
pub(super) fn open(directory: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(file.into()),
        // Not every file system can make one without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => open_and_unlink(directory),
        Err(error) => Err(error.into()),
    }
}

fn open_and_unlink(directory: &Path) -> io::Result<File> {
    let name = format!("weir-{}-{:016x}", std::process::id(), fastrand::u64(..));
    let path = directory.join(name);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let file = options.open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Reads what follows `at` of a file that is `length` bytes long, as much as is worth it at once.
pub(super) fn fetch(file: &Arc<File>, at: u64, length: u64) -> DiskJob<Bytes> {
    let file = Arc::clone(file);
    let length = usize::try_from(length.saturating_sub(at)).map_or(PIECE, |left| left.min(PIECE));
    DiskJob::start(move || {
        let mut piece = vec![0; length];
        file.read_exact_at(&mut piece, at)?;
        Ok(piece.into())
    })
}

/// What is read at once, in bytes.
const PIECE: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_no_name() {
        let directory = tempfile::tempdir().unwrap();
        for open in [open, open_and_unlink] {
            let file = open(directory.path()).unwrap();
            file.write_all_at(b"abc", 1).unwrap();
            let mut read = [0; 3];
            file.read_exact_at(&mut read, 1).unwrap();
            assert_eq!(&read, b"abc");
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        }
        assert!(open(&directory.path().join("missing")).is_err());
    }
}
