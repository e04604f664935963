//! How long a client may take.

use tokio::time::Instant;

use super::*;
use crate::message::ConnectionPhase;

const HEADER: Duration = Duration::from_secs(60);
const KEEPALIVE: Duration = Duration::from_secs(75);
const SEND: Duration = Duration::from_secs(60);

fn assert_about(took: Duration, expected: Duration) {
    let late = Duration::from_millis(50);
    assert!(took >= expected && took < expected + late, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_dripping_head_is_cut_off_when_its_time_is_up_in_total() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    let began = Instant::now();
    client.send("GET / HTTP/1.1\r\n").await;
    let mut sent = 0;
    while rig.toy.refused.lock().is_empty() {
        client.send("x").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        sent += 1;
        assert!(sent < 100, "never cut off");
    }
    // The client looks once a second.
    let took = began.elapsed();
    assert!(
        took >= HEADER && took < HEADER + Duration::from_secs(2),
        "{took:?}"
    );
    let answer = client.rest().await;
    assert!(
        answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"),
        "{answer}"
    );
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    assert_eq!(*rig.toy.refused.lock(), [408]);
    drop(client);
    rig.all_closed().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_speaks_is_closed_silently() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    let began = Instant::now();
    assert_eq!(client.rest().await, "");
    assert_about(began.elapsed(), HEADER);
    assert!(rig.toy.refused.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_silently_after_its_last_answer() {
    let rig = Rig::start().await;
    for path in ["/told", "/untold"] {
        let mut client = rig.client().await;
        // The wait begins anew with every answer.
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(50)).await;
            client.send(format!("GET {path} HTTP/1.1\r\n\r\n")).await;
            client.answer().await;
        }
        let began = Instant::now();
        assert_eq!(client.rest().await, "");
        assert_about(began.elapsed(), KEEPALIVE);
    }
    rig.all_closed().await;
    assert!(rig.toy.refused.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_later_head_has_its_time_from_its_first_byte() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client.send("GET /a HTTP/1.1\r\n\r\n").await;
    client.answer().await;
    tokio::time::sleep(Duration::from_secs(70)).await;
    client.send("GET ").await;
    let began = Instant::now();
    assert!(client.rest().await.starts_with("HTTP/1.1 408 "));
    assert_about(began.elapsed(), HEADER);
}

#[tokio::test(start_paused = true)]
async fn a_request_on_the_road_has_no_limit_here() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client.send("GET /park HTTP/1.1\r\n\r\n").await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(rig.toy.peer().state.phase(), ConnectionPhase::Busy);
    assert_eq!(*rig.toy.abandoned.lock(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_its_answer_is_cut_off() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client.send("GET /big HTTP/1.1\r\n\r\n").await;
    rig.toy.wait_for_state(|state| state.unsent.get()).await;
    let began = Instant::now();
    rig.all_closed().await;
    let took = began.elapsed();
    assert!(
        took > SEND / 2 && took < SEND + Duration::from_secs(1),
        "{took:?}"
    );
    assert_eq!(*rig.toy.endings.lock(), [ResponseEnd::Aborted]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_slowly_but_steadily_gets_it_all() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client.send("GET /big HTTP/1.1\r\n\r\n").await;
    client.head().await;
    let mut left = 64 * 1024 * 1024;
    let mut buffer = vec![0; 4 * 1024 * 1024];
    while left > 0 {
        tokio::time::sleep(Duration::from_secs(20)).await;
        let size = buffer.len().min(left);
        client.0.read_exact(&mut buffer[..size]).await.unwrap();
        left -= size;
    }
    until(|| *rig.toy.endings.lock() == [ResponseEnd::Complete]).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_discarded_body_the_connection_idles_like_any_other() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client
        .send("POST /refuse HTTP/1.1\r\ncontent-length: 10\r\n\r\n12345")
        .await;
    client.answer().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    client.send("67890").await;
    let began = Instant::now();
    assert_eq!(client.rest().await, "");
    assert_about(began.elapsed(), KEEPALIVE);
    assert!(rig.toy.refused.lock().is_empty());
}
