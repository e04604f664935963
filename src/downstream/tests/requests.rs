//! Requests and their answers, and what never becomes a request.

use tokio::net::UnixStream;

use super::*;
use crate::message::ConnectionPhase;
use crate::net::Stream;
use crate::tls::Socket;

#[tokio::test]
async fn a_connection_carries_several_requests() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    for path in ["/one", "/two", "/untold", "/three"] {
        client
            .send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"))
            .await;
        let (head, body) = client.answer().await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert_eq!(body, path.replace("/untold", "untold"));
        rig.toy
            .wait_for_state(|state| state.phase() == ConnectionPhase::Idle)
            .await;
    }
    assert_eq!(*rig.toy.endings.lock(), [ResponseEnd::Complete; 3]);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client
        .send("GET /1 HTTP/1.1\r\n\r\nPOST /echo HTTP/1.1\r\ncontent-length: 2\r\n\r\nhiGET /3 HTTP/1.1\r\n\r\n")
        .await;
    for expected in ["/1", "hi", "/3"] {
        assert_eq!(client.answer().await.1, expected);
    }
    assert_eq!(*rig.toy.endings.lock(), [ResponseEnd::Complete; 3]);
}

#[tokio::test]
async fn http_1_0_closes_after_its_answer_unless_asked_not_to() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client.send("GET /a HTTP/1.0\r\n\r\n").await;
    let answer = client.rest().await;
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n/a"), "{answer}");

    let mut client = rig.client().await;
    for path in ["/a", "/b"] {
        client
            .send(format!(
                "GET {path} HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"
            ))
            .await;
        let (head, body) = client.answer().await;
        assert!(head.contains("connection: keep-alive\r\n"), "{head}");
        assert_eq!(body, path);
    }
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused_with_431_and_closed() {
    let rig = Rig::start().await;
    let long = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(33 * 1024));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(101));
    for request in [long, many] {
        let mut client = rig.client().await;
        client.send(request).await;
        let answer = client.rest().await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
    }
    assert_eq!(*rig.toy.refused.lock(), [431, 431]);
}

#[tokio::test]
async fn a_head_as_large_as_allowed_passes() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    let frame = "GET /fits HTTP/1.1\r\nx: \r\n\r\n".len();
    let filler = "x".repeat(32 * 1024 - frame);
    client
        .send(format!("GET /fits HTTP/1.1\r\nx: {filler}\r\n\r\n"))
        .await;
    assert_eq!(client.answer().await.1, "/fits");
}

#[tokio::test]
async fn an_address_longer_than_hyper_can_hold_is_refused_with_414() {
    let rig = Rig::with(ConnectionSettings {
        max_head: 128 * 1024,
        ..settings()
    })
    .await;
    let mut client = rig.client().await;
    client
        .send(format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(66_000)))
        .await;
    assert!(client.rest().await.starts_with("HTTP/1.1 414 "));
    assert_eq!(*rig.toy.refused.lock(), [414]);
}

#[tokio::test]
async fn what_is_not_a_request_is_refused_with_400_and_closed() {
    let rig = Rig::start().await;
    let heads = [
        "hello\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\ncontent-length: 1, 2\r\n\r\n",
        "GET / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n",
    ];
    for head in heads {
        let mut client = rig.client().await;
        client
            .send(format!(
                "GET /good HTTP/1.1\r\n\r\n{head}GET /never HTTP/1.1\r\n\r\n"
            ))
            .await;
        assert_eq!(client.answer().await.1, "/good");
        let answer = client.rest().await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(!answer.contains("/never"), "{answer}");
    }
    assert_eq!(*rig.toy.refused.lock(), [400; 4]);
}

#[tokio::test]
async fn a_handler_can_close_without_an_answer() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client.send("GET /closed HTTP/1.1\r\n\r\n").await;
    assert_eq!(client.rest().await, "");
}

#[tokio::test(start_paused = true)]
async fn an_interim_answer_leaves_while_the_request_still_waits() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client.send("GET /early HTTP/1.1\r\n\r\n").await;
    let began = tokio::time::Instant::now();
    let hints = client.head().await;
    assert!(hints.starts_with("HTTP/1.1 103 Early Hints\r\n"), "{hints}");
    assert!(began.elapsed() < Duration::from_secs(1));
    assert_eq!(client.answer().await.1, "late");
}

#[tokio::test]
async fn an_interim_answer_stands_before_its_own_answer_when_pipelined() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client
        .send("GET /1 HTTP/1.1\r\n\r\nGET /early-at-once HTTP/1.1\r\n\r\nGET /3 HTTP/1.1\r\n\r\n")
        .await;
    assert_eq!(client.answer().await.1, "/1");
    assert!(client.head().await.starts_with("HTTP/1.1 103 "));
    assert_eq!(client.answer().await.1, "at once");
    assert_eq!(client.answer().await.1, "/3");
}

#[tokio::test(start_paused = true)]
async fn an_interim_answer_from_another_task_leaves_at_once() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client.send("GET /park HTTP/1.1\r\n\r\n").await;
    rig.toy
        .wait_for_state(|state| state.phase() == ConnectionPhase::Busy)
        .await;
    rig.toy.peer().state.send_interim(interim(102, None));
    assert_eq!(client.head().await, "HTTP/1.1 102 Processing\r\n\r\n");
}

#[tokio::test]
async fn bytes_are_counted_both_ways() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    let request = "POST /echo HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello";
    client.send(request).await;
    let (head, body) = client.answer().await;
    let state = &rig.toy.peer().state;
    assert_eq!(state.received.get(), request.len() as u64);
    assert_eq!(state.sent.get(), (head.len() + body.len()) as u64);
}

#[tokio::test]
async fn a_unix_socket_is_served_alike() {
    let (mut client, server) = UnixStream::pair().unwrap();
    let peer = Arc::new(ClientConnection::new(RemoteAddr::Unix, None, 1, Millis(0)));
    tokio::spawn(connection(
        Socket::Plain(Stream::Unix(server)),
        peer,
        settings(),
        Toy::default(),
        CancellationToken::new(),
    ));
    client
        .write_all(b"GET /unix HTTP/1.0\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("/unix"), "{answer}");
}

/// Prebuilt responses depend on it. If this fails after an update of hyper, `message/prebuilt.rs` has to learn what hyper
/// writes now; until then every response costs what it costs without them.
#[test]
fn hyper_writes_empty_responses_as_prebuilt_ones_need_them() {
    let empty = crate::downstream::http1::empty_response();
    let known = crate::message::prebuilt::check(&empty);
    assert!(known, "{}", empty.escape_ascii());
}
