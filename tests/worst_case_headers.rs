//! The worst request headers of each kind cost in proportion to their size, not to its square.
//!
//! Each kind has a budget beside those of ordinary requests, counted in the same way: a loop over header fields inside a
//! loop over what one of them lists would cost tens of times as much. Sizes are near the largest that is accepted.
//!
//! Ignored here because it needs valgrind and the optimised binary; `tests/instructions` has both.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use super::instructions::{Judged, count, first_client};
use super::support::Client;
use super::support::frames::{END_STREAM, Frame, Framed, asking, request};

/// Requests of each kind.
const REQUESTS: u32 = 100;

/// Bytes of what is long in a head; all of it may have 32 KB.
const LONG: usize = 28_000;

/// Header fields beside those that every message has; a head may have 100.
const MANY: usize = 90;

/// Interim responses that are passed on for one request.
const INTERIM: usize = 16;

fn fields() -> String {
    let field = |number| format!("x-field-{number}: {number}\r\n");
    (0..MANY).map(field).collect()
}

/// So many options that none is a field, or that each is one.
fn connection(options: &str) -> String {
    format!("connection: {}\r\n", repeated(options))
}

/// Nearly as long as a head may be.
fn repeated(text: &str) -> String {
    text.repeat(LONG / text.len())
}

fn get(target: &str, more: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n{more}\r\n")
}

/// The kinds of heads that a client sends, or asks the backend for, and what they are answered with.
fn heads() -> Vec<(&'static str, String, u16)> {
    let all: String = (0..MANY)
        .map(|number| format!("x-field-{number},"))
        .collect();
    vec![
        (
            "head_accept",
            get(
                "/refused",
                &format!("accept: {}\r\n", repeated("text/html;q=0.5,")),
            ),
            429,
        ),
        (
            "head_arguments",
            get(&format!("/?{}last=1", repeated("a=1&")), ""),
            200,
        ),
        (
            "head_connection",
            get("/", &(connection("a,") + &fields())),
            200,
        ),
        (
            "head_connection_fields",
            get("/", &(connection(&all) + &fields())),
            200,
        ),
        (
            "head_cookies",
            get("/", &format!("cookie: {}last=1\r\n", repeated("a=1; "))),
            200,
        ),
        ("head_fields", get("/", &fields()), 200),
        (
            "head_forwarded",
            get(
                "/forwarded",
                &format!("forwarded: for=a{}\r\n", repeated(",for=\"127.0.0.1\"")),
            ),
            200,
        ),
        (
            "head_forwarded_for",
            get(
                "/",
                &format!("x-forwarded-for: 127.0.0.1{}\r\n", repeated(", 127.0.0.1")),
            ),
            200,
        ),
        ("head_interim", get("/interim", ""), 200),
        ("head_path", get(&repeated("/a/.."), ""), 200),
        ("head_response", get("/response", ""), 200),
    ]
}

fn yaml(listen: SocketAddr, backend: SocketAddr) -> String {
    format!(
        "workers: 1
log: {{ level: error, access: off }}
limit_req_zones:
  cookie: {{ key: $cookie_last, size: 1m, rate: 1000000r/s }}
  argument: {{ key: $arg_last, size: 1m, rate: 1000000r/s }}
  none: {{ key: $binary_remote_addr, size: 1m, rate: 1r/d }}
keepalive_timeout: 600s
keepalive_requests: 1000000
real_ip: {{ from: 127.0.0.0/8, header: X-Forwarded-For, recursive: true }}
upstreams:
  backend: {{ keepalive: 16, keepalive_requests: 1000000, servers: [{{ address: \"{backend}\" }}] }}
servers:
  - listen: \"{listen}\"
    limit_req_log_level: info
    locations:
      - path: /
        limit_req:
          - {{ zone: cookie, burst: 100000, nodelay: true }}
          - {{ zone: argument, burst: 100000, nodelay: true }}
        proxy_pass: backend
      - path: /forwarded
        real_ip: {{ header: Forwarded }}
        proxy_pass: backend
      - path: /refused
        limit_req: {{ zone: none }}
        proxy_pass: backend
"
    )
}

#[test]
#[ignore = "needs valgrind and the release binary: tests/instructions runs it"]
fn the_worst_request_headers_stay_within_their_budgets() {
    let backend = backend();
    let run = |ask: &dyn Fn(&mut Client, SocketAddr)| {
        count(&|listen| yaml(listen, backend), |process, address| {
            let mut client = first_client(process, address);
            // What is made once is made; and of those that are refused the first is not.
            client.send(get("/refused", ""));
            client.response();
            ask(&mut client, address);
        })
    };
    let nothing = run(&|_, _| {});
    let cost = |counted: u64| counted.saturating_sub(nothing) / u64::from(REQUESTS);
    let mut costs = Vec::new();
    for (name, head, status) in heads() {
        let counted = run(&|client, _| {
            for _ in 0..REQUESTS {
                client.send(&head);
                assert_eq!(answered(client), status, "{name}");
            }
        });
        costs.push((name, cost(counted)));
    }
    let counted = run(&|_, address| ask_over_http2(address));
    costs.push(("head_http2", cost(counted)));
    let judged = Judged::new(&costs);
    println!("{}", judged.said);
    judged.hold();
}

/// The status of the response that ends the interim ones.
fn answered(client: &mut Client) -> u16 {
    loop {
        let status = client.response().status;
        if status >= 200 {
            return status;
        }
    }
}

/// Cookies in as many fields as there is room for: each counts for 32 bytes more.
fn ask_over_http2(address: SocketAddr) {
    let client = Framed::connect(address);
    let cookie = ("cookie", "a=1");
    let fields = asking("GET", "/", &[cookie; LONG / 41]);
    for number in 0..REQUESTS {
        let stream = 2 * number + 1;
        client.send(request(stream, END_STREAM, &fields));
        let ended = |frame: &Frame| frame.stream == stream && frame.ends_stream();
        assert!(client.until(ended).last().is_some_and(ended));
    }
}

/// A backend that sends each response in one piece.
fn backend() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // It ends with the connection, which ends with weir.
            thread::spawn(move || drop(respond(stream)));
        }
    });
    address
}

fn respond(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let long = connection("a,") + &fields();
    let interim = format!("HTTP/1.1 103 Early Hints\r\n{long}\r\n").repeat(INTERIM);
    let last = "content-length: 2\r\n\r\nok";
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    loop {
        head.clear();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut piece)? {
                0 => return Ok(()),
                length => head.extend_from_slice(&piece[..length]),
            }
        }
        let response = match &head[..] {
            head if head.starts_with(b"GET /interim ") => {
                format!("{interim}HTTP/1.1 200 OK\r\n{last}")
            }
            head if head.starts_with(b"GET /response ") => {
                format!("HTTP/1.1 200 OK\r\n{long}{last}")
            }
            _ => format!("HTTP/1.1 200 OK\r\n{last}"),
        };
        stream.write_all(response.as_bytes())?;
    }
}
