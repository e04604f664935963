//! rclone, which keeps files on WebDAV: Apache behind weir with the configuration that the README begins with.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use super::apache::Apache;
use crate::support::Weir;

/// A remote behind weir, and a directory of this machine.
struct Remote {
    weir: Weir,
    local: TempDir,
    _apache: Apache,
}

impl Remote {
    fn start() -> Self {
        let apache = Apache::start();
        let weir = Weir::start(&format!(
            "limit_req_zones: {{ perip: {{ key: $binary_remote_addr, size: 10m, rate: 10r/s }} }}
servers:
  - listen: LISTEN
    limit_req: {{ zone: perip, burst: 120, nodelay: true }}
    client_max_body_size: 8m
    locations: [{{ path: /, proxy_pass: 'http://{}' }}]
",
            apache.address()
        ));
        let local = TempDir::new().expect("the temporary directory can be written");
        Self {
            weir,
            local,
            _apache: apache,
        }
    }

    /// Runs rclone with these words; what it prints. A word that begins with `:webdav:` is of the remote, one that begins
    /// with `/` of this machine.
    fn rclone(&self, words: &[&str]) -> String {
        let mut command = Command::new("rclone");
        command
            .args(["--config", "/dev/null", "--retries", "1", "--webdav-url"])
            .arg(format!("http://{}", self.weir.address()));
        for word in words {
            match word.strip_prefix('/') {
                Some(name) => command.arg(self.local.path().join(name)),
                None => command.arg(word),
            };
        }
        let output = command.output().expect("rclone is installed");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn write(&self, name: &str, content: &[u8]) {
        let path = self.local.path().join(name);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("it can be written");
        fs::write(path, content).expect("it can be written");
    }

    /// All files of the remote.
    fn files(&self) -> Vec<String> {
        let list = self.rclone(&["lsf", "--recursive", "--files-only", ":webdav:"]);
        let mut files: Vec<_> = list.lines().map(str::to_owned).collect();
        files.sort();
        files
    }
}

#[test]
fn files_are_copied_moved_listed_and_deleted() {
    let remote = Remote::start();
    let large: Vec<u8> = (0..3 << 20).map(|at| (at % 251) as u8).collect();
    remote.write("up/a.txt", b"hello");
    remote.write("up/deep/large file \u{e4}.bin", &large);
    remote.rclone(&["copy", "/up", ":webdav:"]);
    assert_eq!(remote.files(), ["a.txt", "deep/large file \u{e4}.bin"]);
    remote.rclone(&["check", "--download", "/up", ":webdav:"]);

    // On the server, with the gateway's name in `Destination`.
    remote.rclone(&["moveto", ":webdav:a.txt", ":webdav:b.txt"]);
    remote.rclone(&["copyto", ":webdav:b.txt", ":webdav:c.txt"]);
    remote.rclone(&["move", ":webdav:deep", ":webdav:other/place"]);
    let moved = ["b.txt", "c.txt", "other/place/large file \u{e4}.bin"];
    assert_eq!(remote.files(), moved);
    assert_eq!(remote.rclone(&["cat", ":webdav:c.txt"]), "hello");
    let log = remote.weir.stdout();
    assert!(log.contains("\"MOVE /a.txt HTTP/1.1\" 201"), "{log}");
    assert!(log.contains("\"COPY /b.txt HTTP/1.1\" 201"), "{log}");

    remote.rclone(&["copy", ":webdav:", "/down"]);
    let down = remote.local.path().join("down");
    let came = fs::read(down.join(moved[2])).expect("it was copied");
    assert!(came == large, "{} bytes", came.len());
    remote.rclone(&["deletefile", ":webdav:b.txt"]);
    remote.rclone(&["purge", ":webdav:other"]);
    assert_eq!(remote.files(), ["c.txt"]);
}
