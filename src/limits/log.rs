//! What the error log says of a limited request, in nginx's own words.
//!
//! People search their logs for these lines, so they are nginx's to the comma. A flood is the moment when
//! they come by the hundred thousand and are worth least: each thread writes so many a second and then
//! says how many it left out.
//!
//! What is written down of decisions for those who look in: who is busy, and who was refused why.
//!
//! After the decision, apart from it, and only of some where there are many.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use smallvec::SmallVec;
use tracing::Level;

use super::Limits;
use super::key::{KeyFault, KeyLookup, KeySource, LONGEST};
use super::key_admin::{KeyAdmin, any_marks};
use super::rule::{ConnRule, Decision};
use super::verdict::{LimitKind, Permit, Refusal};
use super::zone::ReqZone;
use crate::algorithm::{Excess, VerdictKind};
use crate::clock::{Clock, Millis};
use crate::config::plan::LogLevel;
use crate::message::RequestRecord;
use crate::store::{self, Key};
use crate::telemetry::{REFUSALS, RefusalRecord, about};

/// How a location's limits are enforced and spoken of.
#[derive(Debug, Clone, Copy)]
pub(super) struct LimitLogger {
    pub(super) dry_run: bool,
    pub(super) level: LogLevel,
}

impl LimitLogger {
    pub(super) fn refused_request(
        self,
        record: &RequestRecord,
        now: Millis,
        excess: Excess,
        zone: &str,
    ) {
        let (dry, excess) = (self.dry(), Thousandths(excess));
        let message = format_args!("limiting requests,{dry} excess: {excess} by zone \"{zone}\"");
        write(self.refusal_level(), message, record, now);
    }

    /// Limits that are only proposed would have refused what passed.
    pub(super) fn shadow_refusal(
        self,
        record: &RequestRecord,
        now: Millis,
        excess: Option<Excess>,
        zone: &str,
    ) {
        match excess.map(Thousandths) {
            Some(excess) => {
                let message =
                    format_args!("limiting requests, shadow, excess: {excess} by zone \"{zone}\"");
                write(self.refusal_level(), message, record, now);
            }
            None => {
                let message = format_args!("limiting requests, shadow, by zone \"{zone}\"");
                write(self.refusal_level(), message, record, now);
            }
        }
    }

    pub(super) fn penalized_request(
        self,
        record: &RequestRecord,
        now: Millis,
        left: Duration,
        zone: &str,
    ) {
        let (dry, left) = (self.dry(), left.as_secs_f64());
        let message =
            format_args!("limiting requests,{dry} penalty: {left:.3}s more by zone \"{zone}\"");
        write(self.refusal_level(), message, record, now);
    }

    /// An operator has blocked the key.
    pub(super) fn blocked(
        self,
        record: &RequestRecord,
        now: Millis,
        left: Duration,
        (kind, zone): (LimitKind, &str),
    ) {
        let (dry, what, left) = (self.dry(), limited(kind), left.as_secs_f64());
        let message = format_args!(
            "limiting {what},{dry} blocked by operator: {left:.3}s more by zone \"{zone}\""
        );
        write(self.refusal_level(), message, record, now);
    }

    pub(super) fn delayed_request(
        self,
        record: &RequestRecord,
        now: Millis,
        excess: Excess,
        zone: &str,
    ) {
        let (dry, excess) = (self.dry(), Thousandths(excess));
        let message = format_args!("delaying request,{dry} excess: {excess}, by zone \"{zone}\"");
        write(self.delay_level(), message, record, now);
    }

    pub(super) fn without_key(
        self,
        record: &RequestRecord,
        now: Millis,
        fault: KeyFault,
        (kind, zone): (LimitKind, &str),
    ) {
        let (dry, what) = (self.dry(), limited(kind));
        let fault = match fault {
            KeyFault::Ambiguous => "ambiguous",
            KeyFault::Empty(_) => "empty",
        };
        let message = format_args!("limiting {what},{dry} {fault} key by zone \"{zone}\"");
        write(self.refusal_level(), message, record, now);
    }

    pub(super) fn refused_connection(self, record: &RequestRecord, now: Millis, zone: &str) {
        let message = match self.dry_run {
            false => format_args!("limiting connections by zone \"{zone}\""),
            true => format_args!("limiting connections, dry run, by zone \"{zone}\""),
        };
        write(self.refusal_level(), message, record, now);
    }

    fn dry(self) -> &'static str {
        match self.dry_run {
            false => "",
            true => " dry run,",
        }
    }

    fn refusal_level(self) -> Level {
        match self.level {
            LogLevel::Error => Level::ERROR,
            LogLevel::Warn => Level::WARN,
            LogLevel::Info | LogLevel::Notice => Level::INFO,
        }
    }

    fn delay_level(self) -> Level {
        match self.level {
            LogLevel::Error => Level::WARN,
            LogLevel::Info | LogLevel::Notice | LogLevel::Warn => Level::INFO,
        }
    }
}

