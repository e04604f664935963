//! A buffered body can be sent again.

use super::Weir;
use crate::support::{Client, Origin};

fn group(bad: &Origin, good: &Origin, settings: &str) -> Weir {
    Weir::start(&format!(
        "upstreams: {{ app: {{ servers: [{{ address: '{}', max_fails: 0 }}, '{}'] }} }}
servers:
- listen: LISTEN
  locations: [{{ path: /, {settings} proxy_pass: app }}]
",
        bad.address(),
        good.address()
    ))
}

fn send(weir: &Weir, method: &str, body: &[u8]) -> u16 {
    let mut client = Client::connect(weir.address());
    let length = body.len();
    client.send(format!(
        "{method} /ok HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
    ));
    client.send(body);
    client.response().status
}

#[test]
fn a_body_is_sent_again_to_the_next_server() {
    for length in [5, 20_000, 300_000] {
        let bad = Origin::named("bad").always("/reset");
        let good = Origin::named("good");
        let weir = group(&bad, &good, "");
        let body = vec![b'x'; length];
        let statuses = [0; 4].map(|_| send(&weir, "PUT", &body));
        assert_eq!(statuses, [200; 4], "{length}");
        assert!(bad.count() >= 1);
        let seen = good.seen();
        assert!(seen.iter().all(|it| it.length == length && it.complete));
    }
}

#[test]
fn non_idempotent_requests_are_sent_once() {
    let bad = Origin::named("bad").always("/reset");
    let good = Origin::named("good");
    let weir = group(&bad, &good, "");
    let statuses = [0; 4].map(|_| send(&weir, "POST", b"hello"));
    assert!(statuses.contains(&502), "{statuses:?}");
    assert_eq!(bad.count() + good.count(), 4, "each was sent exactly once");
    let weir = group(
        &bad,
        &good,
        "proxy_next_upstream: error timeout non_idempotent,",
    );
    assert_eq!([0; 4].map(|_| send(&weir, "POST", b"hello")), [200; 4]);
}

#[test]
fn a_fallback_gets_the_body_that_the_first_did_not_take() {
    let (bad, other) = (Origin::named("bad"), Origin::named("other"));
    bad.behave("/reset");
    let yaml = format!(
        "servers:
- listen: LISTEN
  proxy_pass: 'http://{}'
  fallback: {{ on: error, proxy_pass: 'http://{}' }}
",
        bad.address(),
        other.address()
    );
    let weir = Weir::start(&yaml);
    for length in [5, 100_000] {
        assert_eq!(send(&weir, "PUT", &vec![b'x'; length]), 200, "{length}");
        let seen = other.seen();
        assert_eq!(seen.last().unwrap().length, length);
    }
}
