//! How connections end when weir stops.

use std::time::Duration;

use tokio::time::Instant;

use crate::support::frames::*;
use crate::support::{Origin, Weir};

fn weir(origin: &Origin) -> Weir {
    Weir::before(
        origin,
        "shutdown_timeout: 20s
servers: [ { listen: LISTEN, proxy_pass: 'http://ORIGIN' } ]",
    )
}

/// The client neither closes nor acknowledges the ping that shows when it has read the GOAWAY.
#[test]
fn a_client_that_ignores_a_close_does_not_delay_a_stop() {
    let origin = Origin::start();
    let mut weir = weir(&origin);
    let answered = Framed::connect(weir.address());
    answered.send(get(1, "/ok"));
    assert_eq!(answered.reset(1), None);
    let silent = Framed::connect(weir.address());
    silent.until(|frame| frame.kind == SETTINGS);
    let started = Instant::now();
    weir.signal("QUIT");
    assert_eq!(weir.wait().code(), Some(0));
    let waited = started.elapsed();
    assert!(waited < Duration::from_secs(10), "{waited:?}");
    for client in [answered, silent] {
        assert_eq!(client.goes_away(), Some(0), "it was told");
    }
}

/// What is under way is answered, and what is asked before the client can know is, too.
#[test]
fn streams_under_way_are_finished_before_a_stop() {
    let origin = Origin::start();
    let mut weir = weir(&origin);
    let client = Framed::connect(weir.address());
    client.send(get(1, "/hold?gate=g"));
    origin.gates().await_waiting("g", 1);
    weir.signal("TERM");
    client.until(|frame| frame.kind == GOAWAY);
    client.send(get(3, "/ok"));
    assert_eq!(client.reset(3), None);
    origin.gates().open("g");
    assert_eq!(client.reset(1), None);
    assert_eq!(weir.wait().code(), Some(0));
}
