//! When names are looked up again.

use super::*;
use crate::config::plan::UpstreamServer;
use crate::upstream::Upstream;

const EVERY: Duration = Duration::from_secs(30);

fn upstream() -> Upstream {
    let mut server = UpstreamServer::at(plan::UpstreamAddress::Tcp {
        host: "localhost".into(),
        port: 1,
    });
    server.resolve = Some(EVERY);
    Upstream::build(
        &plan::Upstream::of("app", vec![server]),
        Arc::default(),
        None,
    )
    .unwrap()
}

fn found(ttl: Option<u64>) -> io::Result<LookupResult> {
    Ok(LookupResult {
        addresses: vec![([10, 0, 0, 1], 80).into()],
        ttl: ttl.map(Duration::from_secs),
    })
}

fn failed() -> io::Result<LookupResult> {
    Err(io::ErrorKind::TimedOut.into())
}

#[test]
fn a_name_is_looked_up_when_it_is_due_and_not_twice_at_once() {
    let upstream = upstream();
    assert_eq!(upstream.next_lookup(), Some(Millis(30_000)));
    assert!(upstream.lookups(Millis(29_999)).is_empty());
    let lookups = upstream.lookups(Millis(30_000));
    assert_eq!((lookups.len(), lookups[0].server), (1, 0));
    assert!(upstream.lookups(Millis(90_000)).is_empty());
    assert_eq!(upstream.next_lookup(), None);
    upstream.resolved(0, found(None), Millis(31_000));
    assert_eq!(upstream.next_lookup(), Some(Millis(61_000)));
}

#[test]
fn a_name_with_a_shorter_ttl_is_looked_up_sooner() {
    let upstream = upstream();
    for (found, next) in [
        (found(Some(5)), 5_000),
        (found(Some(0)), 1_000),
        (found(Some(3600)), 30_000),
        (failed(), 5_000),
    ] {
        upstream.resolved(0, found, Millis(0));
        assert_eq!(upstream.next_lookup(), Some(Millis(next)));
    }
}

#[test]
fn a_failure_leaves_the_last_addresses_and_is_counted() {
    let upstream = upstream();
    upstream.resolved(0, found(None), Millis(0));
    upstream.resolved(0, failed(), Millis(0));
    upstream.resolved(0, failed(), Millis(0));
    let backends = upstream.backends();
    let names: Vec<_> = backends.iter().map(|backend| &*backend.name).collect();
    assert_eq!(names, ["10.0.0.1:80"]);
    let view = NameStatus {
        host: "localhost".into(),
        addresses: 1,
        found: 2,
        failed: 2,
    };
    assert_eq!(upstream.names(), [view]);
}

#[test]
fn a_name_that_is_not_known_yet_does_not_keep_weir_from_starting() {
    let mut server = UpstreamServer::at(plan::UpstreamAddress::Tcp {
        host: "not.known.invalid".into(),
        port: 80,
    });
    let plan = |server| plan::Upstream::of("app", vec![server]);
    assert!(Upstream::build(&plan(server.clone()), Arc::default(), None).is_err());
    server.resolve = Some(EVERY);
    let upstream = Upstream::build(&plan(server), Arc::default(), None).unwrap();
    assert!(upstream.backends().is_empty());
    assert_eq!(upstream.next_lookup(), Some(Millis(5_000)));
    upstream.resolved(0, found(None), Millis(0));
    assert_eq!(upstream.backends().len(), 1);
}

#[test]
fn names_that_are_looked_up_once_are_compared_with_the_known_addresses() {
    let plan = |host: &str| {
        let server = UpstreamServer::at(plan::UpstreamAddress::Tcp {
            host: host.into(),
            port: 80,
        });
        plan::Upstream::of("app", vec![server])
    };
    let upstream = Upstream::build(&plan("127.0.0.1"), Arc::default(), None).unwrap();
    assert!(upstream.has_same_addresses(&plan("127.0.0.1")));
    assert!(!upstream.has_same_addresses(&plan("127.0.0.2")));
    assert!(upstream.has_same_addresses(&plan("nowhere.invalid")));
}
