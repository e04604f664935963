//! A new binary takes over.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::answering;
use crate::support::weir::BINARY;
use crate::support::{Client, Origin, Weir, eventually, get};

/// One that is run by this path, so that another can be put in its place.
fn start(yaml: &str) -> (Weir, tempfile::TempDir) {
    let home = tempfile::tempdir().expect("a folder");
    let binary = home.path().join("weir");
    std::os::unix::fs::symlink(BINARY, &binary).expect("a link");
    let weir = Weir::start_as(yaml, |command| {
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        *command = std::process::Command::new(&binary);
        command.args(arguments);
    });
    (weir, home)
}

/// Ends the process that takes over, which is no child of the test: also where the test fails before that.
struct Successor {
    old: u32,
    log: PathBuf,
}

impl Successor {
    fn of(weir: &Weir) -> Self {
        Self {
            old: weir.pid(),
            log: weir.path("stderr"),
        }
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        let read = |file: &Path| std::fs::read_to_string(file).unwrap_or_default();
        let log = read(&self.log);
        let line = log.lines().find(|line| line.contains("has taken over"));
        let named = line.and_then(|line| Some(line.split_once("process=")?.1.to_owned()));
        // Before it is named it is a child of the old one.
        let processes = named.unwrap_or_else(|| {
            let threads = std::fs::read_dir(format!("/proc/{}/task", self.old));
            let threads = threads.into_iter().flatten().flatten();
            threads
                .map(|thread| read(&thread.path().join("children")))
                .collect()
        });
        let processes: Vec<_> = processes.split_whitespace().collect();
        // The shell's own `kill`: the command is in a package that a small system comes without.
        std::process::Command::new("sh")
            .args(["-c", &format!("kill -KILL {}", processes.join(" "))])
            .stderr(std::process::Stdio::null())
            .status()
            .ok();
    }
}

#[test]
fn requests_are_served_during_the_upgrade() {
    let origin = Origin::start();
    let yaml = format!(
        "{}  - {{ path: /far, proxy_pass: 'http://{}/' }}\n- listen: 'unix:DIR/weir.sock'\n",
        answering("one"),
        origin.address()
    );
    let (mut weir, _home) = start(&yaml);
    let mut slow = Client::connect(weir.address());
    slow.get("/far/hold?gate=g");
    origin.gates().await_waiting("g", 1);
    let (over, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let successor = Successor::of(&weir);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let text = get(weir.address(), "/").text();
                        assert!(["one", "two"].contains(&text.as_str()), "{text}");
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        weir.rewrite(&yaml.replace("200 one", "200 two"));
        weir.signal("USR2");
        weir.error_line("has taken over");
        eventually("only the new one serves", || {
            (0..20).all(|_| get(weir.address(), "/").text() == "two")
        });
        over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("no request was refused");
        }
    });
    assert!(asked.load(Ordering::Relaxed) > 0);
    assert!(!weir.has_ended(), "a request is in flight");
    origin.gates().open("g");
    assert_eq!(slow.response().text(), "ok");
    assert_eq!(weir.wait().code(), Some(0));
    assert_eq!(get(weir.address(), "/").text(), "two");
    let socket = weir.path("weir.sock");
    assert!(
        std::os::unix::net::UnixStream::connect(socket).is_ok(),
        "its file is still there"
    );
    drop(successor);
}

#[test]
fn one_that_does_not_come_to_run_changes_nothing() {
    let (weir, home) = start(&answering("one"));
    weir.rewrite("nonsense: true\n");
    weir.signal("USR2");
    let line = weir.error_line("the new binary has not taken over");
    assert!(line.contains("exit status: 2"), "{line}");
    assert_eq!(get(weir.address(), "/").text(), "one");
    std::fs::remove_file(home.path().join("weir")).unwrap();
    weir.signal("USR2");
    eventually("both are told", || {
        weir.stderr().matches("this one goes on").count() == 2
    });
    assert_eq!(get(weir.address(), "/").text(), "one");
    // And it can still be reloaded.
    weir.reload(&answering("two"));
    assert_eq!(get(weir.address(), "/").text(), "two");
}

/// No process is left after weir was stopped.
#[test]
fn a_stop_ends_the_one_that_is_about_to_take_over_as_well() {
    let (mut weir, home) = start(&answering("one"));
    let (binary, number) = (home.path().join("weir"), home.path().join("number"));
    std::fs::remove_file(&binary).expect("it can be removed");
    let script = format!(
        "#!/bin/sh\necho $$ > {}\nexec sleep 300\n",
        number.display()
    );
    std::fs::write(&binary, script).expect("it can be written");
    let may_run = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&binary, may_run).expect("it is ours");
    weir.signal("USR2");
    let started = || std::fs::read_to_string(&number).unwrap_or_default();
    eventually("it starts", || started().ends_with('\n'));
    let state = format!("/proc/{}/stat", started().trim());
    weir.signal("TERM");
    assert_eq!(weir.wait().code(), Some(0));
    eventually("it is gone", || {
        let state = std::fs::read_to_string(&state).unwrap_or_default();
        // Results that were not collected yet are gone as well.
        state.is_empty() || state.contains(") Z ")
    });
}
