//! What a gateway has in hand for one key, and what it last heard of it.
//!
//! Pure: the time, the cost and the manner come in, and what the gateway can say by itself comes out. A lease is charged
//! where all count before anything of it is spent here, so all that is spent from leases is within the limit. Only a
//! credit is spent first and charged then, and there is one at a time.
//!
//! How much of a key is asked for at this gateway, against what it may have.
//!
//! A bucket as wide and as fast as a multiple of the limit. When it is full, so much more is asked for than can pass that
//! asking about each is waste; when half of it has drained that is over. What lies between keeps it from going to
//! and fro.
//!
//! What is asked for about one key, and what a store says to it.
//!
//! A refusal as the store gave it, and what it says of requests with another cost.

#[cfg(test)]
#[path = "tests/account_unit.rs"]
mod tests;

use std::time::Duration;

use crate::algorithm::{Cost, Excess, Level, LimitSpec, Verdict};
use crate::clock::Millis;
use crate::config::plan::StoreMode;

/// What this gateway says of a request by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseVerdict {
    /// Nothing: the store has to be asked.
    Ask,
    /// It is refused.
    Refuse(Verdict),
    /// It passes, at once or after a wait.
    Spent(Verdict),
}

/// How a key's requests are decided about.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseMode {
    pub(super) mode: StoreMode,
    pub(super) gateways: u32,
    pub(super) local_above: Option<u32>,
}

