//! Who shares a store: every gateway says so every second, and hears of the others.
//!
//! What one request counts for, where a gateway cannot count with all the others.
//!
//! A gateway that counts alone takes each request for as many as there are gateways, as if each of the others had let
//! one pass, too. So it has its part of the rate, of a limit, and of what a key had left when it was last seen, and
//! what it knows of a key stays a picture of what all of them have let pass.

use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{RedisError, Value};

use super::connection::RedisConnection;
use super::lease::LeaseHoldings;
use super::script::{FLEET, FORGET};
use crate::algorithm::{Cost, Excess, LimitSpec};
use crate::clock::Millis;

/// A gateway that shares a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetMember {
    /// Its name: its machine's, its process and a number that no other has.
    pub name: String,
    /// How long ago it was last heard of, in milliseconds.
    pub seen_ago: u64,
    /// What it had in hand then.
    pub held: Vec<LeaseHoldings>,
}

/// Who shares a store, as this gateway last heard it.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    /// How many there are at least, as the configuration says.
    declared: u32,
    gateways: Mutex<Vec<FleetMember>>,
    /// How many were heard of within a minute, in the upper half, and how many just now; nothing before the first word.
    counts: AtomicU64,
    /// When it last heard it, and when the store turned out to have lost its memory; a millisecond later, nothing for never.
    heard: AtomicU64,
    lost: AtomicU64,
    /// What was forgotten in the last minute, as it was last heard.
    forgotten: Mutex<Vec<ResetKey>>,
}

/// What was heard.
#[derive(Debug)]
pub(super) struct FleetChange {
    /// Whether the store has lost its memory.
    pub(super) lost: bool,
    /// What was forgotten since the last time.
    pub(super) forgotten: Vec<ResetKey>,
}

/// What a store says of it.
#[derive(Debug)]
pub(super) struct FleetMembers {
    /// How many were heard of lately; at least one, this.
    present: u32,
    /// Whether this gateway was not in the list.
    new: bool,
    forgotten: Vec<ResetKey>,
    gateways: Vec<FleetMember>,
}

/// A key that an operator had forgotten: its zone and its bytes, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResetKey {
    pub(super) zone: String,
    pub(super) key: Vec<u8>,
    at: Vec<u8>,
}

impl Fleet {
    /// One of at least so many gateways, of which nothing was heard yet.
    pub(super) fn of(declared: Option<u32>) -> Self {
        Self {
            declared: declared.unwrap_or(1),
            ..Self::default()
        }
    }

    /// Takes over what a store said `now`.
    pub(super) fn hear(&self, roll: FleetMembers, now: Millis) -> FleetChange {
        let before = self.heard.swap(now.0 + 1, Ordering::Relaxed);
        // Who was not heard of for long is forgotten.
        let lost = roll.new && before > 0 && now.0 + 1 - before < u64::from(REMEMBERED) / 2;
        if lost {
            self.lost.store(now.0 + 1, Ordering::Relaxed);
        }
        let all = u32::try_from(roll.gateways.len()).unwrap_or(u32::MAX);
        let (mut all, mut present) = (all.max(roll.present), roll.present);
        if self.has_lost(now, ROLL_CALL) {
            // The others have not said yet that they are there.
            (all, present) = (all.max(self.size()), present.max(self.present()));
        }
        let counts = u64::from(all) << 32 | u64::from(present);
        self.counts.store(counts, Ordering::Relaxed);
        *self.gateways.lock() = roll.gateways;
        let before = std::mem::replace(&mut *self.forgotten.lock(), roll.forgotten.clone());
        let forgotten = roll.forgotten.into_iter();
        FleetChange {
            lost,
            forgotten: forgotten.filter(|one| !before.contains(one)).collect(),
        }
    }

    /// How many may let requests pass: all that were heard of within a minute and have not said goodbye, and no fewer than there
    /// are said to be.
    pub(super) fn size(&self) -> u32 {
        let heard = u32::try_from(self.counts.load(Ordering::Relaxed) >> 32).unwrap_or(1);
        heard.max(self.declared).max(1)
    }

    /// How many may let requests pass, and how many of them share the store just now: all, before the first word.
    pub(super) fn parts(&self) -> (u32, u32) {
        let all = self.size();
        match self.is_known() {
            true => (all, self.present()),
            false => (all, all),
        }
    }

    /// How many were heard of just now.
    pub(super) fn present(&self) -> u32 {
        let present = self.counts.load(Ordering::Relaxed) & u64::from(u32::MAX);
        u32::try_from(present).map_or(1, |present| present.max(1))
    }

    /// Whether anything was heard yet.
    pub(super) fn is_known(&self) -> bool {
        self.counts.load(Ordering::Relaxed) > 0
    }

