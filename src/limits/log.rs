//! Refusals and delays as people see them: nginx's lines in the error log, and the last refusals in the API.
//!
//! People search their logs for these lines, so they are nginx's to the comma. In a flood they come by the hundred
//! thousand and are worth least: each thread writes a bounded number a second, then the number it left out.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use http::StatusCode;
use tracing::Level;

use super::key::{KeyFault, KeySource};
use crate::algorithm::Excess;
use crate::clock::{Clock, Millis};
use crate::config::plan::LogLevel;
use crate::message::RequestRecord;
use crate::store::Key;
use crate::telemetry::{REFUSALS, RefusalRecord, about};

/// What a limit bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// Requests at once: `limit_conn`.
    Connections,
    /// Requests in a time: `limit_req`.
    Requests,
}

impl LimitKind {
    /// Its word in a configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connections => "limit_conn",
            Self::Requests => "limit_req",
        }
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy)]
pub(super) enum RefusalReason<'r> {
    /// An operator has blocked its key, for so much longer.
    Block {
        left: Duration,
        reason: Option<&'r str>,
    },
    /// All slots of its key are in use.
    Connections { limit: u32 },
    /// It has no key.
    NoKey(KeyFault),
    /// Its key serves a penalty, for so much longer.
    Penalty(Duration),
    /// Its key is over the burst.
    Rate { excess: Excess, burst: Excess },
}

impl RefusalReason<'_> {
    /// The status of the response, where the rule's own is `status`.
    pub(super) fn status(&self, status: StatusCode) -> StatusCode {
        match self {
            Self::NoKey(KeyFault::Ambiguous) => StatusCode::BAD_REQUEST,
            Self::NoKey(KeyFault::Empty(Some(own))) => *own,
            _ => status,
        }
    }

    fn as_str(&self) -> &'static str {
        match self {
            Self::Block { .. } => "block",
            Self::Connections { .. } => "connections",
            Self::NoKey(KeyFault::Ambiguous) => "ambiguous_key",
            Self::NoKey(KeyFault::Empty(_)) => "no_key",
            Self::Penalty(_) => "penalty",
            Self::Rate { .. } => "rate",
        }
    }
}

impl fmt::Display for RefusalReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block { reason: None, .. } => f.write_str("blocked by operator"),
            Self::Block {
                reason: Some(reason),
                ..
            } => write!(f, "blocked by operator: {reason}"),
            Self::Connections { limit } => write!(f, "all {limit} places are taken"),
            Self::NoKey(KeyFault::Ambiguous) => {
                f.write_str("a header, cookie or argument of its key is given more than once")
            }
            Self::NoKey(KeyFault::Empty(_)) => {
                f.write_str("it has no key, and the zone does not take such requests")
            }
            Self::Penalty(left) => {
                let left = left.as_secs_f64();
                write!(
                    f,
                    "it was over the limit, and stays out for {left:.1}s more"
                )
            }
            Self::Rate { excess, burst } => {
                let (excess, burst) = (in_requests(*excess), in_requests(*burst));
                write!(f, "excess {excess:.3} over a burst of {burst}")
            }
        }
    }
}

/// How a location's limits of one kind are enforced and logged.
#[derive(Debug, Clone, Copy)]
pub(super) struct LimitLogger {
    pub(super) kind: LimitKind,
    pub(super) dry_run: bool,
    pub(super) level: LogLevel,
}

impl LimitLogger {
    /// Logs a refusal by a zone.
    pub(super) fn refused(
        self,
        reason: &RefusalReason<'_>,
        zone: &str,
        record: &RequestRecord,
        now: Millis,
    ) {
        let what = match self.kind {
            LimitKind::Connections => "connections",
            LimitKind::Requests => "requests",
        };
        let dry = if self.dry_run { " dry run," } else { "" };
        let cause = fmt::from_fn(|f| match reason {
            RefusalReason::Block { left, .. } => {
                let left = left.as_secs_f64();
                write!(f, ",{dry} blocked by operator: {left:.3}s more")
            }
            RefusalReason::Connections { .. } if self.dry_run => write!(f, ",{dry}"),
            RefusalReason::Connections { .. } => Ok(()),
            RefusalReason::NoKey(KeyFault::Ambiguous) => write!(f, ",{dry} ambiguous key"),
            RefusalReason::NoKey(KeyFault::Empty(_)) => write!(f, ",{dry} empty key"),
            RefusalReason::Penalty(left) => {
                write!(f, ",{dry} penalty: {:.3}s more", left.as_secs_f64())
            }
            RefusalReason::Rate { excess, .. } => {
                write!(f, ",{dry} excess: {}", NginxExcess(*excess))
            }
        });
        let message = format_args!("limiting {what}{cause} by zone \"{zone}\"");
        write(self.refusal_level(), message, record, now);
    }

    /// Logs that a `shadow` would have refused what passed.
    pub(super) fn shadow_refused(
        self,
        reason: &RefusalReason<'_>,
        zone: &str,
        record: &RequestRecord,
        now: Millis,
    ) {
        let excess = fmt::from_fn(|f| match reason {
            RefusalReason::Rate { excess, .. } => write!(f, " excess: {}", NginxExcess(*excess)),
            _ => Ok(()),
        });
        let message = format_args!("limiting requests, shadow,{excess} by zone \"{zone}\"");
        write(self.refusal_level(), message, record, now);
    }

