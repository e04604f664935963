//! What leaves for a client, counted, and how slowly it may.

use std::io;
use std::task::{Context, Poll, ready};

use crate::clock::{MinRateTimer, TooSlow};
use crate::message::ClientConnection;
use crate::telemetry::{COUNTERS, SlowPart, about_connection};

/// Counts what was written, and ends waits that are longer than `send_timeout`, or come to more than that.
pub(super) fn limit(
    pace: &mut MinRateTimer,
    peer: &ClientConnection,
    written: Poll<io::Result<usize>>,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    match written {
        Poll::Ready(Ok(bytes)) => {
            peer.line.add_sent(bytes);
            pace.moved(bytes, peer.line.send_rate());
            Poll::Ready(Ok(bytes))
        }
        Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        Poll::Pending => {
            let line = &peer.line;
            line.refill.run(context);
            let late = ready!(pace.poll_late(line.send_timeout(), line.send_rate(), context));
            if late == TooSlow::Slow {
                COUNTERS.give_up(SlowPart::Answer);
                let message =
                    format_args!("client takes its answer too slowly while sending to client");
                tracing::info!("{}", about_connection(message, peer));
            }
            Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
        }
    }
}
