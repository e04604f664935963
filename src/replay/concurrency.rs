//! Requests in progress: for how long each holds its places in the `limit_conn` zones, and who waits for one.
//!
//! A request takes its places when it comes, or when its wait for a `limit_req` is over, and gives them back when it has
//! taken as long as the log says. All of that lies ahead of the log's clock, so it is kept in order here until it gets
//! there. Whether there is a place is asked of the zones themselves; only the waiting is done here, because theirs
//! takes real time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::evaluate::ReplayLocation;
use crate::algorithm::VerdictKind;
use crate::clock::Millis;
use crate::config::plan::ConnQueue;
use crate::limits::{Permit, SlotKeys, SlotOutcome};
use crate::message::LimitStatus;

/// A request that wants its places.
#[derive(Debug)]
pub(super) struct SlotRequest {
    pub(super) spot: Arc<ReplayLocation>,
    pub(super) places: SlotKeys,
    /// Its key in the zone of each rule, and what that looks like; nothing where it has none.
    pub(super) keys: Vec<(Vec<u8>, String)>,
    /// When it came, and when its wait for the `limit_req` is over.
    pub(super) came: i64,
    pub(super) at: i64,
    /// For how long it holds its places, in milliseconds.
    pub(super) took: u32,
    pub(super) line: (u32, u64),
    /// For how long it has waited, in milliseconds.
    pub(super) waited: Option<u64>,
    /// What `$limit_req_status` would say.
    pub(super) status: Option<LimitStatus>,
    pub(super) progress: SlotProgress,
}

/// How far a request has come with its places.
#[derive(Debug, Default)]
pub(super) struct SlotProgress {
    permit: Permit,
    /// What each rule said, by its index.
    pub(super) said: Vec<(usize, VerdictKind)>,
    /// The rule it waits for, and since when.
    rule: usize,
    since: i64,
    number: u64,
}

/// Where people wait: a zone, and the key in it.
type QueueKey = (usize, Vec<u8>);

/// All requests that hold places, or wait for them, or will.
#[derive(Debug, Default)]
pub(super) struct ActiveRequests {
    coming: BinaryHeap<Reverse<Scheduled<SlotRequest>>>,
    held: BinaryHeap<Reverse<Scheduled<HeldSlots>>>,
    lines: HashMap<QueueKey, VecDeque<SlotRequest>>,
    /// When who has waited for too long.
    patience: BinaryHeap<Reverse<Scheduled<QueueKey>>>,
    done: VecDeque<(SlotRequest, SlotResult)>,
    number: u64,
}

/// What a request in progress holds, and the lines of those who wait for it.
#[derive(Debug)]
struct HeldSlots {
    permit: Permit,
    lines: Vec<QueueKey>,
}

/// What became of a request when it wanted its places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotResult {
    GoOn,
    Refuse,
}

/// Something that is due, in order of when, then of when it was noted.
#[derive(Debug)]
struct Scheduled<T> {
    at: i64,
    number: u64,
    what: T,
}

impl<T> Scheduled<T> {
    fn due(&self) -> (i64, u64) {
        (self.at, self.number)
    }
}

impl<T> PartialEq for Scheduled<T> {
    fn eq(&self, other: &Self) -> bool {
        self.due() == other.due()
    }
}

impl<T> Eq for Scheduled<T> {}

impl<T> PartialOrd for Scheduled<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Scheduled<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due().cmp(&other.due())
    }
}

impl ActiveRequests {
    /// Notes a request that will want its places.
    pub(super) fn expect(&mut self, mut coming: SlotRequest) {
        self.number += 1;
        coming.progress.number = self.number;
        let (at, number) = (coming.at, self.number);
        self.coming.push(Reverse(Scheduled {
            at,
            number,
            what: coming,
        }));
    }

    /// The next request whose fate is known up to this moment.
    pub(super) fn next(&mut self, until: i64) -> Option<(SlotRequest, SlotResult)> {
        loop {
            if let Some(done) = self.done.pop_front() {
                return Some(done);
            }
            let held = self.held.peek().map_or(i64::MAX, |held| held.0.at);
            let patience = self.patience.peek().map_or(i64::MAX, |out| out.0.at);
            let coming = self.coming.peek().map_or(i64::MAX, |coming| coming.0.at);
            let next = held.min(patience).min(coming);
            if next > until || next == i64::MAX {
                return None;
            }
            // Who leaves makes room before anybody gives up or comes.
            if held == next {
                self.leave();
            } else if patience == next {
                self.give_up();
            } else if let Some(Reverse(Scheduled { what, .. })) = self.coming.pop() {
                self.enter(what, next);
            }
        }
    }