    /// Logs a delay by a zone.
    pub(super) fn delayed(self, excess: Excess, zone: &str, record: &RequestRecord, now: Millis) {
        let dry = if self.dry_run { " dry run," } else { "" };
        let excess = NginxExcess(excess);
        let message = format_args!("delaying request,{dry} excess: {excess}, by zone \"{zone}\"");
        write(self.delay_level(), message, record, now);
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

/// An excess as nginx prints it.
struct NginxExcess(Excess);

impl fmt::Display for NginxExcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milli = self.0.milli();
        write!(f, "{}.{:03}", milli / 1000, milli % 1000)
    }
}

/// An excess in requests.
pub(super) fn in_requests(excess: Excess) -> f64 {
    excess.0 as f64 / Excess::ONE.0 as f64
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
    let mut budget = BUDGET.get();
    let (allowed, left_out) = budget.admit(now);
    BUDGET.set(budget);
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
    /// Whether one more line may be written, and how many were left out before, when that is due.
    fn admit(&mut self, now: Millis) -> (bool, Option<u64>) {
        let mut before = None;
        if now.since(self.since).as_millis() >= 1000 {
            before = Some(self.left_out).filter(|left_out| *left_out > 0);
            *self = Self {
                since: now,
                ..Self::default()
            };
        }
        if self.written < MAX_LINES {
            self.written += 1;
            return (true, before);
        }
        self.left_out += 1;
        (false, before)
    }
}

thread_local! {
    static BUDGET: Cell<LogBudget> = const {
        Cell::new(LogBudget { since: Millis(0), written: 0, left_out: 0 })
    };
}

/// Lines a second and thread.
const MAX_LINES: u32 = 100;

/// A refusal as the API lists it.
#[derive(Debug)]
pub(super) struct RefusalDetails<'a> {
    pub(super) logger: LimitLogger,
    pub(super) zone: &'a str,
    pub(super) source: &'a KeySource,
    pub(super) key: Option<Key>,
    /// The key's bytes, or the first of them.
    pub(super) key_bytes: Box<[u8]>,
    pub(super) reason: RefusalReason<'a>,
    /// The rule's status for refusals.
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<Duration>,
}

impl RefusalDetails<'_> {
    /// Adds it to the last refusals.
    #[cold]
    pub(super) fn record(self, record: &RequestRecord) {
        REFUSALS.note(|id| {
            let head = &record.head;
            RefusalRecord {
                id,
                time: u64::try_from(Clock::wall().as_millis()).unwrap_or_default(),
                kind: self.logger.kind.as_str(),
                zone: self.zone.into(),
                key: self
                    .key
                    .map(|key| self.source.format(&key, Some(&self.key_bytes)).into()),
                reason: self.reason.as_str(),
                detail: self.reason.to_string().into(),
                excess: match self.reason {
                    RefusalReason::Rate { excess, .. } => Some(in_requests(excess)),
                    _ => None,
                },
                retry_after: self.retry_after.map(|after| after.as_secs_f64()),
                status: self.reason.status(self.status).as_u16(),
                dry_run: self.logger.dry_run,
                client: record.client().text().into(),
                server: record.server().name.clone(),
                method: truncated(head.method.as_str().as_bytes()),
                host: truncated(record.target.host(head)),
                path: truncated(head.uri.path().as_bytes()),
            }
        });
    }
}

/// The beginning of a text that a client has written.
fn truncated(bytes: &[u8]) -> Box<str> {
    let text = String::from_utf8_lossy(bytes);
    let (front, _) = text.split_at(text.floor_char_boundary(MAX_TEXT));
    front.into()
}

const MAX_TEXT: usize = 256;

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn an_excess_is_written_as_nginx_writes_it() {
        let excess = NginxExcess(Excess(Excess::ONE.0 / 1000 * 5760));
        assert_eq!(excess.to_string(), "5.760");
    }

    #[test]
    fn a_flood_is_cut_off_and_reported_in_the_next_second() {
        let mut budget = LogBudget::default();
        let count = |budget: &mut LogBudget, now, times| {
            (0..times).filter(|_| budget.admit(Millis(now)).0).count()
        };
        assert_eq!(count(&mut budget, 5_000, 150), 100);
        assert_eq!(count(&mut budget, 5_999, 7), 0);
        assert_eq!(budget.admit(Millis(6_000)), (true, Some(57)));
        assert_eq!(budget.admit(Millis(6_001)), (true, None));
    }

    #[test]
    fn levels_are_nginxs_with_notice_as_info() {
        let levels = |level| {
            let logger = LimitLogger {
                kind: LimitKind::Requests,
                dry_run: false,
                level,
            };
            (logger.refusal_level(), logger.delay_level())
        };
        assert_eq!(levels(LogLevel::Error), (Level::ERROR, Level::WARN));
        assert_eq!(levels(LogLevel::Warn), (Level::WARN, Level::INFO));
        assert_eq!(levels(LogLevel::Notice), (Level::INFO, Level::INFO));
        assert_eq!(levels(LogLevel::Info), (Level::INFO, Level::INFO));
    }
}
