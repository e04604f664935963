//! The lease account of one key: what this gateway has leased and not spent, and what the store last replied.
//!
//! An account does no I/O: it is given the time, the cost and the mode, and returns a verdict. A lease is charged in the
//! shared count before any of it is spent here, so all requests that pass on leases are within the limit. Only a credit
//! is spent first and charged later, and a key has at most one.
//!
//! [`KeyDemand`] is a bucket as wide and as fast as a multiple of the limit. When it is full, far more is requested than
//! can pass, and a query for each request would be waste; when half of it has drained, that is over. The gap between the
//! two levels keeps a key from changing state with every request.

#[cfg(test)]
#[path = "tests/account_unit.rs"]
mod tests;

use std::time::Duration;

use crate::algorithm::{Cost, Excess, Level, LimitSpec, Verdict};
use crate::clock::Millis;
use crate::config::plan::StoreMode;

/// What this gateway decides about a request without a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseVerdict {
    /// Nothing: the store has to be queried.
    Ask,
    /// It is refused.
    Refuse(Verdict),
    /// It passes, at once or after a wait.
    Spent(Verdict),
}

/// The settings of the store that decide where the requests of a key are decided.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseMode {
    pub(super) mode: StoreMode,
    pub(super) gateways: u32,
    pub(super) local_above: Option<u32>,
}

/// What this gateway holds and knows of one key.
#[derive(Debug)]
pub(super) struct LeaseAccount {
    pub(super) spec: LimitSpec,
    /// Leased and not spent; good until [`LeaseAccount::until`].
    pub(super) left: u64,
    until: Millis,
    /// Which of the server's windows it was leased in; zero where there are none.
    window: u64,
    /// Spent on credit, and not charged yet.
    owed: u64,
    /// The level of the shared queue without what is leased here, for the algorithms that delay requests.
    queue: Level,
    over: Option<RefusedUntil>,
    /// Whether the last refusal came with a lease reply: once it has expired, one request may pass on credit.
    trusted: bool,
    /// Whether a lease request of this key is under way.
    in_flight: bool,
    /// When a lease was last requested; `None` also where the store has lost its data since.
    asked_at: Option<Millis>,
    /// The cost of the requests since then.
    used: u64,
    /// What was held after the last lease.
    size: u64,
    seen: Millis,
    pub(super) demand: KeyDemand,
    /// When the store last replied, and how many more requests passed then besides what is held; `None` once reported.
    unreported: Option<(Millis, u64)>,
    /// The same, kept after it was reported.
    known: Option<(Millis, u64)>,
}

impl LeaseAccount {
    pub(super) fn new(spec: LimitSpec, now: Millis) -> Self {
        Self {
            spec,
            left: 0,
            until: now,
            window: 0,
            owed: 0,
            queue: Level {
                height: Excess(0),
                last: now,
            },
            over: None,
            trusted: true,
            in_flight: false,
            asked_at: None,
            used: 0,
            size: 0,
            seen: now,
            demand: KeyDemand::default(),
            unreported: None,
            known: None,
        }
    }

    /// Decides about a request without a query where that is possible, and whether a lease is to be requested.
    pub(super) fn spend(
        &mut self,
        now: Millis,
        cost: Cost,
        lease_mode: LeaseMode,
    ) -> (LeaseVerdict, bool) {
        self.seen = now;
        self.used = self.used.saturating_add(cost.0);
        let crowded = lease_mode
            .local_above
            .is_some_and(|above| self.demand.note(now, cost, &self.spec, above));
        // A request that costs nothing queries whether the key is in debt.
        if cost.0 == 0 {
            return (LeaseVerdict::Ask, false);
        }
        if self.left >= cost.0 && now < self.until {
            self.left -= cost.0;
            return (
                LeaseVerdict::Spent(self.turn(now, cost)),
                self.is_low(now, lease_mode),
            );
        }
        if let Some(refusal) = self.refusal(now, cost) {
            return (LeaseVerdict::Refuse(refusal), false);
        }
        if !self.is_leased(lease_mode) {
            return (LeaseVerdict::Ask, false);
        }
        if self.in_flight {
            let verdict = if crowded {
                LeaseVerdict::Refuse(self.soon(cost, lease_mode))
            } else {
                LeaseVerdict::Ask
            };
            return (verdict, false);
        }
        self.in_flight = true;
        if lease_mode.mode == StoreMode::Leased && self.trusted && self.owed == 0 && cost <= CREDIT
        {
            let outcome = self.turn(now, cost);
            self.owed = cost.0;
            return (LeaseVerdict::Spent(outcome), true);
        }
        (LeaseVerdict::Ask, true)
    }

