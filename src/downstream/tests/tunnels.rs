//! Two ends in memory, and time that stands still.

use tokio::io::DuplexStream;

use super::*;
use crate::downstream::tunnel::carry;
use crate::message::Tunnel;

/// A tunnel, and what its two ends are held by.
struct Joined {
    near: DuplexStream,
    far: DuplexStream,
    endings: Arc<Mutex<Vec<ResponseEnd>>>,
    peer: Arc<ClientConnection>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

/// A tunnel with room for so many bytes at either end.
fn join(room: usize, early: &'static [u8]) -> Joined {
    let (near, mut ours) = tokio::io::duplex(room);
    let (far, theirs) = tokio::io::duplex(room);
    let peer = Arc::new(ClientConnection::new(RemoteAddr::Unix, None, 1, Millis(0)));
    let endings = Arc::new(Mutex::new(Vec::new()));
    let tunnel = Box::new(Tunnel {
        far: Box::new(theirs),
        idle_timeout: Duration::from_secs(60),
        send_timeout: Duration::from_secs(20),
        grace: Duration::ZERO,
        guard: Box::new(Ended(Arc::clone(&endings))),
    });
    let (stop, held) = (CancellationToken::new(), Arc::clone(&peer));
    let stopped = stop.clone().cancelled_owned();
    let task = tokio::spawn(async move {
        let early = Bytes::from_static(early);
        carry(&mut ours, early, tunnel, &held.state, stopped).await;
    });
    Joined {
        near,
        far,
        endings,
        peer,
        stop,
        task,
    }
}

async fn hear(end: &mut DuplexStream, length: usize) -> Vec<u8> {
    let mut heard = vec![0; length];
    end.read_exact(&mut heard).await.unwrap();
    heard
}

#[tokio::test(start_paused = true)]
async fn what_was_said_early_comes_first_and_all_is_counted() {
    let mut joined = join(1024, b"early ");
    joined.near.write_all(b"bird").await.unwrap();
    assert_eq!(hear(&mut joined.far, 10).await, b"early bird");
    joined.far.write_all(b"worm").await.unwrap();
    assert_eq!(hear(&mut joined.near, 4).await, b"worm");
    assert_eq!(
        (
            joined.peer.state.received.get(),
            joined.peer.state.sent.get()
        ),
        (4, 4)
    );
    drop((joined.near, joined.far));
    joined.task.await.unwrap();
    assert_eq!(joined.endings.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn either_side_may_end_and_the_other_go_on() {
    let mut joined = join(1024, b"");
    joined.near.shutdown().await.unwrap();
    assert_eq!(joined.far.read(&mut [0]).await.unwrap(), 0);
    joined.far.write_all(b"still here").await.unwrap();
    assert_eq!(hear(&mut joined.near, 10).await, b"still here");
    joined.far.shutdown().await.unwrap();
    joined.task.await.unwrap();
    assert_eq!(*joined.endings.lock(), [ResponseEnd::Complete]);
}

#[tokio::test(start_paused = true)]
async fn a_minute_of_silence_is_the_end_and_a_word_begins_it_anew() {
    let start = tokio::time::Instant::now();
    let mut joined = join(1024, b"");
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(50)).await;
        joined.far.write_all(b"x").await.unwrap();
        hear(&mut joined.near, 1).await;
    }
    joined.task.await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 3 * 50 + 60);
    assert_eq!(joined.near.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(*joined.endings.lock(), [ResponseEnd::Aborted]);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_take_what_is_said_is_given_up() {
    let start = tokio::time::Instant::now();
    let mut joined = join(16, b"");
    // More than fits into both ends and what is on its way between them.
    let write = joined.near.write_all(&[0; 100_000]);
    assert!(write.await.is_err(), "the tunnel is closed over it");
    joined.task.await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_slow_taker_gets_everything_in_order() {
    let mut joined = join(64, b"");
    let bytes: Vec<u8> = (0..=250).cycle().take(200_000).collect();
    let sent = bytes.clone();
    let writing = tokio::spawn(async move {
        joined.near.write_all(&sent).await.unwrap();
        joined.near.shutdown().await.unwrap();
        joined.near
    });
    let mut heard = Vec::new();
    let mut piece = [0; 97];
    loop {
        match joined.far.read(&mut piece).await.unwrap() {
            0 => break,
            length => heard.extend_from_slice(&piece[..length]),
        }
        if heard.len() % 7 == 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    assert!(heard == bytes);
    drop(writing.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_stop_tells_both_ends() {
    let mut joined = join(1024, b"");
    joined.far.write_all(b"last").await.unwrap();
    assert_eq!(hear(&mut joined.near, 4).await, b"last");
    joined.stop.cancel();
    joined.task.await.unwrap();
    assert_eq!(joined.near.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(joined.far.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(*joined.endings.lock(), [ResponseEnd::Complete]);
}
