//! What leaves for a client, counted, and how slowly it may.

use std::io;
use std::task::{Context, Poll, ready};

use crate::clock::{Late, Pace};
use crate::message::Peer;
use crate::telemetry::{COUNTERS, Slow, about_connection};

/// Counts what was written, and ends waits that are longer than `send_timeout`, or come to more than that.
pub(super) fn limit(
    pace: &mut Pace,
    peer: &Peer,
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
            if late == Late::Slow {
                COUNTERS.give_up(Slow::Answer);
                let message =
                    format_args!("client takes its answer too slowly while sending to client");
                tracing::info!("{}", about_connection(message, peer));
            }
            Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
        }
    }
}
