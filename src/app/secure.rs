//! TLS in the running gateway: handshakes within their time, and files that change while it runs.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;

use crate::message::ClientConnection;
use crate::proxy::Generation;
use crate::telemetry::background::blocking;
use crate::telemetry::{HandshakeResult, ListenerCounters, about_connection};
use crate::tls::{Handshake, HandshakeError, ReloadResult};

/// A handshake within its time, counted; what went wrong is logged.
pub(super) async fn bounded<IO>(
    handshake: impl Future<Output = Result<Handshake<IO>, HandshakeError>>,
    peer: &ClientConnection,
    counters: &ListenerCounters,
    timeout: Duration,
    stop: &CancellationToken,
) -> Option<Handshake<IO>> {
    let too_late = async {
        tokio::select! {
            () = tokio::time::sleep(timeout) => {}
            () = async {
                stop.cancelled().await;
                tokio::time::sleep(LAST_CALL).await;
            } => {}
        }
    };
    let failed = tokio::select! {
        biased;
        done = handshake => match done {
            Ok(Handshake::Secured(stream, known)) => {
                counters.handshake(match known.resumed {
                    true => HandshakeResult::Resumed,
                    false => HandshakeResult::Full,
                });
                return Some(Handshake::Secured(stream, known));
            }
            Ok(plain) => return Some(plain),
            Err(failure) => format!("SSL_do_handshake() failed (SSL: {failure})"),
        },
        () = too_late => "client timed out (110: Connection timed out)".to_owned(),
    };
    counters.handshake(HandshakeResult::Failed);
    let message = format_args!("{failed} while SSL handshaking");
    tracing::info!("{}", about_connection(message, peer));
    None
}

/// Looks at certificates, keys and lists again and again, for as long as the gateway runs.
pub(super) async fn refresh(live: Arc<ArcSwap<Generation>>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let live = live.load_full();
        // Elsewhere: a file system may take its time.
        blocking(move || live.tls.refresh(tell)).await;
    }
}

fn tell(file: PathBuf, refreshed: ReloadResult) {
    let file = file.display();
    match refreshed {
        ReloadResult::Same => {}
        ReloadResult::Renewed => {
            tracing::info!(%file, "certificates were read again and are in use")
        }
        ReloadResult::Kept(error) => {
            tracing::error!(%file, "{error}; what was read before stays in use");
        }
    }
}

/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// For how long a handshake may go on when told to stop.
const LAST_CALL: Duration = Duration::from_secs(1);
