//! Addresses that come and go while requests are under way.

use super::*;
use crate::upstream::resolve::LookupResult;

/// A road to a name that is looked up again, which has these addresses.
fn road(origins: &[&Origin], balance: plan::Balance) -> Road {
    let road = unknown(balance);
    settle(&road, origins);
    road
}

/// A road to a name that is looked up again.
fn unknown(balance: plan::Balance) -> Road {
    let mut server = server(([127, 0, 0, 1], 1).into());
    server.address = plan::UpstreamAddress::Tcp {
        host: "localhost".into(),
        port: 1,
    };
    server.resolve = Some(Duration::from_secs(30));
    let plan = plan::Upstream {
        balance,
        keepalive: 8,
        ..plan::Upstream::of("app", vec![server])
    };
    Road::with(&plan)
}

/// The name has these addresses from now on.
fn settle(road: &Road, origins: &[&Origin]) {
    settle_at(road, origins.iter().map(|origin| origin.address).collect());
}

fn settle_at(road: &Road, addresses: Vec<std::net::SocketAddr>) {
    let found = LookupResult {
        addresses,
        ttl: None,
    };
    road.upstream.resolved(0, Ok(found), road.clock.now());
}

fn backend(road: &Road, origin: &Origin) -> Option<Arc<Backend>> {
    let mut backends = road.upstream.backends().into_iter();
    backends.find(|backend| backend.address == BackendAddress::Tcp(origin.address))
}

#[tokio::test]
async fn every_address_is_a_server() {
    let (one, two) = (Origin::always(SHORT).await, Origin::always(SHORT).await);
    let mut road = road(&[&one, &two], plan::Balance::RoundRobin);
    for _ in 0..4 {
        road.get_text().await;
    }
    assert_eq!((one.heads().len(), two.heads().len()), (2, 2));
}

#[tokio::test]
async fn who_comes_is_asked_and_who_goes_is_not() {
    let origins = [(); 3].map(|()| Origin::always(SHORT));
    let [one, two, three] = origins;
    let (one, two, three) = (one.await, two.await, three.await);
    let key = plan::Template::literal("key");
    for balance in [
        plan::Balance::RoundRobin,
        plan::Balance::LeastConn,
        plan::Balance::Random,
        plan::Balance::IpHash,
        plan::Balance::Hash(key.clone()),
        plan::Balance::ConsistentHash(key),
    ] {
        let mut road = road(&[&one, &two], balance.clone());
        road.get_text().await;
        settle(&road, &[&three]);
        let before = (one.heads().len(), two.heads().len(), three.heads().len());
        for _ in 0..4 {
            road.get_text().await;
        }
        let after = (one.heads().len(), two.heads().len(), three.heads().len());
        assert_eq!(
            after,
            (before.0, before.1, before.2 + 4),
            "{balance:?} asks who is there"
        );
    }
}

#[tokio::test]
async fn what_is_under_way_at_one_who_goes_is_finished_and_then_it_is_forgotten() {
    let old = Origin::start(|mut caller| async move {
        while caller.head().await.is_some() {
            caller
                .say("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n12")
                .await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            caller.say("34").await;
        }
    })
    .await;
    let new = Origin::always(SHORT).await;
    let mut road = road(&[&old], plan::Balance::RoundRobin);
    let answer = road.get().await.unwrap();
    settle(&road, &[&new]);
    let leaving = backend(&road, &old).expect("it has something to do");
    assert!(leaving.has(UnavailableReason::Draining) && leaving.active() == 1);
    assert_eq!(road.get_text().await, "ok");
    assert_eq!(text(answer).await.unwrap(), "1234");
    // Its connection is not kept, and it is not listed.
    old.until_closed(1).await;
    assert!(backend(&road, &old).is_none());
    assert_eq!((old.connections(), new.heads().len()), (1, 1));
}

#[tokio::test]
async fn kept_connections_to_one_who_goes_are_closed() {
    let (old, new) = (Origin::always(SHORT).await, Origin::always(SHORT).await);
    let mut road = road(&[&old], plan::Balance::RoundRobin);
    road.get_text().await;
    assert_eq!(road.kept(), 1);
    settle(&road, &[&new]);
    old.until_closed(1).await;
    // In its place stands another, who has none of its connections.
    assert_eq!(road.get_text().await, "ok");
    assert_eq!(new.connections(), 1);
}

