//! Concurrent requests: how long each holds its slots in the `limit_conn` zones, and which requests wait for one.
//!
//! A request takes its slots when it comes, or when its wait for a `limit_req` is over, and gives them back when it has
//! taken as long as the log says. All of that lies ahead of the log's clock, so it is kept in order here until the clock
//! gets there. Whether a slot is free is decided by the zones themselves; only the queues are kept here, because those of
//! the zones wait in real time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::router::ReplayLocation;
use super::time::to_clock;
use crate::algorithm::VerdictKind;
use crate::config::plan::ConnQueue;
use crate::limits::{Permit, SlotKeys, SlotOutcome};
use crate::message::LimitStatus;

/// A request that needs slots.
#[derive(Debug)]
pub(super) struct SlotRequest {
    pub(super) location: Arc<ReplayLocation>,
    pub(super) slots: SlotKeys,
    /// Its key in the zone of each rule, as bytes and as text; empty where it has none.
    pub(super) keys: Vec<(Vec<u8>, String)>,
    /// When it came, and when its wait for the `limit_req` is over.
    pub(super) came: i64,
    pub(super) at: i64,
    /// How long it holds its slots, in milliseconds.
    pub(super) took: u32,
    pub(super) file: u32,
    pub(super) line: u64,
    /// How long it has waited, in milliseconds.
    pub(super) waited: Option<u64>,
    /// The value of `$limit_req_status`.
    pub(super) status: Option<LimitStatus>,
    pub(super) progress: SlotProgress,
}

/// Which of its slots a request has taken.
#[derive(Debug, Default)]
pub(super) struct SlotProgress {
    permit: Permit,
    /// The verdicts so far, each with the index of its rule.
    pub(super) verdicts: Vec<(usize, VerdictKind)>,
    pub(super) refused: bool,
    /// The rule it waits for, and since when.
    rule: usize,
    since: i64,
    number: u64,
}

/// A queue for slots: of a zone, and a key in it.
type QueueKey = (usize, Vec<u8>);

/// What is due, by when; the number keeps the order of what is due in the same millisecond.
type Schedule<T> = BTreeMap<(i64, u64), T>;

/// All requests that hold slots, wait for them or will need them.
#[derive(Debug, Default)]
pub(super) struct ActiveRequests {
    arrivals: Schedule<SlotRequest>,
    departures: Schedule<HeldSlots>,
    /// When requests in a queue have waited for too long.
    timeouts: Schedule<QueueKey>,
    queues: HashMap<QueueKey, VecDeque<SlotRequest>>,
    decided: VecDeque<SlotRequest>,
    last_number: u64,
}

/// The slots of a request in progress, and the queues for them.
#[derive(Debug)]
struct HeldSlots {
    permit: Permit,
    queues: Vec<QueueKey>,
}

impl ActiveRequests {
    /// Adds a request that will need slots.
    pub(super) fn add(&mut self, mut request: SlotRequest) {
        self.last_number += 1;
        request.progress.number = self.last_number;
        self.arrivals
            .insert((request.at, self.last_number), request);
    }

    /// The next request that is decided up to this time.
    pub(super) fn next(&mut self, until: i64) -> Option<SlotRequest> {
        fn due<T>(schedule: &Schedule<T>) -> i64 {
            schedule.keys().next().map_or(i64::MAX, |(at, _)| *at)
        }
        while self.decided.is_empty() {
            let (departure, timeout) = (due(&self.departures), due(&self.timeouts));
            let next = departure.min(timeout).min(due(&self.arrivals));
            if next > until || next == i64::MAX {
                return None;
            }
            // A departure makes room before a queued request gives up or another comes.
            if departure == next {
                self.depart();
            } else if timeout == next {
                self.time_out();
            } else if let Some((_, request)) = self.arrivals.pop_first() {
                self.take_slots(request, next);
            }
        }
        self.decided.pop_front()
    }

    /// A request gives its slots back; the first in each queue that can take one does.
    fn depart(&mut self) {
        if let Some(((at, _), held)) = self.departures.pop_first() {
            drop(held.permit);
            for queue in held.queues {
                self.wake(&queue, at);
            }
        }
    }

