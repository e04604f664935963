//! `weir run --watch`: the files of the configuration are looked at, and read again when they have changed.
//!
//! Looked at and not listened for, as certificates are: files are written in place, renamed over each other, or change
//! behind a link to a whole folder, and only looking sees all of that. A change is taken up when it has stood still from
//! one look to the next.

use std::sync::Arc;
use std::time::Duration;

use super::source::ConfigSource;
use crate::admin::ReloadHandle;
use crate::config::ConfigFiles;
use crate::telemetry::background::blocking;

/// Looks for as long as the gateway runs.
pub(super) async fn run(source: ConfigSource, mut watch: ConfigFiles, reloads: Arc<ReloadHandle>) {
    let Some(mut seen) = look(&watch).await else {
        return;
    };
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(now) = look(&watch).await else {
            return;
        };
        let stands_still = seen == now;
        seen = now;
        if seen == *watch.used() || !stands_still {
            continue;
        }
        // Before they are read: what changes meanwhile is then noticed.
        let next = blocking({
            let source = source.clone();
            move || source.watch()
        });
        let Some(Some(next)) = next.await else { return };
        watch = next;
        seen = watch.used().clone();
        tracing::info!("the files of the configuration have changed: reading them again");
        // What came of it is in the log.
        drop(reloads.ask_and_wait().await);
    }
}

/// Elsewhere: a file system may take its time.
async fn look(watch: &ConfigFiles) -> Option<crate::config::FileStamps> {
    let watch = watch.clone();
    blocking(move || watch.look()).await
}

/// How often files are looked at.
const LOOK: Duration = Duration::from_millis(500);