/// What a limit of this kind limits.
fn limited(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::Connections => "connections",
        LimitKind::Requests => "requests",
    }
}

/// An excess as nginx prints it.
struct Thousandths(Excess);

impl fmt::Display for Thousandths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milli = self.0.milli();
        write!(f, "{}.{:03}", milli / 1000, milli % 1000)
    }
}

fn write(level: Level, message: fmt::Arguments<'_>, record: &RequestRecord, now: Millis) {
    let enabled = match level {
        Level::ERROR => tracing::enabled!(Level::ERROR),
        Level::WARN => tracing::enabled!(Level::WARN),
        _ => tracing::enabled!(Level::INFO),
    };
    if !enabled {
        return;
    }
    let mut flood = FLOOD.get();
    let (allowed, left_out) = flood.admit(now);
    FLOOD.set(flood);
    if let Some(left_out) = left_out {
        tracing::warn!("{left_out} more lines about limited requests were left out");
    }
    if !allowed {
        return;
    }
    let line = about(message, record, None);
    match level {
        Level::ERROR => tracing::error!("{line}"),
        Level::WARN => tracing::warn!("{line}"),
        _ => tracing::info!("{line}"),
    }
}

/// Counts the lines of one second.
#[derive(Debug, Clone, Copy, Default)]
struct LogBudget {
    since: Millis,
    written: u32,
    left_out: u64,
}

impl LogBudget {
    /// Whether one more line may be written, and how many were left out before, when it is time to say so.
    fn admit(&mut self, now: Millis) -> (bool, Option<u64>) {
        let mut before = None;
        if now.since(self.since).as_millis() >= 1000 {
            before = Some(self.left_out).filter(|left_out| *left_out > 0);
            *self = Self {
                since: now,
                ..Self::default()
            };
        }
        if self.written < MOST_A_SECOND {
            self.written += 1;
            return (true, before);
        }
        self.left_out += 1;
        (false, before)
    }
}

thread_local! {
    static FLOOD: Cell<LogBudget> = const {
        Cell::new(LogBudget { since: Millis(0), written: 0, left_out: 0 })
    };
}

/// Lines a second and thread.
const MOST_A_SECOND: u32 = 100;

/// A refusal, and all there is to say of it.
#[derive(Debug)]
pub(super) struct RefusalDetails<'a> {
    pub(super) kind: LimitKind,
    pub(super) zone: &'a str,
    pub(super) source: &'a KeySource,
    /// As much of the bytes of the key as is worth keeping.
    pub(super) name: Box<[u8]>,
    pub(super) key: Option<Key>,
    pub(super) why: RefusalReason,
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<Duration>,
    pub(super) dry_run: bool,
}

/// Why a request was refused.
#[derive(Debug, Clone)]
pub(super) enum RefusalReason {
    /// An operator said so, perhaps for this reason.
    Block(Option<Box<str>>),
    /// So many places are taken.
    Connections(u64),
    /// It has none, for this reason.
    NoKey(KeyFault),
    /// For so much longer.
    Penalty(Duration),
    /// So much is more than the burst.
    Rate { excess: Excess, burst: Excess },
}

impl Limits {
    /// Notes who asked and what the `limit_req` rules said to them.
    pub(super) fn note(&self, decision: &Decision, record: &RequestRecord, now: Millis) {
        let (delays, refused) = match decision {
            Decision::NoKey { .. } | Decision::NotLimited => return,
            Decision::Delay { rule, wait, .. } => (Some((*rule, *wait)), None),
            Decision::Pass => (None, None),
            Decision::Penalize { rule, rule_key, .. } | Decision::Refuse { rule, rule_key, .. } => {
                (None, Some((*rule, rule_key.key)))
            }
        };
        let weight = store::sampling_weight(now);
        if weight == 0 {
            return;
        }
        if let Some((rule, key)) = refused {
            let zone = &self.requests[rule].zone;
            let noted = (VerdictKind::Refuse, weight, now);
            return zone.watch.note(&key, noted, || zone.key_name(record));
        }
        let mut keys = SmallVec::<[Option<Key>; 4]>::new();
        for (index, rule) in self.requests.iter().enumerate() {
            // An operator's marks belong to one zone, so with marks every zone has to find the key by itself.
            let key = match rule.same_key_as.filter(|_| !any_marks()) {
                Some(same) => keys[same],
                None => match rule.zone.find(record) {
                    KeyLookup::Key(rule_key) => Some(rule_key.key),
                    KeyLookup::Nothing | KeyLookup::Refuse(_) => None,
                },
            };
            keys.push(key);
            let Some(key) = key else { continue };
            let said = match delays {
                Some((rule, wait)) if rule == index => VerdictKind::Delay(wait),
                _ => VerdictKind::Pass,
            };
            let (zone, noted) = (&rule.zone, (said, weight, now));
            zone.watch.note(&key, noted, || zone.key_name(record));
        }
    }

