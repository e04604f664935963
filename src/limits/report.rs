//! What the error log says of a limited request, in nginx's own words.
//!
//! People search their logs for these lines, so they are nginx's to the comma. A flood is the moment when
//! they come by the hundred thousand and are worth least: each thread writes so many a second and then
//! says how many it left out.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use tracing::Level;

use super::key::KeyFault;
use super::verdict::LimitKind;
use crate::clock::Millis;
use crate::config::plan::{DryRun, Excess, LogLevel};
use crate::message::RequestRecord;
use crate::telemetry::about;

/// How a location's limits are enforced and spoken of.
#[derive(Debug, Clone, Copy)]
pub(super) struct LimitLogger {
    pub(super) dry_run: DryRun,
    pub(super) level: LogLevel,
}

impl LimitLogger {
    pub(super) fn refused_request(
        self,
        exchange: &RequestRecord,
        now: Millis,
        excess: Excess,
        zone: &str,
    ) {
        let (dry, excess) = (self.dry(), Thousandths(excess));
        let message = format_args!("limiting requests,{dry} excess: {excess} by zone \"{zone}\"");
        write(self.refusal_level(), message, exchange, now);
    }

    /// Limits that are only proposed would have refused what passed.
    pub(super) fn shadow_refusal(
        self,
        exchange: &RequestRecord,
        now: Millis,
        excess: Option<Excess>,
        zone: &str,
    ) {
        match excess.map(Thousandths) {
            Some(excess) => {
                let message =
                    format_args!("limiting requests, shadow, excess: {excess} by zone \"{zone}\"");
                write(self.refusal_level(), message, exchange, now);
            }
            None => {
                let message = format_args!("limiting requests, shadow, by zone \"{zone}\"");
                write(self.refusal_level(), message, exchange, now);
            }
        }
    }

    pub(super) fn penalized_request(
        self,
        exchange: &RequestRecord,
        now: Millis,
        left: Duration,
        zone: &str,
    ) {
        let (dry, left) = (self.dry(), left.as_secs_f64());
        let message =
            format_args!("limiting requests,{dry} penalty: {left:.3}s more by zone \"{zone}\"");
        write(self.refusal_level(), message, exchange, now);
    }

    /// An operator has blocked the key.
    pub(super) fn blocked(
        self,
        exchange: &RequestRecord,
        now: Millis,
        left: Duration,
        (kind, zone): (LimitKind, &str),
    ) {
        let (dry, what, left) = (self.dry(), limited(kind), left.as_secs_f64());
        let message = format_args!(
            "limiting {what},{dry} blocked by operator: {left:.3}s more by zone \"{zone}\""
        );
        write(self.refusal_level(), message, exchange, now);
    }

    pub(super) fn delayed_request(
        self,
        exchange: &RequestRecord,
        now: Millis,
        excess: Excess,
        zone: &str,
    ) {
        let (dry, excess) = (self.dry(), Thousandths(excess));
        let message = format_args!("delaying request,{dry} excess: {excess}, by zone \"{zone}\"");
        write(self.delay_level(), message, exchange, now);
    }

    pub(super) fn without_key(
        self,
        exchange: &RequestRecord,
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
        write(self.refusal_level(), message, exchange, now);
    }

    pub(super) fn refused_connection(self, exchange: &RequestRecord, now: Millis, zone: &str) {
        let message = match self.dry_run {
            DryRun::Off => format_args!("limiting connections by zone \"{zone}\""),
            DryRun::On => format_args!("limiting connections, dry run, by zone \"{zone}\""),
        };
        write(self.refusal_level(), message, exchange, now);
    }

    fn dry(self) -> &'static str {
        match self.dry_run {
            DryRun::Off => "",
            DryRun::On => " dry run,",
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

fn write(level: Level, message: fmt::Arguments<'_>, exchange: &RequestRecord, now: Millis) {
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
    let line = about(message, exchange, None);
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
            dry_run: DryRun::Off,
            level,
        };
        let levels = |level| (voice(level).refusal_level(), voice(level).delay_level());
        assert_eq!(levels(LogLevel::Error), (Level::ERROR, Level::WARN));
        assert_eq!(levels(LogLevel::Warn), (Level::WARN, Level::INFO));
        assert_eq!(levels(LogLevel::Notice), (Level::INFO, Level::INFO));
        assert_eq!(levels(LogLevel::Info), (Level::INFO, Level::INFO));
    }
}
