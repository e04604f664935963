//! The gateways that share a store: each reports several times a second, and learns which others do.
//!
//! A gateway that cannot reach the store counts each request as many times as there are gateways. So it has its share of the
//! rate, of a limit, and of what a key had left when it was last seen. The others learn within a few reports that it is silent,
//! and leave it that share.

use std::collections::VecDeque;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{RedisError, Value};

use super::connection::RedisConnection;
use super::script::{FLEET, FORGET, UNEXPECTED_REPLY};
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

/// What a gateway has in hand of one zone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseHoldings {
    /// Which zone.
    pub zone: Box<str>,
    /// For how many keys it has something.
    pub keys: u64,
    /// How much that is together.
    pub units: Excess,
    /// Of how many keys so much is wanted that they are decided about here.
    pub crowded: u64,
}

/// Who shares a store, as this gateway last heard it.
#[derive(Debug, Default)]
pub struct Fleet {
    /// How many there are at least, as the configuration says.
    declared: u32,
    /// All that reported within a minute.
    pub(super) gateways: Mutex<Vec<FleetMember>>,
    /// How many are listed, in the upper half, and how many of them are present; zero before the first reply.
    counts: AtomicU64,
    /// The store's time at this gateway's last reports, the oldest first.
    reported: Mutex<VecDeque<u64>>,
    /// When it last heard it, and when the store turned out to have lost its memory; a millisecond later, nothing for never.
    updated: AtomicU64,
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

/// A store's reply to a report.
#[derive(Debug)]
pub(super) struct FleetReply {
    /// The store's time, in milliseconds.
    at: u64,
    /// Whether this gateway was not in the list.
    new: bool,
    /// How many gateways are listed, and how many of them are present; at least one, this.
    listed: u32,
    present: u32,
    /// The keys that were reset lately, and all gateways; where they were asked for.
    list: Option<(Vec<ResetKey>, Vec<FleetMember>)>,
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

    /// Since when another gateway must have reported to count as present, in the store's time; 0 while too few reports of
    /// this gateway tell.
    // Counted in this gateway's own reports: when the store stalls for all, none of them is silent.
    fn present_since(&self) -> u64 {
        let reported = self.reported.lock();
        match reported.len() {
            MISSED_REPORTS => reported.front().copied().unwrap_or_default(),
            _ => 0,
        }
    }

    /// Takes over what a store replied `now`.
    pub(super) fn update(&self, reply: FleetReply, now: Millis) -> FleetChange {
        let before = self.updated.swap(now.0 + 1, Ordering::Relaxed);
        // A gateway that has not reported for long is not remembered.
        let lost = reply.new && before > 0 && now.0 + 1 - before < u64::from(REMEMBERED) / 2;
        if lost {
            self.lost.store(now.0 + 1, Ordering::Relaxed);
        }
        let mut reported = self.reported.lock();
        if lost {
            reported.clear();
        }
        let mut present = reply.present;
        if reported.len() < MISSED_REPORTS {
            present = present.max(self.present());
        } else {
            reported.pop_front();
        }
        reported.push_back(reply.at);
        drop(reported);
        let mut listed = reply.listed.max(reply.present);
        if self.has_lost(now, ROLL_CALL) {
            // The others may not have reported to the emptied store yet.
            listed = listed.max(self.size());
        }
        let counts = u64::from(listed) << 32 | u64::from(present.min(listed));
        self.counts.store(counts, Ordering::Relaxed);
        let mut change = FleetChange {
            lost,
            forgotten: Vec::new(),
        };
        if let Some((mut forgotten, gateways)) = reply.list {
            *self.gateways.lock() = gateways;
            let before = std::mem::replace(&mut *self.forgotten.lock(), forgotten.clone());
            forgotten.retain(|key| !before.contains(key));
            change.forgotten = forgotten;
        }
        change
    }

