//! The task of one connection: it moves frames, notices when the other side is dead, and ends what nobody uses.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::Connection;
use h2::{Ping, PingPong};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::io::UpstreamHttp2Io;
use super::pool::ConnectionLoad;
use crate::upstream::pool::KeepaliveSettings;

/// Drives a connection until it is over; `forget` is called once nobody may join it any more.
pub(super) async fn run(
    mut connection: Connection<UpstreamHttp2Io, Bytes>,
    load: Arc<ConnectionLoad>,
    rules: KeepaliveSettings,
    forget: impl Fn(),
) {
    let retiring = RetireGuard {
        load: &load,
        forget: &forget,
    };
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watch = ConnectionWatch {
        pings: connection.ping_pong(),
        tick,
        heard: 0,
        quiet: 0,
        patience: PING_AFTER,
        idle: 0,
        most_idle: rules.idle_seconds(),
    };
    poll_fn(|context| {
        if let Poll::Ready(ended) = std::pin::Pin::new(&mut connection).poll(context) {
            if let Err(error) = ended {
                tracing::debug!(%error, "upstream connection ended");
            }
            return Poll::Ready(());
        }
        match watch.poll(&load, context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(WatchResult::Dead) => Poll::Ready(()),
            Poll::Ready(WatchResult::Unused) => {
                retiring.retire();
                // It ends by itself once nobody holds it.
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await;
}

/// Lets nobody join the connection once its task is over, however that came.
struct RetireGuard<'t, F: Fn()> {
    load: &'t ConnectionLoad,
    forget: &'t F,
}

impl<F: Fn()> RetireGuard<'_, F> {
    fn retire(&self) {
        self.load.retire();
        (self.forget)();
    }
}

impl<F: Fn()> Drop for RetireGuard<'_, F> {
    fn drop(&mut self) {
        self.retire();
    }
}

/// Looks after a connection once a second.
struct ConnectionWatch {
    pings: Option<PingPong>,
    tick: Interval,
    // What had been heard at the last look, and for how many looks nothing more was.
    heard: u64,
    quiet: u32,
    // How many of them before it is asked whether it lives.
    patience: u32,
    idle: u64,
    most_idle: u64,
}

enum WatchResult {
    /// It does not answer.
    Dead,
    /// Nobody has needed it for long enough.
    Unused,
}

impl ConnectionWatch {
    fn poll(&mut self, load: &ConnectionLoad, context: &mut Context<'_>) -> Poll<WatchResult> {
        if let Some(pings) = &mut self.pings
            && pings.poll_pong(context).is_ready()
        {
            // It lives. Backends take it ill to be asked too often: grpc's ends the connection at the third time
            // in five minutes, unless something else has come in between.
            self.heard = load.heard();
            self.quiet = 0;
            self.patience = PING_SELDOM;
        }
        while self.tick.poll_tick(context).is_ready() {
            if load.active() == 0 {
                self.idle += 1;
                self.quiet = 0;
                if self.idle == self.most_idle || load.has_left() {
                    return Poll::Ready(WatchResult::Unused);
                }
                continue;
            }
            self.idle = 0;
            if load.heard() != self.heard {
                self.heard = load.heard();
                self.quiet = 0;
                self.patience = PING_AFTER;
                continue;
            }
            self.quiet += 1;
            if self.quiet == self.patience
                && let Some(pings) = &mut self.pings
            {
                // One that is still under way will do.
                drop(pings.send_ping(Ping::opaque()));
            }
            if self.quiet >= self.patience + PONG_WITHIN {
                return Poll::Ready(WatchResult::Dead);
            }
        }
        Poll::Pending
    }
}

const TICK: Duration = Duration::from_secs(1);
/// Seconds of silence, with an answer outstanding, after which the other side is asked whether it is there.
const PING_AFTER: u32 = 10;
/// The same where it has said so, and nothing else, since.
const PING_SELDOM: u32 = 330;
/// Seconds it has to say so.
const PONG_WITHIN: u32 = 10;