    /// Takes back what was spent on a request that another rule refused.
    pub(super) fn unspend(&mut self, now: Millis, cost: Cost) {
        if self.owed >= cost.0 && self.owed > 0 {
            self.owed -= cost.0;
        } else {
            // It is charged, or about to be: what is not needed is a lease.
            self.left = self.left.saturating_add(cost.0);
            self.until = self.until.max(now.after(IDLE));
        }
    }

    /// A refusal that the store gave before and that still holds.
    pub(super) fn refusal(&self, now: Millis, cost: Cost) -> Option<Verdict> {
        self.over?.refusal(now, cost, &self.spec)
    }

    /// Remembers the refusal of a request that was queried `now`.
    pub(super) fn learn(&mut self, now: Millis, cost: Cost, outcome: &Verdict) {
        if let Verdict::Refuse {
            excess,
            retry_after: Some(after),
        } = *outcome
        {
            // The server decided a little later than now, and both clocks cut off what is less than a millisecond:
            // one less, and no request is refused here that would have passed there.
            self.over = Some(RefusedUntil {
                until: now.after(after.saturating_sub(TICK)),
                retry: now.after(after),
                cost,
                excess,
            });
            self.trusted = false;
        }
    }

    /// The lease request to send now. The caller sends it, and then calls [`Self::settle`] or [`Self::fail`].
    pub(super) fn prepare(&mut self, now: Millis, lease_mode: LeaseMode) -> LeaseRequest {
        self.in_flight = true;
        let mut request = LeaseRequest {
            owed: std::mem::take(&mut self.owed),
            window: self.window,
            left: self.known_left(now),
            ..LeaseRequest::default()
        };
        if now >= self.until {
            request.back = std::mem::take(&mut self.left);
        }
        let target = self.target(now, lease_mode);
        request.want = target.saturating_sub(self.left).div_ceil(Excess::ONE.0);
        self.used = 0;
        self.asked_at = Some(now);
        request
    }

    /// Takes over the reply that came `now` to what was sent at `sent`.
    pub(super) fn settle(
        &mut self,
        sent: Millis,
        now: Millis,
        grant: &LeaseGrant,
        lease_mode: LeaseMode,
    ) {
        self.in_flight = false;
        self.trusted = true;
        let (Verdict::Delay { excess, .. }
        | Verdict::Pass { excess }
        | Verdict::Refuse { excess, .. }) = grant.outcome;
        self.queue = Level {
            height: Excess(excess.0.saturating_sub(self.left)),
            last: sent,
        };
        if grant.granted > 0 && self.asked_at.is_some() {
            // What is left of another window is not missing from this one.
            let left = if grant.window == self.window {
                self.left
            } else {
                0
            };
            let leased = grant.granted.saturating_mul(Excess::ONE.0);
            self.left = left.saturating_add(leased);
            self.until = sent.after(grant.lasts.map_or(TERM, |lasts| lasts.min(TERM)));
            self.window = grant.window;
            self.size = self.left;
            self.over = None;
        } else if let Verdict::Refuse {
            excess,
            retry_after: Some(after),
        } = grant.outcome
        {
            // Counted from now, so that it is never too early: the next one may pass before it is charged.
            let until = now.after((after + TICK).max(lease_mode.pace(&self.spec)));
            self.over = Some(RefusedUntil {
                until,
                retry: now.after(after),
                cost: Cost::ONE,
                excess,
            });
        }
        self.unreported = Some((now, grant.remaining));
        self.known = self.unreported;
    }

    /// The store has lost what was leased, and what it may be about to lease.
    pub(super) fn lose_lease(&mut self) {
        (self.left, self.size, self.asked_at) = (0, 0, None);
    }

    /// No reply came. The request may have been executed: what was owed is then charged twice.
    pub(super) fn fail(&mut self, request: &LeaseRequest) {
        self.in_flight = false;
        self.owed = self.owed.saturating_add(request.owed);
    }

