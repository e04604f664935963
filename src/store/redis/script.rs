//! The questions of a request as one script, and what it answers.
//!
//! What a key is called in Redis.
//!
//! Keys are written by those who are to be limited. So whatever is not a plain letter is written as its number: no
//! text can close the braces that tell a cluster where a key lives, and a person sees in `redis-cli` what is there.
//! A long one is replaced by a hash for which no client can find two keys.

use std::sync::LazyLock;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use redis::{Cmd, ErrorKind, RedisError, Script, Value};

use super::connection::RedisConnection;
use crate::algorithm::{ALGORITHMS, Cost, Excess, LimitSpec, SCRIPT_HELPERS, ScriptArgs, Verdict};
use crate::store::rate_zone::StoreVerdict;
use crate::text::push_hex;

/// A script, and the name a server knows it by once it has heard it.
#[derive(Debug)]
pub(super) struct LuaScript {
    text: String,
    hash: String,
}

/// Decides about requests.
pub(super) static DECIDE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::with_algorithms(DECIDING));

/// Says that a gateway is there.
pub(super) static FLEET: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::of(CLOCK, &[include_str!("fleet.lua")]));

/// Says that a key begins anew.
pub(super) static FORGET: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::of(CLOCK, &[include_str!("forget.lua")]));

impl LuaScript {
    /// A script that knows all algorithms and ends like this.
    pub(super) fn with_algorithms(end: &str) -> Self {
        Self::of(CLOCK, &[&algorithms(), end])
    }

    pub(super) fn of(clock: &str, parts: &[&str]) -> Self {
        let text = clock.to_owned() + &parts.concat();
        let hash = Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }

    /// Runs it once, on a server that is taught it first if need be; `write` adds keys and arguments.
    pub(super) async fn perform(
        &self,
        connection: &mut RedisConnection,
        write: impl Fn(&mut Cmd),
    ) -> Result<Value, RedisError> {
        let mut command = redis::cmd("EVALSHA");
        write(command.arg(&self.hash));
        match connection.send(&command).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                let mut command = self.teach();
                write(&mut command);
                connection.send(&command).await
            }
            reply => reply,
        }
    }

    /// Runs it on a server that may not know it, and will from then on.
    pub(super) fn teach(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.text);
        command
    }
}

/// What is asked about one key.
#[derive(Debug, Clone)]
pub(super) struct KeyCheck {
    pub(super) name: Vec<u8>,
    refused: bool,
    /// How long a request over the burst may wait until it is not.
    pub(super) patience: Option<Duration>,
    /// How many requests are left at most, as far as this gateway knows.
    pub(super) left: Option<u64>,
    /// Whether the key may be serving a penalty.
    pub(super) punishable: bool,
    args: ScriptArgs,
}

impl KeyCheck {
    /// Puts it in the units of its script.
    pub(super) fn new(name: Vec<u8>, spec: &LimitSpec, cost: Cost, refused: bool) -> Self {
        let args = spec.script_args(cost);
        Self {
            name,
            refused,
            patience: None,
            left: None,
            punishable: false,
            args,
        }
    }

    /// Adds it to a command, behind its key.
    pub(super) fn write(&self, command: &mut Cmd) {
        command.arg(self.args.algorithm).arg(u8::from(self.refused));
        let patience = self.patience.map(|longest| longest.as_millis());
        let patience = patience.and_then(|longest| i64::try_from(longest).ok());
        let left = self.left.and_then(|left| i64::try_from(left).ok());
        command.arg(patience.unwrap_or(-1)).arg(left.unwrap_or(-1));
        command.arg(u8::from(self.punishable)).arg(self.args.cost);
        for number in self.args.numbers {
            command.arg(number);
        }
    }

    /// The verdict on this check; `None` for a reply that the script cannot give.
    fn verdict(&self, reply: &[Value; 4]) -> Option<StoreVerdict> {
        let &[
            Value::Int(kind),
            Value::Int(excess),
            Value::Int(millis),
            Value::Int(left),
        ] = reply
        else {
            return None;
        };
        let excess = self.args.scale.excess(u64::try_from(excess).ok()?);
        let wait = u64::try_from(millis).ok().map(Duration::from_millis);
        Some(StoreVerdict {
            outcome: outcome(kind, excess, wait)?,
            remaining: u64::try_from(left).ok()?,
            penalized: kind == PENALIZE,
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

/// The verdict on each check; `None` for a reply that the script cannot give.
pub(super) fn verdicts<'q>(
    checks: impl ExactSizeIterator<Item = &'q KeyCheck>,
    reply: &Value,
) -> Option<Vec<StoreVerdict>> {
    let Value::Array(numbers) = reply else {
        return None;
    };
    let (replies, []) = numbers.as_chunks::<4>() else {
        return None;
    };
    let replies = (replies.len() == checks.len()).then_some(replies)?;
    let verdicts = checks
        .zip(replies)
        .map(|(check, reply)| check.verdict(reply));
    verdicts.collect()
}

/// The error where a reply is not one that the script can give.
pub(super) const UNEXPECTED_REPLY: (ErrorKind, &str) =
    (ErrorKind::UnexpectedReturnType, "not an answer of ours");

/// What scripts call a request whose key serves a penalty.
const PENALIZE: i64 = 3;

pub(super) const CLOCK: &str = include_str!("clock.lua");

/// What every script that counts begins with: all algorithms.
pub(super) fn algorithms() -> String {
    let scripts = ALGORITHMS.iter().map(|(info, _)| info.script);
    let helpers = [include_str!("begin.lua")]
        .into_iter()
        .chain(SCRIPT_HELPERS);
    helpers.chain(scripts).collect()
}

pub(super) const DECIDING: &str = include_str!("decide.lua");

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
    fn no_key_leaves_the_braces_or_has_the_name_of_another() {
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
