//! The first bytes of a connection without TLS: other bytes than HTTP/2's preface, and the preface where HTTP/2 is off.

use crate::support::frames::Framed;
use crate::support::{Client, Weir, get as ask};

use super::{PROTOCOL_ERROR, SETTINGS, curl, frame};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn weir(more: &str) -> Weir {
    Weir::start(&format!(
        "{more}
servers:
- {{ listen: LISTEN, server_name: a.example, return: {{ status: 200, body: \"a $server_protocol\" }} }}
- {{ listen: LISTEN, server_name: b.example, http2: off, return: {{ status: 200, body: \"b $server_protocol\" }} }}
"
    ))
}

#[test]
fn where_it_is_off_the_preface_is_refused() {
    let weir = weir("http2: off");
    for more in [&[][..], &frame(SETTINGS, 0, 0, "")] {
        let mut client = Client::connect(weir.address());
        client.send([PREFACE, more].concat());
        assert_eq!(client.response().status, 505);
        assert!(client.is_closed());
    }
    weir.error_line("client sent invalid version");
    assert_eq!(ask(weir.address(), "/").text(), "a HTTP/1.1");
}

#[test]
fn a_broken_preface_ends_the_connection() {
    let weir = weir("");
    let mut broken = PREFACE.to_vec();
    broken[20] = b'X';
    let client = Framed::saying(weir.address(), &broken);
    assert_eq!(client.goes_away(), Some(PROTOCOL_ERROR));
    // h2spec 3.5/2. This may as well be a client of HTTP/1 that is confused, and gets an answer it can read.
    let mut client = Client::connect(weir.address());
    client.send("INVALID CONNECTION PREFACE\r\n\r\n");
    assert_eq!(client.response().status, 400);
    assert!(client.is_closed());
}

#[test]
fn a_server_without_http2_is_not_reached_over_it() {
    let weir = weir("");
    let url = format!("http://{}/", weir.address());
    let code = ["-w", " %{http_code}"];
    let fetch = |host: &str| curl(&[&code[..], &["-H", host, &url]].concat());
    assert_eq!(fetch("Host: a.example"), "a HTTP/2.0 200");
    let refused = fetch("Host: b.example");
    assert!(refused.ends_with(" 421"), "{refused}");
    assert!(!refused.contains("b HTTP"), "{refused}");
}