    /// Whether the store has lost its memory within a time.
    pub(super) fn has_lost(&self, now: Millis, within: Duration) -> bool {
        let lost = self.lost.load(Ordering::Relaxed);
        lost > 0 && now.since(Millis(lost - 1)) < within
    }

    /// All that were heard of within a minute.
    pub(super) fn gateways(&self) -> Vec<FleetMember> {
        self.gateways.lock().clone()
    }
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

/// Where gateways are listed, and where it is said what they have in hand.
#[derive(Debug)]
pub(super) struct FleetKeys {
    names: String,
    held: String,
    forgotten: String,
}

impl FleetKeys {
    /// Those of stores with this prefix.
    pub(super) fn of(prefix: &str) -> Self {
        Self {
            names: format!("{prefix}:{{fleet}}"),
            held: format!("{prefix}:{{fleet}}:held"),
            forgotten: format!("{prefix}:{{fleet}}:forgotten"),
        }
    }

    /// Says that the gateway of this name is there and what it has in hand, and hears who else is.
    pub(super) async fn hello(
        &self,
        link: &mut RedisConnection,
        name: &str,
        held: &str,
    ) -> Result<FleetMembers, RedisError> {
        let answer = self.ask(link, name, "", held).await?;
        read(&answer).ok_or_else(|| {
            (
                redis::ErrorKind::UnexpectedReturnType,
                "not an answer of ours",
            )
                .into()
        })
    }

    /// Lets all gateways know that a key of a zone begins anew.
    pub(super) async fn forget(
        &self,
        link: &mut RedisConnection,
        zone: &str,
        key: &[u8],
    ) -> Result<(), RedisError> {
        let key = [zone.as_bytes(), b"\n", key].concat();
        let write = |command: &mut redis::Cmd| {
            command.arg(1).arg(&self.forgotten);
            command.arg(&key).arg(REMEMBERED);
        };
        FORGET.perform(link, write).await.map(drop)
    }

    /// Says that it is gone.
    pub(super) async fn goodbye(
        &self,
        link: &mut RedisConnection,
        name: &str,
    ) -> Result<(), RedisError> {
        self.ask(link, "", name, "").await.map(drop)
    }

    async fn ask(
        &self,
        link: &mut RedisConnection,
        here: &str,
        gone: &str,
        held: &str,
    ) -> Result<Value, RedisError> {
        // Taught anew every time: who asks once a second need not save bytes.
        let mut command = FLEET.teach();
        command
            .arg(3)
            .arg(&self.names)
            .arg(&self.held)
            .arg(&self.forgotten)
            .arg(here)
            .arg(THERE)
            .arg(REMEMBERED)
            .arg(gone)
            .arg(held);
        link.send(&command).await
    }
}

fn read(answer: &Value) -> Option<FleetMembers> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let [
        Value::Int(present),
        Value::Int(new),
        Value::Array(forgotten),
        gateways @ ..,
    ] = parts.as_slice()
    else {
        return None;
    };
    let forgotten = forgotten.chunks(2).filter_map(|part| match part {
        [Value::BulkString(key), Value::BulkString(at)] => {
            let end = key.iter().position(|byte| *byte == b'\n')?;
            let (zone, key) = key.split_at(end);
            Some(ResetKey {
                zone: String::from_utf8_lossy(zone).into_owned(),
                key: key.get(1..)?.to_vec(),
                at: at.clone(),
            })
        }
        _ => None,
    });
    let gateways = gateways.chunks(3).map(|part| match part {
        [
            Value::BulkString(name),
            Value::Int(ago),
            Value::BulkString(held),
        ] => Some(FleetMember {
            name: String::from_utf8_lossy(name).into_owned(),
            seen_ago: u64::try_from(*ago).ok()?,
            held: LeaseHoldings::read(&String::from_utf8_lossy(held)),
        }),
        _ => None,
    });
    Some(FleetMembers {
        present: u32::try_from(*present).ok()?.max(1),
        new: *new == 1,
        forgotten: forgotten.collect(),
        gateways: gateways.collect::<Option<_>>()?,
    })
}

/// For how long after its last word a gateway counts as there, in milliseconds.
const THERE: u32 = 3_500;

/// And is still shown, and has its part left to it unless it said goodbye, in milliseconds.
const REMEMBERED: u32 = 60_000;

/// How long it may take until all gateways are listed again where the list was lost.
const ROLL_CALL: Duration = Duration::from_secs(5);

/// What a request costs that counts for `parts` of `whole`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostShare {
    /// What has to be left for it to pass.
    pub needs: Cost,
    /// What is charged beyond that once it has passed. A limit that is smaller than the fleet has no part for each
    /// gateway: one request passes whenever there is all of it, and is paid for later.
    pub owes: Cost,
}

impl CostShare {
    /// All of it.
    #[must_use]
    pub fn whole(self) -> Cost {
        Cost(self.needs.0.saturating_add(self.owes.0))
    }
}

