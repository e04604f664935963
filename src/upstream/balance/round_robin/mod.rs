//! nginx's smooth weighted round robin, in its own arithmetic.
//!
//! Every usable server gains its effective weight in each round, the one that stands highest is picked and
//! pays what all gained. A server that fails loses effective weight and earns it back one by one; one that
//! failed `max_fails` times is left alone for `fail_timeout`, then asked once to see. The same weights give nginx's
//! sequence; only time is finer, milliseconds for seconds.
//!
//! nginx looks at every server for every request. Here those that are well play a [`Tournament`], and only who has
//! just come back with less than its weight is looked at one by one; who cannot be asked at all stands aside until
//! something happens to it. So it does not matter how many servers there are.

#[cfg(test)]
mod naive;
mod round;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

pub(in crate::upstream) use self::round::Round;
use super::tournament::Tournament;
use crate::clock::Millis;
use crate::config::plan::UpstreamServer;

/// The standing of every server of an upstream, in the order of its backends.
#[derive(Debug)]
pub(in crate::upstream) struct RoundRobin {
    standings: Box<[Standing]>,
    primaries: Side,
    backups: Side,
}

/// What came of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) enum Verdict {
    /// It is left alone for `fail_timeout` from now.
    Disable,
    /// It goes on.
    Keep,
}

#[derive(Debug)]
struct Standing {
    weight: i64,
    max_fails: u32,
    fail_timeout: Duration,
    backup: bool,
    /// Barred, or full.
    away: bool,
    /// Not for this pick: it has been asked already.
    skipped: bool,
    effective: i64,
    /// While it does not play: there the tournament keeps the score.
    current: i64,
    fails: u32,
    accessed: Millis,
    checked: Millis,
    seat: Seat,
    /// Where it plays when it does.
    place: usize,
}

/// Where a server is to be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seat {
    /// Among those who are left alone until this has passed.
    Asleep(Millis),
    /// Nowhere: it is barred or full.
    Away,
    /// In the tournament.
    Playing,
    /// Among those who have to earn back some of their weight.
    Recovering,
}

/// The primaries of an upstream, or its backups.
#[derive(Debug)]
struct Side {
    playing: Tournament,
    recovering: Vec<usize>,
    asleep: BTreeSet<(Millis, usize)>,
}

impl RoundRobin {
    pub(super) fn new<'s>(servers: impl Iterator<Item = &'s UpstreamServer>) -> Self {
        let mut standings: Box<[_]> = servers.map(Standing::new).collect();
        let primaries = Side::new(&mut standings, false);
        let backups = Side::new(&mut standings, true);
        let mut all = Self {
            standings,
            primaries,
            backups,
        };
        for index in 0..all.standings.len() {
            all.seat(index, Millis::default());
        }
        all
    }

    /// The server to ask next, if there is one that may be asked.
    pub(super) fn pick(&mut self, round: &mut Round, now: Millis) -> Option<usize> {
        if !round.backups {
            if let Some(primary) = self.pick_among(round, now) {
                return Some(primary);
            }
            // For the rest of this request only backups are asked, as in nginx: a primary that comes back
            // meanwhile serves the next one.
            round.backups = true;
        }
        self.pick_among(round, now)
    }

    /// Whether the server can be asked at all has changed: somebody barred it, or it has as much to do as it may.
    pub(super) fn consider(&mut self, index: usize, free: bool, now: Millis) {
        self.standings[index].away = !free;
        self.seat(index, now);
    }

    /// The server did not answer, or not as it should.
    pub(super) fn failed(&mut self, index: usize, now: Millis) -> Verdict {
        let standing = &mut self.standings[index];
        standing.fails = standing.fails.saturating_add(1);
        standing.accessed = now;
        standing.checked = now;
        if standing.max_fails == 0 {
            return Verdict::Keep;
        }
        let loss = standing.weight / i64::from(standing.max_fails);
        standing.effective = (standing.effective - loss).max(0);
        let verdict = if standing.fails >= standing.max_fails {
            Verdict::Disable
        } else {
            Verdict::Keep
        };
        self.seat(index, now);
        verdict
    }

    /// The server answered.
    pub(super) fn succeeded(&mut self, index: usize) {
        let standing = &mut self.standings[index];
        // Only the answer to a probe clears what is remembered: any other may be to a request that was sent
        // before the failures.
        if standing.accessed < standing.checked {
            standing.fails = 0;
            let now = standing.checked;
            self.seat(index, now);
        }
    }

    /// Whether a success would change anything.
    pub(super) fn is_blemished(&self, index: usize) -> bool {
        self.standings[index].fails > 0
    }

    fn pick_among(&mut self, round: &mut Round, now: Millis) -> Option<usize> {
        self.wake(round.backups, now);
        let side = match round.backups {
            false => &mut self.primaries,
            true => &mut self.backups,
        };
        for index in round.tried() {
            self.standings[index].skipped = true;
        }
        let picked = side.pick(&mut self.standings, round);
        for index in round.tried() {
            self.standings[index].skipped = false;
        }
        let index = picked?;
        let standing = &mut self.standings[index];
        if now.since(standing.checked) > standing.fail_timeout {
            standing.checked = now;
        }
        // It was asked to see whether it is well again; the answer decides.
        if standing.is_left_alone(now) {
            self.seat(index, now);
        }
        round.mark(index);
        Some(index)
    }

    /// Takes back those who have been left alone for long enough.
    fn wake(&mut self, backups: bool, now: Millis) {
        loop {
            let side = match backups {
                false => &self.primaries,
                true => &self.backups,
            };
            match side.asleep.first() {
                Some(&(until, index)) if until < now => self.seat(index, now),
                _ => return,
            }
        }
    }

    /// Puts a server where it belongs now.
    fn seat(&mut self, index: usize, now: Millis) {
        let standing = &mut self.standings[index];
        let seat = standing.proper_seat(now);
        let side = match standing.backup {
            false => &mut self.primaries,
            true => &mut self.backups,
        };
        side.seat(index, standing, seat);
    }
}