    /// How many may let requests pass: all that were heard of within a minute and have not said goodbye, and no fewer than there
    /// are said to be.
    #[must_use]
    pub fn size(&self) -> u32 {
        let updated = u32::try_from(self.counts.load(Ordering::Relaxed) >> 32).unwrap_or(1);
        updated.max(self.declared).max(1)
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
    #[must_use]
    pub fn present(&self) -> u32 {
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
}

impl LeaseHoldings {
    /// As gateways tell each other.
    pub(super) fn write(all: &[Self]) -> String {
        all.iter()
            .filter(|held| held.keys + held.crowded > 0)
            .map(|held| {
                let (zone, milli) = (held.zone.replace('\n', " "), held.units.milli());
                format!("{} {milli} {} {zone}\n", held.keys, held.crowded)
            })
            .collect()
    }

    /// As they hear it; what makes no sense is left out.
    pub(super) fn read(text: &str) -> Vec<Self> {
        let line = |line: &str| {
            let mut words = line.splitn(4, ' ');
            let mut number = || words.next()?.parse().ok();
            Some(Self {
                keys: number()?,
                units: Excess(Cost::milli(number()?).0),
                crowded: number()?,
                zone: words.next()?.into(),
            })
        };
        text.lines().filter_map(line).collect()
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
    pub(super) names: String,
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

    /// Reports that the gateway of this name is there; with what it holds in leases, the list of all gateways is asked for.
    pub(super) async fn report(
        &self,
        connection: &mut RedisConnection,
        name: &str,
        fleet: &Fleet,
        held: Option<&str>,
    ) -> Result<FleetReply, RedisError> {
        let since = fleet.present_since();
        let reply = self.ask(connection, [name, ""], since, held).await?;
        Ok(read(&reply).ok_or(UNEXPECTED_REPLY)?)
    }

    /// Lets all gateways know that a key of a zone begins anew.
    pub(super) async fn forget(
        &self,
        connection: &mut RedisConnection,
        zone: &str,
        key: &[u8],
    ) -> Result<(), RedisError> {
        let key = [zone.as_bytes(), b"\n", key].concat();
        let write = |command: &mut redis::Cmd| {
            command.arg(1).arg(&self.forgotten);
            command.arg(&key).arg(REMEMBERED);
        };
        FORGET.perform(connection, write).await.map(drop)
    }

    /// Says that it is gone.
    pub(super) async fn sign_off(
        &self,
        connection: &mut RedisConnection,
        name: &str,
    ) -> Result<(), RedisError> {
        self.ask(connection, ["", name], 0, Some(""))
            .await
            .map(drop)
    }

    async fn ask(
        &self,
        connection: &mut RedisConnection,
        [here, gone]: [&str; 2],
        since: u64,
        held: Option<&str>,
    ) -> Result<Value, RedisError> {
        let write = |command: &mut redis::Cmd| {
            command.arg(3);
            command.arg(&self.names).arg(&self.held);
            command.arg(&self.forgotten);
            command.arg(here).arg(gone).arg(REMEMBERED).arg(since);
            command.arg(held);
        };
        FLEET.perform(connection, write).await
    }
}

fn read(reply: &Value) -> Option<FleetReply> {
    let Value::Array(parts) = reply else {
        return None;
    };
    let [
        Value::Int(at),
        Value::Int(new),
        Value::Int(listed),
        Value::Int(present),
        list @ ..,
    ] = parts.as_slice()
    else {
        return None;
    };
    Some(FleetReply {
        at: u64::try_from(*at).ok()?,
        new: *new == 1,
        listed: u32::try_from(*listed).ok()?,
        present: u32::try_from(*present).ok()?.max(1),
        list: match list {
            [] => None,
            list => Some(read_list(list)?),
        },
    })
}

fn read_list(list: &[Value]) -> Option<(Vec<ResetKey>, Vec<FleetMember>)> {
    let [Value::Array(forgotten), gateways @ ..] = list else {
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
    Some((forgotten.collect(), gateways.collect::<Option<_>>()?))
}

/// A gateway is silent that has not reported while another one has so many times.
const MISSED_REPORTS: usize = 3;

/// For how long after its last report a gateway is listed, and has its share left to it unless it signed off, in milliseconds.
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
pub(super) fn share(cost: Cost, spec: &LimitSpec, whole: u32, parts: u32) -> CostShare {
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

    /// The reply to a report that finds these gateways listed, so many of them present.
    fn reply(listed: u32, present: u32, new: bool) -> FleetReply {
        FleetReply {
            at: 1,
            new,
            listed,
            present,
            list: None,
        }
    }

    fn update_often(fleet: &Fleet, listed: u32, present: u32, now: Millis) {
        for _ in 0..=MISSED_REPORTS {
            fleet.update(reply(listed, present, false), now);
        }
    }

    #[test]
    fn a_silent_gateway_is_missing_after_a_few_reports_and_keeps_its_share() {
        let fleet = Fleet::default();
        assert!(!fleet.is_known());
        fleet.update(reply(3, 3, true), Millis(0));
        assert!(fleet.is_known());
        for _ in 1..MISSED_REPORTS {
            assert_eq!(fleet.present_since(), 0);
            fleet.update(reply(3, 2, false), Millis(0));
            assert_eq!(fleet.parts(), (3, 3), "it may be slow");
        }
        assert_eq!(fleet.present_since(), 1);
        fleet.update(reply(3, 2, false), Millis(0));
        assert_eq!(fleet.parts(), (3, 2));
        fleet.update(reply(2, 2, false), Millis(60_000));
        assert_eq!(fleet.parts(), (2, 2));
    }

    #[test]
    fn a_gateway_is_present_as_soon_as_it_reports() {
        let fleet = Fleet::default();
        fleet.update(reply(1, 1, true), Millis(0));
        fleet.update(reply(3, 3, false), Millis(0));
        assert_eq!(fleet.parts(), (3, 3));
    }

    #[test]
    fn a_declared_gateway_keeps_its_share_for_good() {
        let fleet = Fleet::of(Some(3));
        assert_eq!(fleet.parts(), (3, 3), "nothing was heard yet");
        fleet.update(reply(2, 2, true), Millis(0));
        assert_eq!(fleet.parts(), (3, 2));
        update_often(&fleet, 1, 1, Millis(600_000));
        assert_eq!(fleet.parts(), (3, 1));
        update_often(&fleet, 4, 3, Millis(601_000));
        assert_eq!(fleet.parts(), (4, 3));
    }

    #[test]
    fn an_emptied_store_does_not_make_a_fleet_of_one() {
        let fleet = Fleet::default();
        assert!(
            !fleet.update(reply(3, 3, true), Millis(0)).lost,
            "it is new"
        );
        update_often(&fleet, 3, 3, Millis(1_000));
        assert!(fleet.update(reply(1, 1, true), Millis(2_000)).lost);
        assert_eq!(fleet.parts(), (3, 3));
        assert!(fleet.has_lost(Millis(2_500), Duration::from_secs(1)));
        update_often(&fleet, 2, 2, Millis(8_000));
        assert_eq!(fleet.parts(), (2, 2));
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
        let counted = share(Cost::ONE, &spec(59), 3, 1);
        assert_eq!((requests(counted.needs), requests(counted.owes)), (3, 0));
        assert_eq!(requests(share(Cost::ONE, &spec(59), 1, 1).whole()), 1);
    }

    #[test]
    fn a_limit_smaller_than_the_fleet_lets_one_pass_and_has_it_paid_for() {
        let counted = share(Cost::ONE, &spec(1), 5, 1);
        assert_eq!((requests(counted.needs), requests(counted.owes)), (2, 3));
    }

    #[test]
    fn what_costs_more_than_there_is_does_not_pass_for_less() {
        let cost = Cost(9 * Excess::ONE.0);
        assert_eq!(share(cost, &spec(1), 5, 1).needs, cost);
    }

    #[test]
    fn the_part_of_missing_gateways_is_left_to_them() {
        let counted = share(Cost::ONE, &spec(59), 3, 2);
        assert_eq!(counted.needs, Cost(Excess::ONE.0 * 3 / 2));
    }
}
