//! Moments as logs write them.

/// A moment, in milliseconds since the Unix epoch, and how exactly it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::replay) struct LogTime {
    pub(in crate::replay) millis: i64,
    pub(in crate::replay) exact: TimePrecision,
}

/// How exactly a moment is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::replay) enum TimePrecision {
    /// To the millisecond.
    Milli,
    /// To the second.
    Second,
}

/// Reads `$time_local`, `$time_iso8601` with or without fractions, or `$msec`.
pub(in crate::replay) fn read(text: &[u8]) -> Option<LogTime> {
    match (text.get(2), text.get(4)) {
        (Some(b'/'), _) => local(text),
        (_, Some(b'-')) => iso8601(text),
        _ => epoch(text),
    }
}

/// Seconds with up to three decimals, in milliseconds: `$request_time`, `$msec`.
pub(in crate::replay) fn seconds(text: &[u8]) -> Option<u64> {
    let (whole, decimals) = match memchr::memchr(b'.', text) {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &[][..]),
    };
    if whole.len() > 15 {
        return None;
    }
    number(whole)?
        .checked_mul(1000)?
        .checked_add(thousandths(decimals)?)
}

/// `16/Nov/2026:02:03:23 +0000`
fn local(text: &[u8]) -> Option<LogTime> {
    let (date, offset) = text.split_at_checked(20)?;
    let month = MONTHS
        .iter()
        .position(|name| date.get(3..6) == Some(&name[..]))?;
    let date = Date {
        year: number(date.get(7..11)?)?,
        month: month as u64 + 1,
        day: number(date.get(..2)?)?,
        time: clock(date.get(12..20)?)?,
    };
    let placed = date.is_right() && text[6] == b'/' && text[11] == b':';
    let offset = zone(offset.strip_prefix(b" ")?)?;
    placed.then(|| LogTime {
        millis: date.millis() - offset,
        exact: TimePrecision::Second,
    })
}

/// `2026-11-16T02:03:23.017+00:00`
fn iso8601(text: &[u8]) -> Option<LogTime> {
    let (date, mut rest) = text.split_at_checked(19)?;
    let placed = date[7] == b'-' && matches!(date[10], b'T' | b' ');
    let date = Date {
        year: number(date.get(..4)?)?,
        month: number(date.get(5..7)?)?,
        day: number(date.get(8..10)?)?,
        time: clock(date.get(11..19)?)?,
    };
    let (mut millis, mut exact) = (0, TimePrecision::Second);
    if let Some(fraction) = rest.strip_prefix(b".").or_else(|| rest.strip_prefix(b",")) {
        let length = fraction
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        millis = i64::try_from(thousandths(&fraction[..length])?).ok()?;
        exact = TimePrecision::Milli;
        rest = &fraction[length..];
    }
    let offset = zone(rest)?;
    (placed && date.is_right()).then(|| LogTime {
        millis: date.millis() + millis - offset,
        exact,
    })
}

/// `1794794603.021`
fn epoch(text: &[u8]) -> Option<LogTime> {
    let exact = match memchr::memchr(b'.', text) {
        Some(_) => TimePrecision::Milli,
        None => TimePrecision::Second,
    };
    let millis = i64::try_from(seconds(text)?).ok()?;
    Some(LogTime { millis, exact })
}

struct Date {
    year: u64,
    month: u64,
    day: u64,
    /// Seconds into the day.
    time: u64,
}

impl Date {
    fn is_right(&self) -> bool {
        (1..=12).contains(&self.month) && (1..=31).contains(&self.day) && self.year >= 1
    }

    fn millis(&self) -> i64 {
        // Days from the civil date, with years that begin in March, so that a leap day is the last of its year.
        let year = self.year - u64::from(self.month <= 2);
        let (era, of_era) = (year / 400, year % 400);
        let month = (self.month + 9) % 12;
        let of_year = (153 * month + 2) / 5 + self.day - 1;
        let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
        let seconds = days as i64 * 86_400 - EPOCH_DAYS * 86_400 + self.time as i64;
        seconds * 1000
    }
}

/// `02:03:23`, in seconds.
fn clock(text: &[u8]) -> Option<u64> {
    let two = |at: usize| number(text.get(at..at + 2)?);
    let (hours, minutes, seconds) = (two(0)?, two(3)?, two(6)?);
    // A leap second is the last of its minute.
    let right = hours < 24 && minutes < 60 && seconds <= 60 && text[2] == b':' && text[5] == b':';
    right.then_some(hours * 3600 + minutes * 60 + seconds.min(59))
}

/// `Z`, `+0100` or `+01:00`, in milliseconds.
fn zone(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        b"Z" | b"z" | b"" => return Some(0),
        [b'+', digits @ ..] => (1, digits),
        [b'-', digits @ ..] => (-1, digits),
        _ => return None,
    };
    let (hours, minutes) = match digits {
        [a, b, b':', c, d] | [a, b, c, d] => ([*a, *b], [*c, *d]),
        _ => return None,
    };
    let minutes = number(&hours)? * 60 + number(&minutes)?;
    Some(sign * i64::try_from(minutes).ok()? * 60_000)
}

/// The first three decimals; none at all are nothing.
fn thousandths(decimals: &[u8]) -> Option<u64> {
    let digit = |at: usize| match decimals.get(at) {
        None => Some(0),
        Some(byte) => byte.is_ascii_digit().then(|| u64::from(byte - b'0')),
    };
    Some(digit(0)? * 100 + digit(1)? * 10 + digit(2)?)
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    digits.iter().try_fold(0, |number: u64, byte| {
        byte.is_ascii_digit()
            .then(|| number * 10 + u64::from(byte - b'0'))
    })
}

/// From March of the year 0 to January 1970.
const EPOCH_DAYS: i64 = 719_468;

const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn millis(text: &str) -> Option<i64> {
        read(text.as_bytes()).map(|moment| moment.millis)
    }

    #[test]
    fn every_way_to_write_a_moment_is_read() {
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
    fn how_exact_it_is_is_known() {
        let exact = |text: &str| read(text.as_bytes()).unwrap().exact;
        assert_eq!(exact("16/Nov/2026:02:03:23 +0000"), TimePrecision::Second);
        assert_eq!(exact("2026-11-16T02:03:23Z"), TimePrecision::Second);
        assert_eq!(exact("2026-11-16T02:03:23.000Z"), TimePrecision::Milli);
        assert_eq!(exact("1794794603.021"), TimePrecision::Milli);
    }

    #[test]
    fn what_is_no_moment_is_none() {
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
        fn days_are_those_of_the_calendar(second in 0..4_102_444_800_i64) {
            let moment = jiff::Timestamp::from_second(second).unwrap();
            let zoned = moment.to_zoned(jiff::tz::TimeZone::UTC);
            let text = zoned.strftime("%d/%b/%Y:%H:%M:%S +0000").to_string();
            prop_assert_eq!(millis(&text), Some(second * 1000));
        }

        #[test]
        fn no_text_is_too_strange(text: Vec<u8>) {
            read(&text);
            seconds(&text);
        }
    }
}