/// One key at this gateway.
#[derive(Debug)]
pub(super) struct LeaseAccount {
    pub(super) spec: LimitSpec,
    /// Leased and not spent; good until [`LeaseAccount::until`].
    left: u64,
    until: Millis,
    /// Which of the server's windows it was leased in; zero where there are none.
    window: u64,
    /// Spent on credit, and not charged yet.
    owed: u64,
    /// How the shared queue stands without what is in hand, for those ways of counting that let requests wait.
    queue: Level,
    over: Option<RefusedUntil>,
    /// What was last heard of it is no earlier than it was said: when its time is over, one may pass on credit.
    trusted: bool,
    /// Somebody is asking for more.
    asking: bool,
    /// When more was last asked for; `None` also where the store has lost its data since.
    asked_at: Option<Millis>,
    /// What was wanted here since.
    used: u64,
    /// What was in hand after the last lease.
    size: u64,
    seen: Millis,
    demand: KeyDemand,
    /// How many more would have passed besides what is in hand, and when that was heard.
    news: Option<(Millis, u64)>,
    /// The same, and stays known.
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
            asking: false,
            asked_at: None,
            used: 0,
            size: 0,
            seen: now,
            demand: KeyDemand::new(now),
            news: None,
            known: None,
        }
    }

    /// What can be said of a request without asking, and whether more should be asked for meanwhile.
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
        // Who asks for nothing wants to know whether the key is in debt.
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
        if self.asking {
            let verdict = if crowded {
                LeaseVerdict::Refuse(self.soon(cost, lease_mode))
            } else {
                LeaseVerdict::Ask
            };
            return (verdict, false);
        }
        self.asking = true;
        if lease_mode.mode == StoreMode::Leased && self.trusted && self.owed == 0 && cost <= CREDIT
        {
            let outcome = self.turn(now, cost);
            self.owed = cost.0;
            return (LeaseVerdict::Spent(outcome), true);
        }
        (LeaseVerdict::Ask, true)
    }

    /// Takes back what was spent, for a request that somebody else refused.
    pub(super) fn unspend(&mut self, now: Millis, cost: Cost) {
        if self.owed >= cost.0 && self.owed > 0 {
            self.owed -= cost.0;
        } else {
            // It is charged, or about to be: what is not needed is a lease.
            self.left = self.left.saturating_add(cost.0);
            self.until = self.until.max(now.after(IDLE));
        }
    }

    /// What was said before and holds until a moment that has not come.
    pub(super) fn refusal(&self, now: Millis, cost: Cost) -> Option<Verdict> {
        self.over?.refusal(now, cost, &self.spec)
    }

    /// Remembers the refusal of a request that was asked for `now`.
    pub(super) fn learn(&mut self, now: Millis, cost: Cost, outcome: &Verdict) {
        if let Verdict::Refuse {
            excess,
            retry_after: Some(after),
        } = *outcome
        {
            // The server decided a little later than now, and both clocks cut off what is less than a millisecond:
            // one less, and nobody is refused here who would have passed there.
            self.over = Some(RefusedUntil {
                until: now.after(after.saturating_sub(TICK)),
                retry: now.after(after),
                cost,
                excess,
            });
            self.trusted = false;
        }
    }

    /// What to ask for now; whoever calls this asks, and says what came of it.
    pub(super) fn prepare(&mut self, now: Millis, lease_mode: LeaseMode) -> LeaseRequest {
        self.asking = true;
        let mut ask = LeaseRequest {
            owed: std::mem::take(&mut self.owed),
            window: self.window,
            left: self.known_left(now),
            ..LeaseRequest::default()
        };
        if now >= self.until {
            ask.back = std::mem::take(&mut self.left);
        }
        let target = self.target(now, lease_mode);
        ask.want = target.saturating_sub(self.left).div_ceil(Excess::ONE.0);
        self.used = 0;
        self.asked_at = Some(now);
        ask
    }

    /// What was asked for at `sent` has been answered `now`.
    pub(super) fn settle(
        &mut self,
        sent: Millis,
        now: Millis,
        grant: &LeaseGrant,
        lease_mode: LeaseMode,
    ) {
        self.asking = false;
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
        self.news = Some((now, grant.remaining));
        self.known = self.news;
    }

    /// The store has lost what was leased, and what it may be about to lease.
    pub(super) fn lose_lease(&mut self) {
        (self.left, self.size, self.asked_at) = (0, 0, None);
    }

    /// What was asked for has not been answered. It may have been heard: what was owed is then charged twice.
    pub(super) fn fail(&mut self, ask: &LeaseRequest) {
        self.asking = false;
        self.owed = self.owed.saturating_add(ask.owed);
    }

    /// What nobody here needs any more, and all of it if told so: to be given back.
    pub(super) fn idle(&mut self, now: Millis, all: bool) -> Option<LeaseRequest> {
        let unused = now >= self.until || now.since(self.seen) >= IDLE;
        let returns = self.left > 0 && (all || (unused && !self.asking));
        returns.then(|| LeaseRequest {
            back: std::mem::take(&mut self.left),
            window: self.window,
            ..LeaseRequest::default()
        })
    }

    /// Whether something is owed and nobody is asking.
    pub(super) fn wakes(&mut self) -> bool {
        let wakes = self.owed > 0 && !self.asking;
        self.asking |= wakes;
        wakes
    }

    /// Whether there is nothing worth remembering.
    pub(super) fn is_over(&self, now: Millis) -> bool {
        let holds = self.left > 0 || self.owed > 0 || self.asking;
        !holds && !self.is_out(now) && now.since(self.seen) >= FORGOTTEN
    }

    /// What is in hand.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Whether so much is asked for that nobody is asked any more.
    pub(super) fn is_crowded(&self) -> bool {
        self.demand.is_crowded()
    }

    /// How many more pass everywhere, if that was heard just now and has not been passed on.
    pub(super) fn news(&mut self, now: Millis) -> Option<u64> {
        let (known, remaining) = self.news.take()?;
        let in_hand = self.left / Excess::ONE.0;
        let holds = self.is_out(now) || now.since(known) <= FRESH;
        holds.then_some(remaining.saturating_add(in_hand))
    }

    /// How many more would pass at most, by what was last heard and has come back since. Not for windows: those of a server begin
    /// at moments that are not known here.
    fn known_left(&self, now: Millis) -> Option<u64> {
        let (known, left) = self.known.filter(|_| !self.spec.info().windowed)?;
        let quota = self.spec.quota();
        let back = u128::from(quota) * (now.since(known) + TICK).as_millis();
        let back = back.div_ceil(self.spec.period().as_millis().max(1));
        let left = left.saturating_add(u64::try_from(back).unwrap_or(u64::MAX));
        (left < quota).then_some(left)
    }

    /// Whether it takes leases: in the mode of that name, and where too much is wanted to ask about each.
    fn is_leased(&self, lease_mode: LeaseMode) -> bool {
        lease_mode.leases(&self.spec) && (lease_mode.mode == StoreMode::Leased || self.is_crowded())
    }

    /// Whether there is nothing more to be had.
    fn is_out(&self, now: Millis) -> bool {
        self.over.is_some_and(|over| now < over.until)
    }

    /// Whether what is in hand will not last.
    fn is_low(&mut self, now: Millis, lease_mode: LeaseMode) -> bool {
        let low = !self.asking
            && !self.is_out(now)
            && self.is_leased(lease_mode)
            && self.left <= self.size / 4;
        self.asking |= low;
        low
    }

    /// How much should be in hand.
    fn target(&self, now: Millis, lease_mode: LeaseMode) -> u64 {
        let most = lease_mode.most(&self.spec);
        if !self.is_leased(lease_mode) {
            return 0;
        }
        if self.is_crowded() {
            return most;
        }
        // Who comes for the first time may not come again.
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
            // One at a time may as well come on credit.
            less if less < 2 * Excess::ONE.0 => 0,
            target => target,
        }
    }

    /// When it is a request's turn that is let in.
    fn turn(&mut self, now: Millis, cost: Cost) -> Verdict {
        let (outcome, queue) = self.spec.queue_turn(self.queue, now, cost);
        self.queue = queue;
        outcome
    }

    /// Refuses while the answer is on its way.
    fn soon(&self, cost: Cost, lease_mode: LeaseMode) -> Verdict {
        let pace = lease_mode.pace(&self.spec);
        // Of a key that so much is wanted of nothing is left.
        let earned = earned_in(&self.spec, cost).unwrap_or_default();
        Verdict::Refuse {
            excess: self.over.map_or(Excess(0), |over| over.excess),
            retry_after: Some(earned.max(pace)),
        }
    }
}

