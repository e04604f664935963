//! What breakers hear of calls that end otherwise than with an answer.

use tokio::sync::Notify;

use super::*;
use crate::clock::Millis;
use crate::config::plan::CallShare;
use crate::upstream::breaker::BreakerState;
use crate::upstream::breaker::tests::plan as breaker;

/// A road to one origin whose breaker goes by `rules`, with time in the test's hand.
fn road(origin: &Origin, rules: plan::Breaker) -> Road {
    let mut plan = plan_to(&[origin]);
    plan.keepalive = 0;
    plan.breaker = Some(rules);
    let mut road = Road::with(&plan);
    road.clock = Clock::by_hand(Millis(0));
    road
}

fn state(road: &Road) -> BreakerState {
    let backends = road.upstream.backends();
    backends[0].breaker.as_ref().unwrap().state()
}

/// Opens after one call of at least two seconds.
fn impatient() -> plan::Breaker {
    plan::Breaker {
        slow: Some((Duration::from_secs(2), CallShare(1000))),
        min_calls: 1,
        ..breaker()
    }
}

/// An origin that reads a head and so much of a body, says so, and nothing else.
async fn silent(body: usize) -> (Origin, Arc<Notify>) {
    let heard = Arc::new(Notify::new());
    let shared = Arc::clone(&heard);
    let origin = Origin::start(move |mut caller| {
        let heard = Arc::clone(&shared);
        async move {
            caller.head().await;
            caller.body(body).await;
            heard.notify_one();
            caller.wait().await;
        }
    })
    .await;
    (origin, heard)
}

/// Sends a request, and leaves when `heard` says that it has arrived and time has moved on to `then`.
async fn leave(road: &mut Road, outgoing: OutgoingRequest, heard: &Notify, then: u64) {
    let clock = road.clock.clone();
    let mut sending = Box::pin(road.send(outgoing));
    tokio::select! {
        answered = &mut sending => panic!("{answered:?}"),
        () = heard.notified() => {}
    }
    clock.set(Millis(then));
}

#[tokio::test]
async fn a_server_that_hangs_is_slow_also_to_clients_that_leave() {
    let (origin, heard) = silent(0).await;
    let mut road = road(&origin, impatient());
    leave(&mut road, outgoing(Method::GET), &heard, 1_999).await;
    assert_eq!(state(&road), BreakerState::Closed);
    leave(&mut road, outgoing(Method::GET), &heard, 3_999).await;
    assert_eq!(state(&road), BreakerState::Open);
}

#[tokio::test]
async fn the_time_a_client_takes_to_send_is_not_the_servers() {
    let (origin, heard) = silent(3).await;
    let mut road = road(&origin, impatient());
    let (unfinished, _client) = post(6, "abc").await;
    leave(&mut road, unfinished, &heard, 60_000).await;
    assert_eq!(state(&road), BreakerState::Closed);
    let (whole, _client) = post(3, "abc").await;
    leave(&mut road, whole, &heard, 62_000).await;
    assert_eq!(state(&road), BreakerState::Open);
}

#[tokio::test]
async fn an_upload_that_takes_long_does_not_make_its_answer_slow() {
    let heard = Arc::new(Notify::new());
    let origin = Origin::start({
        let heard = Arc::clone(&heard);
        move |mut caller| {
            let heard = Arc::clone(&heard);
            async move {
                caller.head().await;
                caller.body(3).await;
                heard.notify_one();
                caller.body(3).await;
                caller.say(SHORT).await;
                caller.wait().await;
            }
        }
    })
    .await;
    let mut road = road(&origin, impatient());
    let (outgoing, mut client) = post(6, "abc").await;
    let clock = road.clock.clone();
    let (answered, ()) = tokio::join!(road.send(outgoing), async {
        heard.notified().await;
        clock.set(Millis(60_000));
        client.write_all(b"def").await.unwrap();
    });
    assert_eq!(answered.unwrap().status(), 200);
    assert_eq!(state(&road), BreakerState::Closed);
}

#[tokio::test]
async fn an_old_download_that_is_cut_does_not_disturb_the_probes() {
    let cut = Arc::new(Notify::new());
    let origin = Origin::start({
        let cut = Arc::clone(&cut);
        move |mut caller| {
            let cut = Arc::clone(&cut);
            async move {
                caller.head().await;
                match caller.number {
                    0 => {
                        let begun = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc";
                        caller.say(begun).await;
                        cut.notified().await;
                    }
                    1 => {
                        caller
                            .say("HTTP/1.1 502 No\r\ncontent-length: 0\r\n\r\n")
                            .await
                    }
                    _ => caller.say(SHORT).await,
                }
            }
        }
    })
    .await;
    let rules = plan::Breaker {
        failures: Some(1),
        ..breaker()
    };
    let mut road = road(&origin, rules);
    let download = road.get().await.unwrap();
    assert_eq!(road.get().await.unwrap().status(), 502);
    assert_eq!(state(&road), BreakerState::Open);
    road.clock.set(Millis(5_000));
    assert_eq!(road.get_text().await, "ok");
    assert_eq!(state(&road), BreakerState::HalfOpen, "one of two");
    cut.notify_one();
    assert!(text(download).await.is_err());
    assert_eq!(state(&road), BreakerState::HalfOpen);
    assert_eq!(road.get_text().await, "ok");
    assert_eq!(state(&road), BreakerState::Closed);
}
