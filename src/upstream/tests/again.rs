//! Rounds: all servers are asked again after a pause, where `retry_budget` says so.

use super::*;
use crate::config::plan::{Backoff, RetryBudget};
use crate::upstream::breaker::ForcedState;
use crate::upstream::breaker::tests::plan as breaker;

const BUSY: &str = "HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy";

/// Longer than any test waits: a part of it, drawn by lot, is longer than a second, but for one lot in 30 million.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A way to these origins, six times in all with a part of `pause` between two rounds.
fn plan(origins: &[&Origin], pause: Duration) -> plan::Upstream {
    let mut plan = plan_to(origins);
    let backoff = Backoff {
        base: pause,
        max: pause,
    };
    plan.retry_budget = Some(RetryBudget {
        percent: 100,
        least: 100,
        backoff: Some(backoff),
    });
    for server in &mut plan.servers {
        server.max_fails = 0;
    }
    plan
}

fn road(plan: &plan::Upstream) -> Road {
    let mut road = Road::with(plan);
    let next = &mut road.proxy_pass.next_upstream;
    next.tries = MaxTries::Most(6);
    next.statuses = vec![StatusCode::SERVICE_UNAVAILABLE];
    road
}

#[tokio::test]
async fn all_tries_are_made_and_the_last_answer_passes_through() {
    let (one, two) = (Origin::always(BUSY).await, Origin::always(BUSY).await);
    for origins in [&[&one, &two][..], &[&one][..]] {
        let mut road = road(&plan(origins, Duration::from_millis(1)));
        let response = road.get().await.unwrap();
        assert_eq!(response.status(), 503);
        assert_eq!(text(response).await.unwrap(), "busy");
        assert_eq!(road.statuses(), [503; 6]);
    }
}

#[tokio::test]
async fn a_server_alone_is_not_asked_again_without_a_pause() {
    let busy = Origin::always(BUSY).await;
    let mut road = road(&plan(&[&busy], YEAR));
    road.proxy_pass.next_upstream.within = Some(Duration::from_secs(1));
    // There is no time for the pause, so what has come is what the client gets.
    assert_eq!(road.get_text().await, "busy");
    assert_eq!(road.statuses(), [503]);
}

#[tokio::test]
async fn an_answer_that_is_kept_back_does_not_fill_its_server() {
    let busy = Origin::always(BUSY).await;
    let mut plan = plan(&[&busy], Duration::from_millis(1));
    plan.servers[0].max_conns = 1;
    let mut road = road(&plan);
    assert_eq!(road.get_text().await, "busy");
    assert_eq!(road.statuses(), [503; 6]);
    assert_eq!(road.upstream.backends()[0].active(), 0);
}

#[tokio::test]
async fn without_a_server_left_after_the_pause_the_last_response_passes_through() {
    let (one, two) = (Origin::always(BUSY).await, Origin::always(BUSY).await);
    let mut plan = plan(&[&one, &two], Duration::from_millis(1));
    for server in &mut plan.servers {
        server.max_fails = 1;
    }
    let mut road = road(&plan);
    assert_eq!(road.get_text().await, "busy");
    assert_eq!(road.statuses(), [503; 2]);
}

#[tokio::test]
async fn a_request_without_a_server_to_try_does_not_wait() {
    let absent = Origin::absent().await;
    let mut plan = plan(&[&absent, &absent], YEAR);
    for server in &mut plan.servers {
        server.max_fails = 1;
    }
    let mut road = road(&plan);
    road.proxy_pass.next_upstream.within = Some(Duration::from_secs(1));
    assert!(matches!(road.get().await, Err(Error::Connect(_))));
    assert_eq!(road.statuses(), [502; 2]);
    // Both are left alone now.
    road.proxy_pass.next_upstream.within = None;
    tokio::time::pause();
    let before = road.clock.now();
    assert!(matches!(road.get().await, Err(Error::NoLiveBackend)));
    assert_eq!(road.clock.now(), before);
}

#[tokio::test]
async fn where_all_breakers_are_open_no_request_waits() {
    let (one, two) = (Origin::always(BUSY).await, Origin::always(BUSY).await);
    let mut plan = plan(&[&one, &two], YEAR);
    plan.breaker = Some(plan::Breaker {
        failures: Some(1),
        statuses: vec![StatusCode::SERVICE_UNAVAILABLE],
        ..breaker()
    });
    let mut road = road(&plan);
    // The responses open both breakers, and no server is left for another attempt.
    assert_eq!(road.get_text().await, "busy");
    assert_eq!(road.statuses(), [503; 2]);
    for backend in road.upstream.backends() {
        road.upstream.force(&backend.name, Some(ForcedState::Open));
    }
    tokio::time::pause();
    let before = road.clock.now();
    let Err(Error::Unavailable { retry_after }) = road.get().await else {
        panic!("a server was asked");
    };
    assert_eq!(retry_after, breaker::TURNED_OFF);
    assert_eq!(road.clock.now(), before);
}
