//! Good answers, in all the shapes they come in.

use http_body::Body;

use super::*;

#[tokio::test]
async fn a_request_goes_out_and_its_answer_comes_back() {
    let origin = Origin::always(SHORT).await;
    let mut road = Road::to(&[&origin]);
    let response = road.get().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.body().size_hint().exact(), Some(2));
    assert_eq!(text(response).await.unwrap(), "ok");
    assert_eq!(
        origin.heads(),
        ["GET /path?query HTTP/1.1\r\nhost: origin\r\n\r\n"]
    );
    let attempt = &road.record.attempts[0];
    assert_eq!(*attempt.address, origin.address.to_string());
    assert_eq!(attempt.status, Some(StatusCode::OK));
    assert!(attempt.connect.is_some() && attempt.header.is_some());
    let backend = &road.upstream.backends()[0];
    assert_eq!(backend.counters.statuses().collect::<Vec<_>>(), [(200, 1)]);
    assert_eq!((backend.counters.opened(), backend.active()), (1, 0));
}

/// Connections never leave their event loop, but `tokio::spawn` wants to be sure that they could.
#[tokio::test]
async fn a_request_can_be_spawned() {
    let origin = Origin::always(SHORT).await;
    let mut road = Road::to(&[&origin]);
    let text = tokio::spawn(async move { road.get_text().await });
    assert_eq!(text.await.unwrap(), "ok");
}

#[tokio::test]
async fn the_time_of_the_last_byte_can_be_asked_for_later() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller
            .say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")
            .await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        caller.say("ok").await;
        caller.wait().await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    let mut response = road.get().await.unwrap();
    let timer = response.body_mut().timer();
    assert_eq!(timer.finished_after(), None);
    text(response).await.unwrap();
    assert!(timer.finished_after() >= Some(Duration::from_millis(19)));
}

#[tokio::test]
async fn an_answer_without_a_body_is_over_at_once() {
    let origin = Origin::always("HTTP/1.1 204 No Content\r\n\r\n").await;
    let mut road = Road::to(&[&origin]);
    let mut response = road.get().await.unwrap();
    assert!(response.body().is_end_stream());
    assert!(response.body_mut().timer().finished_after().is_some());
    assert_eq!(road.kept(), 1);
}

#[tokio::test]
async fn the_answer_to_head_has_a_length_and_no_body() {
    let origin = Origin::always("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n").await;
    let mut road = Road::to(&[&origin]);
    for _ in 0..2 {
        let response = road.send(outgoing(Method::HEAD)).await.unwrap();
        assert_eq!(response.headers()["content-length"], "9");
        assert_eq!(text(response).await.unwrap(), "");
    }
    assert_eq!(origin.connections(), 1);
}

#[tokio::test]
async fn trailers_pass() {
    let origin = Origin::always(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-sum: 1\r\n\r\n",
    )
    .await;
    let mut road = Road::to(&[&origin]);
    let response = road.get().await.unwrap();
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["x-sum"], "1");
    assert_eq!(road.kept(), 1);
}

#[tokio::test]
async fn an_answer_ended_by_closing_is_whole() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller.say("HTTP/1.0 200 OK\r\n\r\nall of it").await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    assert_eq!(road.get_text().await, "all of it");
    assert_eq!(road.kept(), 0);
}

#[tokio::test]
async fn a_body_streams_upstream_with_its_length() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        let body = caller.body(6).await;
        assert_eq!(body, "abcdef");
        caller.say(SHORT).await;
        caller.wait().await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    let (outgoing, mut client) = post(6, "abc").await;
    client.write_all(b"def").await.unwrap();
    let response = road.send(outgoing).await.unwrap();
    assert_eq!(text(response).await.unwrap(), "ok");
    assert!(origin.heads()[0].contains("content-length: 6\r\n"));
    assert_eq!(road.kept(), 1);
}

/// hyper takes a GET for one without a body unless it is told otherwise.
#[tokio::test]
async fn a_body_of_unknown_length_is_sent_in_chunks_whatever_the_method() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        assert_eq!(caller.body(13).await, "3\r\nabc\r\n0\r\n\r\n");
        caller.say(SHORT).await;
        caller.wait().await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    for method in [Method::GET, Method::POST] {
        let body = "3\r\nabc\r\n0\r\n\r\n";
        let (upload, _client) = upload("transfer-encoding: chunked", body).await;
        let outgoing = outgoing_with(method, upload);
        road.upstream = Upstream::build(&plan_to(&[&origin]), Arc::default(), None).unwrap();
        assert_eq!(road.send(outgoing).await.unwrap().status(), 200);
    }
    assert!(origin.heads()[0].contains("transfer-encoding: chunked\r\n"));
}

#[tokio::test]
async fn an_early_answer_passes_and_its_connection_is_not_kept() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller
            .say("HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
            .await;
        caller.wait().await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    let (outgoing, _client) = post(1_000, "a few of them").await;
    let response = road.send(outgoing).await.unwrap();
    assert_eq!(response.status(), 413);
    assert_eq!(text(response).await.unwrap(), "big");
    assert_eq!(road.kept(), 0);
    origin.until_closed(1).await;
}

#[tokio::test]
async fn an_early_answer_survives_a_backend_that_stops_listening() {
    const LONG: usize = 60_000;
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller.body(10).await;
        caller.say("HTTP/1.1 413 Too Large\r\n\r\n").await;
        caller.say(&"x".repeat(LONG)).await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    let (outgoing, mut client) = post(1_000, "just so it").await;
    let response = road.send(outgoing).await.unwrap();
    assert_eq!(response.status(), 413);
    // More of the body comes while most of the answer is still to be read: its writes fail, the answer does not.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        client.write_all(&[b'y'; 200]).await.unwrap();
    }
    assert_eq!(text(response).await.unwrap().len(), LONG);
    assert_eq!(road.kept(), 0);
}

#[tokio::test]
async fn interim_answers_reach_the_client_but_not_without_end() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller.say("HTTP/1.1 100 Continue\r\n\r\n").await;
        for _ in 0..40 {
            caller
                .say("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
                .await;
        }
        caller.say(SHORT).await;
        caller.wait().await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    road.record.connection.state.begin_request();
    assert_eq!(road.get_text().await, "ok");
    let mut interim = Vec::new();
    for one in road.record.connection.state.take_interim() {
        one.encode(&mut interim);
    }
    let interim = String::from_utf8(interim).unwrap();
    let hint = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
    assert_eq!(interim, hint.repeat(16));
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_no_interim_answers() {
    let origin = Origin::always(
        "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    )
    .await;
    let mut road = Road::to(&[&origin]);
    road.record.head.version = http::Version::HTTP_10;
    assert_eq!(road.get_text().await, "ok");
    assert!(road.record.connection.state.take_interim().is_empty());
}
