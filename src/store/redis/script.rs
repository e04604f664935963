//! The questions of a request as one script, and what it answers.
//!
//! What a key is called in Redis.
//!
//! Keys are written by those who are to be limited. So whatever is not a plain letter is written as its number: no
//! text can close the braces that tell a cluster where a key lives, and a person sees in `redis-cli` what is there.
//! A long one is cut down to a hash that nobody can find two texts for.
//!
//! The numbers of a rule as its script is told them.
//!
//! Lua's numbers are exact up to 2^53, where [`Excess`] counts 86 400 000 000 units in a request. So each question is
//! put in the largest unit in which all its numbers are whole: with a rate of 10r/s a thousandth of a request. A bucket
//! of more than 2^53 of them (104 000 requests at a rate of `1.001r/d`, nine thousand million at any rate a second) is
//! exact to sixteen digits.

use std::sync::LazyLock;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use redis::{Cmd, RedisError, Script, Value};

use super::connection::RedisConnection;
use crate::algorithm::{Cost, Delay, Excess, LimitSpec, SmoothNanos, Verdict};
use crate::config::plan::CountRefused;
use crate::text::push_hex;

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

/// Adds what the key of a zone is called in a store with this prefix.
pub(super) fn append(name: &mut Vec<u8>, prefix: &str, zone: &str, key: &[u8]) {
    name.extend_from_slice(prefix.as_bytes());
    name.extend_from_slice(b":{");
    for (index, part) in zone.split(':').enumerate() {
        // Only the first colon stands between zone and key.
        if index > 0 {
            name.extend_from_slice(b"%3a");
        }
        escape(name, part.as_bytes());
    }
    name.push(b':');
    let start = name.len();
    if key.len() <= MAX_KEY {
        escape(name, key);
    }
    if key.len() > MAX_KEY || name.len() - start > MAX_KEY {
        name.truncate(start);
        name.push(b'#');
        push_hex(&digest(&SHA256, key).as_ref()[..HASH], name);
    }
    name.push(b'}');
}

fn escape(name: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' | b'/' | b'@' | b':' => {
                name.push(*byte);
            }
            other => {
                name.push(b'%');
                push_hex(&[*other], name);
            }
        }
    }
}

/// The most bytes of a key as it is written; a longer one is hashed. Room for an IPv6 address in binary.
const MAX_KEY: usize = 64;

/// Bytes of the hash: 128 bits.
const HASH: usize = 16;

/// What a script is told of one rule.
#[derive(Debug, Clone)]
pub(super) struct ScriptArgs {
    pub(super) way: &'static str,
    pub(super) cost: u64,
    pub(super) numbers: [i64; 4],
    pub(super) scale: ExcessScale,
}

/// What an excess is counted in.
#[derive(Debug, Clone, Copy)]
pub(super) enum ExcessScale {
    /// Units times milliseconds: so large is a unit, and so long a window.
    Area { unit: u64, length: u64 },
    /// The time it takes, one request taking so many nanoseconds.
    Nanos(u64),
    /// Units of this size.
    Units(u64),
    /// Nanoseconds of waiting, where so many units pass in a millisecond.
    Wait(u64),
}

impl ScriptArgs {
    pub(super) fn of(terms: &LimitSpec, cost: Cost) -> Self {
        match terms {
            LimitSpec::Blocks(terms) => {
                let blocks = terms.count() as u64;
                Self::windowed("blocks", cost, terms.limit, terms.precision, blocks).0
            }
            LimitSpec::Bursty(terms) => Self::reserved("bursty", terms.in_nanos(cost)),
            LimitSpec::FixedWindow(terms) => {
                Self::windowed("fixed_window", cost, terms.limit, terms.window, 0).0
            }
            LimitSpec::Gcra(terms) => {
                let (interval, tolerance, takes) = terms.in_nanos(cost);
                Self {
                    way: "gcra",
                    cost: takes.min(LARGEST),
                    numbers: [number(interval, 1), number(tolerance, 1), 0, 0],
                    scale: ExcessScale::Nanos(interval),
                }
            }
            LimitSpec::LeakyBucket(terms) => {
                let threshold = match terms.delay {
                    Delay::After(threshold) => Some(threshold.0),
                    Delay::Never => None,
                };
                let rate = terms.rate.units_per_milli();
                Self::levelled("leaky_bucket", cost, rate, terms.burst.0, threshold)
            }
            LimitSpec::Paced(terms) => {
                let rate = terms.rate.units_per_milli();
                let longest = u64::try_from(terms.max_wait.as_millis()).unwrap_or(u64::MAX);
                Self::levelled("paced", cost, rate, longest.saturating_mul(rate), None)
            }
            LimitSpec::SlidingLog(terms) => {
                let most = (terms.limit.0 / Excess::ONE.0).max(1);
                Self::windowed("sliding_log", cost, terms.limit, terms.window, most).0
            }
            LimitSpec::SlidingWindow(terms) => {
                let (told, length) =
                    Self::windowed("sliding_window", cost, terms.limit, terms.window, 0);
                let unit = THOUSANDTH;
                let scale = ExcessScale::Area { unit, length };
                Self { scale, ..told }
            }
            LimitSpec::TokenBucket(terms) => {
                let rate = terms.rate.units_per_milli();
                Self::levelled("token_bucket", cost, rate, terms.capacity.0, None)
            }
            LimitSpec::WarmUp(terms) => Self::reserved("warm_up", terms.in_nanos(cost)),
        }
    }
}

