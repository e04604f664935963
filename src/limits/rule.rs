//! The rules of a location, and how several `limit_req` decide as one.
//!
//! Every rule is asked before any is charged: a request refused by the second must not have spent the
//! first one's burst. The last is asked and charged in one step, the others are charged after it and asked
//! again while at it, because another thread may have been there in between. nginx lets such a request
//! pass, one over the burst; here it is refused and what was charged is given back.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use super::key::Found;
use super::zones::{ConnZone, Keyed, ReqZone};
use crate::clock::Millis;
use crate::config::plan::{Excess, Queue};
use crate::message::Exchange;
use crate::store::algorithm::leaky_bucket::{Outcome, Terms};

/// One `limit_req`.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) zone: Arc<ReqZone>,
    pub(super) terms: Terms,
}

/// One `limit_conn`.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) zone: Arc<ConnZone>,
    pub(super) limit: u32,
    pub(super) queue: Option<Queue>,
}

/// What all `limit_req` of a location say together; `rule` is the index of the one that has the say.
#[derive(Debug)]
pub(super) enum Decision {
    /// It passes, at once or after the longest wait any rule asks for.
    Accept { rule: usize, outcome: Outcome },
    /// It has no key, and the rule's zone does not take such requests.
    NoKey { rule: usize },
    /// No rule applies to it.
    NotLimited,
    /// It is over a limit.
    Refuse {
        rule: usize,
        keyed: Keyed,
        excess: Excess,
        retry_after: Duration,
    },
}

/// A rule that lets a request pass, before all have been heard.
#[derive(Debug)]
struct Asked {
    rule: usize,
    keyed: Keyed,
    charged: Option<Outcome>,
}

/// Asks all rules about a request, and charges it unless one refuses.
pub(super) fn decide(rules: &[Requests], exchange: &Exchange, now: Millis) -> Decision {
    match rules {
        [] => Decision::NotLimited,
        // Nearly every location: one lookup, one lock.
        [rule] => match rule.zone.find(exchange, &rule.terms) {
            Found::Key(keyed) => Decision::from(0, &keyed, rule.charge(&keyed, now)),
            Found::Nothing => Decision::NotLimited,
            Found::Refuse => rule.no_key(0),
        },
        rules => ASKED.with_borrow_mut(|asked| {
            asked.clear();
            ask(rules, exchange, now, asked).unwrap_or_else(|| charge(rules, asked, now))
        }),
    }
}

/// Asks in order until one refuses; those that do not are added to `asked`.
fn ask(
    rules: &[Requests],
    exchange: &Exchange,
    now: Millis,
    asked: &mut Vec<Asked>,
) -> Option<Decision> {
    for (index, rule) in rules.iter().enumerate() {
        let mut keyed = match rule.zone.find(exchange, &rule.terms) {
            Found::Key(keyed) => keyed,
            Found::Nothing => continue,
            Found::Refuse => return Some(rule.no_key(index)),
        };
        let is_last = index + 1 == rules.len();
        let outcome = if is_last {
            rule.charge(&keyed, now)
        } else {
            rule.ask(&mut keyed, now)
        };
        if let Outcome::Refuse { .. } = outcome {
            if !is_last {
                rule.zone.store.count_refusal(&keyed.key);
            }
            let refusal = Decision::from(index, &keyed, outcome);
            return Some(refusal.until_all_pass(&rules[index + 1..], exchange, now));
        }
        asked.push(Asked {
            rule: index,
            keyed,
            charged: is_last.then_some(outcome),
        });
    }
    None
}

