//! Malformed responses of backends, as docs/http.md lists them: how nginx and weir handle each.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use crate::support::{Client, Nginx, Origin, Weir, get};

/// Status line, header lines and body of a response; what nginx answers, and what weir answers.
const RESPONSES: &[(&str, &str, &str, &str, &str)] = &[
    // More than is usual.
    ("HTTP/1.1 200 OK", "MANY150", "ok", "200 ok", "200 ok"),
    ("HTTP/1.1 200 OK", "MANY1001", "ok", "200 ok", "502"),
    ("HTTP/1.1 200 OK", "LARGE", "ok", "200 ok", "502"),
    // Lines that are no fields.
    (OK, "garbage|Content-Length: 2", "ok", "200 ok", "200 ok"),
    (
        OK,
        "HTTP/1.1 200 OK|Content-Length: 2",
        "ok",
        "200 ok",
        "200 ok",
    ),
    (OK, "some garbage|Content-Length: 2", "ok", "502", "200 ok"),
    (OK, "A : b|Content-Length: 2", "ok", "502", "502"),
    (OK, "Content-Length : 2", "ok", "502", "502"),
    (OK, ": b|Content-Length: 2", "ok", "502", "502"),
    (OK, "A: b| c|Content-Length: 2", "ok", "502", "502"),
    (OK, "A(b: c|Content-Length: 2", "ok", "200 ok", "502"),
    (OK, "A: \0|Content-Length: 2", "ok", "502", "502"),
    (OK, "A: b\rc|Content-Length: 2", "ok", "502", "502"),
    (OK, "A: \x01|Content-Length: 2", "ok", "200 ok", "502"),
    (OK, "A: \u{fc}|Content-Length: 2", "ok", "200 ok", "200 ok"),
    // Lengths.
    (
        OLD,
        "Transfer-Encoding: chunked",
        CHUNKS,
        "200 ok",
        "200 ok",
    ),
    (
        OLD,
        "Transfer-Encoding: chunked|Content-Length: 2",
        CHUNKS,
        "200 ok",
        "502",
    ),
    (
        OK,
        "Transfer-Encoding: chunked|Content-Length: 2",
        CHUNKS,
        "200 ok",
        "502",
    ),
    (
        OK,
        "Content-Length: 2|Content-Length: 2",
        "ok",
        "200 ok",
        "502",
    ),
    (
        OK,
        "Content-Length: 3|Content-Length: 2",
        "ok",
        "200 ok",
        "502",
    ),
    (OK, "Content-Length: 2, 2", "ok", "200 ok", "502"),
    (OK, "Content-Length: x", "ok", "200 ok", "502"),
    (OK, "Content-Length: +2", "ok", "200 ok", "502"),
    (OK, "Transfer-Encoding: gzip", "ok", "200 ok", "502"),
    (OK, "Transfer-Encoding: identity", "ok", "200 ok", "502"),
    (
        OK,
        "Transfer-Encoding: gzip, chunked",
        CHUNKS,
        "200 ok",
        "502",
    ),
    (
        OK,
        "Transfer-Encoding: chunked|Transfer-Encoding: chunked",
        CHUNKS,
        "200 ok",
        "502",
    ),
    (OK, "Content-Length: 9", "ok", "200 cut", "200 cut"),
    (OK, "Content-Length: 2", "ok and more", "200 ok", "200 ok"),
    (
        OK,
        "Transfer-Encoding: chunked",
        "9\r\nok",
        "200 cut",
        "200 cut",
    ),
    // Status lines.
    (
        "HTTP/1.1 200",
        "Content-Length: 2",
        "ok",
        "200 ok",
        "200 ok",
    ),
    ("HTTP/1.1 999 No", "Content-Length: 2", "ok", "999", "999"),
    ("HTTP/1.1 99 No", "Content-Length: 2", "ok", "99", "502"),
    (
        "HTTP/2.0 200 OK",
        "Content-Length: 2",
        "ok",
        "200 ok",
        "502",
    ),
    ("Hello", "Content-Length: 2", "ok", "none", "502"),
    (
        "\r\nHTTP/1.1 200 OK",
        "Content-Length: 2",
        "ok",
        "none",
        "200 ok",
    ),
    (
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: x|Connection: upgrade",
        "",
        "101",
        "502",
    ),
];

const OK: &str = "HTTP/1.1 200 OK";
const OLD: &str = "HTTP/1.0 200 OK";
const CHUNKS: &str = "2\r\nok\r\n0\r\n\r\n";

