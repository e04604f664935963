//! Buffers are bounded over all requests, and without room requests are served as without buffering.

use super::{configuration, forwarding, full, in_use, post};
use crate::support::weir::output;
use crate::support::{Client, Origin, Weir, eventually};

/// Far more than any socket buffers.
const LARGE: usize = 32 << 20;

fn upload(weir: &Weir, length: usize) -> u16 {
    let mut client = Client::connect(weir.address());
    post(&client, length);
    let piece = vec![b'x'; 64 << 10];
    for _ in 0..length / piece.len() {
        client.send(&piece);
    }
    client.response().status
}

#[test]
fn without_room_on_the_disk_a_body_streams() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "buffers: { disk: 1m }", "client_max_body_size: 0,");
    assert_eq!(upload(&weir, LARGE), 200);
    assert_eq!(origin.only().length, LARGE);
    assert_eq!(full(&weir, "disk"), 1);
    weir.error_line("`disk` of `buffers` is used up");
    eventually("all is given back", || {
        in_use(&weir, "disk") + in_use(&weir, "memory") == 0
    });
}

#[test]
fn a_directory_that_is_gone_makes_a_body_stream() {
    let origin = Origin::start();
    let directory = tempfile::tempdir().unwrap();
    let top = format!("buffers: {{ path: {} }}", directory.path().display());
    let weir = forwarding(&origin, &top, "client_max_body_size: 0,");
    directory.close().unwrap();
    for requests in 1..3 {
        assert_eq!(upload(&weir, 1 << 20), 200);
        assert_eq!(full(&weir, "error"), requests);
    }
    assert!(origin.seen().iter().all(|seen| seen.length == 1 << 20));
    // A line is written by another thread, and need not be there when the response is.
    weir.error_line("temporary file cannot be written");
    let said = weir.stderr();
    let lines = said.matches("temporary file cannot be written").count();
    assert_eq!(lines, 1, "{said}");
}

#[test]
fn many_slow_uploads_stay_within_the_memory_there_is() {
    let origin = Origin::start();
    let top = "buffers: { memory: 1m, disk: 0 }";
    let weir = forwarding(&origin, top, "");
    let before = weir.resident();
    let slow: Vec<_> = (0..200).map(|_| Client::connect(weir.address())).collect();
    for client in &slow {
        post(client, 15_000);
        client.send(vec![b'x'; 14_000]);
    }
    // Those there was no room for stream, as without buffers.
    eventually("memory is used up", || full(&weir, "memory") > 0);
    eventually("the rest has begun to stream", || {
        let buffered = in_use(&weir, "memory") / 14_000;
        origin.count() as u64 + buffered >= 200
    });
    let grown = weir.resident().saturating_sub(before);
    assert!(grown < 24 << 20, "grown by {grown} bytes");
    for mut client in slow {
        client.send(vec![b'x'; 1000]);
        assert_eq!(client.response().status, 200);
    }
    assert!(origin.seen().iter().all(|seen| seen.length == 15_000));
}

#[test]
fn a_killed_gateway_leaves_no_file_behind() {
    let origin = Origin::start();
    let directory = tempfile::tempdir().unwrap();
    let top = format!("buffers: {{ path: {} }}", directory.path().display());
    let mut weir = forwarding(&origin, &top, "");
    let client = Client::connect(weir.address());
    post(&client, 1 << 20);
    client.send(vec![b'x'; 512 << 10]);
    eventually("a file is in use", || in_use(&weir, "disk") > 0);
    weir.signal("KILL");
    weir.wait();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn other_bounds_hold_after_a_reload() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "buffers: { disk: 1m }", "client_max_body_size: 0,");
    let yaml = configuration("buffers: { disk: 2g }", "client_max_body_size: 0,");
    weir.reload(&yaml.replace("ORIGIN", &origin.address().to_string()));
    assert_eq!(upload(&weir, LARGE), 200);
    assert_eq!(full(&weir, "disk"), 0);
    // The answer is here before the gateway has let go of the body.
    eventually("all is given back", || in_use(&weir, "disk") == 0);
}

#[test]
fn check_tries_the_directory() {
    let yaml = "buffers: { path: /nowhere/at/all }
servers:
- listen: 8080
  client_body_temp_path: /proc
  proxy_pass: http://127.0.0.1:9000
";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weir.yaml");
    std::fs::write(&file, yaml).unwrap();
    let said = output(&["check", "--config", file.to_str().unwrap()]);
    assert_eq!(said.status.code(), Some(1));
    let said = String::from_utf8_lossy(&said.stderr);
    for part in [
        "no file can be made in `/nowhere/at/all`",
        "no file can be made in `/proc`",
        "weir.yaml:1:18",
        "weir.yaml:4:26",
        "name a directory that is there and that weir may write to",
    ] {
        assert!(said.contains(part), "{part} in\n{said}");
    }
}
