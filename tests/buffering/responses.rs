//! A response is read as fast as the backend sends it, and sent as fast as the client reads it.

use std::process::Command;

use super::{forwarding, full, in_use};
use crate::support::{Client, Origin, Weir, eventually, get, metric};

/// More than sockets and memory hold of it.
const LONG: usize = 8 << 20;

/// A client that has asked for a long response and has read its head.
fn slow(weir: &Weir, path: &str) -> Client {
    let mut client = Client::connect(weir.address());
    client.get(path);
    assert_eq!(client.head().content_length(), Some(LONG));
    client
}

fn busy(weir: &Weir) -> u64 {
    metric(weir, "weir_upstream_active_requests")
}

/// Reads the rest of a long response; whether it was all as the backend sent it.
fn is_whole(mut client: Client) -> bool {
    let (mut length, mut sound) = (0, true);
    while sound && length < LONG {
        let piece = client.some(1 << 20);
        sound = !piece.is_empty() && piece.iter().all(|byte| *byte == b'x');
        length += piece.len();
    }
    sound && length == LONG
}

fn long() -> String {
    format!("/bytes?n={LONG}")
}

#[test]
fn a_slow_client_does_not_hold_the_backend() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "", "");
    let clients = [0; 3].map(|_| slow(&weir, &long()));
    eventually("the backend is done with them", || busy(&weir) == 0);
    assert!(in_use(&weir, "disk") > 0);
    let before = origin.connections();
    assert_eq!(get(weir.address(), "/ok").status, 200);
    assert_eq!(origin.connections(), before, "its connections are kept");
    assert!(clients.into_iter().all(is_whole));
    eventually("all is given back", || {
        in_use(&weir, "disk") + in_use(&weir, "memory") == 0
    });
}

#[test]
fn off_reads_as_fast_as_the_client_takes() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "", "proxy_buffering: off,");
    let client = slow(&weir, &long());
    assert_eq!(get(weir.address(), "/ok").status, 200);
    assert_eq!(in_use(&weir, "disk") + in_use(&weir, "memory"), 0);
    assert_eq!(busy(&weir), 1);
    assert!(is_whole(client));
}

#[test]
fn x_accel_buffering_switches_response_buffering() {
    let origin = Origin::start();
    for (setting, wish, buffered) in [
        ("", "no", false),
        ("proxy_buffering: off,", "Yes", true),
        ("proxy_buffering: off,", "perhaps", false),
    ] {
        let weir = forwarding(&origin, "", setting);
        let path = format!("{}&field=X-Accel-Buffering:{wish}", long());
        let mut client = Client::connect(weir.address());
        client.get(&path);
        assert!(!client.head().has("x-accel-buffering"));
        match buffered {
            true => eventually("the backend is done", || busy(&weir) == 0),
            false => {
                assert_eq!(get(weir.address(), "/ok").status, 200);
                assert_eq!(in_use(&weir, "disk"), 0);
                assert_eq!(busy(&weir), 1);
            }
        }
    }
}

#[test]
fn without_a_file_the_backend_waits_when_memory_is_full() {
    let origin = Origin::start();
    let settings = "proxy_buffers: 4 64k, proxy_max_temp_file_size: 0,";
    let weir = forwarding(&origin, "", settings);
    let client = slow(&weir, &long());
    eventually("memory is in use", || in_use(&weir, "memory") >= 256 << 10);
    assert_eq!(in_use(&weir, "disk"), 0);
    assert!(in_use(&weir, "memory") < 512 << 10);
    assert_eq!(busy(&weir), 1);
    assert!(is_whole(client));
    assert_eq!(full(&weir, "memory") + full(&weir, "disk"), 0);
}

#[test]
fn shared_bounds_hold_without_errors() {
    let origin = Origin::start();
    let top = "buffers: { memory: 1m, disk: 8m }";
    // Clients read one after the other, and none is disconnected meanwhile.
    let weir = forwarding(&origin, top, "send_timeout: 600s, send_min_rate: 0,");
    get(weir.address(), "/bytes?n=1000000");
    let before = weir.resident();
    let clients: Vec<_> = (0..10).map(|_| slow(&weir, &long())).collect();
    eventually("the disk is used up", || full(&weir, "disk") > 0);
    assert!(in_use(&weir, "disk") <= 8 << 20);
    assert!(in_use(&weir, "memory") <= 2 << 20);
    let grown = weir.resident().saturating_sub(before);
    assert!(grown < 24 << 20, "grown by {grown} bytes");
    weir.error_line("is used up: slow clients slow upstreams down");
    assert!(clients.into_iter().all(is_whole));
}

#[test]
fn a_directory_that_is_gone_makes_the_backend_wait() {
    let origin = Origin::start();
    let directory = tempfile::tempdir().unwrap();
    let top = format!("buffers: {{ path: {} }}", directory.path().display());
    let weir = forwarding(&origin, &top, "");
    directory.close().unwrap();
    let client = slow(&weir, &long());
    eventually("it is noticed", || full(&weir, "error") == 1);
    assert_eq!(busy(&weir), 1);
    assert!(is_whole(client));
}

#[test]
fn limit_rate_slows_the_client_down_and_not_the_backend() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "", "limit_rate: 1m,");
    let mut client = Client::connect(weir.address());
    client.get("/bytes?n=2000000");
    client.head();
    eventually("the backend is done", || busy(&weir) == 0);
    assert!(in_use(&weir, "disk") + in_use(&weir, "memory") > 1_000_000);
    let mut length = 0;
    while length < 2_000_000 {
        length += client.some(1 << 20).len();
    }
}

#[test]
fn a_client_that_leaves_frees_what_waits_for_it() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "", "proxy_max_temp_file_size: 1m,");
    let client = slow(&weir, &long());
    eventually("a file is in use", || in_use(&weir, "disk") > 0);
    assert_eq!(busy(&weir), 1);
    drop(client);
    eventually("all is given back", || {
        in_use(&weir, "disk") + in_use(&weir, "memory") == 0
    });
    eventually("the backend is let go", || busy(&weir) == 0);
}

#[test]
fn a_response_that_breaks_off_breaks_off_after_all_that_came() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "", "");
    let mut client = Client::connect(weir.address());
    client.get("/cut-chunked");
    let response = client.response();
    assert!(!response.complete);
    assert!(!response.body.is_empty());
}

#[test]
fn a_slow_client_of_http2_does_not_hold_the_backend_either() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "", "");
    let url = format!("http://{}/bytes?n=3000000", weir.address());
    let mut curl = Command::new("curl")
        .args(["-sS", "--http2-prior-knowledge", "--limit-rate", "1M"])
        .args(["-o", "/dev/null", &url])
        .spawn()
        .expect("curl is installed");
    origin.await_count(1);
    eventually("the backend is done", || busy(&weir) == 0);
    let still_at_it = curl.try_wait().unwrap().is_none();
    assert!(curl.wait().unwrap().success());
    assert!(still_at_it, "curl was done as soon");
}
