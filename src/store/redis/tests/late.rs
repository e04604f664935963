//! What the log says of a store whose answers come too late.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::*;
use crate::clock::Clock;
use crate::config::plan::{Login, OnOutage, Store, StoreMode, StoreTopology, UpstreamAddress};
use crate::store::redis::SharedStore;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is logged while so many of each thousand decisions come too late, in so many minutes.
fn logged(late: u64, minutes: u64) -> String {
    let plan = Store {
        name: "shared".into(),
        prefix: "weir".into(),
        shape: StoreTopology::Single,
        servers: vec![UpstreamAddress::Unix("/nowhere/redis.sock".into())],
        login: Login::default(),
        sentinel_login: Login::default(),
        tls: None,
        timeout: Duration::from_millis(5),
        on_outage: OnOutage::Local,
        mode: StoreMode::Exact,
        local_above: None,
        gateways: None,
    };
    let log = Log::default();
    let lines = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || lines.clone())
        .finish();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    tracing::subscriber::with_default(subscriber, || {
        runtime.block_on(async {
            let store = SharedStore::new(&plan).unwrap();
            let watching = tokio::spawn(Arc::clone(&store).watch(Clock::machine()));
            for _ in 0..minutes {
                tokio::time::sleep(Duration::from_secs(70)).await;
                store.handle.asked.fetch_add(1_000, Ordering::Relaxed);
                store.handle.late.fetch_add(late, Ordering::Relaxed);
            }
            tokio::time::sleep(Duration::from_secs(70)).await;
            watching.abort();
        });
    });
    let text = log.0.lock().clone();
    String::from_utf8(text).unwrap()
}

#[test]
fn a_store_that_answers_too_late_is_told_to_the_log_once() {
    let log = logged(250, 4);
    assert_eq!(log.matches("answers too late").count(), 1, "{log}");
    let line = log.lines().find(|line| line.contains("too late")).unwrap();
    assert!(line.contains("WARN"), "{line}");
    assert!(line.contains("store \"shared\""), "{line}");
    assert!(line.contains("25 % of the decisions"), "{line}");
    assert!(line.contains("its timeout of 5ms"), "{line}");
}

#[test]
fn one_that_answers_in_time_is_not() {
    let log = logged(0, 4);
    assert!(!log.contains("too late"), "{log}");
}
