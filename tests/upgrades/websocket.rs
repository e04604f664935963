//! WebSocket with a common client and server, and with the headers that nginx needs.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use tungstenite::protocol::CloseFrame;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Message, WebSocket};

use super::before;
use crate::support::{Client, Nginx, Origin, Weir};

/// A server that says everything back.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let Ok(mut socket) = tungstenite::accept(stream) else {
                    return;
                };
                while let Ok(message) = socket.read() {
                    if (message.is_text() || message.is_binary()) && socket.send(message).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

fn connect(weir: &Weir) -> WebSocket<TcpStream> {
    let stream = TcpStream::connect(weir.address()).expect("weir accepts");
    let (socket, response) =
        tungstenite::client("ws://example.test/chat?room=1", stream).expect("the handshake");
    assert_eq!(response.status(), 101);
    socket
}

#[test]
fn a_conversation_and_its_end() {
    let weir = before(echo(), "", "");
    let mut socket = connect(&weir);
    let long = "y".repeat(3 << 20);
    for text in ["hello", "", "gr\u{fc}\u{df}e", &long] {
        socket.send(Message::text(text)).expect("it is open");
        assert_eq!(socket.read().expect("an echo"), Message::text(text));
    }
    let binary = Message::binary((0..=255).cycle().take(1 << 20).collect::<Vec<u8>>());
    socket.send(binary.clone()).expect("it is open");
    assert_eq!(socket.read().expect("an echo"), binary);
    socket.send(Message::Ping("p".into())).expect("it is open");
    assert_eq!(socket.read().expect("an echo"), Message::Pong("p".into()));
    let farewell = CloseFrame {
        code: CloseCode::Normal,
        reason: "done".into(),
    };
    socket.close(Some(farewell.clone())).expect("it is open");
    assert_eq!(
        socket.read().expect("its close"),
        Message::Close(Some(farewell))
    );
    assert!(socket.read().is_err(), "closed");
    drop(socket);
    let line = weir.access_line("/chat?room=1 101 ");
    let sent: usize = line
        .split(' ')
        .nth(2)
        .and_then(|w| w.parse().ok())
        .expect("bytes");
    assert!(sent > 4 << 20, "{line}");
}

#[test]
fn many_at_once() {
    let weir = before(echo(), "", "");
    let mut sockets: Vec<_> = (0..50).map(|_| connect(&weir)).collect();
    for round in 0..10 {
        for (number, socket) in sockets.iter_mut().enumerate() {
            let text = format!("{round} of {number}");
            socket.send(Message::text(text)).expect("it is open");
        }
        for (number, socket) in sockets.iter_mut().enumerate() {
            let text = format!("{round} of {number}");
            assert_eq!(socket.read().expect("an echo"), Message::text(text));
        }
    }
}

/// What nginx needs to be told is right here, and changes nothing.
#[test]
fn a_configuration_that_was_nginxs_works() {
    let far = echo();
    let weir = Weir::start(&format!(
        "maps: {{ $connection_upgrade: {{ map: $http_upgrade, default: upgrade, values: {{ '': close }} }} }}
servers:
- listen: LISTEN
  locations:
  - path: /
    proxy_pass: 'http://{far}'
    proxy_set_header: {{ Upgrade: $http_upgrade, Connection: $connection_upgrade, Host: $host }}
"
    ));
    let mut socket = connect(&weir);
    socket.send(Message::text("hello")).expect("it is open");
    assert_eq!(socket.read().expect("an echo"), Message::text("hello"));
}

#[test]
fn the_backend_is_asked_as_by_nginx() {
    let (before_nginx, before_weir) = (Origin::start(), Origin::start());
    let nginx = Nginx::before(
        &before_nginx,
        "map $http_upgrade $connection_upgrade { default upgrade; '' close; }
         server { listen LISTEN; location / { proxy_pass http://ORIGIN; proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade; } }",
    );
    let weir = before(before_weir.address(), "", "");
    let request = "GET /ok HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: chat, superchat\r\nSec-WebSocket-Extensions: permessage-deflate\r\nOrigin: http://a\r\n\r\n";
    for address in [nginx.address(), weir.address()] {
        let mut client = Client::connect(address);
        client.send(request);
        assert_eq!(client.response().status, 200);
    }
    let (by_nginx, by_weir) = (before_nginx.only().head, before_weir.only().head);
    for name in [
        "connection",
        "upgrade",
        "sec-websocket-version",
        "sec-websocket-key",
        "sec-websocket-protocol",
        "sec-websocket-extensions",
        "origin",
    ] {
        assert_eq!(by_weir.get(name), by_nginx.get(name), "{name}");
        assert!(by_weir.has(name), "{name}");
    }
}

/// curl says the request, and prints what comes after the 101 as it comes.
#[test]
fn curl_gets_through() {
    let weir = before(echo(), "", "proxy_read_timeout: 1s,");
    let output = Command::new("curl")
        .args([
            "--silent",
            "--include",
            "--no-buffer",
            "--http1.1",
            "--max-time",
            "20",
        ])
        .args(["-H", "Connection: Upgrade", "-H", "Upgrade: websocket"])
        .args(["-H", "Sec-WebSocket-Version: 13"])
        .args(["-H", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="])
        .arg(format!("http://{}/curl", weir.address()))
        .output()
        .expect("tests/run installs curl");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.starts_with("HTTP/1.1 101 Switching Protocols\r\n"),
        "{said}"
    );
    assert!(said.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{said}");
    weir.access_line("/curl 101 ");
}
