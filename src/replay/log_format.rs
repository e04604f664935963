//! Lines of text: values between fixed texts, as nginx's `log_format` describes them.
//!
//! Moments as logs write them.

use memchr::memchr;

use super::format::{CutFields, EscapeStyle, FormatError};
use crate::text::is_escaped;

/// A format, taken apart.
#[derive(Debug, Clone)]
pub(super) struct FormatTokens {
    pieces: Vec<FormatToken>,
    pub(super) escape: EscapeStyle,
    /// Whether a line may go on behind the last piece.
    open_ended: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum FormatToken {
    Literal(Box<[u8]>),
    Name(String),
}

impl FormatTokens {
    pub(super) fn names(&self) -> Vec<&str> {
        let names = self.pieces.iter().filter_map(|piece| match piece {
            FormatToken::Literal(_) => None,
            FormatToken::Name(name) => Some(name.as_str()),
        });
        names.collect()
    }
}

/// Takes the text of a `log_format` apart.
pub(super) fn parse(text: &str) -> Result<FormatTokens, FormatError> {
    let (text, escape) = undress(text);
    if !text.contains('$') {
        return Err(FormatError::Unknown(text));
    }
    let mut pieces: Vec<FormatToken> = Vec::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find('$') {
        let (literal, behind) = rest.split_at(at);
        push_literal(&mut pieces, literal);
        let behind = behind.strip_prefix('$').unwrap_or(behind);
        let (name, after) = match behind.strip_prefix('{') {
            Some(inside) => inside.split_once('}').ok_or(FormatError::Unclosed)?,
            None => behind.split_at(behind.find(|c| !is_name(c)).unwrap_or(behind.len())),
        };
        rest = after;
        if name.is_empty() {
            push_literal(&mut pieces, "$");
            continue;
        }
        if let Some(FormatToken::Name(before)) = pieces.last() {
            return Err(FormatError::Adjacent(before.clone(), name.to_owned()));
        }
        pieces.push(FormatToken::Name(name.to_owned()));
    }
    push_literal(&mut pieces, rest);
    Ok(FormatTokens {
        pieces,
        escape,
        open_ended: false,
    })
}

/// A format of our own, of which we know that it is one, and whose lines may have more at their end.
pub(super) fn open_ended(text: &str) -> FormatTokens {
    let pieces = parse(text).expect("our own formats are well-formed");
    FormatTokens {
        open_ended: true,
        ..pieces
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn push_literal(pieces: &mut Vec<FormatToken>, text: &str) {
    if text.is_empty() {
        return;
    }
    match pieces.last_mut() {
        Some(FormatToken::Literal(before)) => {
            let joined = [before, text.as_bytes()].concat();
            *before = joined.into();
        }
        _ => pieces.push(FormatToken::Literal(text.as_bytes().into())),
    }
}

/// Takes off what stands around the text where a whole directive was given: `log_format main escape=json '…' '…';`.
fn undress(text: &str) -> (String, EscapeStyle) {
    let mut escape = EscapeStyle::Backslash;
    let mut rest = text.trim();
    if let Some(directive) = rest.strip_prefix("log_format ") {
        let named = directive.trim_start().split_once(char::is_whitespace);
        rest = named.map_or("", |(_, text)| text).trim_start();
    }
    if let Some((which, after)) = rest
        .strip_prefix("escape=")
        .and_then(|behind| behind.split_once(char::is_whitespace))
    {
        rest = after.trim_start();
        escape = match which {
            "json" => EscapeStyle::Json,
            "none" => EscapeStyle::None,
            _ => EscapeStyle::Backslash,
        };
    }
    let bare = rest.trim_end_matches(';').trim_end();
    match unquoted(bare) {
        Some(text) => (text, escape),
        None => (rest.to_owned(), escape),
    }
}

/// The texts of `'…' '…'` joined; `None` if it is not all quotes.
fn unquoted(text: &str) -> Option<String> {
    // A text in double quotes may as well be a format that begins and ends with one.
    let mut rest = text.strip_prefix('\'').map(|_| text)?;
    let mut joined = String::new();
    while !rest.is_empty() {
        let inside = rest.strip_prefix('\'')?;
        let (part, after) = inside.split_once('\'')?;
        joined.push_str(part);
        rest = after.trim_start();
    }
    Some(joined)
}

/// Cuts lines of one format.
#[derive(Debug)]
pub(super) struct TextSplitter {
    start: Box<[u8]>,
    /// Each value with what ends it; nothing for one that goes on to the end.
    values: Vec<(Option<usize>, Box<[u8]>)>,
    open_ended: bool,
    wanted: usize,
}

impl TextSplitter {
    pub(super) fn new(format: &FormatTokens, wanted: &[String]) -> Self {
        let mut start = Box::default();
        let mut values: Vec<(Option<usize>, Box<[u8]>)> = Vec::new();
        for piece in &format.pieces {
            match (piece, values.last_mut()) {
                (FormatToken::Literal(text), None) => start = text.clone(),
                (FormatToken::Literal(text), Some((_, end))) => *end = text.clone(),
                (FormatToken::Name(name), _) => {
                    let which = wanted.iter().position(|wanted| wanted == name);
                    values.push((which, Box::default()));
                }
            }
        }
        Self {
            start,
            values,
            open_ended: format.open_ended,
            wanted: wanted.len(),
        }
    }

    pub(super) fn cut(&self, line: &[u8], cut: &mut CutFields) -> bool {
        cut.reset(self.wanted);
        if !line.starts_with(&self.start) {
            return false;
        }
        let mut at = self.start.len();
        for (which, end) in &self.values {
            let rest = &line[at..];
            let length = if !end.is_empty() {
                find(rest, end)
            } else if self.open_ended {
                Some(memchr(b' ', rest).unwrap_or(rest.len()))
            } else {
                Some(rest.len())
            };
            let Some(length) = length else {
                return false;
            };
            if let Some(which) = which {
                cut.set(*which, at..at + length);
            }
            at += length + end.len();
        }
        self.open_ended || at == line.len()
    }
}

/// Where a fixed text begins. A quote that a backslash stands before belongs to the value.
fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    let (&first, others) = wanted.split_first()?;
    let mut from = 0;
    loop {
        let at = from + memchr(first, text.get(from..)?)?;
        if text[at + 1..].starts_with(others) && !(first == b'"' && is_escaped(&text[..at])) {
            return Some(at);
        }
        from = at + 1;
    }
}

/// A moment, in milliseconds since the Unix epoch, and how exactly it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogTime {
    pub(super) millis: i64,
    pub(super) exact: TimePrecision,
}

/// How exactly a moment is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimePrecision {
    /// To the millisecond.
    Milli,
    /// To the second.
    Second,
}

