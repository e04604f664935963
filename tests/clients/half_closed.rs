//! Clients that say nothing more and still want their answer, as `printf … | nc -N` does, and those that have gone.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::{Client, Origin, PATIENCE, Weir, eventually};

fn weir(origin: &Origin) -> Weir {
    Weir::before(
        origin,
        "log: { access: { path: '-', format: '$uri $status' } }
servers: [ { listen: LISTEN, proxy_pass: 'http://ORIGIN' } ]
",
    )
}

#[test]
fn whoever_has_said_all_at_once_gets_its_answer() {
    let origin = Origin::start();
    let weir = weir(&origin);
    for request in [
        "GET /slow?ms=300 HTTP/1.0\r\n\r\n",
        "GET /slow?ms=300 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /bytes?n=3000000 HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /slow?ms=300 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        "POST /slow?ms=300 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ] {
        let answer = all_at_once(weir.address(), request);
        let (head, body) = answer.split_once("\r\n\r\n").expect("a whole head");
        assert!(head.contains(" 200 OK"), "{request}: {head}");
        assert!(body.len() >= 2, "{request}: {body}");
    }
}

/// Sends a request and ends the sending side, both in one packet; all that is said to it.
fn all_at_once(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
    let corked = socket2::SockRef::from(&stream).set_tcp_cork(true);
    corked.expect("it is a socket");
    stream.write_all(request.as_bytes()).expect("it is read");
    stream.shutdown(Shutdown::Write).expect("it is open");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .expect("an answer and its end");
    answer
}

#[test]
fn half_a_body_is_no_request() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhello");
    client.finish_sending();
    assert!(
        client
            .try_response()
            .map_or(true, |response| response.status == 400)
    );
    assert!(origin.seen().iter().all(|seen| !seen.complete));
}

#[test]
fn whoever_ends_its_side_later_has_gone() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let client = Client::connect(weir.address());
    client.get("/hold?gate=never");
    origin.gates().await_waiting("never", 1);
    // Longer than the two could be apart on their way.
    std::thread::sleep(Duration::from_millis(50));
    client.finish_sending();
    eventually("it is given up", || weir.stdout().contains("/hold 499"));
    origin.gates().open("never");
}
