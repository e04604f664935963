//! What is sent again, and what never is.

use std::io::{Read, Write};

use super::*;

/// Answers the first request, then hangs up on the second of the same connection once it has read it.
async fn fickle() -> Origin {
    Origin::start(|mut caller| async move {
        caller.head().await;
        caller.say(SHORT).await;
        if caller.number > 0 {
            caller.wait().await;
        } else {
            caller.head().await;
        }
    })
    .await
}

/// Hangs up once it has read a request.
async fn rude() -> Origin {
    Origin::start(|mut caller| async move {
        caller.head().await;
    })
    .await
}

#[tokio::test]
async fn a_connection_closed_while_idle_is_not_used() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller.say(SHORT).await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    for method in [Method::GET, Method::POST, Method::POST] {
        let response = road.send(outgoing(method)).await.unwrap();
        assert_eq!(text(response).await.unwrap(), "ok");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(road.statuses(), [200, 200, 200]);
}

/// The end of the kept connection is in the kernel, but the event loop has not looked yet.
#[tokio::test]
async fn a_post_does_not_fall_into_a_connection_that_has_just_been_closed() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (close, closing) = std::sync::mpsc::channel::<()>();
    let (closed, has_closed) = std::sync::mpsc::channel::<()>();
    let origin = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let head = stream.read(&mut [0; 1024]).unwrap();
            assert!(head > 0);
            stream.write_all(SHORT.as_bytes()).unwrap();
            closing.recv().unwrap();
            drop(stream);
            closed.send(()).unwrap();
        }
    });
    let mut plan = plan_to(&[&Origin::absent().await]);
    plan.servers[0].address = plan::UpstreamAddress::Tcp {
        host: "127.0.0.1".into(),
        port: address.port(),
    };
    let mut road = Road::with(&plan);
    assert_eq!(road.get_text().await, "ok");
    close.send(()).unwrap();
    has_closed.recv().unwrap();
    let response = road.send(outgoing(Method::POST)).await.unwrap();
    assert_eq!(text(response).await.unwrap(), "ok");
    assert_eq!(road.statuses(), [200, 200]);
    close.send(()).unwrap();
    origin.join().unwrap();
}

#[tokio::test]
async fn a_get_on_a_stale_connection_is_sent_again_without_a_failure() {
    let origin = fickle().await;
    let other = Origin::always(SHORT).await;
    let mut plan = plan_to(&[&origin, &other]);
    plan.servers[1].backup = true;
    let mut road = Road::with(&plan);
    road.get_text().await;
    assert_eq!(road.get_text().await, "ok");
    assert_eq!(road.statuses(), [200, 502, 200]);
    assert_eq!(origin.connections(), 2);
    assert_eq!(origin.heads().len(), 3);
    assert_eq!(other.connections(), 0);
}

/// It had begun to answer: that is no connection closed for want of requests.
#[tokio::test]
async fn a_kept_connection_that_breaks_in_an_answer_is_the_backends_fault() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller.say(SHORT).await;
        caller.head().await;
        caller.say("HTTP/1.1 200").await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    road.get_text().await;
    let error = road.get().await.unwrap_err();
    assert!(matches!(error, Error::Broken(_)), "{error:?}");
    assert_eq!((road.statuses(), origin.connections()), (vec![200, 502], 1));
}

#[tokio::test]
async fn a_post_on_a_stale_connection_is_not_sent_again() {
    let origin = fickle().await;
    let mut road = Road::to(&[&origin]);
    road.get_text().await;
    let error = road.send(outgoing(Method::POST)).await.unwrap_err();
    assert!(matches!(error, Error::Broken(_)), "{error:?}");
    assert_eq!(origin.heads().len(), 2);
}

#[tokio::test]
async fn a_fresh_connection_that_breaks_is_not_tried_again_at_the_same_server() {
    let origin = rude().await;
    let mut road = Road::to(&[&origin]);
    let error = road.get().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "upstream prematurely closed connection while reading response header from upstream"
    );
    assert_eq!((road.statuses(), origin.heads().len()), (vec![502], 1));
}

#[tokio::test]
async fn a_get_moves_on_to_the_next_server() {
    let (absent, rude, good) = (
        Origin::absent().await,
        rude().await,
        Origin::always(SHORT).await,
    );
    let mut road = Road::to(&[&absent, &rude, &good]);
    assert_eq!(road.get_text().await, "ok");
    assert_eq!(road.statuses(), [502, 502, 200]);
    // Both are left alone now.
    assert_eq!(road.get_text().await, "ok");
    assert_eq!(road.statuses(), [502, 502, 200, 200]);
}

