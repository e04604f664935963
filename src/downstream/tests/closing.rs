//! Bodies that are not read, and how connections end.

use tokio::time::Instant;

use super::*;

#[tokio::test]
async fn a_client_that_sends_all_before_it_reads_still_gets_its_refusal() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    let length = 8 * 1024 * 1024;
    client
        .send(format!(
            "POST /refuse HTTP/1.1\r\ncontent-length: {length}\r\n\r\n"
        ))
        .await;
    client.send(vec![b'x'; length]).await;
    let (head, body) = client.answer().await;
    assert!(head.starts_with("HTTP/1.1 413 "), "{head}");
    assert!(head.contains("connection: close\r\n"), "{head}");
    assert_eq!(body, "too large");
    assert_eq!(client.rest().await, "");
    drop(client);
    rig.all_closed().await;
    assert_eq!(*rig.toy.endings.lock(), [ResponseEnd::Complete]);
}

#[tokio::test]
async fn after_a_small_refused_body_the_next_request_is_answered() {
    let rig = Rig::start().await;
    let sized = "content-length: 9\r\n\r\nGET / HTT";
    let chunked = "transfer-encoding: chunked\r\n\r\n9\r\nGET / HTT\r\n0\r\n\r\n";
    for body in [sized, chunked] {
        let mut client = rig.client().await;
        client
            .send(format!(
                "POST /refuse HTTP/1.1\r\n{body}GET /next HTTP/1.1\r\n\r\n"
            ))
            .await;
        assert_eq!(client.answer().await.1, "too large");
        assert_eq!(client.answer().await.1, "/next");
    }
}

#[tokio::test]
async fn a_small_refused_body_may_come_later() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client
        .send("POST /refuse HTTP/1.1\r\ncontent-length: 60000\r\n\r\n")
        .await;
    let (head, _) = client.answer().await;
    assert!(!head.contains("connection: close"), "{head}");
    client.send(vec![b'x'; 60_000]).await;
    client.send("GET /next HTTP/1.1\r\n\r\n").await;
    assert_eq!(client.answer().await.1, "/next");
}

#[tokio::test(start_paused = true)]
async fn a_refused_body_that_does_not_come_is_not_waited_for_longer_than_lingering() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client
        .send("POST /refuse HTTP/1.1\r\ncontent-length: 10\r\n\r\n12345")
        .await;
    client.answer().await;
    let began = Instant::now();
    assert_eq!(client.rest().await, "");
    assert!(began.elapsed() < Duration::from_secs(6));
}

#[tokio::test]
async fn a_refused_body_without_end_closes_the_connection() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client
        .send("POST /refuse HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
        .await;
    let chunk = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
    for _ in 0..64 {
        client.send(&chunk).await;
    }
    assert_eq!(client.answer().await.1, "too large");
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn a_refused_client_that_waits_to_be_asked_is_not_asked() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client
        .send("POST /refuse HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n")
        .await;
    let (head, _) = client.answer().await;
    assert!(head.starts_with("HTTP/1.1 413 "), "{head}");
    assert!(head.contains("connection: close\r\n"), "{head}");
    assert_eq!(client.rest().await, "");
}

#[tokio::test(start_paused = true)]
async fn a_refused_client_that_sends_its_body_late_is_not_reset() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client
        .send("POST /refuse HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n")
        .await;
    client.answer().await;
    assert_eq!(client.rest().await, "");
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(4)).await;
        client.send("late").await;
    }
    drop(client);
    rig.all_closed().await;
}

#[tokio::test]
async fn a_welcome_client_that_waits_to_be_asked_is_asked() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client
        .send("POST /echo HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n")
        .await;
    assert_eq!(client.head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("hello").await;
    assert_eq!(client.answer().await.1, "hello");
}

#[tokio::test]
async fn a_malformed_head_with_much_behind_it_still_gets_its_400() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client.send("nonsense\r\n\r\n").await;
    client.send(vec![b'x'; 4 * 1024 * 1024]).await;
    assert!(client.rest().await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test(start_paused = true)]
async fn lingering_ends_when_the_client_neither_sends_nor_leaves() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client.send("nonsense\r\n\r\n").await;
    assert!(client.rest().await.starts_with("HTTP/1.1 400 "));
    let began = Instant::now();
    rig.all_closed().await;
    let took = began.elapsed();
    assert!(took > Duration::from_secs(4), "{took:?}");
    assert!(took < Duration::from_secs(6), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn lingering_ends_in_any_case_after_half_a_minute() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client.send("nonsense\r\n\r\n").await;
    let began = Instant::now();
    let connections = rig.connections.clone();
    connections.close();
    let flood = async {
        while client.0.write_all(b"more").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::join!(flood, connections.wait());
    let took = began.elapsed();
    assert!(took > Duration::from_secs(29), "{took:?}");
    assert!(took < Duration::from_secs(34), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_closes_who_is_idle_and_lets_who_is_busy_finish() {
    let rig = Rig::start().await;
    let mut fresh = rig.client().await;
    let mut idle = rig.client().await;
    idle.send("GET /a HTTP/1.1\r\n\r\n").await;
    idle.answer().await;
    let mut busy = rig.client().await;
    busy.send("GET /slow HTTP/1.1\r\n\r\n").await;
    tokio::time::sleep(Duration::from_millis(100)).await;

    let began = Instant::now();
    rig.stop.cancel();
    assert_eq!(fresh.rest().await, "");
    assert_eq!(idle.rest().await, "");
    assert!(began.elapsed() < Duration::from_millis(150));
    let (head, body) = busy.answer().await;
    assert!(head.contains("connection: close\r\n"), "{head}");
    assert_eq!(body, "slow");
    assert_eq!(busy.rest().await, "");
    rig.all_closed().await;
}

// On a real clock: one that stands still jumps past the last call while bytes are on their way.
#[tokio::test]
async fn a_request_on_its_way_when_told_to_stop_is_answered() {
    let rig = Rig::start().await;
    let mut fresh = rig.client().await;
    let mut idle = rig.client().await;
    idle.send("GET /a HTTP/1.1\r\n\r\n").await;
    idle.answer().await;
    rig.stop.cancel();
    // All have read it before they send.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    for client in [&mut fresh, &mut idle] {
        client.send("GET /slow HTTP/1.1\r\n\r\n").await;
    }
    for client in [&mut fresh, &mut idle] {
        let (head, body) = client.answer().await;
        assert!(head.contains("connection: close\r\n"), "{head}");
        assert_eq!(body, "slow");
        assert_eq!(client.rest().await, "");
    }
    rig.all_closed().await;
}
