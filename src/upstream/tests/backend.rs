//! The state of a backend: reasons, changes, health checks.

use super::*;
use crate::config::plan::{CallShare, CheckKind, HttpVersion};

fn backend(changes: &Arc<ChangeList>) -> Backend {
    let address: PathBuf = "/s".into();
    let server = plan::UpstreamServer::at(plan::UpstreamAddress::Unix(address.clone()));
    let settings = GroupSettings {
        upstream: plan::Upstream::of("app", vec![server]),
        keepalive: KeepaliveSettings {
            upstream: 0,
            most: 0,
            timeout: Duration::ZERO,
            requests: 0,
        },
        tls: Arc::default(),
        changes: Some(Arc::clone(changes)),
    };
    Backend::new(3, BackendAddress::Unix(address), 0, &settings, None)
}

fn taken(changes: &ChangeList) -> Vec<usize> {
    let mut taken = Vec::new();
    changes.take(|index| taken.push(index));
    taken
}

#[test]
fn only_the_first_reason_and_the_end_of_the_last_are_changes() {
    let changes = Arc::new(ChangeList::default());
    let backend = backend(&changes);
    assert!(taken(&changes).is_empty() && backend.is_available());
    backend.set_unavailable(UnavailableReason::Unhealthy, true);
    assert_eq!(taken(&changes), [3]);
    backend.set_unavailable(UnavailableReason::Breaker, true);
    backend.set_unavailable(UnavailableReason::Unhealthy, true);
    backend.set_unavailable(UnavailableReason::Unhealthy, false);
    assert!(taken(&changes).is_empty() && !backend.is_available());
    assert!(backend.has(UnavailableReason::Breaker) && !backend.has(UnavailableReason::Unhealthy));
    backend.set_unavailable(UnavailableReason::Breaker, false);
    assert_eq!(taken(&changes), [3]);
    assert!(backend.is_available());
}

#[test]
fn a_change_is_handed_over_once() {
    let changes = ChangeList::default();
    changes.add(3);
    changes.add(5);
    assert_eq!(taken(&changes), [3, 5]);
    assert!(taken(&changes).is_empty());
}

fn check() -> HealthCheck {
    HealthCheck {
        kind: CheckKind::Tcp,
        port: None,
        tls: None,
        version: HttpVersion::One,
        interval: Duration::from_secs(10),
        jitter: CallShare(200),
        timeout: Duration::from_secs(1),
        rise: 2,
        fall: 3,
        initial: InitialHealth::Up,
    }
}

/// What each of these checks changes, beginning with `status`.
fn changes(status: HealthStatus, checks: &str) -> String {
    let (check, mut streak) = (check(), CheckStreak { status, against: 0 });
    checks
        .chars()
        .map(|passed| match streak.record(passed == '+', &check) {
            None => '.',
            Some(HealthChange::Rise) => '^',
            Some(HealthChange::Fall) => 'v',
        })
        .collect()
}

#[test]
fn a_change_takes_some_checks_in_a_row() {
    let changes = |checks| changes(HealthStatus::Healthy, checks);
    assert_eq!(changes("+--+--+---"), ".........v");
    assert_eq!(changes("---+-+++--"), "..v...^...");
    assert_eq!(changes("-----++"), "..v...^");
}

#[test]
fn the_first_check_decides_about_an_unknown_server() {
    assert_eq!(changes(HealthStatus::Unknown, "+---"), "^..v");
    assert_eq!(changes(HealthStatus::Unknown, "-++"), "v.^");
}

#[test]
fn pauses_between_checks_differ_within_the_jitter() {
    let health = Health::new(&check(), None);
    let pauses: Vec<_> = (0..1_000).map(|_| health.pause()).collect();
    let within = Duration::from_secs(8)..=Duration::from_secs(12);
    assert!(pauses.iter().all(|pause| within.contains(pause)));
    let (least, most) = (pauses.iter().min(), pauses.iter().max());
    assert!(least < Some(&Duration::from_secs(9)) && most > Some(&Duration::from_secs(11)));
}
