//! Socket activation and notifications of systemd.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use super::answering;
use crate::support::process::Process;
use crate::support::weir::BINARY;
use crate::support::{Client, PATIENCE, Weir, get};

fn notified(path: &std::path::Path) -> UnixDatagram {
    let socket = UnixDatagram::bind(path).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

fn word(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).expect("a word");
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

#[test]
fn it_hears_of_every_change() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("notify");
    let socket = notified(&path);
    let mut weir = Weir::start_as(&answering("one"), |command| {
        command.env("NOTIFY_SOCKET", &path);
    });
    assert!(word(&socket).starts_with("READY=1\n"));
    weir.rewrite(&answering("two"));
    weir.signal("HUP");
    let reloading = word(&socket);
    assert!(
        reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="),
        "{reloading}"
    );
    assert!(word(&socket).starts_with("READY=1\n"));
    weir.rewrite("nonsense: true\n");
    weir.signal("HUP");
    assert!(word(&socket).starts_with("RELOADING=1\n"));
    assert!(
        word(&socket).starts_with("READY=1\n"),
        "it goes on as before"
    );
    weir.signal("TERM");
    assert!(word(&socket).starts_with("STOPPING=1"));
    assert_eq!(weir.wait().code(), Some(0));
}

#[test]
fn it_hears_that_all_is_well_in_half_the_time_it_waits() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("notify");
    let socket = notified(&path);
    let _weir = Weir::start_as(&answering("one"), |command| {
        command.env("NOTIFY_SOCKET", &path);
        command.env(
            "WATCHDOG_USEC",
            Duration::from_millis(200).as_micros().to_string(),
        );
    });
    assert!(word(&socket).starts_with("READY=1\n"));
    for _ in 0..3 {
        assert_eq!(word(&socket), "WATCHDOG=1");
    }
}

/// As systemd does it: the socket is descriptor 3, and a variable says so.
#[test]
fn its_sockets_are_listened_on() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    // Who connects before weir is there is served when it is.
    let mut early = Client::connect(address);
    early.get("/");
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("weir.yaml");
    let yaml = answering("activated").replace("LISTEN", &address.to_string());
    std::fs::write(&config, yaml).unwrap();
    // Its standard input is the one descriptor that no other child started meanwhile inherits.
    let script = "exec 3<&0 0</dev/null; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web; exec \"$0\" run --config \"$1\"";
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(script).arg(BINARY).arg(&config);
    let socket = OwnedFd::from(socket);
    let weir = Process::spawn_reading(socket.into(), "weir", command, home);
    assert_eq!(early.response().text(), "activated");
    assert_eq!(get(address, "/").text(), "activated");
    drop(weir);
}
