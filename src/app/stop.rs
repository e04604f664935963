//! Signals, as nginx's: TERM, INT and QUIT stop gracefully, TERM and INT a second time at once, HUP reads the configuration again, USR1 opens the logs
//! again, USR2 hands over to a new binary.

use std::thread::JoinHandle;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use crate::admin::ReloadHandle;
use crate::telemetry::LogWriter;

/// The signals weir answers to.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    reopen: Signal,
    hangup: Signal,
    upgrade: Signal,
}

impl Signals {
    /// From here on none of them ends the process on its own.
    pub(super) fn catch() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            reopen: signal(SignalKind::user_defined1())?,
            hangup: signal(SignalKind::hangup())?,
            upgrade: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for one that says stop; answers the others meanwhile.
    pub(super) async fn stop(
        &mut self,
        writer: &LogWriter,
        reloads: &ReloadHandle,
        upgrade: &Notify,
    ) {
        loop {
            let name = tokio::select! {
                _ = self.terminate.recv() => "TERM",
                _ = self.interrupt.recv() => "INT",
                _ = self.quit.recv() => "QUIT",
                _ = self.reopen.recv() => {
                    writer.reopen();
                    tracing::info!("logs are opened again");
                    continue;
                }
                _ = self.hangup.recv() => {
                    tracing::info!("HUP: reading the configuration again");
                    reloads.ask();
                    continue;
                }
                _ = self.upgrade.recv() => {
                    tracing::info!("USR2: handing over to the binary that is there now");
                    upgrade.notify_one();
                    continue;
                }
            };
            tracing::info!("{name}: stopping; requests in flight may finish");
            return;
        }
    }

    /// Waits for the loops to have drained. A second TERM or INT does not wait.
    pub(super) async fn drained(
        &mut self,
        loops: Vec<JoinHandle<std::io::Result<()>>>,
        grace: Duration,
    ) {
        let joined = tokio::task::spawn_blocking(move || loops.into_iter().for_each(join));
        tokio::select! {
            // The loops keep to the same deadline; a second more is for them to notice.
            _ = tokio::time::timeout(grace + Duration::from_secs(1), joined) => return,
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        tracing::warn!("second signal: not waiting for what is in flight");
    }
}

fn join(event_loop: JoinHandle<std::io::Result<()>>) {
    match event_loop.join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "an event loop could not run"),
        Err(_) => tracing::error!("an event loop panicked"),
    }
}
