//! nginx's smooth weighted round robin, in its own arithmetic.
//!
//! Every usable server gains its effective weight in each round, the one that stands highest is picked and
//! pays what all gained. A server that fails loses effective weight and earns it back one by one; one that
//! failed `max_fails` times is left alone for `fail_timeout`, then asked once to see. The order of these steps is
//! nginx's, so that the same weights give the same sequence; only time is finer, milliseconds for seconds.

use std::time::Duration;

use crate::clock::Millis;
use crate::config::plan::UpstreamServer;

/// The standing of every server of an upstream, in the order of its backends.
#[derive(Debug)]
pub(in crate::upstream) struct RoundRobin(Box<[Standing]>);

/// Who has been asked for one request.
#[derive(Debug, Default)]
pub(in crate::upstream) struct Round {
    tried: u64,
    // Beyond 64 servers, and only once one of those is tried.
    tried_beyond: Vec<u64>,
    backups: bool,
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
    down: bool,
    effective: i64,
    current: i64,
    fails: u32,
    accessed: Millis,
    checked: Millis,
}

impl RoundRobin {
    pub(super) fn new<'s>(servers: impl Iterator<Item = &'s UpstreamServer>) -> Self {
        Self(servers.map(Standing::new).collect())
    }

    /// The server to ask next, if there is one that may be asked and is not `full`.
    pub(super) fn pick(
        &mut self,
        round: &mut Round,
        now: Millis,
        full: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        if !round.backups {
            if let Some(primary) = self.pick_among(round, now, &full) {
                return Some(primary);
            }
            // For the rest of this request only backups are asked, as in nginx: a primary that comes back
            // meanwhile serves the next one.
            round.backups = true;
        }
        self.pick_among(round, now, &full)
    }

    /// The server did not answer, or not as it should.
    pub(super) fn failed(&mut self, index: usize, now: Millis) -> Verdict {
        let standing = &mut self.0[index];
        standing.fails = standing.fails.saturating_add(1);
        standing.accessed = now;
        standing.checked = now;
        if standing.max_fails == 0 {
            return Verdict::Keep;
        }
        let loss = standing.weight / i64::from(standing.max_fails);
        standing.effective = (standing.effective - loss).max(0);
        if standing.fails >= standing.max_fails {
            Verdict::Disable
        } else {
            Verdict::Keep
        }
    }

    /// The server answered.
    pub(super) fn succeeded(&mut self, index: usize) {
        let standing = &mut self.0[index];
        // Only the answer to a probe clears what is remembered: any other may be to a request that was sent
        // before the failures.
        if standing.accessed < standing.checked {
            standing.fails = 0;
        }
    }

    /// Whether a success would change anything.
    pub(super) fn is_blemished(&self, index: usize) -> bool {
        self.0[index].fails > 0
    }

    fn pick_among(
        &mut self,
        round: &mut Round,
        now: Millis,
        full: &impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let mut total = 0;
        let mut best: Option<(usize, i64)> = None;
        for (index, standing) in self.0.iter_mut().enumerate() {
            if standing.backup != round.backups
                || round.has_tried(index)
                || !standing.is_usable(now)
                || full(index)
            {
                continue;
            }
            standing.current += standing.effective;
            total += standing.effective;
            if standing.effective < standing.weight {
                standing.effective += 1;
            }
            if best.is_none_or(|(_, highest)| standing.current > highest) {
                best = Some((index, standing.current));
            }
        }
        let (index, _) = best?;
        let standing = &mut self.0[index];
        standing.current -= total;
        if now.since(standing.checked) > standing.fail_timeout {
            standing.checked = now;
        }
        round.mark(index);
        Some(index)
    }
}

impl Round {
    fn has_tried(&self, index: usize) -> bool {
        let word = match index / 64 {
            0 => self.tried,
            beyond => self.tried_beyond.get(beyond - 1).copied().unwrap_or(0),
        };
        word >> (index % 64) & 1 == 1
    }

    fn mark(&mut self, index: usize) {
        let word = match index / 64 {
            0 => &mut self.tried,
            beyond => {
                if self.tried_beyond.len() < beyond {
                    self.tried_beyond.resize(beyond, 0);
                }
                &mut self.tried_beyond[beyond - 1]
            }
        };
        *word |= 1 << (index % 64);
    }
}

impl Standing {
    fn new(server: &UpstreamServer) -> Self {
        Self {
            weight: server.weight.into(),
            max_fails: server.max_fails,
            fail_timeout: server.fail_timeout,
            backup: server.backup,
            down: server.down,
            effective: server.weight.into(),
            current: 0,
            fails: 0,
            accessed: Millis::default(),
            checked: Millis::default(),
        }
    }

