//! A client that leaves while its request waits.

use super::*;

async fn is_noticed(request: impl AsRef<[u8]>, leave: impl FnOnce(TcpStream)) {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client.send(request).await;
    // Long enough for everything that was sent to have been seen, and for the watch to tick in vain.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(*rig.toy.abandoned.lock(), 0);
    leave(client.0);
    until(|| *rig.toy.abandoned.lock() == 1).await;
    rig.all_closed().await;
}

#[tokio::test(start_paused = true)]
async fn a_hang_up_ends_a_request_that_waits() {
    is_noticed("GET /park HTTP/1.1\r\n\r\n", drop).await;
}

#[tokio::test(start_paused = true)]
async fn a_reset_ends_a_request_that_waits() {
    is_noticed("GET /park HTTP/1.1\r\n\r\n", |client| {
        client.set_zero_linger().unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_hang_up_is_seen_behind_an_unread_body() {
    is_noticed(
        "POST /park HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello",
        drop,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_hang_up_is_seen_behind_a_body_larger_than_any_buffer() {
    let mut request = b"POST /park HTTP/1.1\r\ncontent-length: 100000\r\n\r\n".to_vec();
    request.resize(100_000, b'x');
    is_noticed(request, drop).await;
}

#[tokio::test(start_paused = true)]
async fn a_hang_up_is_seen_behind_a_pipelined_request() {
    is_noticed("GET /park HTTP/1.1\r\n\r\nGET /next HTTP/1.1\r\n\r\n", drop).await;
}

#[tokio::test(start_paused = true)]
async fn a_hang_up_in_the_middle_of_an_answer_ends_it() {
    let rig = Rig::start().await;
    let mut client = rig.client().await;
    client.send("GET /big HTTP/1.1\r\n\r\n").await;
    client.head().await;
    drop(client);
    rig.all_closed().await;
    assert_eq!(*rig.toy.endings.lock(), [ResponseEnd::Aborted]);
}