    fn wake(&mut self, key: &QueueKey, at: i64) {
        let Some(queue) = self.queues.get_mut(key) else {
            return;
        };
        let first = queue
            .iter_mut()
            .position(|request| request.take_slot(at) == SlotOutcome::Taken);
        let Some(mut request) = first.and_then(|index| queue.remove(index)) else {
            return;
        };
        if queue.is_empty() {
            self.queues.remove(key);
        }
        let progress = &mut request.progress;
        let wait = u64::try_from(at - progress.since).unwrap_or(0);
        let verdict = VerdictKind::Delay(Duration::from_millis(wait));
        progress.verdicts.push((progress.rule, verdict));
        progress.rule += 1;
        request.waited = Some(request.waited.unwrap_or(0) + wait);
        self.take_slots(request, at);
    }

    /// A request has waited for too long, unless it has its slot by now.
    fn time_out(&mut self) {
        let Some(((at, number), key)) = self.timeouts.pop_first() else {
            return;
        };
        let Some(queue) = self.queues.get_mut(&key) else {
            return;
        };
        let index = queue
            .iter()
            .position(|request| request.progress.number == number);
        let Some(request) = index.and_then(|index| queue.remove(index)) else {
            return;
        };
        if queue.is_empty() {
            self.queues.remove(&key);
        }
        self.refuse(request, at);
    }

    /// Takes one slot after the other, as far as they are free.
    fn take_slots(&mut self, mut request: SlotRequest, at: i64) {
        while request.progress.rule < request.location.conn.len() {
            let rule = request.progress.rule;
            match request.take_slot(at) {
                SlotOutcome::NotNeeded => {}
                SlotOutcome::Taken => request.progress.verdicts.push((rule, VerdictKind::Pass)),
                SlotOutcome::Queue(queue) => return self.enqueue(request, &queue, at),
                SlotOutcome::Refused => return self.refuse(request, at),
                SlotOutcome::DryRun => {
                    // It goes on without any slot at all.
                    request.progress = SlotProgress::default();
                    request.progress.verdicts.push((rule, VerdictKind::Refuse));
                    break;
                }
            }
            request.progress.rule += 1;
        }
        let held = HeldSlots {
            permit: std::mem::take(&mut request.progress.permit),
            queues: request.queues(usize::MAX),
        };
        self.last_number += 1;
        let end = at + i64::from(request.took);
        self.departures.insert((end, self.last_number), held);
        self.decided.push_back(request);
    }

    fn enqueue(&mut self, mut request: SlotRequest, limits: &ConnQueue, at: i64) {
        let rule = request.progress.rule;
        let key = (request.location.conn[rule], request.keys[rule].0.clone());
        let queue = self.queues.entry(key.clone()).or_default();
        if queue.len() >= usize::try_from(limits.size).unwrap_or(usize::MAX) {
            return self.refuse(request, at);
        }
        request.progress.since = at;
        let timeout = i64::try_from(limits.timeout.as_millis()).unwrap_or(i64::MAX);
        let due = (at.saturating_add(timeout), request.progress.number);
        self.timeouts.insert(due, key);
        queue.push_back(request);
    }

    /// Refuses a request: it gives its slots back, and only the rule that refuses it has a verdict.
    fn refuse(&mut self, mut request: SlotRequest, at: i64) {
        let rule = request.progress.rule;
        drop(std::mem::take(&mut request.progress.permit));
        request.progress.verdicts = vec![(rule, VerdictKind::Refuse)];
        request.progress.refused = true;
        let freed = request.queues(rule);
        self.decided.push_back(request);
        for queue in freed {
            self.wake(&queue, at);
        }
    }
}

impl SlotRequest {
    /// Takes the slot of the rule it has come to, if one is free.
    fn take_slot(&mut self, at: i64) -> SlotOutcome {
        let SlotProgress { rule, permit, .. } = &mut self.progress;
        let limits = &self.location.limits;
        limits.take_slot(*rule, &self.slots, to_clock(at), permit)
    }

    /// The queues for the slots of its first rules.
    fn queues(&self, rules: usize) -> Vec<QueueKey> {
        let keys = self.location.conn.iter().zip(&self.keys).take(rules);
        keys.map(|(zone, (key, _))| (*zone, key.clone())).collect()
    }
}
