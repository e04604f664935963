//! Answers that are none, that stop, or that lie.

use std::task::{Wake, Waker};

use super::*;

/// Long enough for loopback on a busy machine, short enough to wait for.
const SOON: Duration = Duration::from_millis(300);

/// Longer than a busy machine keeps what has come, where that must not be taken for silence.
const LATER: Duration = Duration::from_secs(2);

async fn saying(bytes: &'static str) -> Origin {
    Origin::start(move |mut caller| async move {
        caller.head().await;
        caller.say(bytes).await;
    })
    .await
}

async fn silent_after(bytes: &'static str) -> Origin {
    Origin::start(move |mut caller| async move {
        caller.head().await;
        caller.say(bytes).await;
        caller.wait().await;
    })
    .await
}

#[tokio::test]
async fn what_is_not_an_answer_is_refused() {
    for answer in [
        "garbage\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nokk",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nok",
        "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nbad name: 1\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ] {
        let origin = saying(answer).await;
        let mut road = Road::to(&[&origin]);
        let error = road.get().await.unwrap_err();
        assert!(
            matches!(error, Error::InvalidHeader(_)),
            "{answer}: {error:?}"
        );
        assert_eq!((road.statuses(), road.kept()), (vec![502], 0));
    }
}

#[tokio::test]
async fn a_head_without_end_is_refused() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller.say("HTTP/1.1 200 OK\r\nx: ").await;
        caller.say(&"x".repeat(100 * 1024)).await;
        caller.wait().await;
    })
    .await;
    let error = Road::to(&[&origin]).get().await.unwrap_err();
    let Error::InvalidHeader(InvalidResponse::TooLarge) = error else {
        panic!("{error:?}");
    };
}

#[tokio::test]
async fn a_head_cut_short_is_a_closed_connection() {
    let origin = saying("HTTP/1.1 200 OK\r\ncontent-le").await;
    let error = Road::to(&[&origin]).get().await.unwrap_err();
    assert!(matches!(error, Error::Broken(_)), "{error:?}");
}

#[tokio::test]
async fn a_reset_is_told_from_an_end() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller.reset();
    })
    .await;
    let error = Road::to(&[&origin]).get().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "recv() failed (104: Connection reset by peer) while reading response header from upstream"
    );
}

#[tokio::test]
async fn an_answer_shorter_than_it_said_is_an_error_and_never_an_end() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nshort",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nshort\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nshort\r\nzz\r\n",
    ] {
        let origin = saying(answer).await;
        let mut road = Road::to(&[&origin]);
        let error = text(road.get().await.unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Truncated(_)), "{answer}: {error:?}");
        assert_eq!(road.kept(), 0);
    }
}

#[tokio::test]
async fn a_silent_backend_is_given_up_after_the_read_timeout() {
    let origin = silent_after("").await;
    let mut road = Road::to(&[&origin]);
    road.proxy_pass.settings.proxy_read_timeout = SOON;
    let error = road.get().await.unwrap_err();
    assert!(matches!(error, Error::Timeout(Stage::Head)), "{error:?}");
    assert_eq!(road.statuses(), [504]);
    origin.until_closed(1).await;
}

#[tokio::test]
async fn a_dripping_head_does_not_buy_time() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller.say("HTTP/1.1 200 OK\r\nx: ").await;
        for _ in 0..10_000 {
            caller.say("y").await;
            tokio::time::sleep(SOON / 10).await;
        }
    })
    .await;
    let mut road = Road::to(&[&origin]);
    road.proxy_pass.settings.proxy_read_timeout = SOON;
    let begun = tokio::time::Instant::now();
    let error = road.get().await.unwrap_err();
    assert!(matches!(error, Error::Timeout(Stage::Head)), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn a_slow_upload_does_not_use_up_the_time_for_the_answer() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller.body(4).await;
        caller
            .say("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .await;
        caller.wait().await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    road.proxy_pass.settings.proxy_read_timeout = LATER;
    let (outgoing, mut client) = post(4, "ab").await;
    tokio::spawn(async move {
        tokio::time::sleep(LATER + SOON).await;
        client.write_all(b"cd").await.unwrap();
        std::future::pending::<()>().await;
    });
    assert_eq!(road.send(outgoing).await.unwrap().status(), 200);
}

#[tokio::test]
async fn an_answer_that_stalls_is_cut_off() {
    let origin = silent_after("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsome").await;
    let mut road = Road::to(&[&origin]);
    road.proxy_pass.settings.proxy_read_timeout = SOON;
    let error = text(road.get().await.unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Timeout(Stage::Body)), "{error:?}");
    origin.until_closed(1).await;
}