#[tokio::test]
async fn one_in_the_place_of_another_uses_none_of_its_connections() {
    let (old, new) = (Origin::always(SHORT).await, Origin::always(SHORT).await);
    let mut road = road(&[&old], plan::Balance::RoundRobin);
    road.get_text().await;
    settle(&road, &[&new]);
    // At once: no connection can have been closed yet.
    road.get_text().await;
    assert_eq!((old.heads().len(), new.heads().len()), (1, 1));
}

#[tokio::test]
async fn who_stays_is_the_same_as_before() {
    let (stays, goes) = (Origin::always(SHORT).await, Origin::always(SHORT).await);
    let comes = Origin::always(SHORT).await;
    let mut road = road(&[&stays, &goes], plan::Balance::LeastConn);
    for _ in 0..4 {
        road.get_text().await;
    }
    let before = backend(&road, &stays).unwrap();
    before.set_unavailable(UnavailableReason::Unhealthy, true);
    settle(&road, &[&comes, &stays]);
    assert!(Arc::ptr_eq(&before, &backend(&road, &stays).unwrap()));
    for _ in 0..3 {
        road.get_text().await;
    }
    assert_eq!(comes.heads().len(), 3);
    before.set_unavailable(UnavailableReason::Unhealthy, false);
    let asked = stays.heads().len();
    for _ in 0..2 {
        road.get_text().await;
    }
    assert_eq!(stays.heads().len(), asked + 1);
    // Over the connection it had.
    assert_eq!(stays.connections(), 1);
}

#[tokio::test]
async fn who_comes_back_before_it_has_left_stays() {
    let origin = Origin::always(CHUNKED).await;
    let other = Origin::always(SHORT).await;
    let mut road = road(&[&origin], plan::Balance::RoundRobin);
    let answer = road.get().await.unwrap();
    let before = backend(&road, &origin).unwrap();
    settle(&road, &[&other]);
    settle(&road, &[&origin]);
    let after = backend(&road, &origin).unwrap();
    assert!(Arc::ptr_eq(&before, &after) && after.is_available());
    text(answer).await.unwrap();
    assert_eq!(road.get_text().await, "ok");
    assert_eq!((origin.connections(), other.connections()), (1, 0));
}

#[tokio::test]
async fn an_upstream_without_an_address_has_no_server_until_it_has_one() {
    let origin = Origin::always(SHORT).await;
    let mut road = road(&[], plan::Balance::IpHash);
    assert!(matches!(road.get().await, Err(Error::NoLiveBackend)));
    settle(&road, &[&origin]);
    assert_eq!(road.get_text().await, "ok");
}

#[tokio::test]
async fn all_addresses_are_tried_that_are_there_now() {
    let (dead, well) = (Origin::absent().await, Origin::always(SHORT).await);
    let mut road = road(&[&dead], plan::Balance::RoundRobin);
    assert!(road.get().await.is_err());
    settle(&road, &[&dead, &well]);
    for _ in 0..3 {
        assert_eq!(road.get_text().await, "ok");
    }
}

#[tokio::test]
async fn a_shared_connection_to_a_removed_server_is_closed_when_unused() {
    let (old, new) = (http2::ok().await, http2::ok().await);
    let mut road = unknown(plan::Balance::RoundRobin);
    road.proxy_pass.version = plan::HttpVersion::Two;
    settle_at(&road, vec![old.address]);
    assert_eq!(http2::get(&mut road).await, "ok");
    let gone = road.upstream.backends().remove(0);
    settle_at(&road, vec![new.address]);
    // At once, in the same place: over none of the other's connections.
    assert_eq!(http2::get(&mut road).await, "ok");
    assert_eq!((old.requests(), new.requests()), (1, 1));
    let closed = async {
        while crate::upstream::http2::connections(&gone, &road.proxy_pass) > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let patience = Duration::from_secs(10);
    tokio::time::timeout(patience, closed).await.unwrap();
    assert_eq!(http2::get(&mut road).await, "ok");
    assert_eq!(new.connections(), 1);
}