/// The cost of a request that counts `whole / parts` times.
pub(super) fn of(cost: Cost, spec: &LimitSpec, whole: u32, parts: u32) -> CostShare {
    let (whole, parts) = (u128::from(whole.max(1)), u128::from(parts.max(1)));
    let counted = (u128::from(cost.0) * whole)
        .div_ceil(parts)
        .max(u128::from(cost.0));
    let counted = u64::try_from(counted).unwrap_or(u64::MAX);
    let quota = spec.quota().saturating_mul(Excess::ONE.0);
    let needs = counted.min(quota.max(cost.0));
    CostShare {
        needs: Cost(needs),
        owes: Cost(counted - needs),
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn roll(names: &[(&str, u64)], new: bool) -> FleetMembers {
        let gateways: Vec<_> = names
            .iter()
            .map(|(name, seen_ago)| FleetMember {
                name: (*name).to_owned(),
                seen_ago: *seen_ago,
                held: Vec::new(),
            })
            .collect();
        let present = gateways
            .iter()
            .filter(|one| one.seen_ago <= u64::from(THERE))
            .count();
        FleetMembers {
            present: u32::try_from(present).unwrap(),
            new,
            forgotten: Vec::new(),
            gateways,
        }
    }

    #[test]
    fn whoever_falls_silent_has_its_part_for_a_minute() {
        let fleet = Fleet::default();
        assert!(!fleet.is_known());
        fleet.hear(roll(&[("a", 0), ("b", 9), ("c", 8_000)], true), Millis(0));
        assert_eq!((fleet.size(), fleet.present()), (3, 2));
        assert!(fleet.is_known());
        fleet.hear(roll(&[("a", 0), ("b", 9)], false), Millis(60_000));
        assert_eq!((fleet.size(), fleet.present()), (2, 2));
    }

    #[test]
    fn a_gateway_that_is_said_to_be_there_keeps_its_part_for_good() {
        let fleet = Fleet::of(Some(3));
        assert_eq!(fleet.parts(), (3, 3), "nothing was heard yet");
        fleet.hear(roll(&[("a", 0), ("b", 9)], true), Millis(0));
        assert_eq!(fleet.parts(), (3, 2));
        fleet.hear(roll(&[("a", 0)], false), Millis(600_000));
        assert_eq!(fleet.parts(), (3, 1));
        let more = [("a", 0), ("b", 9), ("c", 9), ("d", 5_000)];
        fleet.hear(roll(&more, false), Millis(601_000));
        assert_eq!(fleet.parts(), (4, 3));
    }

    #[test]
    fn a_store_without_a_memory_does_not_make_a_fleet_of_one() {
        let fleet = Fleet::default();
        let all = [("a", 0), ("b", 0), ("c", 0)];
        assert!(
            !fleet.hear(roll(&all, true), Millis(0)).lost,
            "it just came"
        );
        assert!(!fleet.hear(roll(&all, false), Millis(1_000)).lost);
        assert!(fleet.hear(roll(&all[..1], true), Millis(2_000)).lost);
        assert_eq!((fleet.size(), fleet.present()), (3, 3));
        assert!(fleet.has_lost(Millis(2_500), Duration::from_secs(1)));
        fleet.hear(roll(&all[..2], false), Millis(8_000));
        assert_eq!((fleet.size(), fleet.present()), (2, 2));
    }
}

#[cfg(test)]
mod share_tests {

    use super::*;
    use crate::algorithm::{Delay, LeakyBucket, Rate};

    fn spec(burst: u32) -> LimitSpec {
        LimitSpec::LeakyBucket(LeakyBucket {
            rate: Rate::per_second(1_000),
            burst: Excess::requests(burst),
            delay: Delay::Never,
        })
    }

    fn requests(cost: Cost) -> u64 {
        cost.0 / Excess::ONE.0
    }

    #[test]
    fn alone_a_request_counts_for_every_gateway() {
        let share = of(Cost::ONE, &spec(59), 3, 1);
        assert_eq!((requests(share.needs), requests(share.owes)), (3, 0));
        assert_eq!(requests(of(Cost::ONE, &spec(59), 1, 1).whole()), 1);
    }

    #[test]
    fn a_limit_smaller_than_the_fleet_lets_one_pass_and_has_it_paid_for() {
        let share = of(Cost::ONE, &spec(1), 5, 1);
        assert_eq!((requests(share.needs), requests(share.owes)), (2, 3));
    }

    #[test]
    fn what_costs_more_than_there_is_does_not_pass_for_less() {
        let cost = Cost(9 * Excess::ONE.0);
        assert_eq!(of(cost, &spec(1), 5, 1).needs, cost);
    }

    #[test]
    fn the_part_of_missing_gateways_is_left_to_them() {
        let share = of(Cost::ONE, &spec(59), 3, 2);
        assert_eq!(share.needs, Cost(Excess::ONE.0 * 3 / 2));
    }
}