    /// The request that gives back what lies unused, or everything if `all`.
    pub(super) fn idle(&mut self, now: Millis, all: bool) -> Option<LeaseRequest> {
        let unused = now >= self.until || now.since(self.seen) >= IDLE;
        let returns = self.left > 0 && (all || (unused && !self.in_flight));
        returns.then(|| LeaseRequest {
            back: std::mem::take(&mut self.left),
            window: self.window,
            ..LeaseRequest::default()
        })
    }

    /// Whether something is owed and no request that charges it is under way; the caller sends one.
    pub(super) fn wakes(&mut self) -> bool {
        let wakes = self.owed > 0 && !self.in_flight;
        self.in_flight |= wakes;
        wakes
    }

    /// Whether there is nothing worth remembering.
    pub(super) fn is_over(&self, now: Millis) -> bool {
        let holds = self.left > 0 || self.owed > 0 || self.in_flight;
        !holds && !self.is_out(now) && now.since(self.seen) >= FORGOTTEN
    }

    /// How many more requests pass at all gateways, once after each reply and only while it is fresh.
    pub(super) fn unreported(&mut self, now: Millis) -> Option<u64> {
        let (known, remaining) = self.unreported.take()?;
        let in_hand = self.left / Excess::ONE.0;
        let holds = self.is_out(now) || now.since(known) <= FRESH;
        holds.then_some(remaining.saturating_add(in_hand))
    }

    /// How many more requests pass at most, by the last reply and what has drained since. Not for windows: those of the
    /// server begin at moments that are not known here.
    fn known_left(&self, now: Millis) -> Option<u64> {
        let (known, left) = self.known.filter(|_| !self.spec.info().windowed)?;
        let quota = self.spec.quota();
        let back = u128::from(quota) * (now.since(known) + TICK).as_millis();
        let back = back.div_ceil(self.spec.period().as_millis().max(1));
        let left = left.saturating_add(u64::try_from(back).unwrap_or(u64::MAX));
        (left < quota).then_some(left)
    }

    /// Whether the key takes leases: in the mode of that name, and where too much is requested to query each.
    fn is_leased(&self, lease_mode: LeaseMode) -> bool {
        // Where a gateway's part is less than one request, there is nothing to lease.
        self.spec.quota() >= lease_mode.gateways.into()
            && (lease_mode.mode == StoreMode::Leased || self.demand.crowded)
    }

    /// Whether the store has refused more until a moment that has not come.
    fn is_out(&self, now: Millis) -> bool {
        self.over.is_some_and(|over| now < over.until)
    }

    /// Whether what is held will soon be spent; the caller then requests more.
    fn is_low(&mut self, now: Millis, lease_mode: LeaseMode) -> bool {
        let low = !self.in_flight
            && !self.is_out(now)
            && self.is_leased(lease_mode)
            && self.left <= self.size / 4;
        self.in_flight |= low;
        low
    }

    /// How much should be held.
    fn target(&self, now: Millis, lease_mode: LeaseMode) -> u64 {
        let part = self.spec.quota() / u64::from(lease_mode.gateways.max(1));
        let most = part.max(1).saturating_mul(Excess::ONE.0);
        if !self.is_leased(lease_mode) {
            return 0;
        }
        if self.demand.crowded {
            return most;
        }
        // A key that is requested for the first time may not be requested again.
        let Some(asked_at) = self.asked_at else {
            return 0;
        };
        let elapsed = now.since(asked_at).as_millis().max(1);
        let demand = u128::from(self.used) * TERM.as_millis() / elapsed;
        let demand = u64::try_from(demand).unwrap_or(u64::MAX);
        let growth = match self.size {
            0 => 2 * Excess::ONE.0,
            size => size.saturating_mul(4),
        };
        match demand.min(growth).min(most) {
            // A single request may as well pass on credit.
            less if less < 2 * Excess::ONE.0 => 0,
            target => target,
        }
    }

    /// Whether a request that passes waits, and for how long.
    fn turn(&mut self, now: Millis, cost: Cost) -> Verdict {
        let (outcome, queue) = self.spec.queue_turn(self.queue, now, cost);
        self.queue = queue;
        outcome
    }

    /// Refuses a request while the reply is on its way.
    fn soon(&self, cost: Cost, lease_mode: LeaseMode) -> Verdict {
        let pace = lease_mode.pace(&self.spec);
        // A key with so much demand has nothing left.
        let earned = self.spec.added_wait(Excess(0), cost).unwrap_or_default();
        Verdict::Refuse {
            excess: self.over.map_or(Excess(0), |over| over.excess),
            retry_after: Some(earned.max(pace)),
        }
    }
}

