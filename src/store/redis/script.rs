//! The questions of a request as one script, and what it answers.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, RedisError, Script, Value};

use super::link::RedisConnection;
use super::units::ScriptArgs;
use crate::config::plan::{Cost, CountRefused, Excess};
use crate::store::algorithm::{LimitSpec, Verdict};

/// A script, and the name a server knows it by once it has heard it.
#[derive(Debug)]
pub(super) struct LuaScript {
    text: String,
    hash: String,
}

/// Decides about requests.
pub(super) static DECIDE: LazyLock<LuaScript> = LazyLock::new(|| LuaScript::of(CLOCK, &DECIDING));

/// Says that a gateway is there.
pub(super) static FLEET: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::of(CLOCK, &[include_str!("fleet.lua")]));

/// Says that a key begins anew.
pub(super) static FORGET: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::of(CLOCK, &[include_str!("forget.lua")]));

/// A script that knows all ways of counting and ends like this.
pub(super) fn counting(end: &str) -> LuaScript {
    let [ways @ .., _] = DECIDING;
    let parts: Vec<_> = ways.into_iter().chain([end]).collect();
    LuaScript::of(CLOCK, &parts)
}

impl LuaScript {
    pub(super) fn of(clock: &str, parts: &[&str]) -> Self {
        let text = clock.to_owned() + &parts.concat();
        let hash = Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }

    /// Runs it once, on a server that is taught it first if need be; `write` adds keys and arguments.
    pub(super) async fn perform(
        &self,
        link: &mut RedisConnection,
        write: impl Fn(&mut Cmd),
    ) -> Result<Value, RedisError> {
        let mut command = redis::cmd("EVALSHA");
        write(command.arg(&self.hash));
        match link.send(&command).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                let mut command = self.teach();
                write(&mut command);
                link.send(&command).await
            }
            answer => answer,
        }
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
pub struct StoreVerdict {
    /// What becomes of the request.
    pub outcome: Verdict,
    /// How many more would be let in at this moment.
    pub remaining: u64,
    /// Whether it is refused because its key serves a penalty.
    pub penalized: bool,
}

/// What is asked about one key.
#[derive(Debug, Clone)]
pub(super) struct KeyCheck {
    pub(super) name: Vec<u8>,
    refused: CountRefused,
    /// How long a request over the burst may wait until it is not.
    pub(super) patience: Option<Duration>,
    /// How many requests are left at most, as far as this gateway knows.
    pub(super) left: Option<u64>,
    /// Whether the key may be serving a penalty.
    pub(super) punishable: bool,
    told: ScriptArgs,
}

impl KeyCheck {
    /// Puts it in the units of its script.
    pub(super) fn new(name: Vec<u8>, terms: &LimitSpec, cost: Cost, refused: CountRefused) -> Self {
        let told = ScriptArgs::of(terms, cost);
        Self {
            name,
            refused,
            patience: None,
            left: None,
            punishable: false,
            told,
        }
    }

    /// Adds it to a command, behind its key.
    pub(super) fn write(&self, command: &mut Cmd) {
        command.arg(self.told.way).arg(match self.refused {
            CountRefused::No => "0",
            CountRefused::Yes => "1",
        });
        let patience = self.patience.map(|longest| longest.as_millis());
        let patience = patience.and_then(|longest| i64::try_from(longest).ok());
        let left = self.left.and_then(|left| i64::try_from(left).ok());
        command.arg(patience.unwrap_or(-1)).arg(left.unwrap_or(-1));
        command.arg(u8::from(self.punishable)).arg(self.told.cost);
        for number in self.told.numbers {
            command.arg(number);
        }
    }

    /// What was answered; `None` for what no script of ours says.
    fn answer(&self, answer: &[Value]) -> Option<StoreVerdict> {
        let [
            Value::Int(kind),
            Value::Int(excess),
            Value::Int(millis),
            Value::Int(left),
        ] = answer
        else {
            return None;
        };
        let excess = self.told.scale.excess(u64::try_from(*excess).ok()?);
        let wait = u64::try_from(*millis).ok().map(Duration::from_millis);
        Some(StoreVerdict {
            outcome: outcome(*kind, excess, wait)?,
            remaining: u64::try_from(*left).ok()?,
            penalized: *kind == PENALIZE,
        })
    }
}

/// What a script's number for it means.
pub(super) fn outcome(kind: i64, excess: Excess, wait: Option<Duration>) -> Option<Verdict> {
    Some(match (kind, wait) {
        (0, _) => Verdict::Pass { excess },
        (1, Some(wait)) => Verdict::Delay { excess, wait },
        (2 | PENALIZE, retry_after) => Verdict::Refuse {
            excess,
            retry_after,
        },
        _ => return None,
    })
}

/// What was answered to each question; `None` for what no script of ours says.
pub(super) fn answers<'q>(
    questions: impl ExactSizeIterator<Item = &'q KeyCheck>,
    answer: &Value,
) -> Option<Vec<StoreVerdict>> {
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

/// What scripts call a request whose key serves a penalty.
const PENALIZE: i64 = 3;

pub(super) const CLOCK: &str = include_str!("clock.lua");

pub(super) const DECIDING: [&str; 13] = [
    include_str!("begin.lua"),
    include_str!("level.lua"),
    include_str!("moment.lua"),
    include_str!("blocks.lua"),
    include_str!("fixed_window.lua"),
    include_str!("gcra.lua"),
    include_str!("leaky_bucket.lua"),
    include_str!("paced.lua"),
    include_str!("reserve.lua"),
    include_str!("sliding_log.lua"),
    include_str!("sliding_window.lua"),
    include_str!("token_bucket.lua"),
    include_str!("decide.lua"),
];