    /// What there is to say of a decision to refuse.
    pub(super) fn case(
        &self,
        decision: &Decision,
        record: &RequestRecord,
    ) -> Option<RefusalDetails<'_>> {
        let (rule, rule_key, retry_after, why) = match decision {
            Decision::Delay { .. } | Decision::NotLimited | Decision::Pass => return None,
            Decision::NoKey { rule, fault } => (*rule, None, None, RefusalReason::NoKey(*fault)),
            Decision::Penalize {
                rule,
                rule_key,
                left,
                retry_after,
            } => (
                *rule,
                Some(rule_key),
                *retry_after,
                RefusalReason::Penalty(*left),
            ),
            Decision::Refuse {
                rule,
                rule_key,
                excess,
                retry_after,
                ..
            } => {
                let (excess, burst) = (*excess, self.requests[*rule].burst);
                (
                    *rule,
                    Some(rule_key),
                    *retry_after,
                    RefusalReason::Rate { excess, burst },
                )
            }
        };
        let rule = &self.requests[rule];
        Some(RefusalDetails {
            kind: LimitKind::Requests,
            zone: &rule.zone.name.plain,
            source: &rule.zone.source,
            name: rule.zone.key_name(record),
            key: rule_key.map(|rule_key| rule_key.key),
            status: why.status(rule.action.status.unwrap_or(self.requests_status)),
            why,
            retry_after,
            dry_run: self.requests_voice.dry_run,
        })
    }

    /// Notes who wanted a place, and whether they got it.
    pub(super) fn note_places(
        &self,
        taken: &Result<Permit, Refusal>,
        record: &RequestRecord,
        now: Millis,
    ) {
        let weight = store::sampling_weight(now);
        for rule in &self.connections {
            let zone = &rule.zone;
            let refusal = taken.as_ref().err();
            let own = refusal.filter(|refusal| Arc::ptr_eq(&refusal.name, &zone.name));
            let key = match zone.find(record) {
                KeyLookup::Key(key) => Some(key),
                KeyLookup::Nothing | KeyLookup::Refuse(_) => None,
            };
            let said = match (refusal, own) {
                (None, _) => VerdictKind::Pass,
                (_, Some(_)) => VerdictKind::Refuse,
                // Somebody else's doing.
                (Some(_), None) => continue,
            };
            if let (Some(key), 1..) = (&key, weight) {
                let noted = (said, weight, now);
                let name = || bytes(&zone.source, record);
                zone.watch.note(key, noted, name);
            }
            if own.is_some() {
                self.record_crowd(rule, record, now);
            }
        }
    }

    /// Writes down that there was no place by this rule.
    pub(super) fn record_crowd(&self, rule: &ConnRule, record: &RequestRecord, now: Millis) {
        if !REFUSALS.wants(now) {
            return;
        }
        let zone = &rule.zone;
        let (key, why) = match zone.find(record) {
            KeyLookup::Key(key) => (Some(key), RefusalReason::Connections(rule.limit.into())),
            KeyLookup::Nothing => (None, RefusalReason::NoKey(KeyFault::Empty(None))),
            KeyLookup::Refuse(fault) => (None, RefusalReason::NoKey(fault)),
        };
        let case = RefusalDetails {
            kind: LimitKind::Connections,
            zone: &zone.name.plain,
            source: &zone.source,
            name: bytes(&zone.source, record),
            key,
            status: why.status(rule.action.status.unwrap_or(self.connections_status)),
            why,
            retry_after: None,
            dry_run: self.connections_voice.dry_run,
        };
        case.record(record);
    }
}

impl RefusalDetails<'_> {
    /// Writes it down.
    #[cold]
    pub(super) fn record(self, record: &RequestRecord) {
        REFUSALS.note(|id| {
            let head = &record.head;
            RefusalRecord {
                id,
                time: u64::try_from(Clock::wall().as_millis()).unwrap_or_default(),
                kind: self.kind.as_str(),
                zone: self.zone.into(),
                key: self
                    .key
                    .map(|key| self.source.spell(&key, Some(&self.name)).into()),
                reason: self.why.as_str(),
                detail: self.why.to_string().into(),
                excess: match self.why {
                    RefusalReason::Rate { excess, .. } => Some(requests(excess)),
                    _ => None,
                },
                retry_after: self.retry_after.map(|after| after.as_secs_f64()),
                status: self.status.as_u16(),
                dry_run: self.dry_run,
                client: record.client().text().into(),
                server: record.server().name.clone(),
                method: cut(head.method.as_str().as_bytes()),
                host: cut(record.target.host(head)),
                path: cut(head.uri.path().as_bytes()),
            }
        });
    }
}

