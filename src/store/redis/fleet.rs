//! Who shares a store: every gateway says so every second, and hears of the others.

use std::process;

use redis::{RedisError, Value};

use super::Held;
use super::link::Link;
use super::script::FLEET;

/// A gateway that shares a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gateway {
    /// Its name: its machine's, its process and a number that no other has.
    pub name: String,
    /// How long ago it was last heard of, in milliseconds.
    pub seen_ago: u64,
    /// What it had in hand then.
    pub held: Vec<Held>,
}

/// Who is there.
#[derive(Debug, Clone, Default)]
pub(super) struct Fleet {
    /// How many were heard of lately; at least one, this.
    pub(super) size: u32,
    pub(super) gateways: Vec<Gateway>,
}

/// A name for this process that no other has.
pub(super) fn name() -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let machine = match machine.trim() {
        "" => "weir",
        machine => machine,
    };
    format!("{machine}:{}:{:08x}", process::id(), fastrand::u32(..))
}

/// Says that the gateway of this name is there and what it has in hand, and hears who else is.
pub(super) async fn hello(link: &mut Link, name: &str, held: &str) -> Result<Fleet, RedisError> {
    let answer = ask(link, name, "", held).await?;
    read(&answer).ok_or_else(|| {
        (
            redis::ErrorKind::UnexpectedReturnType,
            "not an answer of ours",
        )
            .into()
    })
}

/// Says that it is gone.
pub(super) async fn goodbye(link: &mut Link, name: &str) -> Result<(), RedisError> {
    ask(link, "", name, "").await.map(drop)
}

async fn ask(link: &mut Link, here: &str, gone: &str, held: &str) -> Result<Value, RedisError> {
    // Taught anew every time: who asks once a second need not save bytes.
    let mut command = FLEET.teach();
    command
        .arg(2)
        .arg(KEY)
        .arg(HELD)
        .arg(here)
        .arg(THERE)
        .arg(REMEMBERED)
        .arg(gone)
        .arg(held);
    link.send(&command).await
}

fn read(answer: &Value) -> Option<Fleet> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let (Value::Int(size), gateways) = parts.split_first()? else {
        return None;
    };
    let gateways = gateways.chunks(3).map(|part| match part {
        [
            Value::BulkString(name),
            Value::Int(ago),
            Value::BulkString(held),
        ] => Some(Gateway {
            name: String::from_utf8_lossy(name).into_owned(),
            seen_ago: u64::try_from(*ago).ok()?,
            held: Held::read(&String::from_utf8_lossy(held)),
        }),
        _ => None,
    });
    Some(Fleet {
        size: u32::try_from(*size).ok()?.max(1),
        gateways: gateways.collect::<Option<_>>()?,
    })
}

/// Where gateways are listed.
const KEY: &str = "weir:{fleet}";

/// Where it is said what they have in hand.
const HELD: &str = "weir:{fleet}:held";

/// For how long after its last word a gateway counts as there, in milliseconds.
const THERE: u32 = 3_500;

/// And is still shown, in milliseconds.
const REMEMBERED: u32 = 60_000;