fn response(number: usize) -> Vec<u8> {
    let (status, lines, body, ..) = RESPONSES[number];
    let many = |count: usize| (1..count).map(|n| format!("X-{n}: y|")).collect::<String>();
    let lines = match lines {
        "MANY150" => many(150) + "Content-Length: 2",
        "MANY1001" => many(1001) + "Content-Length: 2",
        "LARGE" => format!("A: {}|Content-Length: 2", "b".repeat(66_000)),
        lines => lines.to_owned(),
    };
    let lines = lines.replace('|', "\r\n");
    format!("{status}\r\n{lines}\r\n\r\n{body}")
        .chars()
        .map(|one| one as u8)
        .collect()
}

/// A backend that answers a request for `/7` with the seventh of these.
fn backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

fn answer(mut stream: TcpStream) -> Option<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        request.push(byte[0]);
    }
    let line = String::from_utf8_lossy(&request);
    let number = line.split(['/', ' ']).nth(2)?.parse().ok()?;
    stream.write_all(&response(number)).ok()?;
    stream.shutdown(Shutdown::Write).ok()?;
    // Until the other side has read it and goes.
    stream.read_to_end(&mut Vec::new()).ok().map(drop)
}

fn outcome(address: SocketAddr, number: usize) -> String {
    let mut client = Client::connect(address);
    client.get(&format!("/{number}"));
    match client.try_response() {
        Err(_) => "none".to_owned(),
        Ok(response) if response.status != 200 => response.status.to_string(),
        Ok(response) if !response.complete => "200 cut".to_owned(),
        Ok(response) => format!("200 {}", response.text()),
    }
}

#[test]
fn responses_pass_as_with_nginx_unless_they_can_be_read_in_two_ways() {
    let backend = backend();
    let nginx = Nginx::before(
        &Origin::start(),
        &format!(
            "proxy_buffer_size 256k; proxy_buffers 8 256k; proxy_busy_buffers_size 256k;
            server {{ listen LISTEN; proxy_http_version 1.1; location / {{ proxy_pass http://{backend}; }} }}"
        ),
    );
    let weir = Weir::start(&format!(
        "servers: [{{ listen: LISTEN, proxy_pass: 'http://{backend}' }}]"
    ));
    let mut wrong = Vec::new();
    for (number, (status, lines, _, nginxs, weirs)) in RESPONSES.iter().enumerate() {
        let got = [nginx.address(), weir.address()].map(|address| outcome(address, number));
        if got != [*nginxs, *weirs] {
            wrong.push(format!(
                "{status:?} {lines:?}: {got:?}, not {nginxs:?} and {weirs:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}\n{}", weir.stderr());
    // Told once, however many there were.
    weir.error_line("header lines without a colon");
    let told = weir
        .stderr()
        .matches("header lines without a colon")
        .count();
    assert_eq!(told, 1, "{}", weir.stderr());
}

#[test]
fn how_many_headers_a_response_may_have_is_a_setting() {
    let backend = backend();
    let weir = Weir::start(&format!(
        "servers:
- listen: LISTEN
  proxy_pass: 'http://{backend}'
  proxy_max_headers: 10
- {{ listen: LISTEN2, proxy_max_headers: 2000, proxy_pass: 'http://{backend}' }}
"
    ));
    let (few, many) = (weir.address(), weir.second_address());
    assert_eq!(
        [few, many].map(|address| outcome(address, 0)),
        ["502", "200 ok"]
    );
    assert_eq!(
        [few, many].map(|address| outcome(address, 1)),
        ["502", "200 ok"]
    );
    weir.error_line("upstream sent too big header while reading response header from upstream");
}

#[test]
fn an_upgrade_offer_of_a_backend_is_forwarded_and_logged() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let backend = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut bytes = [0; 1024];
            let Ok(1..) = stream.read(&mut bytes) else {
                continue;
            };
            let answer = "HTTP/1.1 200 OK\r\nX-Accel-Redirect: /file\r\nX-Accel-Expires: 5\r\n\
                          Content-Length: 0\r\nConnection: close\r\n\r\n";
            stream.write_all(answer.as_bytes()).ok();
        }
    });
    let weir = Weir::start(&format!(
        "servers: [{{ listen: LISTEN, proxy_pass: 'http://{backend}' }}]"
    ));
    for _ in 0..3 {
        let answer = get(weir.address(), "/");
        assert_eq!(answer.get("x-accel-redirect"), Some("/file"));
        assert_eq!(answer.get("x-accel-expires"), None);
    }
    weir.error_line("upstream sent X-Accel-Redirect");
    assert_eq!(weir.stderr().matches("X-Accel-Redirect").count(), 1);
}
