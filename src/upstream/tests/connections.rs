//! Connections: kept, used again, closed in time.

use super::*;

#[tokio::test]
async fn a_connection_carries_one_request_after_the_other() {
    let origin = Origin::always(SHORT).await;
    let mut road = Road::to(&[&origin]);
    for _ in 0..5 {
        assert_eq!(road.get_text().await, "ok");
    }
    assert_eq!(origin.connections(), 1);
    let backend = &road.upstream.backends()[0];
    assert_eq!(
        (backend.counters.opened(), backend.counters.reused()),
        (1, 4)
    );
    assert_eq!(road.record.attempts[4].connect, Some(Duration::ZERO));
}

#[tokio::test]
async fn no_more_are_kept_than_allowed_and_the_oldest_goes_first() {
    let origin = Origin::always(CHUNKED).await;
    let mut plan = plan_to(&[&origin]);
    plan.keepalive = 2;
    let mut road = Road::with(&plan);
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers.push(road.get().await.unwrap());
    }
    assert_eq!(origin.connections(), 4);
    for answer in answers {
        text(answer).await.unwrap();
    }
    assert_eq!(road.kept(), 2);
    origin.until_closed(2).await;
}

#[tokio::test]
async fn nothing_is_kept_where_keepalive_is_off() {
    let origin = Origin::always(SHORT).await;
    let mut plan = plan_to(&[&origin]);
    plan.keepalive = 0;
    let mut road = Road::with(&plan);
    road.get_text().await;
    road.get_text().await;
    assert_eq!((road.kept(), origin.connections()), (0, 2));
}

#[tokio::test]
async fn a_connection_that_carried_its_share_is_closed() {
    let origin = Origin::always(SHORT).await;
    let mut plan = plan_to(&[&origin]);
    plan.keepalive_requests = 2;
    let mut road = Road::with(&plan);
    for _ in 0..4 {
        road.get_text().await;
    }
    assert_eq!(origin.connections(), 2);
    origin.until_closed(2).await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_when_its_time_is_over() {
    let origin = Origin::always(SHORT).await;
    let mut plan = plan_to(&[&origin]);
    plan.keepalive_timeout = Duration::from_millis(100);
    let mut road = Road::with(&plan);
    road.get_text().await;
    assert_eq!(road.kept(), 1);
    origin.until_closed(1).await;
    assert_eq!(road.kept(), 0);
}

#[tokio::test]
async fn a_connection_closed_by_its_backend_does_not_lie_around() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller.say(SHORT).await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    road.get_text().await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let keepalive = road.upstream.backends()[0].keepalive;
    assert_eq!(pool::sweep(keepalive, road.clock.now()), None);
    assert_eq!(road.kept(), 0);
}

#[tokio::test]
async fn close_is_honoured() {
    let origin =
        Origin::always("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok").await;
    let mut road = Road::to(&[&origin]);
    assert_eq!(road.get_text().await, "ok");
    assert_eq!(road.kept(), 0);
}

#[tokio::test]
async fn a_connection_to_an_old_backend_is_not_kept() {
    let old = "HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\nok";
    let origin = Origin::always(old).await;
    let mut road = Road::to(&[&origin]);
    assert_eq!(road.get_text().await, "ok");
    assert_eq!(road.kept(), 0);
}

#[tokio::test]
async fn bytes_after_an_answer_never_become_the_next_one() {
    let origin = Origin::start(|mut caller| async move {
        let first = caller.number == 0;
        while caller.head().await.is_some() {
            caller.say(SHORT).await;
            if first {
                caller
                    .say("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged")
                    .await;
            }
        }
    })
    .await;
    let mut road = Road::to(&[&origin]);
    assert_eq!(road.get_text().await, "ok");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(road.get_text().await, "ok");
    assert_eq!(origin.connections(), 2);
}

#[tokio::test]
async fn a_client_that_leaves_while_the_answer_is_awaited_releases_the_backend() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller.wait().await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    let left = tokio::time::timeout(Duration::from_millis(100), road.get()).await;
    assert!(left.is_err());
    origin.until_closed(1).await;
    assert_eq!(road.upstream.backends()[0].active(), 0);
    assert_eq!(road.statuses(), [0]);
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_an_answer_releases_the_backend() {
    let origin = Origin::start(|mut caller| async move {
        caller.head().await;
        caller
            .say("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsome")
            .await;
        caller.wait().await;
    })
    .await;
    let mut road = Road::to(&[&origin]);
    let mut response = road.get().await.unwrap();
    let stopwatch = response.body_mut().timer();
    let frame = response.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "some");
    assert_eq!(road.upstream.backends()[0].active(), 1);
    drop(response);
    origin.until_closed(1).await;
    assert_eq!((road.kept(), road.upstream.backends()[0].active()), (0, 0));
    assert!(stopwatch.finished_after().is_some());
}

#[tokio::test]
async fn a_unix_socket_is_a_backend_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"").await.unwrap();
        let mut head = [0; 64];
        tokio::io::AsyncReadExt::read(&mut stream, &mut head)
            .await
            .unwrap();
        stream.write_all(SHORT.as_bytes()).await.unwrap();
    });
    let mut plan = plan_to(&[&Origin::absent().await]);
    plan.servers[0].address = plan::UpstreamAddress::Unix(path.clone());
    let mut road = Road::with(&plan);
    assert_eq!(road.get_text().await, "ok");
    let name = format!("unix:{}", path.display());
    assert_eq!(*road.record.attempts[0].address, *name);
}

#[tokio::test]
async fn a_name_without_an_address_is_no_upstream() {
    let mut plan = plan_to(&[&Origin::absent().await]);
    plan.servers[0].address = plan::UpstreamAddress::Tcp {
        host: "no such name".into(),
        port: 80,
    };
    let error = Upstream::build(&plan, Arc::default(), None).unwrap_err();
    assert!(matches!(error, Error::Resolve { .. }), "{error:?}");
}
