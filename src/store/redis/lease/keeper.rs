//! The one task of a process that asks for leases and gives them back.
//!
//! Keys that want something at the same time are one question where all keys are on one server. Nobody waits for it: an
//! answer that does not come leaves a key with what it has, and requests then ask for themselves, which is what finds out
//! that a store is away.

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::LeaseTask;
use super::account::LeaseGrant;
use crate::algorithm::Cost;
use crate::clock::{Clock, Millis};
use crate::store::redis::connection::RedisConnection;
use crate::store::redis::script::LuaScript;
use crate::store::redis::{SharedStore, script};

/// Takes leases and gives them back.
pub(super) static LEASE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::counting(include_str!("lease.lua")));

/// How a store is shared.
#[derive(Debug, Clone)]
struct FleetShare {
    /// The list of gateways, where scripts can read it, and the name of this one in it.
    list: String,
    gateway: String,
    gateways: u32,
    /// For how many requests one counts, while some gateways are missing that may count alone.
    weight: f64,
    /// Whether the store is known to have lost its memory.
    lost: bool,
}

impl SharedStore {
    /// Gets keys what they want, for as long as it is polled.
    pub(in crate::store::redis) async fn keep(&self, clock: &Clock) {
        let mut link: Option<(u64, RedisConnection)> = None;
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut tasks = Vec::new();
            tokio::select! {
                () = self.desk.woken.notified() => {}
                _ = sweep.tick() => self.desk.sweep(clock.now(), false, &mut tasks),
            }
            tasks.extend(self.desk.wanted(clock.now()));
            if tasks.is_empty() {
                continue;
            }
            let epoch = self.epoch();
            let sound = link.take().filter(|(made, _)| *made == epoch);
            link = match sound {
                _ if self.is_away() => None,
                Some(link) => Some(link),
                None => self.reach(clock).await.map(|link| (epoch, link)),
            };
            let done = match &link {
                Some((_, link)) => self.perform(link, tasks, clock).await,
                None => {
                    give_up(&tasks);
                    false
                }
            };
            if !done {
                link = None;
            }
        }
    }

    /// Gives back all that is in hand.
    pub(in crate::store::redis) async fn give_all_back(
        &self,
        link: &RedisConnection,
        clock: &Clock,
    ) {
        let mut tasks = Vec::new();
        self.desk.sweep(clock.now(), true, &mut tasks);
        self.perform(link, tasks, clock).await;
    }

    fn sharing(&self, now: Millis) -> FleetShare {
        let (all, present) = self.fleet.parts();
        // In a cluster the list may lie on another server than the keys.
        let list = match self.connector.is_cluster() {
            true => String::new(),
            false => self.lists.names.clone(),
        };
        FleetShare {
            list,
            gateway: self.gateway.clone(),
            gateways: all,
            weight: f64::from(all.max(present)) / f64::from(present),
            lost: self.fleet.has_lost(now, LOST),
        }
    }

    async fn reach(&self, clock: &Clock) -> Option<RedisConnection> {
        match tokio::time::timeout(LATE, self.connector.connect()).await {
            Ok(Ok(link)) => Some(link),
            Ok(Err(error)) => {
                self.give_up(clock.now(), error.to_string());
                None
            }
            Err(_) => None,
        }
    }

    /// Asks about all, and tells those who wait; whether the connection is still good.
    async fn perform(&self, link: &RedisConnection, tasks: Vec<LeaseTask>, clock: &Clock) -> bool {
        let sent = clock.now();
        let sharing = self.sharing(sent);
        let tasks = Arc::new(tasks);
        // In a cluster every key has its own place.
        let together = if link.is_cluster() { 1 } else { TOGETHER };
        let mut asking = JoinSet::new();
        for start in (0..tasks.len()).step_by(together) {
            let part = start..tasks.len().min(start + together);
            let (mut link, tasks) = (link.clone(), Arc::clone(&tasks));
            let sharing = sharing.clone();
            self.desk.asked.fetch_add(1, Ordering::Relaxed);
            asking.spawn(async move {
                let answer = ask(&mut link, &tasks[part.clone()], &sharing).await;
                (part, answer)
            });
        }
        let mut open: Vec<bool> = vec![true; tasks.len()];
        let mut sound = true;
        let heard = async {
            while let Some(Ok((part, answer))) = asking.join_next().await {
                open[part.clone()].fill(false);
                match answer {
                    Ok(grants) => {
                        self.breaker.hit();
                        for (task, grant) in tasks[part].iter().zip(&grants) {
                            self.desk.note(task, grant.granted);
                            if let Some((leases, key)) = &task.whose {
                                leases.settle(key, sent, clock.now(), grant);
                            }
                        }
                    }
                    Err(error) => {
                        give_up(&tasks[part]);
                        sound &= !error.is_unrecoverable_error();
                        if !error.is_unrecoverable_error() {
                            self.give_up(clock.now(), error.to_string());
                        }
                    }
                }
            }
        };
        let in_time = tokio::time::timeout(LATE.max(self.timeout), heard).await;
        for (task, open) in tasks.iter().zip(open) {
            if open {
                give_up(std::slice::from_ref(task));
            }
        }
        sound && in_time.is_ok()
    }
}

