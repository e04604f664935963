//! A full disk: back-pressure, and never an error.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use super::software::{Served, is_pattern};
use super::{full, in_use, post};
use crate::support::{Client, Origin, Weir, eventually, metric};

/// How many bytes the disk has.
const SIZE: u64 = 256 << 10;

/// A weir whose temporary files are on a disk of their own that has [`SIZE`] bytes.
struct Cramped {
    weir: Weir,
    mounted: bool,
}

impl Cramped {
    fn before(backend: SocketAddr) -> Self {
        let yaml = format!(
            "admin: {{ listen: ADMIN }}
buffers: {{ path: DIR/disk }}
servers: [{{ listen: LISTEN, client_max_body_size: 0, proxy_pass: 'http://{backend}' }}]
"
        );
        // Root in the name space needs no rights outside of it, where the system allows name spaces at all.
        let unshare = ["unshare", "--map-root-user", "--mount"];
        let tried = Command::new(unshare[0])
            .args(&unshare[1..])
            .args(["mount", "-t", "tmpfs", "tmpfs", "/mnt"])
            .output();
        let mounted = tried.is_ok_and(|tried| tried.status.success());
        let make = "mkdir \"${4%/*}/disk\"";
        // Where nothing can be mounted, a file that must not grow ends a write halfway in the same way.
        let (words, fill) = match mounted {
            true => (
                &unshare[..],
                format!("mount -t tmpfs -o size={SIZE} tmpfs \"${{4%/*}}/disk\""),
            ),
            false => (
                &["env"][..],
                format!("trap '' XFSZ && ulimit -f {}", SIZE / 512),
            ),
        };
        let script = format!("{make} && {fill} && exec \"$@\"");
        let weir = Weir::start_as(&yaml, |command| {
            let mut cramped = Command::new(words[0]);
            cramped
                .args(&words[1..])
                .args(["sh", "-c", &script, "sh"])
                .arg(command.get_program())
                .args(command.get_args());
            *command = cramped;
        });
        Self { weir, mounted }
    }

    /// The directory as weir sees it.
    fn disk(&self) -> PathBuf {
        let disk = self.weir.path("disk");
        PathBuf::from(format!("/proc/{}/root{}", self.weir.pid(), disk.display()))
    }

    /// Whether there is no file, and no space in use by one without a name.
    fn is_empty(&self) -> bool {
        let disk = self.disk();
        let free = rustix::fs::statvfs(&disk).is_ok_and(|it| it.f_bfree == it.f_blocks);
        let files = fs::read_dir(&disk).expect("it is there").count();
        let counted = in_use(&self.weir, "disk") + in_use(&self.weir, "memory");
        files == 0 && counted == 0 && (free || !self.mounted)
    }

    /// The lines about files that cannot be written.
    fn lines(&self) -> Vec<String> {
        self.weir.error_line("temporary file cannot be written");
        let said = self.weir.stderr();
        let lines = said.lines().filter(|line| line.contains("temporary file"));
        lines.map(str::to_owned).collect()
    }

    fn reason(&self) -> &'static str {
        match self.mounted {
            true => "No space left on device",
            false => "File too large",
        }
    }
}

#[test]
fn an_upload_streams_and_the_next_is_buffered_again() {
    let origin = Origin::start();
    let cramped = Cramped::before(origin.address());
    let weir = &cramped.weir;
    let body: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
    for uploads in 1..3 {
        let mut client = Client::connect(weir.address());
        post(&client, body.len());
        client.send(&body);
        assert_eq!(client.response().status, 200);
        assert_eq!(full(weir, "error"), uploads);
        eventually("all is given back", || cramped.is_empty());
    }
    assert!(origin.seen().iter().all(|seen| seen.body == body));
    let lines = cramped.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(cramped.reason()), "{lines:?}");

    let small = &body[..200_000];
    let mut client = Client::connect(weir.address());
    post(&client, small.len());
    client.send(&small[..150_000]);
    eventually("a file is in use", || in_use(weir, "disk") > 0);
    assert_eq!(origin.count(), 2);
    client.send(&small[150_000..]);
    assert_eq!(client.response().status, 200);
    assert_eq!(origin.seen()[2].body, small);
    assert_eq!(full(weir, "error"), 2);
}

#[test]
fn a_download_goes_at_the_pace_of_its_client() {
    let application = Served::by_gunicorn();
    let cramped = Cramped::before(application.address());
    let weir = &cramped.weir;
    let length = 16_000_000;
    let mut client = Client::connect(weir.address());
    client.get(&format!("/bytes/{length}"));
    client.head();
    eventually("the disk is full", || full(weir, "error") == 1);
    assert_eq!(metric(weir, "weir_upstream_active_requests"), 1);
    assert!(is_pattern(&mut client, length));
    eventually("all is given back", || cramped.is_empty());
    assert_eq!(full(weir, "error"), 1);
    let lines = cramped.lines();
    assert!(lines[0].contains(cramped.reason()), "{lines:?}");
}
