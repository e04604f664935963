//! When a request is over, and where interim answers may stand.

use std::sync::Arc;

use super::*;
use crate::clock::Millis;
use crate::message::client_addr::RemoteAddr;
use crate::message::connection::ClientConnection;

#[derive(Debug)]
struct Ended {
    // Held, as by every request: what keeps this keeps the connection.
    _connection: Arc<ClientConnection>,
    endings: Arc<Mutex<Vec<ResponseEnd>>>,
}

impl ResponseGuard for Ended {
    fn sent(&mut self, _bytes: usize) {}

    fn finish(self: Box<Self>, ending: ResponseEnd) {
        self.endings.lock().push(ending);
    }
}

fn guard(
    connection: &Arc<ClientConnection>,
    endings: &Arc<Mutex<Vec<ResponseEnd>>>,
) -> Box<dyn ResponseGuard> {
    Box::new(Ended {
        _connection: Arc::clone(connection),
        endings: Arc::clone(endings),
    })
}

fn interim(status: u16) -> InterimResponse {
    InterimResponse {
        status: StatusCode::from_u16(status).unwrap(),
        headers: HeaderMap::new(),
    }
}

fn connection() -> Arc<ClientConnection> {
    Arc::new(ClientConnection::new(RemoteAddr::Unix, None, 1, Millis(0)))
}

#[test]
fn a_tail_ends_with_the_flush_and_the_next_request_is_awaited() {
    let (connection, endings) = (connection(), Arc::default());
    connection.state.begin_request();
    connection
        .state
        .finish_when_flushed(guard(&connection, &endings));
    connection.state.body_taken.set(true);
    assert!(endings.lock().is_empty());
    assert!(connection.state.flushed());
    assert_eq!(*endings.lock(), [ResponseEnd::Complete]);
    assert_eq!(connection.state.phase(), ConnectionPhase::Idle);
    assert!(!connection.state.flushed());
}

#[test]
fn a_flush_in_the_middle_of_an_answer_is_not_its_end() {
    let connection = connection();
    connection.state.begin_request();
    assert!(!connection.state.flushed());
    assert_eq!(connection.state.phase(), ConnectionPhase::Busy);
}

/// hyper drops the socket before the body.
#[test]
fn a_tail_that_comes_after_the_end_of_the_connection_is_not_kept() {
    let (connection, endings) = (connection(), Arc::default());
    connection.state.closed();
    connection
        .state
        .finish_when_flushed(guard(&connection, &endings));
    assert_eq!(*endings.lock(), [ResponseEnd::Aborted]);
    assert_eq!(Arc::strong_count(&connection), 1);
}

#[test]
fn interim_answers_do_not_pile_up_without_bound() {
    let connection = connection();
    connection.state.begin_request();
    for _ in 0..10_000 {
        connection.state.send_interim(interim(102));
    }
    assert!(connection.state.take_interim().len() <= MOST_INTERIM / 16);
    connection.state.send_interim(interim(102));
    assert!(!connection.state.take_interim().is_empty());
}

#[test]
fn an_interim_answer_never_stands_inside_or_behind_the_final_one() {
    let connection = connection();
    connection.state.begin_request();
    connection.state.send_interim(interim(102));
    connection.state.final_response();
    connection.state.send_interim(interim(103));
    let sent = connection.state.take_interim();
    assert_eq!(sent.iter().map(|one| one.status).collect::<Vec<_>>(), [102]);

    connection.state.begin_request();
    connection.state.unsent.set(true);
    connection.state.send_interim(interim(103));
    connection.state.final_response();
    assert!(connection.state.take_interim().is_empty());
}
