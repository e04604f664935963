//! Tunnels inside TLS on both sides of weir.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::backend::Far;
use super::request;
use crate::support::{Certs, PATIENCE, Weir, wanted};

/// A client that trusts this authority.
fn connect(certs: &Certs, weir: &Weir) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_file(certs.path("ca.pem")).expect("it was written");
    roots.add(root).expect("it is one");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("there are some")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "a.example".try_into().expect("it is one");
    let session = ClientConnection::new(Arc::new(config), name).expect("it can be made");
    let socket = TcpStream::connect(weir.address()).expect("it listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("it is open");
    StreamOwned::new(session, socket)
}

#[test]
fn a_tunnel_runs_inside_tls() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example", "127.0.0.1"]));
    let far = Far::start();
    let yaml = "proxy_ssl_trusted_certificate: CERTS/ca.pem
servers:
- listen: { address: LISTEN, tls: true }
  tls: { certificate: CERTS/a.pem, key: CERTS/a.key }
  proxy_pass: 'TO'
";
    let start = |to: String| Weir::start(&certs.filled(yaml).replace("TO", &to));
    let back = start(format!("http://{}", far.address()));
    let front = start(format!("https://{}", back.address()));

    let mut client = connect(&certs, &front);
    let early = "x".repeat(1000);
    client
        .write_all(request("/echo", &early).as_bytes())
        .expect("it is open");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).expect("a head");
        head.extend(byte);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "));
    let mut came = vec![0; early.len()];
    client.read_exact(&mut came).expect("the echo");
    assert_eq!(came, early.as_bytes());
    for _ in 0..20 {
        let piece = vec![b'y'; 100_000];
        client.write_all(&piece).expect("it is open");
        let mut came = vec![0; piece.len()];
        client.read_exact(&mut came).expect("the echo");
        assert!(came == piece);
    }
    // Its end is told to the backend, which has one more word.
    client.conn.send_close_notify();
    client.flush().expect("it is open");
    let mut rest = String::new();
    client
        .read_to_string(&mut rest)
        .expect("an end that is told");
    assert_eq!(rest, "!");
}
