//! Times as logs write them.

use jiff::fmt::{strtime, temporal};
use jiff::tz::TimeZone;
use memchr::memchr;

use crate::clock::Millis;

/// The time of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogTime {
    /// Milliseconds since the Unix epoch.
    pub(super) millis: i64,
    pub(super) precision: TimePrecision,
}

/// How exactly a time is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimePrecision {
    /// To the millisecond.
    Milli,
    /// To the second.
    Second,
}

impl LogTime {
    /// Reads `$time_local`, `$time_iso8601` with or without fractions, or `$msec`.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (millis, exact) = match (text.get(2), text.get(4)) {
            // `16/Nov/2026:02:03:23 +0000`
            (Some(b'/'), _) => {
                let time = strtime::parse("%d/%b/%Y:%H:%M:%S %z", text).ok()?;
                (time.to_timestamp().ok()?.as_millisecond(), false)
            }
            // `2026-11-16T02:03:23.017+00:00`; in UTC where no zone is given.
            (_, Some(b'-')) => {
                let fraction = text.get(SECONDS_END..)?.first();
                let parsed = ISO8601.parse_timestamp(text).or_else(|_| {
                    let civil = ISO8601.parse_datetime(text)?;
                    Ok::<_, jiff::Error>(civil.to_zoned(TimeZone::UTC)?.timestamp())
                });
                let exact = matches!(fraction, Some(b'.' | b','));
                (parsed.ok()?.as_millisecond(), exact)
            }
            // `1794794603.021`
            _ => (
                i64::try_from(seconds(text)?).ok()?,
                memchr(b'.', text).is_some(),
            ),
        };
        Some(Self {
            millis,
            precision: match exact {
                true => TimePrecision::Milli,
                false => TimePrecision::Second,
            },
        })
    }
}

/// Seconds with up to three decimals, in milliseconds: `$request_time`, `$msec`.
pub(super) fn seconds(text: &[u8]) -> Option<u64> {
    let (whole, decimals) = match memchr(b'.', text) {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &[][..]),
    };
    if whole.is_empty() || whole.len() > 15 {
        return None;
    }
    let decimals = (0..3).map(|at| decimals.get(at).unwrap_or(&b'0'));
    whole.iter().chain(decimals).try_fold(0, |number, byte| {
        let digit = char::from(*byte).to_digit(10)?;
        Some(number * 10 + u64::from(digit))
    })
}

/// A time in milliseconds since the Unix epoch on the clock of the limits.
pub(super) fn to_clock(at: i64) -> Millis {
    Millis(u64::try_from(at).unwrap_or(0))
}

static ISO8601: temporal::DateTimeParser = temporal::DateTimeParser::new();

/// The length of `2026-11-16T02:03:23`.
const SECONDS_END: usize = 19;

#[cfg(test)]
mod tests {

    use proptest::prelude::*;

    use super::*;

    fn millis(text: &str) -> Option<i64> {
        LogTime::parse(text.as_bytes()).map(|time| time.millis)
    }

    #[test]
    fn every_format_of_a_time_is_read() {
        let second = 1_794_794_603_000;
        assert_eq!(millis("16/Nov/2026:02:03:23 +0000"), Some(second));
        assert_eq!(millis("15/Nov/2026:22:33:23 -0330"), Some(second));
        assert_eq!(millis("2026-11-16T02:03:23+00:00"), Some(second));
        assert_eq!(millis("2026-11-16T03:03:23.017+01:00"), Some(second + 17));
        assert_eq!(millis("2026-11-16T02:03:23.0179Z"), Some(second + 17));
        assert_eq!(millis("1794794603.021"), Some(second + 21));
        assert_eq!(millis("1794794603"), Some(second));
    }

    #[test]
    fn the_precision_is_told_from_the_format() {
        let exact = |text: &str| LogTime::parse(text.as_bytes()).unwrap().precision;
        assert_eq!(exact("16/Nov/2026:02:03:23 +0000"), TimePrecision::Second);
        assert_eq!(exact("2026-11-16T02:03:23Z"), TimePrecision::Second);
        assert_eq!(exact("2026-11-16T02:03:23.000Z"), TimePrecision::Milli);
        assert_eq!(exact("1794794603.021"), TimePrecision::Milli);
    }

    #[test]
    fn other_text_is_no_time() {
        for wrong in [
            "",
            "-",
            "now",
            "16/Nov/2026",
            "16/Nox/2026:02:03:23 +0000",
            "16/Nov/2026:24:03:23 +0000",
            "16/Nov/2026:02:03:23",
            "2026-13-16T02:03:23Z",
            "2026-11-16",
            "1e9",
            "99999999999999999999",
        ] {
            assert_eq!(millis(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn dates_follow_the_calendar(second in 0..4_102_444_800_i64) {
            let moment = jiff::Timestamp::from_second(second).unwrap();
            let zoned = moment.to_zoned(TimeZone::UTC);
            let text = zoned.strftime("%d/%b/%Y:%H:%M:%S +0000").to_string();
            prop_assert_eq!(millis(&text), Some(second * 1000));
        }

        #[test]
        fn any_text_can_be_parsed(text: Vec<u8>) {
            LogTime::parse(&text);
            seconds(&text);
        }
    }
}