impl ScriptArgs {
    /// One that counts in windows, and how long those are.
    fn windowed(
        way: &'static str,
        cost: Cost,
        limit: Excess,
        window: Duration,
        most: u64,
    ) -> (Self, u64) {
        let length = u64::try_from(window.as_millis()).unwrap_or(u64::MAX).max(1);
        let told = Self {
            way,
            cost: scaled(cost.0, THOUSANDTH),
            numbers: [
                number(Excess::ONE.0, THOUSANDTH),
                number(limit.0, THOUSANDTH),
                number(length, 1),
                number(most, 1),
            ],
            scale: ExcessScale::Units(THOUSANDTH),
        };
        (told, length)
    }

    /// One where the next pays for the last.
    fn reserved(way: &'static str, nanos: SmoothNanos) -> Self {
        let number = |nanos: u64| number(nanos.min(MAX_NANOS), 1);
        Self {
            way,
            cost: nanos.cost.min(MAX_NANOS),
            numbers: [
                number(nanos.max_wait),
                number(nanos.most),
                number(nanos.request),
                0,
            ],
            scale: ExcessScale::Wait(nanos.units_per_milli),
        }
    }

    /// One that has a level that falls with time.
    fn levelled(
        way: &'static str,
        cost: Cost,
        per_milli: u64,
        third: u64,
        fourth: Option<u64>,
    ) -> Self {
        let unit = unit(per_milli);
        Self {
            way,
            cost: scaled(cost.0, unit),
            numbers: [
                number(Excess::ONE.0, unit),
                number(per_milli.max(1), unit),
                number(third, unit),
                fourth.map_or(-1, |fourth| number(fourth, unit)),
            ],
            scale: ExcessScale::Units(unit),
        }
    }
}

impl ExcessScale {
    /// What an answer means.
    pub(super) fn excess(self, told: u64) -> Excess {
        let told = u128::from(told);
        let units = match self {
            Self::Area { unit, length } => told * u128::from(unit) / u128::from(length.max(1)),
            Self::Nanos(interval) => (told * u128::from(Excess::ONE.0)
                / u128::from(interval.max(1)))
            .saturating_sub(u128::from(Excess::ONE.0)),
            Self::Units(unit) => told * u128::from(unit),
            Self::Wait(units) => told * u128::from(units) / 1_000_000,
        };
        Excess(u64::try_from(units).unwrap_or(u64::MAX))
    }
}

/// The largest unit in which a rate and every cost are whole.
fn unit(units_per_milli: u64) -> u64 {
    let (mut a, mut b) = (THOUSANDTH, units_per_milli.max(1));
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

/// Costs are given to the thousandth of a request.
const THOUSANDTH: u64 = Excess::ONE.0 / 1000;

/// The longest time in nanoseconds where sums of such are exact, too: thirteen days.
const MAX_NANOS: u64 = 1 << 50;

/// No number is larger where Lua counts exactly.
const LARGEST: u64 = 1 << 53;

#[cfg(test)]
mod tests {

    use super::*;

    fn name(zone: &str, key: &[u8]) -> String {
        let mut name = Vec::new();
        append(&mut name, "weir", zone, key);
        String::from_utf8(name).unwrap()
    }

    #[test]
    fn plain_keys_are_readable() {
        assert_eq!(name("perip", b"10.0.0.1"), "weir:{perip:10.0.0.1}");
        assert_eq!(name("perip", &[127, 0, 0, 1]), "weir:{perip:%7f%00%00%01}");
    }

    #[test]
    fn nobody_can_leave_the_braces_or_be_somebody_else() {
        assert_eq!(name("a", b"}x{"), "weir:{a:%7dx%7b}");
        assert_ne!(name("a", b"%7d"), name("a", b"}"));
        assert_ne!(name("a:b", b"c"), name("a%3ab", b"c"));
        assert_ne!(name("a:b", b"c"), name("a", b"b:c"));
        let hashed = name("a", &[b'x'; 100]);
        assert_ne!(name("a", hashed.as_bytes()), hashed);
        assert!(!name("a", b"#").contains('#'));
    }

    #[test]
    fn long_keys_are_told_apart_and_stay_short() {
        let mut long = vec![b'x'; 70_000];
        let one = name("a", &long);
        *long.last_mut().unwrap() = b'y';
        let other = name("a", &long);
        assert_ne!(one, other);
        assert!(one.len() < 64, "{one}");
    }
}