#[tokio::test]
async fn a_post_moves_on_from_a_refused_connection_but_not_from_a_broken_one() {
    let (absent, rude, good) = (
        Origin::absent().await,
        rude().await,
        Origin::always(SHORT).await,
    );
    let mut road = Road::to(&[&absent, &good]);
    let (outgoing, _client) = post(3, "abc").await;
    assert!(road.send(outgoing).await.is_ok());
    assert_eq!(road.statuses(), [502, 200]);
    let mut road = Road::to(&[&rude, &good]);
    let (outgoing, _client) = post(3, "abc").await;
    assert!(road.send(outgoing).await.is_err());
    assert_eq!(road.statuses(), [502]);
    assert_eq!((rude.heads().len(), good.heads().len()), (1, 1));
}

#[tokio::test]
async fn a_put_whose_body_has_left_is_not_sent_again() {
    let (rude, good) = (rude().await, Origin::always(SHORT).await);
    let mut road = Road::to(&[&rude, &good]);
    let (mut outgoing, _client) = post(3, "abc").await;
    outgoing.method = Method::PUT;
    assert!(road.send(outgoing).await.is_err());
    assert_eq!(good.connections(), 0);
}

#[tokio::test]
async fn a_listed_status_moves_on_and_the_last_one_passes_through() {
    let busy = "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n";
    let (one, two) = (Origin::always(busy).await, Origin::always(busy).await);
    let mut road = Road::to(&[&one, &two]);
    road.proxy_pass.next_upstream.statuses = vec![StatusCode::SERVICE_UNAVAILABLE];
    let response = road.get().await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(road.statuses(), [503, 503]);
    // The first was counted as failed; the second one's answer was passed on and was not.
    road.proxy_pass.next_upstream.statuses.clear();
    for _ in 0..2 {
        road.get().await.unwrap();
        let last = &road.record.attempts[road.record.attempts.len() - 1];
        assert_eq!(*last.address, two.address.to_string());
    }
}

#[tokio::test]
async fn a_listed_404_tries_the_next_server_without_a_failure() {
    let missing = Origin::always("HTTP/1.1 404 Gone\r\ncontent-length: 0\r\n\r\n").await;
    let good = Origin::always(SHORT).await;
    let mut road = Road::to(&[&missing, &good]);
    road.proxy_pass.next_upstream.statuses = vec![StatusCode::NOT_FOUND];
    for _ in 0..4 {
        assert_eq!(road.get_text().await, "ok");
    }
    assert_eq!(missing.heads().len(), 2);
}

#[tokio::test]
async fn nothing_moves_on_where_it_is_off() {
    let (absent, good) = (Origin::absent().await, Origin::always(SHORT).await);
    let mut road = Road::to(&[&absent, &good]);
    road.proxy_pass.next_upstream.error = false;
    assert!(matches!(road.get().await, Err(Error::Connect(_))));
    assert_eq!(road.statuses(), [502]);
}

#[tokio::test]
async fn without_a_live_server_the_upstream_itself_is_what_was_tried() {
    let absent = Origin::absent().await;
    let mut plan = plan_to(&[&absent, &absent]);
    plan.servers[1].down = true;
    let mut road = Road::with(&plan);
    assert!(matches!(road.get().await, Err(Error::Connect(_))));
    assert!(matches!(road.get().await, Err(Error::NoLiveBackend)));
    assert_eq!(*road.record.attempts[1].address, *"app");
}

#[tokio::test]
async fn a_single_server_is_never_left_alone() {
    let absent = Origin::absent().await;
    let mut road = Road::to(&[&absent]);
    for _ in 0..3 {
        assert!(matches!(road.get().await, Err(Error::Connect(_))));
    }
}

#[tokio::test]
async fn a_full_server_is_not_asked() {
    let origin = Origin::always(CHUNKED).await;
    let mut plan = plan_to(&[&origin]);
    plan.servers[0].max_conns = 1;
    let mut road = Road::with(&plan);
    let first = road.get().await.unwrap();
    assert!(matches!(road.get().await, Err(Error::NoLiveBackend)));
    text(first).await.unwrap();
    assert_eq!(road.get_text().await, "ok");
}

#[tokio::test]
async fn a_barred_server_is_not_asked_until_its_last_bar_is_down() {
    let (first, second) = (Origin::always(SHORT).await, Origin::always(SHORT).await);
    for origins in [&[&first, &second][..], &[&first][..]] {
        let mut road = Road::to(origins);
        for backend in road.upstream.backends() {
            backend.set_unavailable(UnavailableReason::Unhealthy, true);
        }
        road.upstream.backends()[0].set_unavailable(UnavailableReason::Breaker, true);
        assert!(matches!(road.get().await, Err(Error::NoLiveBackend)));
        road.upstream.backends()[0].set_unavailable(UnavailableReason::Unhealthy, false);
        assert!(matches!(road.get().await, Err(Error::NoLiveBackend)));
        road.upstream.backends()[0].set_unavailable(UnavailableReason::Breaker, false);
        for _ in 0..2 {
            road.get_text().await;
            let last = road.record.attempts.last().unwrap();
            assert_eq!(last.address, road.upstream.backends()[0].name);
        }
    }
}
