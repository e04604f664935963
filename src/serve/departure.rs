//! A client that has ended its side: it has gone, or it has nothing more to say and waits for its answer.
//!
//! TCP has one sign for both. Whoever gives it right behind a whole request still reads, as `nc -N` does; whoever gives it
//! later has gone.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use super::heads::Heads;
use crate::clock::Deadline;
use crate::message::{Peer, Phase};

/// What is known of the end of a client's side.
#[derive(Debug, Default)]
pub(super) struct Departure {
    // When the last of a body came.
    uploaded: Option<Instant>,
    half_closed: bool,
    watch: Deadline,
    // Whether it has been looked for while its request was on the road, at all and by the clock.
    looked: bool,
    watched: bool,
}

impl Departure {
    /// The last of a request's body has come.
    pub(super) fn uploaded(&mut self) {
        self.uploaded = Some(Instant::now());
    }

    /// Whether the client has said all it has to say, and waits.
    pub(super) fn is_half(&self) -> bool {
        self.half_closed
    }

    /// Whether this is the first look since its request came. What is found then came with the request, however busy we are.
    pub(super) fn looks_first(&mut self) -> bool {
        !std::mem::replace(&mut self.looked, true)
    }

    /// The client has ended its side: whether it waits for its answer. `at_once` if that came with its request.
    pub(super) fn excuse(&mut self, at_once: bool, peer: &Peer, heads: &Heads) -> bool {
        let pause = match self.uploaded {
            Some(uploaded) => uploaded.elapsed(),
            None => peer.asked_for(),
        };
        // Behind the beginning of an answer it is no longer behind the request.
        self.half_closed = peer.line.phase() == Phase::Busy
            && !peer.line.is_decided()
            && !heads.is_within_body()
            && (at_once || pause <= BEHIND);
        self.half_closed
    }

    /// Ready when it is time to look for it, where nobody tells.
    pub(super) fn poll_watch(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.watch.start(if self.watched { WATCH } else { BEHIND });
        ready!(self.watch.poll_passed(context));
        self.watch.clear();
        self.watched = true;
        Poll::Ready(())
    }

    /// The request is over.
    pub(super) fn answered(&mut self) {
        self.watch.clear();
        self.watched = false;
        self.looked = false;
        self.uploaded = None;
    }
}

/// How often a connection nobody reads from is looked at for a hang-up.
const WATCH: Duration = Duration::from_millis(250);

/// How soon behind its request a client ends its side that still wants its answer. The two are mostly in one packet.
const BEHIND: Duration = Duration::from_millis(20);