#[tokio::test]
async fn an_answer_that_trickles_is_not_cut_off() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller
            .say("HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n")
            .await;
        for _ in 0..20 {
            tokio::time::sleep(LATER / 16).await;
            caller.say("x").await;
        }
        caller.wait().await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    road.proxy_pass.settings.proxy_read_timeout = LATER;
    assert_eq!(road.get_text().await, "x".repeat(20));
}

#[tokio::test]
async fn a_backend_that_takes_nothing_is_given_up_after_the_send_timeout() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller.ignore().await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    road.proxy_pass.settings.proxy_send_timeout = SOON;
    let length = 64 << 20;
    let (outgoing, mut client) = post(length, "").await;
    tokio::spawn(async move {
        let piece = vec![b'x'; 64 * 1024];
        while client.write_all(&piece).await.is_ok() {}
    });
    let error = road.send(outgoing).await.unwrap_err();
    assert!(matches!(error, Error::Timeout(Stage::Send)), "{error:?}");
}

#[tokio::test]
async fn a_client_that_breaks_off_its_body_is_no_failure_of_the_server() {
    let (origin, other) = (silent_after("").await, silent_after("").await);
    let mut road = Road::to(&[&origin, &other]);
    let (outgoing, client) = post(1_000, "abc").await;
    tokio::spawn(async move {
        tokio::time::sleep(SOON / 4).await;
        drop(client);
    });
    let error = road.send(outgoing).await.unwrap_err();
    let fault = error.client_fault();
    assert!(
        matches!(fault, Some(crate::message::RequestBodyError::Broken(_))),
        "{error:?}"
    );
    assert_eq!((road.statuses(), other.connections()), (vec![0], 0));
    origin.until_closed(1).await;
    // Not blamed: with one failure it would be left alone, and the next round would skip it.
    let mut round = balance::TriedPeers::default();
    let balance = &road.upstream.balancer;
    for _ in 0..2 {
        assert!(balance.pick(&mut round, Millis(1)).is_some());
    }
}

/// A client whose connection cannot be woken without a panic.
struct Unwakeable;

impl Wake for Unwakeable {
    fn wake(self: Arc<Self>) {
        panic!("woken");
    }
}

#[tokio::test]
async fn a_panic_in_an_attempt_is_a_failed_attempt() {
    // An interim answer is handed to the client's connection in the middle of the attempt.
    let bad = "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad";
    let bad = saying(bad).await;
    let good = saying("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood").await;
    let waker = Waker::from(Arc::new(Unwakeable));
    let to = |origins: &[&Origin]| {
        let road = Road::to(origins);
        road.record.connection.state.begin_request();
        road.record.connection.state.set_waker(&waker);
        road
    };
    let mut road = to(&[&bad, &good]);
    assert_eq!(road.get_text().await, "good");
    assert_eq!(road.statuses(), [502, 200]);
    // It counts against the server, which is left alone now, and holds no place there.
    assert_eq!(road.get_text().await, "good");
    assert_eq!(road.statuses(), [502, 200, 200]);
    let active = |backend: &Arc<Backend>| backend.active();
    let active: Vec<_> = road.upstream.backends().iter().map(active).collect();
    assert_eq!(active, [0, 0]);

    let mut road = to(&[&bad]);
    let error = road.get().await.unwrap_err().to_string();
    assert!(error.starts_with("panicked (woken"), "{error}");
    assert!(
        error.ends_with("while reading response header from upstream"),
        "{error}"
    );
}