/// Charges what was asked, the last first; the longest wait counts, and of equal ones the later rule's.
fn charge(rules: &[Requests], asked: &mut [Asked], now: Millis) -> Decision {
    let mut longest: Option<(usize, Outcome)> = None;
    for at in (0..asked.len()).rev() {
        let Asked {
            rule,
            keyed,
            charged,
        } = &mut asked[at];
        let outcome = match *charged {
            Some(outcome) => outcome,
            None => match rules[*rule].charge(keyed, now) {
                refusal @ Outcome::Refuse { .. } => {
                    let refusal = Decision::from(*rule, keyed, refusal);
                    for later in &asked[at + 1..] {
                        later.refund(rules);
                    }
                    return refusal;
                }
                outcome => outcome,
            },
        };
        *charged = Some(outcome);
        if longest.is_none_or(|(_, longest)| outcome.wait() > longest.wait()) {
            longest = Some((*rule, outcome));
        }
    }
    match longest {
        Some((rule, outcome)) => Decision::Accept { rule, outcome },
        None => Decision::NotLimited,
    }
}

impl Requests {
    fn charge(&self, keyed: &Keyed, now: Millis) -> Outcome {
        let terms = keyed.terms(&self.terms);
        self.zone.store.charge(&keyed.key, now, terms)
    }

    fn ask(&self, keyed: &mut Keyed, now: Millis) -> Outcome {
        let terms = keyed.own.as_ref().unwrap_or(&self.terms);
        self.zone.store.ask(&mut keyed.key, now, terms)
    }

    fn no_key(&self, rule: usize) -> Decision {
        let store = &self.zone.store;
        store.count_refusal(&store.key(b""));
        Decision::NoKey { rule }
    }
}

impl Asked {
    fn refund(&self, rules: &[Requests]) {
        if let Some(outcome) = &self.charged {
            let rule = &rules[self.rule];
            let rate = self.keyed.terms(&rule.terms).rate;
            rule.zone.store.refund(&self.keyed.key, outcome, rate);
        }
    }
}

impl Decision {
    /// Makes a refusal tell when a retry would pass the `later` rules too, which nobody has asked yet.
    fn until_all_pass(mut self, later: &[Requests], exchange: &Exchange, now: Millis) -> Self {
        if let Self::Refuse { retry_after, .. } = &mut self {
            for rule in later {
                let Found::Key(mut keyed) = rule.zone.find(exchange, &rule.terms) else {
                    continue;
                };
                if let Outcome::Refuse {
                    retry_after: own, ..
                } = rule.ask(&mut keyed, now)
                {
                    *retry_after = own.max(*retry_after);
                }
            }
        }
        self
    }

    fn from(rule: usize, keyed: &Keyed, outcome: Outcome) -> Self {
        match outcome {
            Outcome::Refuse {
                excess,
                retry_after,
            } => Self::Refuse {
                rule,
                keyed: *keyed,
                excess,
                retry_after,
            },
            Outcome::Delay { .. } | Outcome::Pass { .. } => Self::Accept { rule, outcome },
        }
    }
}

thread_local! {
    // Kept by the thread, so that a request with several limits allocates nothing either.
    static ASKED: RefCell<Vec<Asked>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::tests::support::{exchange, limits, plan, req_rule, req_zone};

    /// Between asking and charging, another thread takes the last request of the first zone.
    #[test]
    fn a_race_for_the_last_request_is_lost_without_charging_anyone() {
        let plan = plan(vec![req_zone("a", 1_000), req_zone("b", 1_000)], vec![]);
        let limits = limits(&plan, &[req_rule(0, 0), req_rule(1, 5)], &[]);
        let exchange = exchange(&[]);
        let now = Millis(50_000);
        let mut asked = Vec::new();
        assert!(ask(&limits.requests, &exchange, now, &mut asked).is_none());

        let first = &limits.requests[0];
        first
            .zone
            .store
            .charge(&asked[0].keyed.key, now, &first.terms);

        let decision = charge(&limits.requests, &mut asked, now);
        assert!(matches!(decision, Decision::Refuse { rule: 0, .. }));
        let second = &limits.requests[1].zone.store;
        assert_eq!(second.counts().pass, 0);
        let next = second.ask(&mut asked[1].keyed.key, now, &limits.requests[1].terms);
        assert_eq!(next.excess(), Excess(0), "as if it had never been charged");
    }
}
