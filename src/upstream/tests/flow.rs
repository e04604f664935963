//! Bytes in both directions: at once, in large numbers, and exactly as long as they should.

use std::io::{Read, Write};

use http_body::Body;

use super::*;

#[tokio::test]
async fn a_small_answer_is_one_piece_and_its_connection_is_free_with_it() {
    for answer in [SHORT, CHUNKED] {
        let origin = Origin::always(answer).await;
        let mut road = Road::to(&[&origin]);
        let mut response = road.get().await.unwrap();
        let frame = response.body_mut().frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "ok");
        assert!(response.body().is_end_stream());
        assert_eq!(road.kept(), 1);
    }
}

#[tokio::test]
async fn the_time_of_an_answer_that_came_whole_is_known_at_once() {
    let origin = Origin::always(SHORT).await;
    let mut response = Road::to(&[&origin]).get().await.unwrap();
    assert!(response.body_mut().timer().finished_after().is_some());
}

#[tokio::test]
async fn long_answers_arrive_as_they_were_sent() {
    const LONG: usize = 3 << 20;
    const CHUNK: usize = 40_000;
    let text = |from: usize| (from..from + CHUNK).map(|at| char::from(b'a' + (at % 23) as u8));
    let origin = Origin::start(move |mut caller| async move {
        while let Some(head) = caller.head().await {
            let plain = head.starts_with("PUT");
            caller
                .say(&if plain {
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {LONG}\r\n\r\n")
                } else {
                    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".into()
                })
                .await;
            for from in (0..LONG).step_by(CHUNK) {
                let data: String = text(from).take(LONG - from).collect();
                caller
                    .say(&if plain {
                        data
                    } else {
                        format!("{:x}\r\n{data}\r\n", data.len())
                    })
                    .await;
            }
            if !plain {
                caller.say("0\r\n\r\n").await;
            }
        }
    })
    .await;
    let mut road = Road::to(&[&origin]);
    for method in [Method::PUT, Method::GET, Method::PUT] {
        let response = road.send(outgoing(method)).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let right = |(at, byte): (usize, &u8)| *byte == b'a' + (at % 23) as u8;
        assert_eq!(body.len(), LONG);
        assert!(body.iter().enumerate().all(right));
        assert_eq!((road.kept(), origin.connections()), (1, 1));
    }
}

#[tokio::test]
async fn a_body_still_goes_out_while_the_answer_comes_in() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller
            .say("HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nfirst,")
            .await;
        assert_eq!(caller.body(6).await, "abcdef");
        caller.say("ok").await;
        caller.wait().await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    let (outgoing, mut client) = post(6, "abc").await;
    let response = road.send(outgoing).await.unwrap();
    client.write_all(b"def").await.unwrap();
    assert_eq!(text(response).await.unwrap(), "first,ok");
    // All of the request has left: nothing stands in the way of the next.
    assert_eq!(road.kept(), 1);
}

#[tokio::test]
async fn a_client_that_breaks_off_its_body_under_an_answer_ends_it() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller
            .say("HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nfirst,")
            .await;
        caller.wait().await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    let (outgoing, client) = post(6, "abc").await;
    let response = road.send(outgoing).await.unwrap();
    drop(client);
    let error = text(response).await.unwrap_err();
    assert!(matches!(error, Error::Client(_)), "{error:?}");
    origin.until_closed(1).await;
}

#[tokio::test]
async fn the_trailers_of_a_request_follow_its_body() {
    const BODY: &str = "3\r\nabc\r\n0\r\nx-sum: 1\r\n\r\n";
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        assert_eq!(caller.body(BODY.len()).await, BODY);
        caller
            .say("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .await;
        caller.wait().await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    let (upload, _client) = upload("transfer-encoding: chunked", BODY).await;
    let outgoing = outgoing_with(Method::POST, upload);
    assert_eq!(road.send(outgoing).await.unwrap().status(), 200);
    assert_eq!(road.kept(), 1);
}

#[tokio::test]
async fn an_answer_ended_by_a_reset_is_not_whole() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller.say("HTTP/1.1 200 OK\r\n\r\nsome").await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        caller.reset();
    })
    .await;
    let error = text(Road::to(&[&origin]).get().await.unwrap())
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "recv() failed (104: Connection reset by peer) while reading upstream"
    );
}

#[tokio::test]
async fn interim_answers_without_end_do_not_buy_time() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        let hints = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1_000);
        for _ in 0..100_000_000 {
            caller.say(&hints).await;
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut road = Road::to(&[&origin]);
    road.proxy_pass.settings.proxy_read_timeout = Duration::from_millis(200);
    let begun = tokio::time::Instant::now();
    let error = road.get().await.unwrap_err();
    assert!(matches!(error, Error::Timeout(Stage::Head)), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

/// The reset of the kept connection is in the kernel, but the event loop has not looked yet: the first write finds
/// out, and nothing of the request has left.
#[tokio::test]
async fn a_request_of_which_nothing_was_sent_was_not_tried() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (reset, resetting) = std::sync::mpsc::channel::<()>();
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let origin = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            stream.write_all(answer).unwrap();
            resetting.recv().unwrap();
            let linger = Some(Duration::ZERO);
            socket2::SockRef::from(&stream).set_linger(linger).unwrap();
            drop(stream);
            done.send(()).unwrap();
        }
    });
    let mut plan = plan_to(&[&Origin::absent().await]);
    plan.servers[0].address = plan::UpstreamAddress::Tcp {
        host: "127.0.0.1".into(),
        port: address.port(),
    };
    let mut road = Road::with(&plan);
    assert_eq!(road.get_text().await, "ok");
    assert_eq!(road.kept(), 1);
    reset.send(()).unwrap();
    is_done.recv().unwrap();
    assert_eq!(road.get_text().await, "ok");
    assert_eq!(road.statuses(), [200, 200]);
    reset.send(()).unwrap();
    origin.join().unwrap();
}
