//! Signals, as nginx's: TERM and INT stop, QUIT stops gracefully, USR1 opens the logs again.

use std::thread::JoinHandle;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::telemetry::Writer;

/// Waits for a signal that says stop; answers the others meanwhile.
pub(super) async fn wait(writer: &Writer) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut quit = signal(SignalKind::quit())?;
    let mut reopen = signal(SignalKind::user_defined1())?;
    let mut hangup = signal(SignalKind::hangup())?;
    loop {
        let name = tokio::select! {
            _ = terminate.recv() => "TERM",
            _ = interrupt.recv() => "INT",
            _ = quit.recv() => "QUIT",
            _ = reopen.recv() => {
                writer.reopen();
                tracing::info!("logs are opened again");
                continue;
            }
            // The default would end the process, which is the last thing somebody who asks for a reload wants.
            _ = hangup.recv() => {
                tracing::warn!("HUP: reload is not supported by this version; the configuration stays as it is");
                continue;
            }
        };
        tracing::info!("{name}: stopping; requests in flight may finish");
        return Ok(());
    }
}

/// Waits for the loops to have drained. A second signal does not wait.
pub(super) async fn drained(loops: Vec<JoinHandle<std::io::Result<()>>>, grace: Duration) {
    let joined = tokio::task::spawn_blocking(move || {
        for event_loop in loops {
            match event_loop.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "an event loop could not run"),
                Err(_) => tracing::error!("an event loop panicked"),
            }
        }
    });
    let impatient = async {
        let (Ok(mut terminate), Ok(mut interrupt)) = (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
        ) else {
            return std::future::pending().await;
        };
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    };
    tokio::select! {
        // The loops keep to the same deadline; a second more is for them to notice.
        _ = tokio::time::timeout(grace + Duration::from_secs(1), joined) => {}
        () = impatient => tracing::warn!("second signal: not waiting for what is in flight"),
    }
}