/// Reads `$time_local`, `$time_iso8601` with or without fractions, or `$msec`.
pub(super) fn read(text: &[u8]) -> Option<LogTime> {
    match (text.get(2), text.get(4)) {
        (Some(b'/'), _) => local(text),
        (_, Some(b'-')) => iso8601(text),
        _ => epoch(text),
    }
}

/// Seconds with up to three decimals, in milliseconds: `$request_time`, `$msec`.
pub(super) fn seconds(text: &[u8]) -> Option<u64> {
    let (whole, decimals) = match memchr(b'.', text) {
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
    let exact = match memchr(b'.', text) {
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

    use super::*;

    fn cut(format: &str, line: &str, wanted: &[&str]) -> Option<Vec<String>> {
        let format = parse(format).unwrap();
        let wanted: Vec<_> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let mut cut = CutFields::default();
        let fits = TextSplitter::new(&format, &wanted).cut(line.as_bytes(), &mut cut);
        let value = |at| String::from_utf8_lossy(cut.value(line.as_bytes(), at)).into_owned();
        fits.then(|| (0..wanted.len()).map(value).collect())
    }

    #[test]
    fn values_stand_between_texts() {
        let found = cut("<$a> ${b}x$c", "<1> twox three", &["c", "a", "b"]);
        assert_eq!(found.unwrap(), [" three", "1", "two"]);
        assert_eq!(cut("$a|$b|", "1|2|3", &["a"]), None);
        assert_eq!(cut("$a costs $ 5", "it costs $ 5", &["a"]).unwrap(), ["it"]);
    }

    #[test]
    fn an_escaped_quote_ends_nothing() {
        let found = cut(r#""$a" "$b""#, r#""x\" \"y" "z\\""#, &["a", "b"]);
        assert_eq!(found.unwrap(), [r#"x\" \"y"#, r"z\\"]);
    }

    #[test]
    fn a_whole_directive_is_understood() {
        let text = "log_format  main  '$remote_addr [$time_local] '\n    '\"$request\"';";
        let found = cut(text, "1.2.3.4 [now] \"GET /\"", &["request", "time_local"]);
        assert_eq!(found.unwrap(), ["GET /", "now"]);
        let json = parse(r#"log_format j escape=json '{"a":"$uri"}';"#).unwrap();
        assert_eq!(
            (json.escape, json.names()),
            (EscapeStyle::Json, vec!["uri"])
        );
    }

    #[test]
    fn what_cannot_be_cut_is_said() {
        assert_eq!(
            parse("$a$b").unwrap_err(),
            FormatError::Adjacent("a".into(), "b".into())
        );
        assert_eq!(parse("${a").unwrap_err(), FormatError::Unclosed);
        assert_eq!(
            parse("combind").unwrap_err(),
            FormatError::Unknown("combind".into())
        );
    }
}

#[cfg(test)]
mod time_tests {

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