impl LeaseMode {
    /// Whether there is something for each gateway to take: less than one request is no lease.
    pub(super) fn leases(self, spec: &LimitSpec) -> bool {
        spec.quota() >= self.gateways.into()
    }

    /// The most that one gateway has in hand of a key.
    pub(super) fn most(self, spec: &LimitSpec) -> u64 {
        let part = spec.quota() / u64::from(self.gateways.max(1));
        part.max(1).saturating_mul(Excess::ONE.0)
    }

    /// How long a gateway waits that was told that there is nothing, before it asks again: long enough for something to come
    /// together, and not so long that what comes together is lost.
    pub(super) fn pace(self, spec: &LimitSpec) -> Duration {
        (spec.period() / 4).min(PACE)
    }
}

/// A request of more than this is not let in before it is charged.
const CREDIT: Cost = Cost::ONE;

/// For how long a lease is good, and how much of what is asked for it should last.
const TERM: Duration = Duration::from_secs(1);

/// After which time a key that is not asked for gives back what it has.
pub(super) const IDLE: Duration = Duration::from_millis(500);

/// The longest pause between two questions about a key that is over its limit.
const PACE: Duration = Duration::from_millis(100);

/// The least that clocks tell apart.
const TICK: Duration = Duration::from_millis(1);

/// For how long what was heard of a key says something of it.
const FRESH: Duration = Duration::from_millis(100);

/// For how long a key is remembered that is not asked for.
const FORGOTTEN: Duration = Duration::from_secs(5);

/// The demand for one key.
#[derive(Debug)]
pub(super) struct KeyDemand {
    height: u64,
    last: Millis,
    crowded: bool,
}

impl KeyDemand {
    pub(super) fn new(now: Millis) -> Self {
        Self {
            height: 0,
            last: now,
            crowded: false,
        }
    }

    /// One more; whether that is too many, where `above` times the limit is.
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

    pub(super) fn is_crowded(&self) -> bool {
        self.crowded
    }
}

/// What is asked for at once about one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LeaseRequest {
    /// To be charged whatever is left.
    pub(super) owed: u64,
    /// Leased in `window` and given back.
    pub(super) back: u64,
    pub(super) window: u64,
    /// So many requests are to be leased.
    pub(super) want: u64,
    /// How many more would pass at most, as far as is known here.
    pub(super) left: Option<u64>,
}

/// What a store said to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseGrant {
    /// What would have become of one request before anything was leased.
    pub(super) outcome: Verdict,
    /// How many more would pass now.
    pub(super) remaining: u64,
    /// So many requests are leased.
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
    /// When one of this cost would pass, as the store said.
    pub(super) retry: Millis,
    pub(super) cost: Cost,
    pub(super) excess: Excess,
}

impl RefusedUntil {
    /// The refusal of a request of `cost`; `None` where it does not follow from this one, and the store has to be asked.
    pub(super) fn refusal(&self, now: Millis, cost: Cost, spec: &LimitSpec) -> Option<Verdict> {
        if now >= self.until {
            return None;
        }
        let more = Cost(cost.0.checked_sub(self.cost.0)?);
        let never = more.0 > 0 && !spec.info().next_pays && cost.0 > capacity(spec);
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

/// How long a key that has nothing left takes to have room for `cost`, at most; `None` where nobody can tell.
pub(super) fn earned_in(spec: &LimitSpec, cost: Cost) -> Option<Duration> {
    spec.added_wait(Excess(0), cost)
}

/// The most that a request can weigh and ever pass.
fn capacity(spec: &LimitSpec) -> u64 {
    spec.quota().saturating_mul(Excess::ONE.0)
}
