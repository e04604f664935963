//! Connections between two requests: hyper is taken off them, and the client does not notice.

use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

use super::*;
use crate::downstream::http1::{ActiveHyper, FEW};
use crate::message::ConnectionPhase;
use crate::net::Stream;
use crate::tls::Socket;

/// Longer than a connection keeps hyper while it is idle.
const LONG: Duration = Duration::from_millis(1100);

/// A client that has been answered once, so long ago that hyper is gone.
async fn parked(rig: &Rig) -> Client {
    let mut client = rig.client().await;
    client.send("GET /first HTTP/1.1\r\n\r\n").await;
    assert_eq!(client.answer().await.1, "/first");
    assert_eq!(ActiveHyper::now(), 1);
    sleep(LONG).await;
    assert_eq!(ActiveHyper::now(), 0);
    client
}

#[tokio::test(start_paused = true)]
async fn after_a_rest_requests_are_answered_as_before() {
    let rig = Rig::start().await;
    let mut client = parked(&rig).await;
    let peer = rig.toy.peer();
    for pause in [Duration::ZERO, LONG, LONG * 20] {
        sleep(pause).await;
        client
            .send("POST /echo HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello")
            .await;
        assert_eq!(client.answer().await.1, "hello");
    }
    assert!(Arc::ptr_eq(&peer, &rig.toy.peer()), "it is one connection");
    let sent = "GET /first HTTP/1.1\r\n\r\n".len()
        + 3 * "POST /echo HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello".len();
    assert_eq!(peer.state.received.get(), sent as u64);
}