impl RefusalReason {
    /// The status it is answered with, where the limit's own is `status`.
    pub(super) fn status(&self, status: StatusCode) -> StatusCode {
        match self {
            Self::NoKey(KeyFault::Ambiguous) => StatusCode::BAD_REQUEST,
            Self::NoKey(KeyFault::Empty(Some(own))) => *own,
            _ => status,
        }
    }

    fn as_str(&self) -> &'static str {
        match self {
            Self::Block(_) => "block",
            Self::Connections(_) => "connections",
            Self::NoKey(KeyFault::Ambiguous) => "ambiguous_key",
            Self::NoKey(KeyFault::Empty(_)) => "no_key",
            Self::Penalty(_) => "penalty",
            Self::Rate { .. } => "rate",
        }
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(None) => f.write_str("blocked by operator"),
            Self::Block(Some(reason)) => write!(f, "blocked by operator: {reason}"),
            Self::Connections(places) => write!(f, "all {places} places are taken"),
            Self::NoKey(KeyFault::Ambiguous) => {
                f.write_str("a header, cookie or argument of its key is given more than once")
            }
            Self::NoKey(KeyFault::Empty(_)) => {
                f.write_str("it has no key, and the zone does not take such requests")
            }
            Self::Penalty(left) => {
                write!(
                    f,
                    "it was over the limit, and stays out for {:.1}s more",
                    left.as_secs_f64()
                )
            }
            Self::Rate { excess, burst } => {
                let (excess, burst) = (requests(*excess), requests(*burst));
                write!(f, "excess {excess:.3} over a burst of {burst}")
            }
        }
    }
}

impl KeyAdmin {
    fn note(
        &self,
        key: &Key,
        (said, weight, now): (VerdictKind, u64, Millis),
        name: impl FnOnce() -> Box<[u8]>,
    ) {
        self.busiest.record(key, said, weight, now, name);
    }
}

impl ReqZone {
    /// As much of the bytes of a request's bucket as is worth keeping.
    pub(super) fn key_name(&self, record: &RequestRecord) -> Box<[u8]> {
        let mut kept = Box::default();
        self.with_key(record, |bytes| kept = worth_keeping(bytes));
        kept
    }
}

/// As much of a request's key as is worth keeping.
pub(super) fn bytes(source: &KeySource, record: &RequestRecord) -> Box<[u8]> {
    let mut kept = Box::default();
    source.with(record, |bytes| kept = worth_keeping(bytes));
    kept
}

fn worth_keeping(bytes: &[u8]) -> Box<[u8]> {
    bytes[..bytes.len().min(LONGEST + 1)].into()
}

/// As much of what a client has written as is worth keeping.
fn cut(bytes: &[u8]) -> Box<str> {
    let text = String::from_utf8_lossy(bytes);
    let (front, _) = text.split_at(text.floor_char_boundary(LONGEST_TEXT));
    front.into()
}

/// In requests, for people.
pub(super) fn requests(excess: Excess) -> f64 {
    excess.0 as f64 / Excess::ONE.0 as f64
}

const LONGEST_TEXT: usize = 256;

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn an_excess_is_written_as_nginx_writes_it() {
        let excess = Thousandths(Excess(Excess::ONE.0 / 1000 * 5760));
        assert_eq!(excess.to_string(), "5.760");
    }

    #[test]
    fn a_flood_is_cut_off_and_told_of_in_the_next_second() {
        let mut flood = LogBudget::default();
        let count = |flood: &mut LogBudget, now, times| {
            (0..times).filter(|_| flood.admit(Millis(now)).0).count()
        };
        assert_eq!(count(&mut flood, 5_000, 150), 100);
        assert_eq!(count(&mut flood, 5_999, 7), 0);
        assert_eq!(flood.admit(Millis(6_000)), (true, Some(57)));
        assert_eq!(flood.admit(Millis(6_001)), (true, None));
    }

    #[test]
    fn levels_are_nginxs_with_notice_as_info() {
        let voice = |level| LimitLogger {
            dry_run: false,
            level,
        };
        let levels = |level| (voice(level).refusal_level(), voice(level).delay_level());
        assert_eq!(levels(LogLevel::Error), (Level::ERROR, Level::WARN));
        assert_eq!(levels(LogLevel::Warn), (Level::WARN, Level::INFO));
        assert_eq!(levels(LogLevel::Notice), (Level::INFO, Level::INFO));
        assert_eq!(levels(LogLevel::Info), (Level::INFO, Level::INFO));
    }
}