    fn is_usable(&self, now: Millis) -> bool {
        let left_alone = self.max_fails > 0
            && self.fails >= self.max_fails
            && now.since(self.checked) <= self.fail_timeout;
        !self.down && !left_alone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::Address;

    const FREE: fn(usize) -> bool = |_| false;

    fn server(weight: u32) -> UpstreamServer {
        UpstreamServer {
            address: Address::Unix("/s".into()),
            weight,
            max_fails: 1,
            fail_timeout: Duration::from_secs(10),
            max_conns: 0,
            backup: false,
            down: false,
        }
    }

    fn of(servers: &[UpstreamServer]) -> RoundRobin {
        RoundRobin::new(servers.iter())
    }

    /// What the next `n` requests get.
    fn sequence(servers: &mut RoundRobin, n: usize, now: Millis) -> Vec<usize> {
        (0..n)
            .filter_map(|_| servers.pick(&mut Round::default(), now, FREE))
            .collect()
    }

    #[test]
    fn weights_five_one_one_are_spread_smoothly() {
        let mut servers = of(&[server(5), server(1), server(1)]);
        let expected = [0, 0, 1, 0, 2, 0, 0];
        assert_eq!(sequence(&mut servers, 7, Millis(0)), expected);
        assert_eq!(sequence(&mut servers, 7, Millis(0)), expected);
    }

    #[test]
    fn one_request_asks_nobody_twice() {
        let mut servers = of(&[server(5), server(1)]);
        let mut round = Round::default();
        assert_eq!(servers.pick(&mut round, Millis(0), FREE), Some(0));
        assert_eq!(servers.pick(&mut round, Millis(0), FREE), Some(1));
        assert_eq!(servers.pick(&mut round, Millis(0), FREE), None);
    }

    #[test]
    fn more_servers_than_a_word_has_bits_are_all_asked_once() {
        let mut servers = of(&vec![server(1); 150]);
        let mut round = Round::default();
        let mut asked: Vec<_> =
            std::iter::from_fn(|| servers.pick(&mut round, Millis(0), FREE)).collect();
        asked.sort_unstable();
        assert_eq!(asked, (0..150).collect::<Vec<_>>());
    }

    #[test]
    fn a_server_that_failed_is_left_alone_for_its_fail_timeout() {
        let mut servers = of(&[server(1), server(1)]);
        assert_eq!(servers.failed(0, Millis(1_000)), Verdict::Disable);
        assert_eq!(sequence(&mut servers, 3, Millis(11_000)), [1, 1, 1]);
        assert!(sequence(&mut servers, 2, Millis(11_001)).contains(&0));
    }

    #[test]
    fn fewer_failures_than_max_fails_disable_nobody() {
        let mut patient = server(1);
        patient.max_fails = 3;
        let mut servers = of(&[patient, server(1)]);
        assert_eq!(servers.failed(0, Millis(1)), Verdict::Keep);
        assert_eq!(servers.failed(0, Millis(2)), Verdict::Keep);
        assert_eq!(servers.failed(0, Millis(3)), Verdict::Disable);
    }

    #[test]
    fn max_fails_zero_never_disables() {
        let mut stoic = server(1);
        stoic.max_fails = 0;
        let mut servers = of(&[stoic, server(1)]);
        for now in 0..10 {
            assert_eq!(servers.failed(0, Millis(now)), Verdict::Keep);
        }
        assert!(sequence(&mut servers, 2, Millis(10)).contains(&0));
    }

    #[test]
    fn only_one_probe_goes_out_per_fail_timeout() {
        let mut servers = of(&[server(1), server(1)]);
        servers.failed(0, Millis(0));
        let asked = sequence(&mut servers, 10, Millis(10_001));
        assert_eq!(asked.iter().filter(|index| **index == 0).count(), 1);
        let asked = sequence(&mut servers, 10, Millis(20_002));
        assert_eq!(asked.iter().filter(|index| **index == 0).count(), 1);
    }

    #[test]
    fn an_answered_probe_brings_the_server_back() {
        let mut servers = of(&[server(1), server(1)]);
        servers.failed(0, Millis(0));
        // The answer to a request sent before the failure proves nothing.
        servers.succeeded(0);
        assert!(servers.is_blemished(0));
        while !sequence(&mut servers, 1, Millis(10_001)).contains(&0) {}
        servers.succeeded(0);
        assert!(!servers.is_blemished(0));
        let asked = sequence(&mut servers, 10, Millis(10_002));
        assert_eq!(asked.iter().filter(|index| **index == 0).count(), 5);
    }

    #[test]
    fn lost_weight_is_earned_back_one_a_round() {
        let mut heavy = server(4);
        heavy.max_fails = 2;
        let mut servers = of(&[heavy, server(4)]);
        servers.failed(0, Millis(0));
        assert_eq!(servers.0[0].effective, 2);
        sequence(&mut servers, 1, Millis(1));
        assert_eq!(servers.0[0].effective, 3);
        sequence(&mut servers, 5, Millis(1));
        assert_eq!(servers.0[0].effective, 4);
    }

    #[test]
    fn backups_are_asked_only_when_no_primary_can_be() {
        let mut spare = server(1);
        spare.backup = true;
        let mut servers = of(&[server(1), server(1), spare]);
        assert!(!sequence(&mut servers, 10, Millis(0)).contains(&2));
        servers.failed(0, Millis(0));
        servers.failed(1, Millis(0));
        assert_eq!(sequence(&mut servers, 2, Millis(1)), [2, 2]);
    }

    #[test]
    fn a_request_that_failed_on_every_primary_goes_to_the_backup() {
        let mut spare = server(1);
        spare.backup = true;
        let mut servers = of(&[server(1), spare]);
        let mut round = Round::default();
        assert_eq!(servers.pick(&mut round, Millis(0), FREE), Some(0));
        assert_eq!(servers.pick(&mut round, Millis(0), FREE), Some(1));
    }

    #[test]
    fn a_server_that_is_down_or_full_is_never_asked() {
        let mut down = server(1);
        down.down = true;
        let mut servers = of(&[down, server(1), server(1)]);
        let only_two = |index| index == 1;
        for _ in 0..4 {
            let picked = servers.pick(&mut Round::default(), Millis(0), only_two);
            assert_eq!(picked, Some(2));
        }
    }
}