#[tokio::test(start_paused = true)]
async fn who_asks_every_second_keeps_hyper() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    for _ in 0..10 {
        client.send("GET /a HTTP/1.1\r\n\r\n").await;
        client.answer().await;
        sleep(Duration::from_millis(950)).await;
        assert_eq!(ActiveHyper::now(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn where_many_are_served_idle_ones_rest_sooner() {
    let rig = Rig::start().await;
    let mut clients = Vec::new();
    for _ in 0..FEW + 100 {
        let mut client = rig.client().await;
        client.send("GET /a HTTP/1.1\r\n\r\n").await;
        client.answer().await;
        clients.push(client);
    }
    sleep(Duration::from_millis(100)).await;
    assert_eq!(ActiveHyper::now(), FEW);
    sleep(LONG).await;
    assert_eq!(ActiveHyper::now(), 0);
    for client in &mut clients {
        client.send("GET /b HTTP/1.1\r\n\r\n").await;
        assert_eq!(client.answer().await.1, "/b");
    }
}

/// On a real clock, so that the request and the end of the rest meet in every order.
#[tokio::test]
async fn a_request_in_the_moment_of_parking_is_answered() {
    let rig = Rig::start().await;
    let mut asking = tokio::task::JoinSet::new();
    for number in 0..200 {
        let mut client = rig.client().await;
        asking.spawn(async move {
            client.send("GET /a HTTP/1.1\r\n\r\n").await;
            client.answer().await;
            sleep(Duration::from_micros(995_000 + number * 50)).await;
            client.send("GET /b HTTP/1.1\r\n\r\n").await;
            assert_eq!(client.answer().await.1, "/b");
        });
    }
    asking.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn the_beginning_of_a_request_outlives_the_rest() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    let (first, begun, end) = ("GET /a HTTP/1.1\r\n\r\n", "GET /b HT", "TP/1.1\r\n\r\n");
    // In one piece, so that hyper has the beginning of the second when it has answered the first.
    client.send([first, begun].concat()).await;
    client.answer().await;
    sleep(LONG).await;
    assert_eq!(rig.toy.peer().state.phase(), ConnectionPhase::Head);
    sleep(LONG).await;
    client.send(end).await;
    assert_eq!(client.answer().await.1, "/b");
    let sent = first.len() + begun.len() + end.len();
    assert_eq!(rig.toy.peer().state.received.get(), sent as u64);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_never_finished_after_a_rest_is_cut_off() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client.send("GET /a HTTP/1.1\r\n\r\nGET /b HT").await;
    client.answer().await;
    let began = Instant::now();
    assert!(client.rest().await.starts_with("HTTP/1.1 408 "));
    assert!(began.elapsed() < Duration::from_secs(62));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_comes_byte_by_byte_is_answered() {
    let rig = Rig::start().await;
    let mut client = parked(&rig).await;
    for byte in b"GET /slowly HTTP/1.1\r\n\r\n" {
        sleep(LONG).await;
        client.send([*byte]).await;
    }
    assert_eq!(client.answer().await.1, "/slowly");
}

#[tokio::test(start_paused = true)]
async fn pipelined_requests_after_a_rest_are_answered_in_order() {
    let rig = Rig::start().await;
    let mut client = parked(&rig).await;
    let paths: Vec<String> = (0..600).map(|number| format!("/{number}")).collect();
    // More than is read at once.
    let requests: String = paths
        .iter()
        .map(|path| format!("GET {path} HTTP/1.1\r\n\r\n"))
        .collect();
    client.send(requests).await;
    for path in paths {
        assert_eq!(client.answer().await.1, path);
    }
}

#[tokio::test(start_paused = true)]
async fn line_ends_behind_a_body_are_skipped() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client
        .send("POST /echo HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello\r\n")
        .await;
    client.answer().await;
    sleep(LONG).await;
    assert_eq!(ActiveHyper::now(), 0);
    client.send("GET /next HTTP/1.1\r\n\r\n").await;
    assert_eq!(client.answer().await.1, "/next");
}

/// A reader that took the body for a request would see requests that no client sent.
#[tokio::test(start_paused = true)]
async fn a_body_that_is_still_read_is_not_taken_for_a_request() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    let smuggled = "GET /smuggled HTTP/1.1\r\n\r\n";
    let length = smuggled.len();
    client
        .send(format!(
            "POST /hold HTTP/1.1\r\ncontent-length: {length}\r\n\r\n"
        ))
        .await;
    assert_eq!(client.answer().await.1, "held");
    sleep(LONG).await;
    client.send(smuggled).await;
    assert_eq!(client.rest().await, "");
    rig.all_closed().await;
}

#[tokio::test(start_paused = true)]
async fn a_short_keep_alive_is_kept_to() {
    let mut settings = settings();
    settings.client.keepalive_timeout = Some(Duration::from_millis(300));
    let rig = Rig::with(settings).await;
    let mut client = rig.client().await;
    client.send("GET /a HTTP/1.1\r\n\r\n").await;
    client.answer().await;
    let began = Instant::now();
    assert_eq!(client.rest().await, "");
    let took = began.elapsed();
    assert!(
        took >= Duration::from_millis(300) && took < Duration::from_millis(350),
        "{took:?}"
    );
    rig.all_closed().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_parked_is_let_go() {
    for reset in [false, true] {
        let rig = Rig::start().await;
        let client = parked(&rig).await;
        if reset {
            client.0.set_zero_linger().unwrap();
        }
        let began = Instant::now();
        drop(client);
        rig.all_closed().await;
        assert!(began.elapsed() < Duration::from_secs(1));
        assert_eq!(*rig.toy.endings.lock(), [ResponseEnd::Complete]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_closes_who_is_parked() {
    let rig = Rig::start().await;
    let mut client = parked(&rig).await;
    let began = Instant::now();
    rig.stop.cancel();
    assert_eq!(client.rest().await, "");
    assert!(began.elapsed() < Duration::from_millis(150));
    rig.all_closed().await;
}

// On a real clock: one that stands still jumps past the last call while bytes are on their way.
#[tokio::test]
async fn a_request_on_its_way_to_a_parked_connection_that_stops_is_answered() {
    let rig = Rig::start().await;
    let mut client = parked(&rig).await;
    rig.stop.cancel();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    client.send("GET /slow HTTP/1.1\r\n\r\n").await;
    let (head, body) = client.answer().await;
    assert!(head.contains("connection: close\r\n"), "{head}");
    assert_eq!(body, "slow");
    assert_eq!(client.rest().await, "");
    rig.all_closed().await;
}

#[tokio::test(start_paused = true)]
async fn a_unix_socket_rests_alike() {
    let (mut client, server) = UnixStream::pair().unwrap();
    let peer = Arc::new(ClientConnection::new(RemoteAddr::Unix, None, 1, Millis(0)));
    tokio::spawn(connection(
        Socket::Plain(Stream::Unix(server)),
        peer,
        settings(),
        Toy::default(),
        CancellationToken::new(),
    ));
    for path in ["/a", "/b", "/c"] {
        let request = format!("GET {path} HTTP/1.1\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(path.as_bytes()) {
            answer.push(client.read_u8().await.unwrap());
        }
        assert_eq!(ActiveHyper::now(), 1);
        sleep(LONG).await;
        assert_eq!(ActiveHyper::now(), 0);
    }
}

/// Most connections are idle, so this is what a connection costs, besides the peer and what the runtime needs.
#[tokio::test]
async fn a_connection_that_waits_is_small() {
    let (_client, server) = UnixStream::pair().unwrap();
    let peer = Arc::new(ClientConnection::new(RemoteAddr::Unix, None, 1, Millis(0)));
    let connection = connection(
        Socket::Plain(Stream::Unix(server)),
        peer,
        settings(),
        Toy::default(),
        CancellationToken::new(),
    );
    let size = size_of_val(&connection);
    assert!(size <= 400, "{size}");
}
