//! Applications behind weir that serve one client at a time and support no chunked requests.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::{NamedTempFile, TempDir};

use super::{Weir, post};
use crate::support::ports::Port;
use crate::support::process::Process;
use crate::support::{Client, get};

const APPLICATION: &str = include_str!("../support/application.py");
const PYTHON: &str = "/usr/bin/python3";

/// A running application.
pub(super) struct Served {
    process: Process,
    port: Port,
}

impl Served {
    /// Started by a command made of these words, in which `PORT` stands for a free port, beside `application.py`.
    fn by(words: &[&str]) -> Self {
        let directory = TempDir::new().expect("the temporary directory can be written");
        let script = directory.path().join("application.py");
        fs::write(&script, APPLICATION).expect("the directory can be written");
        make_cgi(directory.path());
        let port = Port::claim();
        let number = port.number().to_string();
        let mut command = Command::new(words[0]);
        command
            .args(words[1..].iter().map(|word| word.replace("PORT", &number)))
            .current_dir(directory.path())
            .env("PYTHONDONTWRITEBYTECODE", "1");
        let mut process = Process::spawn("application", command, directory);
        assert!(process.accepts(port.address()), "it does not start");
        Self { process, port }
    }

    /// gunicorn with the one worker of the issue: one client at a time.
    pub(super) fn by_gunicorn() -> Self {
        Self::by(&[
            PYTHON,
            "-m",
            "gunicorn",
            "-w",
            "1",
            "-b",
            "127.0.0.1:PORT",
            "application:app",
        ])
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    fn weir(&self, settings: &str) -> Weir {
        Weir::start(&format!(
            "admin: {{ listen: ADMIN }}
servers:
- listen: LISTEN
  client_max_body_size: 8m
  {settings}
  proxy_pass: 'http://{}'
",
            self.address()
        ))
    }
}

fn make_cgi(directory: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let scripts = directory.join("cgi-bin");
    fs::create_dir(&scripts).expect("the directory can be written");
    let script = scripts.join("upload");
    fs::write(&script, format!("#!{PYTHON}\n{APPLICATION}")).expect("the directory can be written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
        .expect("the directory can be written");
}

/// Reads this many bytes of what the application sends; whether all of it is as it was sent.
pub(super) fn is_pattern(client: &mut Client, length: usize) -> bool {
    let mut came = 0;
    let mut sound = true;
    while sound && came < length {
        let piece = client.some(1 << 20);
        let expected = (came..).map(|at| (at % 251) as u8);
        sound = !piece.is_empty() && piece.iter().copied().eq(expected.take(piece.len()));
        came += piece.len();
    }
    sound && came == length
}

/// What the application says of a body of this many `x`.
fn digest(length: usize) -> String {
    let sum = Command::new("sha256sum").arg(body(length).path()).output();
    let sum = sum.expect("coreutils are installed").stdout;
    let sum = String::from_utf8_lossy(&sum);
    format!("{length} {}", sum.split(' ').next().unwrap_or_default())
}

/// A file of this many `x`.
fn body(length: usize) -> NamedTempFile {
    let file = NamedTempFile::new().expect("the temporary directory can be written");
    fs::write(file.path(), vec![b'x'; length]).expect("the file can be written");
    file
}

#[test]
fn a_slow_upload_does_not_hold_the_only_worker_of_gunicorn() {
    let application = Served::by_gunicorn();
    let weir = application.weir("");
    let length = 300_000;
    let mut slow = Client::connect(weir.address());
    post(&slow, length);
    slow.send(vec![b'x'; length / 2]);
    for _ in 0..3 {
        assert_eq!(get(weir.address(), "/quick").status, 200);
    }
    slow.send(vec![b'x'; length / 2]);
    assert_eq!(slow.response().text(), digest(length));
}

#[test]
fn a_slow_download_does_not_hold_the_only_worker_of_gunicorn() {
    let application = Served::by_gunicorn();
    let weir = application.weir("");
    let length = 8_000_000;
    let mut slow = Client::connect(weir.address());
    slow.get(&format!("/bytes/{length}"));
    slow.head();
    for _ in 0..3 {
        assert_eq!(get(weir.address(), "/quick").status, 200);
    }
    assert!(is_pattern(&mut slow, length));
}

#[test]
fn events_come_one_by_one() {
    let application = Served::by_gunicorn();
    let weir = application.weir("");
    let mut client = Client::connect(weir.address());
    client.get("/events");
    assert_eq!(client.head().get("content-type"), Some("text/event-stream"));
    let mut came = String::new();
    for number in 0..3 {
        if number > 0 {
            let event = application
                .process
                .directory()
                .join(format!("event-{number}"));
            fs::write(event, "").unwrap();
        }
        while !came.contains(&format!("data: {number}\n\n")) {
            came.push_str(&String::from_utf8_lossy(&client.some(1000)));
        }
        assert!(!came.contains(&format!("data: {}", number + 1)));
    }
}

/// wsgiref, Django's runserver and CGI read no chunks: without a length the body was lost, with 200.
#[test]
fn a_chunked_upload_arrives_whole_where_only_lengths_are_known() {
    for (words, path) in [
        (&[PYTHON, "application.py", "wsgiref", "PORT"][..], "upload"),
        (
            &[
                PYTHON,
                "application.py",
                "django",
                "runserver",
                "--noreload",
                "--nothreading",
                "PORT",
            ],
            "upload",
        ),
        (
            &[PYTHON, "application.py", "http.server", "PORT"],
            "cgi-bin/upload",
        ),
    ] {
        let application = Served::by(words);
        let weir = application.weir("");
        for length in [5, 200_000] {
            let body = body(length);
            let said = Command::new("curl")
                .args(["-sS", "-H", "Transfer-Encoding: chunked", "--data-binary"])
                .arg(format!("@{}", body.path().display()))
                .arg(format!("http://{}/{path}", weir.address()))
                .stderr(Stdio::inherit())
                .output()
                .expect("curl is installed");
            let said = String::from_utf8_lossy(&said.stdout);
            assert_eq!(said, digest(length), "{words:?}");
        }
    }
}
