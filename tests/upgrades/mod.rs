//! Tunnels: a client and a backend switch to another protocol, and weir forwards the bytes.

mod backend;
mod limits;
mod refusals;
mod tls;
mod tunnels;
mod websocket;

use std::net::SocketAddr;

use crate::support::{Client, Weir};
use backend::Far;

/// A weir before this backend, with more settings at the top and for the location.
fn before(backend: SocketAddr, top: &str, location: &str) -> Weir {
    Weir::start(&format!(
        "{top}
log: {{ access: {{ path: '-', format: '$request_uri $status $body_bytes_sent $request_length $upstream_status $upstream_response_time' }} }}
servers:
- listen: LISTEN
  locations: [ {{ path: /, {location} proxy_pass: 'http://{backend}' }} ]
"
    ))
}

/// Asks for a tunnel, with more said in the same breath.
fn ask(weir: &Weir, path: &str, more: &str) -> Client {
    let client = Client::connect(weir.address());
    client.send(request(path, more));
    client
}

fn request(path: &str, more: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo/1\r\n\r\n{more}"
    )
}

/// So many bytes, exactly.
fn read(client: &mut Client, length: usize) -> String {
    let mut text = Vec::new();
    while text.len() < length {
        let piece = client.some(length - text.len());
        assert!(
            !piece.is_empty(),
            "ended after {:?}",
            String::from_utf8_lossy(&text)
        );
        text.extend(piece);
    }
    String::from_utf8(text).expect("what was sent")
}
