//! The questions of a request as one script, and what it answers.
//!
//! Lua's numbers are exact up to 2^53, where [`Excess`] counts 86 400 000 000 units in a request. So each question is
//! put in the largest unit in which all its numbers are whole: with a rate of 10r/s a thousandth of a request. A bucket
//! of more than 2^53 of them (104 000 requests at a rate of `1.001r/d`, nine thousand million at any rate a second) is
//! exact to sixteen digits.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Script, Value};

use crate::config::plan::{Cost, CountRefused, Delay, Excess};
use crate::store::algorithm::leaky_bucket::LeakyBucket;
use crate::store::algorithm::{Outcome, Terms};

/// A script, and the name a server knows it by once it has heard it.
#[derive(Debug)]
pub(super) struct Program {
    text: String,
    hash: String,
}

/// Decides about requests.
pub(super) static DECIDE: LazyLock<Program> = LazyLock::new(|| Program::of(CLOCK, &DECIDING));

/// Says that a gateway is there.
pub(super) static FLEET: LazyLock<Program> =
    LazyLock::new(|| Program::of(CLOCK, &[include_str!("fleet.lua")]));

impl Program {
    pub(super) fn of(clock: &str, parts: &[&str]) -> Self {
        let text = clock.to_owned() + &parts.concat();
        let hash = Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }

    /// Runs it, given that the server knows it.
    pub(super) fn run(&self) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.hash);
        command
    }

    /// Runs it on a server that may not know it, and will from then on.
    pub(super) fn teach(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.text);
        command
    }
}

/// What a store said of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// What becomes of the request.
    pub outcome: Outcome,
    /// How many more would be let in at this moment.
    pub remaining: u64,
}

/// What is asked about one key.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) name: Vec<u8>,
    way: &'static str,
    refused: CountRefused,
    cost: u64,
    numbers: [i64; 4],
    /// So many of [`Excess`] make one of the question's.
    unit: u64,
}

impl Question {
    /// Puts it in the units of its script.
    pub(super) fn new(name: Vec<u8>, terms: &Terms, cost: Cost, refused: CountRefused) -> Self {
        match terms {
            Terms::LeakyBucket(terms) => {
                let unit = unit(terms.rate.units_per_milli());
                Self {
                    name,
                    way: "leaky_bucket",
                    refused,
                    cost: scaled(cost.0, unit),
                    numbers: leaky_bucket(terms, unit),
                    unit,
                }
            }
        }
    }

    /// Adds it to a command, behind its key.
    pub(super) fn write(&self, command: &mut Cmd) {
        command.arg(self.way).arg(match self.refused {
            CountRefused::No => "0",
            CountRefused::Yes => "1",
        });
        command.arg(self.cost);
        for number in self.numbers {
            command.arg(number);
        }
    }

    /// What was answered; `None` for what no script of ours says.
    fn answer(&self, answer: &[Value]) -> Option<Answer> {
        let [
            Value::Int(kind),
            Value::Int(excess),
            Value::Int(millis),
            Value::Int(left),
        ] = answer
        else {
            return None;
        };
        let excess = Excess(u64::try_from(*excess).ok()?.saturating_mul(self.unit));
        let wait = u64::try_from(*millis).ok().map(Duration::from_millis);
        let outcome = match (kind, wait) {
            (0, _) => Outcome::Pass { excess },
            (1, Some(wait)) => Outcome::Delay { excess, wait },
            (2, retry_after) => Outcome::Refuse {
                excess,
                retry_after,
            },
            _ => return None,
        };
        Some(Answer {
            outcome,
            remaining: u64::try_from(*left).ok()?,
        })
    }
}

/// What was answered to each question; `None` for what no script of ours says.
pub(super) fn answers<'q>(
    questions: impl ExactSizeIterator<Item = &'q Question>,
    answer: &Value,
) -> Option<Vec<Answer>> {
    let Value::Array(answers) = answer else {
        return None;
    };
    if answers.len() != 4 * questions.len() {
        return None;
    }
    questions
        .zip(answers.chunks(4))
        .map(|(question, answer)| question.answer(answer))
        .collect()
}

/// Units in a request, what leaks in a millisecond, the burst, and from which excess on requests wait.
fn leaky_bucket(terms: &LeakyBucket, unit: u64) -> [i64; 4] {
    [
        number(Excess::ONE.0, unit),
        number(terms.rate.units_per_milli().max(1), unit),
        number(terms.burst.0, unit),
        match terms.delay {
            Delay::After(threshold) => number(threshold.0, unit),
            Delay::Never => -1,
        },
    ]
}

/// The largest unit in which a rate and every cost are whole: costs are given to the thousandth.
fn unit(units_per_milli: u64) -> u64 {
    let (mut a, mut b) = (Excess::ONE.0 / 1000, units_per_milli.max(1));
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn scaled(amount: u64, unit: u64) -> u64 {
    amount.div_ceil(unit).min(LARGEST)
}

fn number(amount: u64, unit: u64) -> i64 {
    i64::try_from(scaled(amount, unit)).unwrap_or(i64::MAX)
}

/// No number is larger where Lua counts exactly.
const LARGEST: u64 = 1 << 53;

const CLOCK: &str = include_str!("clock.lua");

pub(super) const DECIDING: [&str; 4] = [
    include_str!("begin.lua"),
    include_str!("level.lua"),
    include_str!("leaky_bucket.lua"),
    include_str!("decide.lua"),
];