    /// Somebody gives its places back; the first in line who may has them.
    fn leave(&mut self) {
        let Some(Reverse(Scheduled { at, what, .. })) = self.held.pop() else {
            return;
        };
        drop(what.permit);
        for line in what.lines {
            self.wake(&line, at);
        }
    }

    fn wake(&mut self, line: &QueueKey, at: i64) {
        let Some(waiting) = self.lines.get_mut(line) else {
            return;
        };
        let first = (0..waiting.len()).find(|place| {
            let coming = &mut waiting[*place];
            let rule = coming.progress.rule;
            let limits = &coming.spot.limits;
            let taken = limits.take_slot(
                rule,
                &coming.places,
                millis(at),
                &mut coming.progress.permit,
            );
            taken == SlotOutcome::Taken
        });
        let Some(mut coming) = first.and_then(|place| waiting.remove(place)) else {
            return;
        };
        if waiting.is_empty() {
            self.lines.remove(line);
        }
        let wait = u64::try_from(at - coming.progress.since).unwrap_or(0);
        let progress = &mut coming.progress;
        progress.said.push((
            progress.rule,
            VerdictKind::Delay(Duration::from_millis(wait)),
        ));
        progress.rule += 1;
        coming.waited = Some(coming.waited.unwrap_or(0) + wait);
        self.enter(coming, at);
    }

    /// Somebody has waited for too long, unless it has its place by now.
    fn give_up(&mut self) {
        let Some(Reverse(due)) = self.patience.pop() else {
            return;
        };
        let (at, number, line) = (due.at, due.number, due.what);
        let Some(waiting) = self.lines.get_mut(&line) else {
            return;
        };
        let place = waiting
            .iter()
            .position(|coming| coming.progress.number == number);
        let Some(coming) = place.and_then(|place| waiting.remove(place)) else {
            return;
        };
        if waiting.is_empty() {
            self.lines.remove(&line);
        }
        self.refuse(coming, at);
    }

    /// Takes one place after the other, as far as there are any.
    fn enter(&mut self, mut coming: SlotRequest, at: i64) {
        while coming.progress.rule < coming.spot.conn.len() {
            let rule = coming.progress.rule;
            let limits = &coming.spot.limits;
            match limits.take_slot(
                rule,
                &coming.places,
                millis(at),
                &mut coming.progress.permit,
            ) {
                SlotOutcome::NotNeeded => {}
                SlotOutcome::Taken => coming.progress.said.push((rule, VerdictKind::Pass)),
                SlotOutcome::Queue(queue) => return self.queue(coming, &queue, at),
                SlotOutcome::Refused => return self.refuse(coming, at),
                SlotOutcome::DryRun => {
                    // It goes on without any place at all.
                    coming.progress = SlotProgress::default();
                    coming.progress.said.push((rule, VerdictKind::Refuse));
                    break;
                }
            }
            coming.progress.rule += 1;
        }
        let permit = std::mem::take(&mut coming.progress.permit);
        let lines = coming.spot.conn.iter().zip(&coming.keys);
        let lines = lines.map(|(zone, (key, _))| (*zone, key.clone())).collect();
        self.number += 1;
        self.held.push(Reverse(Scheduled {
            at: at + i64::from(coming.took),
            number: self.number,
            what: HeldSlots { permit, lines },
        }));
        self.done.push_back((coming, SlotResult::GoOn));
    }

    fn queue(&mut self, mut coming: SlotRequest, queue: &ConnQueue, at: i64) {
        let rule = coming.progress.rule;
        let line = (coming.spot.conn[rule], coming.keys[rule].0.clone());
        let waiting = self.lines.entry(line.clone()).or_default();
        if waiting.len() >= usize::try_from(queue.size).unwrap_or(usize::MAX) {
            return self.refuse(coming, at);
        }
        coming.progress.since = at;
        let timeout = i64::try_from(queue.timeout.as_millis()).unwrap_or(i64::MAX);
        self.patience.push(Reverse(Scheduled {
            at: at.saturating_add(timeout),
            number: coming.progress.number,
            what: line,
        }));
        waiting.push_back(coming);
    }

    /// Turns a request away: what it holds it gives back, and only the rule that refuses it has said something.
    fn refuse(&mut self, mut coming: SlotRequest, at: i64) {
        let rule = coming.progress.rule;
        drop(std::mem::take(&mut coming.progress.permit));
        coming.progress.said = vec![(rule, VerdictKind::Refuse)];
        let before = coming.spot.conn.iter().zip(&coming.keys).take(rule);
        let freed: Vec<QueueKey> = before
            .map(|(zone, (key, _))| (*zone, key.clone()))
            .collect();
        self.done.push_back((coming, SlotResult::Refuse));
        for line in freed {
            self.wake(&line, at);
        }
    }
}

fn millis(at: i64) -> Millis {
    Millis(u64::try_from(at).unwrap_or(0))
}