impl LeaseMode {
    /// How long a gateway waits after a refusal until it requests a lease again: long enough for some quota to drain, and short
    /// enough that it is not wasted.
    pub(super) fn pace(self, spec: &LimitSpec) -> Duration {
        (spec.period() / 4).min(PACE)
    }
}

/// A request that costs more than this does not pass on credit.
const CREDIT: Cost = Cost::ONE;

/// How long a lease is good, and for how much demand it is made.
const TERM: Duration = Duration::from_secs(1);

/// How long a key stays without a request before its lease is given back.
pub(super) const IDLE: Duration = Duration::from_millis(500);

/// The longest pause between two lease requests for a key that is over its limit.
const PACE: Duration = Duration::from_millis(100);

/// The resolution of the clocks.
const TICK: Duration = Duration::from_millis(1);

/// How long a reply is fresh enough to be reported.
const FRESH: Duration = Duration::from_millis(100);

/// How long the account of a key without requests is kept.
const FORGOTTEN: Duration = Duration::from_secs(5);

/// The demand for one key.
#[derive(Debug, Default)]
pub(super) struct KeyDemand {
    height: u64,
    last: Millis,
    /// Whether so much is requested that the key is decided about here.
    pub(super) crowded: bool,
}

impl KeyDemand {
    /// Counts a request; whether the key has more than `above` times its limit.
    pub(super) fn note(&mut self, now: Millis, cost: Cost, spec: &LimitSpec, above: u32) -> bool {
        let quota = spec.quota().saturating_mul(Excess::ONE.0);
        let most = quota.saturating_mul(above.into());
        let elapsed = now.since(self.last).as_millis();
        let drained = u128::from(most) * elapsed / spec.period().as_millis().max(1);
        let drained = u64::try_from(drained).unwrap_or(u64::MAX);
        // What is less than a unit must not be lost time after time.
        if drained > 0 {
            self.last = now;
        }
        let height = self.height.saturating_sub(drained).saturating_add(cost.0);
        self.height = height.min(most);
        self.crowded = match self.crowded {
            true => self.height > most / 2,
            false => height > most,
        };
        self.crowded
    }
}

/// What is charged, given back and leased of one key in one script.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LeaseRequest {
    /// To be charged whatever is left.
    pub(super) owed: u64,
    /// Leased in `window` and given back.
    pub(super) back: u64,
    pub(super) window: u64,
    /// How many requests are to be leased.
    pub(super) want: u64,
    /// How many more would pass at most, as far as is known here.
    pub(super) left: Option<u64>,
}

/// The reply of the store to a [`LeaseRequest`].
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseGrant {
    /// The verdict on one request before anything was leased.
    pub(super) outcome: Verdict,
    /// How many more would pass now.
    pub(super) remaining: u64,
    /// How many requests are leased.
    pub(super) granted: u64,
    /// For how long, where that is not for ever, and in which window.
    pub(super) lasts: Option<Duration>,
    pub(super) window: u64,
    /// For how much longer the key serves a penalty.
    pub(super) penalty: Option<Duration>,
}

/// Until when requests of some cost are refused.
#[derive(Debug, Clone, Copy)]
pub(super) struct RefusedUntil {
    pub(super) until: Millis,
    /// When a request of this cost passes, by the reply of the store.
    pub(super) retry: Millis,
    pub(super) cost: Cost,
    pub(super) excess: Excess,
}

impl RefusedUntil {
    /// The refusal of a request of `cost`; `None` where it does not follow from this one, and the store has to be queried.
    pub(super) fn refusal(&self, now: Millis, cost: Cost, spec: &LimitSpec) -> Option<Verdict> {
        if now >= self.until {
            return None;
        }
        let more = Cost(cost.0.checked_sub(self.cost.0)?);
        // The largest cost of a request that can ever pass.
        let capacity = spec.quota().saturating_mul(Excess::ONE.0);
        let never = more.0 > 0 && !spec.info().next_pays && cost.0 > capacity;
        let retry_after = if never {
            None
        } else {
            let retry = self.retry.after(spec.added_wait(self.excess, more)?);
            Some(retry.max(self.until).since(now))
        };
        Some(Verdict::Refuse {
            excess: Excess(self.excess.0.saturating_add(more.0)),
            retry_after,
        })
    }
}