impl Side {
    /// A side of which nobody is seated yet.
    fn new(standings: &mut [Standing], backups: bool) -> Self {
        let own = (0u32..).zip(&*standings);
        let playing = Tournament::new(
            own.filter(|(_, standing)| standing.backup == backups)
                .map(|(index, standing)| (standing.weight, index)),
        );
        for (place, index) in playing.ranks().enumerate() {
            standings[index as usize].place = place;
        }
        Self {
            playing,
            recovering: Vec::new(),
            asleep: BTreeSet::new(),
        }
    }

    fn seat(&mut self, index: usize, standing: &mut Standing, seat: Seat) {
        if standing.seat == seat {
            return;
        }
        match standing.seat {
            Seat::Asleep(until) => {
                self.asleep.remove(&(until, index));
            }
            Seat::Away => {}
            Seat::Playing => standing.current = self.playing.leave(standing.place),
            Seat::Recovering => self.recovering.retain(|other| *other != index),
        }
        match seat {
            Seat::Asleep(until) => {
                self.asleep.insert((until, index));
            }
            Seat::Away => {}
            Seat::Playing => self.playing.enter(standing.place, standing.current),
            Seat::Recovering => self.recovering.push(index),
        }
        standing.seat = seat;
    }

    /// One round: everybody but the skipped gains, and who then stands highest pays.
    fn pick(&mut self, standings: &mut [Standing], round: &Round) -> Option<usize> {
        let mut total = self.playing.total();
        self.playing.advance();
        let skipped = |index: u32| standings[index as usize].skipped;
        let mut best = self.playing.best(skipped);
        total -= self.hold_back(standings, round);
        for &index in &self.recovering {
            let standing = &mut standings[index];
            if standing.skipped {
                continue;
            }
            standing.current += standing.effective;
            total += standing.effective;
            standing.effective += 1;
            let this = (index, standing.current);
            if best.is_none_or(|best| is_above(this, best)) {
                best = Some(this);
            }
        }
        let (index, _) = best?;
        let winner = &mut standings[index];
        if winner.seat == Seat::Playing {
            self.playing.charge(winner.place, total);
            self.playing.settle(winner.place);
        } else {
            winner.current -= total;
        }
        if !self.recovering.is_empty() {
            self.graduate(standings);
        }
        Some(index)
    }

    /// Takes back what the skipped gained in this round; their weights in all.
    fn hold_back(&mut self, standings: &[Standing], round: &Round) -> i64 {
        let mut total = 0;
        let playing = round
            .tried()
            .map(|index| &standings[index])
            .filter(|standing| standing.seat == Seat::Playing && standing.backup == round.backups);
        for standing in playing.clone() {
            self.playing.charge(standing.place, standing.weight);
            total += standing.weight;
        }
        // A request that has been everywhere: one pass over all is cheaper than a walk for each.
        if round.len() > standings.len() / 16 {
            self.playing.settle_all();
        } else {
            playing.for_each(|standing| self.playing.settle(standing.place));
        }
        total
    }

    /// Lets those play who have their whole weight again.
    fn graduate(&mut self, standings: &mut [Standing]) {
        self.recovering.retain(|&index| {
            let standing = &mut standings[index];
            let whole = standing.effective >= standing.weight;
            if whole {
                self.playing.enter(standing.place, standing.current);
                standing.seat = Seat::Playing;
            }
            !whole
        });
    }
}

impl Standing {
    fn new(server: &UpstreamServer) -> Self {
        Self {
            weight: server.weight.into(),
            max_fails: server.max_fails,
            fail_timeout: server.fail_timeout,
            backup: server.backup,
            away: server.down,
            skipped: false,
            effective: server.weight.into(),
            current: 0,
            fails: 0,
            accessed: Millis::default(),
            checked: Millis::default(),
            seat: Seat::Away,
            place: 0,
        }
    }

    fn proper_seat(&self, now: Millis) -> Seat {
        if self.away {
            Seat::Away
        } else if self.is_left_alone(now) {
            Seat::Asleep(self.checked.after(self.fail_timeout))
        } else if self.effective < self.weight {
            Seat::Recovering
        } else {
            Seat::Playing
        }
    }

    fn is_left_alone(&self, now: Millis) -> bool {
        self.max_fails > 0
            && self.fails >= self.max_fails
            && now.since(self.checked) <= self.fail_timeout
    }
}

/// Whether one server is picked before another: it stands higher, or as high and before it in the file.
fn is_above((index, score): (usize, i64), (other, other_score): (usize, i64)) -> bool {
    score > other_score || score == other_score && index < other
}
