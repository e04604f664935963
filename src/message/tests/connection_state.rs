//! When a request is over, and where interim answers may stand.

use std::sync::Arc;

use super::*;
use crate::clock::Millis;
use crate::message::client_addr::RemoteAddr;
use crate::message::connection::ClientConnection;

#[derive(Debug)]
struct Ended {
    // Held, as by every request: what keeps this keeps the connection.
    _peer: Arc<ClientConnection>,
    endings: Arc<Mutex<Vec<ResponseEnd>>>,
}

impl ResponseGuard for Ended {
    fn sent(&mut self, _bytes: usize) {}

    fn finish(self: Box<Self>, ending: ResponseEnd) {
        self.endings.lock().push(ending);
    }
}

fn guard(
    peer: &Arc<ClientConnection>,
    endings: &Arc<Mutex<Vec<ResponseEnd>>>,
) -> Box<dyn ResponseGuard> {
    Box::new(Ended {
        _peer: Arc::clone(peer),
        endings: Arc::clone(endings),
    })
}

fn interim(status: u16) -> InterimResponse {
    InterimResponse {
        status: StatusCode::from_u16(status).unwrap(),
        headers: HeaderMap::new(),
    }
}

fn peer() -> Arc<ClientConnection> {
    Arc::new(ClientConnection::new(RemoteAddr::Unix, None, 1, Millis(0)))
}

#[test]
fn a_tail_ends_with_the_flush_and_the_next_request_is_awaited() {
    let (peer, endings) = (peer(), Arc::default());
    peer.line.begin();
    peer.line.finish_when_flushed(guard(&peer, &endings));
    peer.line.answered();
    assert!(endings.lock().is_empty());
    assert!(peer.line.flushed());
    assert_eq!(*endings.lock(), [ResponseEnd::Complete]);
    assert_eq!(peer.line.phase(), ConnectionPhase::Idle);
    assert!(!peer.line.flushed());
}

#[test]
fn a_flush_in_the_middle_of_an_answer_is_not_its_end() {
    let peer = peer();
    peer.line.begin();
    assert!(!peer.line.flushed());
    assert_eq!(peer.line.phase(), ConnectionPhase::Busy);
}

/// hyper drops the socket before the body.
#[test]
fn a_tail_that_comes_after_the_end_of_the_connection_is_not_kept() {
    let (peer, endings) = (peer(), Arc::default());
    peer.line.closed();
    peer.line.finish_when_flushed(guard(&peer, &endings));
    assert_eq!(*endings.lock(), [ResponseEnd::Aborted]);
    assert_eq!(Arc::strong_count(&peer), 1);
}

#[test]
fn interim_answers_do_not_pile_up_without_bound() {
    let peer = peer();
    peer.line.begin();
    for _ in 0..10_000 {
        peer.line.send_interim(interim(102));
    }
    assert!(peer.line.take_interim().len() <= MOST_INTERIM / 16);
    peer.line.send_interim(interim(102));
    assert!(!peer.line.take_interim().is_empty());
}

#[test]
fn an_interim_answer_never_stands_inside_or_behind_the_final_one() {
    let peer = peer();
    peer.line.begin();
    peer.line.send_interim(interim(102));
    peer.line.decide();
    peer.line.send_interim(interim(103));
    let sent = peer.line.take_interim();
    assert_eq!(sent.iter().map(|one| one.status).collect::<Vec<_>>(), [102]);

    peer.line.begin();
    peer.line.set_unsent(true);
    peer.line.send_interim(interim(103));
    peer.line.decide();
    assert!(peer.line.take_interim().is_empty());
}