fn give_up(tasks: &[LeaseTask]) {
    for task in tasks {
        if let Some((leases, key)) = &task.whose {
            leases.fail(key, &task.ask);
        }
    }
}

/// One script, run once.
async fn ask(
    link: &mut RedisConnection,
    tasks: &[LeaseTask],
    sharing: &FleetShare,
) -> Result<Vec<LeaseGrant>, RedisError> {
    let answer = LEASE
        .perform(link, |command| write(command, tasks, sharing))
        .await?;
    grants(tasks, &answer).ok_or_else(|| {
        (
            redis::ErrorKind::UnexpectedReturnType,
            "not an answer of ours",
        )
            .into()
    })
}

fn write(command: &mut Cmd, tasks: &[LeaseTask], sharing: &FleetShare) {
    command.arg(tasks.len());
    for task in tasks {
        command.arg(&*task.name);
    }
    command.arg(u8::from(sharing.lost));
    command.arg(&sharing.list).arg(&sharing.gateway);
    command.arg(sharing.gateways).arg(sharing.weight);
    for task in tasks {
        let owed = task.spec.script_args(Cost(task.ask.owed));
        let back = task.spec.script_args(Cost(task.ask.back));
        let left = task.ask.left.and_then(|left| i64::try_from(left).ok());
        command.arg(owed.algorithm).arg(left.unwrap_or(-1));
        command.arg(owed.cost).arg(back.cost);
        command.arg(task.ask.window).arg(task.ask.want);
        command.arg(u8::from(task.punishable));
        for number in owed.numbers {
            command.arg(number);
        }
    }
}

/// What was answered to each; `None` for what no script of ours says.
fn grants(tasks: &[LeaseTask], answer: &Value) -> Option<Vec<LeaseGrant>> {
    let Value::Array(numbers) = answer else {
        return None;
    };
    let numbers = numbers
        .iter()
        .map(|number| match number {
            Value::Int(number) => Some(*number),
            _ => None,
        })
        .collect::<Option<Vec<_>>>()?;
    let (answers, []) = numbers.as_chunks::<8>() else {
        return None;
    };
    if answers.len() != tasks.len() {
        return None;
    }
    tasks
        .iter()
        .zip(answers)
        .map(|(task, answer)| grant(task, answer))
        .collect()
}

fn grant(task: &LeaseTask, answer: &[i64; 8]) -> Option<LeaseGrant> {
    let [kind, excess, wait, left, granted, lasts, window, penalty] = *answer;
    let scale = task.spec.script_args(Cost::ONE).scale;
    let millis = |number: i64| u64::try_from(number).ok().map(Duration::from_millis);
    let excess = scale.excess(u64::try_from(excess).ok()?);
    Some(LeaseGrant {
        outcome: script::outcome(kind, excess, millis(wait))?,
        remaining: u64::try_from(left).ok()?,
        granted: u64::try_from(granted).ok()?,
        lasts: millis(lasts),
        window: u64::try_from(window).ok()?,
        penalty: millis(penalty).filter(|left| !left.is_zero()),
    })
}

/// How often accounts are looked through.
const SWEEP: Duration = Duration::from_millis(250);

/// How long an answer may take that nobody waits for.
const LATE: Duration = Duration::from_millis(250);

/// How many keys are one question: so many do not keep a server from others for long.
const TOGETHER: usize = 32;

/// For how long what is known here counts after a store has lost its memory.
const LOST: Duration = Duration::from_secs(10);
