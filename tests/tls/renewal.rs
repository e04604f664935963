//! Certificates that change while weir runs.

use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use super::subject;
use crate::support::{Certs, Weir, eventually, wanted};

const ONE: &str = "servers:
  - listen: { address: LISTEN, tls: true }
    tls: { certificate: CERTS/a.pem, key: CERTS/a.key }
    return: { status: 200, body: ok }
";

fn shows(certs: &Certs, weir: &Weir, name: &str) -> bool {
    subject(certs, weir, &[]).contains(&format!("CN = {name}"))
}

#[test]
fn a_new_certificate_is_used_without_a_restart_or_a_closed_connection() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["one.example"]));
    let weir = Weir::start(&certs.filled(ONE));
    assert!(shows(&certs, &weir, "one.example"));
    let mut client = Command::new("openssl")
        .args([
            "s_client",
            "-quiet",
            "-connect",
            &weir.address().to_string(),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl can be run");
    let mut input = client.stdin.take().expect("it is piped");
    let mut output = client.stdout.take().expect("it is piped");
    let mut ask = || {
        let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        input.write_all(request.as_bytes()).expect("it listens");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nok") {
            let mut byte = [0];
            output.read_exact(&mut byte).expect("it stays open");
            answer.push(byte[0]);
        }
    };
    ask();
    certs.issue("a", &wanted(&["two.example"]));
    eventually("the new one is shown", || {
        shows(&certs, &weir, "two.example")
    });
    weir.error_line("certificates were read again");
    ask();
    client.kill().expect("it runs");
    client.wait().expect("it ends");
}

#[test]
fn a_bad_file_changes_nothing_and_is_logged_once() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["one.example"]));
    certs.issue("other", &wanted(&["other.example"]));
    let weir = Weir::start(&certs.filled(ONE));
    // A key that belongs to another certificate.
    let other = std::fs::read(certs.path("other.key")).expect("it is there");
    certs.write("a.key", other);
    let line = weir.error_line("does not match the certificate");
    assert!(line.contains("what was read before stays in use"), "{line}");
    assert!(shows(&certs, &weir, "one.example"));
    certs.write("a.pem", "nothing of the kind");
    weir.error_line("is not PEM");
    assert!(shows(&certs, &weir, "one.example"));
    let told = weir.stderr().matches("stays in use").count();
    assert_eq!(told, 2, "{}", weir.stderr());
    certs.issue("a", &wanted(&["three.example"]));
    eventually("it recovers", || shows(&certs, &weir, "three.example"));
}

/// Kubernetes keeps a volume's files behind a link to a folder, and swaps the link.
#[test]
fn a_swapped_link_is_noticed() {
    let certs = Certs::new();
    for (folder, name) in [("v1", "one.example"), ("v2", "two.example")] {
        std::fs::create_dir(certs.path(folder)).expect("it can be made");
        certs.issue(&format!("{folder}/a"), &wanted(&[name]));
    }
    symlink("v1", certs.path("data")).expect("it can be made");
    symlink("data/a.pem", certs.path("a.pem")).expect("it can be made");
    symlink("data/a.key", certs.path("a.key")).expect("it can be made");
    let weir = Weir::start(&certs.filled(ONE));
    assert!(shows(&certs, &weir, "one.example"));
    symlink("v2", certs.path("next")).expect("it can be made");
    std::fs::rename(certs.path("next"), certs.path("data")).expect("it can be moved");
    eventually("the new one is shown", || {
        shows(&certs, &weir, "two.example")
    });
}
