//! Clients that half-close and still want their response, as `printf … | nc -N` does, and clients that have left.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use crate::support::{Client, Origin, PATIENCE, Weir, eventually};

fn weir(origin: &Origin) -> Weir {
    Weir::before(
        origin,
        "log: { access: { path: '-', format: '$uri $status' } }
servers:
  - listen: LISTEN
    locations:
      - { path: /, proxy_pass: 'http://ORIGIN' }
      - { path: = /known, return: { status: 200, body: known } }
",
    )
}

#[test]
fn an_early_response_reaches_a_client_that_has_sent_its_request() {
    let origin = Origin::start();
    let weir = weir(&origin);
    for _ in 0..20 {
        let mut stream = TcpStream::connect(weir.address()).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
        stream
            .write_all(b"GET /known HTTP/1.1\r\nHost: a\r\n\r\n")
            .expect("it is read");
        stream.shutdown(Shutdown::Write).expect("it is open");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .expect("an answer and its end");
        assert!(
            answer.contains(" 200 OK") && answer.ends_with("known"),
            "{answer}"
        );
    }
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
fn a_client_that_half_closes_while_it_waits_has_left() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let client = Client::connect(weir.address());
    client.get("/hold?gate=never");
    origin.gates().await_waiting("never", 1);
    client.finish_sending();
    eventually("it is given up", || weir.stdout().contains("/hold 499"));
    origin.gates().open("never");
}
