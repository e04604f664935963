//! Which event loop serves a connection.
//!
//! The kernel deals connections out by a hash. Of many every loop gets its share, but of eight long ones six may come
//! to the same loop while another has nothing to do. So a loop that has distinctly more than another hands a new
//! connection over to it, once and before anything was read; from then on it stays where it is.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::mpsc;

use super::{Accepted, Stream};
use crate::clock::Millis;
use crate::message::RemoteAddr;

/// One event loop's end of one listening address.
#[derive(Debug)]
pub(super) struct LoopHandoff {
    me: usize,
    places: Vec<LoopSlot>,
    doors: Vec<mpsc::Sender<HandedConnection>>,
    handed: mpsc::Receiver<HandedConnection>,
    // From whom on the others are asked.
    next: usize,
    allowance: HandoffBudget,
}

/// A place on an event loop: every connection holds one.
// As many as there are holders: that is the count. Those that lanes hold are equally many for every loop.
#[derive(Debug, Clone, Default)]
pub(super) struct LoopSlot(Arc<CachePadded>);

/// Nothing, and no other loop's counter beside it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CachePadded;

/// A connection on its way to another loop.
#[derive(Debug)]
pub(super) struct HandedConnection {
    stream: Bare,
    remote: RemoteAddr,
    local: Option<SocketAddr>,
    place: LoopSlot,
}

/// A socket that no loop knows.
#[derive(Debug)]
enum Bare {
    Tcp(std::net::TcpStream),
    Unix(UnixStream),
}

impl LoopHandoff {
    /// The lanes of one address; `places` are those of all loops, for all addresses the same.
    pub(super) fn between(places: &[LoopSlot]) -> Vec<Self> {
        let (doors, ends): (Vec<_>, Vec<_>) =
            places.iter().map(|_| mpsc::channel(MOST_AT_ONCE)).unzip();
        let lane = |(me, handed)| Self {
            me,
            places: places.to_vec(),
            doors: doors.clone(),
            handed,
            next: me + 1,
            allowance: HandoffBudget::default(),
        };
        ends.into_iter().enumerate().map(lane).collect()
    }

    /// A place on this loop.
    pub(super) fn own_place(&self) -> LoopSlot {
        self.places[self.me].clone()
    }

    /// Gives a connection just accepted a place: here, unless it was handed over.
    pub(super) fn place(
        &mut self,
        accepted: Accepted,
        now: Millis,
    ) -> std::io::Result<Option<(Accepted, LoopSlot)>> {
        let Some(to) = self.lighter(now) else {
            return Ok(Some((accepted, self.own_place())));
        };
        let (stream, remote, local) = accepted;
        let handed = HandedConnection {
            stream: stream.try_into()?,
            remote,
            local,
            place: self.places[to].clone(),
        };
        match self.doors[to].try_send(handed) {
            Ok(()) => Ok(None),
            // It stops, or has its hands full.
            Err(back) => {
                let handed = HandedConnection {
                    place: self.own_place(),
                    ..back.into_inner()
                };
                handed.settle().map(Some)
            }
        }
    }

    /// A connection that another loop has handed over.
    pub(super) fn poll_handed(&mut self, context: &mut Context<'_>) -> Poll<HandedConnection> {
        if self.doors.len() == 1 {
            return Poll::Pending;
        }
        match self.handed.poll_recv(context) {
            Poll::Ready(Some(handed)) => Poll::Ready(handed),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// Lets nobody hand anything over from now on; what already was has to be taken until nothing is left.
    pub(super) async fn last_handed(&mut self) -> Option<HandedConnection> {
        self.handed.close();
        self.handed.recv().await
    }

    /// A loop that has distinctly fewer connections.
    fn lighter(&mut self, now: Millis) -> Option<usize> {
        let loops = self.places.len();
        if loops == 1 {
            return None;
        }
        // Not everybody on a machine with many cores: each look is at what another core has just written.
        let asked = (0..loops.min(MOST_ASKED)).map(|step| (self.next + step) % loops);
        let lightest = asked.min_by_key(|at| self.places[*at].taken())?;
        self.next = (self.next + 1) % loops;
        let distinctly = self.places[lightest].taken() + DISTINCT <= self.places[self.me].taken();
        (distinctly && self.allowance.take(now)).then_some(lightest)
    }
}

impl LoopSlot {
    fn taken(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

impl HandedConnection {
    /// Makes it a connection of the loop that calls this.
    pub(super) fn settle(self) -> std::io::Result<(Accepted, LoopSlot)> {
        let stream = match self.stream {
            Bare::Tcp(stream) => Stream::Tcp(tokio::net::TcpStream::from_std(stream)?),
            Bare::Unix(stream) => Stream::Unix(tokio::net::UnixStream::from_std(stream)?),
        };
        Ok(((stream, self.remote, self.local), self.place))
    }
}

impl TryFrom<Stream> for Bare {
    type Error = std::io::Error;

    fn try_from(stream: Stream) -> Result<Self, Self::Error> {
        Ok(match stream {
            Stream::Tcp(stream) => Self::Tcp(stream.into_std()?),
            Stream::Unix(stream) => Self::Unix(stream.into_std()?),
        })
    }
}

/// How many connections may be handed over. Where they come and go by the thousand, loops are uneven at any moment
/// and even in the end, and handing over would be for nothing.
#[derive(Debug)]
struct HandoffBudget {
    left: u64,
    since: Millis,
}

impl Default for HandoffBudget {
    fn default() -> Self {
        Self {
            left: MOST_AT_ONCE as u64,
            since: Millis(0),
        }
    }
}

impl HandoffBudget {
    fn take(&mut self, now: Millis) -> bool {
        let earned = now.0.saturating_sub(self.since.0) / EARNED_EVERY;
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(MOST_AT_ONCE as u64);
            self.since = now;
        }
        let some = self.left > 0;
        self.left = self.left.saturating_sub(1);
        some
    }
}

/// From this difference on a connection is handed over.
const DISTINCT: usize = 2;

/// How many loops are compared.
const MOST_ASKED: usize = 8;

/// How many connections are handed over in one go: enough to even out hundreds.
const MOST_AT_ONCE: usize = 64;

/// Every so many milliseconds another may be handed over.
const EARNED_EVERY: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_handed_over_only_in_part() {
        let mut allowance = HandoffBudget::default();
        let taken = |allowance: &mut HandoffBudget, now| {
            (0..1000).filter(|_| allowance.take(Millis(now))).count()
        };
        assert_eq!(taken(&mut allowance, 1_000_000), 64);
        assert_eq!(taken(&mut allowance, 1_000_003), 0);
        assert_eq!(taken(&mut allowance, 1_000_004), 1);
        assert_eq!(taken(&mut allowance, 1_000_100), 24);
        assert_eq!(taken(&mut allowance, 9_000_000), 64);
    }

    #[test]
    fn the_lightest_loop_is_found_when_the_difference_is_real() {
        let places: Vec<LoopSlot> = (0..3).map(|_| LoopSlot::default()).collect();
        let mut lanes = LoopHandoff::between(&places);
        let mut held = vec![places[0].clone()];
        assert_eq!(lanes[0].lighter(Millis(1)), None);
        held.extend([places[0].clone(), places[1].clone()]);
        assert_eq!(lanes[0].lighter(Millis(1)), Some(2));
        assert_eq!(lanes[1].lighter(Millis(1)), None);
        held.push(places[2].clone());
        assert_eq!(lanes[0].lighter(Millis(1)), None);
        drop(held);
        assert_eq!(lanes[0].lighter(Millis(1)), None);
    }
}
