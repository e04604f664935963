//! Times as text. The time of day is put into words once a second and thread, not once a request.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::clock::Clock;
use crate::config::plan::Variable;

thread_local! {
    static STAMP: RefCell<CachedTime> = RefCell::default();
}

/// One second in words.
#[derive(Debug, Default)]
struct CachedTime {
    second: u64,
    local: String,
    iso8601: String,
}

/// `$msec`, `$time_iso8601` or `$time_local`: `1794794603.021`, `2026-11-16T02:03:23+00:00`, `16/Nov/2026:02:03:23 +0000`.
pub(super) fn now(variable: &Variable, out: &mut Vec<u8>) -> bool {
    match variable {
        Variable::Msec => return seconds(Clock::wall(), out),
        Variable::TimeIso8601 => {
            with_stamp(|stamp| out.extend_from_slice(stamp.iso8601.as_bytes()))
        }
        _ => with_stamp(|stamp| out.extend_from_slice(stamp.local.as_bytes())),
    }
    true
}

/// Appends seconds with three decimals.
pub(super) fn seconds(time: Duration, out: &mut Vec<u8>) -> bool {
    io::Write::write_fmt(
        out,
        format_args!("{}.{:03}", time.as_secs(), time.subsec_millis()),
    )
    .is_ok()
}

fn with_stamp<R>(read: impl FnOnce(&CachedTime) -> R) -> R {
    let second = Clock::wall().as_secs();
    STAMP.with_borrow_mut(|stamp| {
        if stamp.second != second || stamp.local.is_empty() {
            let moment = i64::try_from(second)
                .ok()
                .and_then(|second| Timestamp::from_second(second).ok())
                .unwrap_or_default();
            stamp.second = second;
            stamp.set(&moment.to_zoned(TimeZone::system()));
        }
        read(stamp)
    })
}

impl CachedTime {
    fn set(&mut self, now: &Zoned) {
        self.local.clear();
        self.iso8601.clear();
        self.write(now).expect("a String takes every write");
    }

    fn write(&mut self, now: &Zoned) -> std::fmt::Result {
        let (year, month, day) = (now.year(), now.month(), now.day());
        let (hour, minute, second) = (now.hour(), now.minute(), now.second());
        let name = MONTHS[usize::from(month.unsigned_abs() - 1) % MONTHS.len()];
        let offset = now.offset().seconds();
        let sign = if offset < 0 { '-' } else { '+' };
        let (hours, minutes) = (offset.abs() / 3600, offset.abs() / 60 % 60);
        write!(
            self.local,
            "{day:02}/{name}/{year}:{hour:02}:{minute:02}:{second:02} {sign}{hours:02}{minutes:02}"
        )?;
        write!(
            self.iso8601,
            "{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{sign}{hours:02}:{minutes:02}"
        )
    }
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

#[cfg(test)]
mod tests {

    use jiff::tz::Offset;

    use super::*;

    #[test]
    fn a_second_reads_as_in_nginx_logs() {
        let moment = Timestamp::from_second(1_794_794_603).unwrap();
        let mut stamp = CachedTime::default();
        stamp.set(&moment.to_zoned(TimeZone::UTC));
        assert_eq!(stamp.local, "16/Nov/2026:02:03:23 +0000");
        assert_eq!(stamp.iso8601, "2026-11-16T02:03:23+00:00");

        let west = Offset::from_seconds(-(3 * 3600 + 1800)).unwrap();
        stamp.set(&moment.to_zoned(TimeZone::fixed(west)));
        assert_eq!(stamp.local, "15/Nov/2026:22:33:23 -0330");
        assert_eq!(stamp.iso8601, "2026-11-15T22:33:23-03:30");
    }

    #[test]
    fn seconds_have_three_decimals_cut_not_rounded() {
        let mut out = Vec::new();
        seconds(Duration::from_micros(1_002_999), &mut out);
        assert_eq!(out, b"1.002");
    }
}
