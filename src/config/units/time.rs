//! `60s`, `1h30m`, `500ms`: nginx's times.

use std::time::Duration;

use super::ParseError;

/// Largest first, the order in which they have to be written.
const UNITS: [(&str, u64); 8] = [
    ("y", 365 * 86_400_000),
    ("M", 30 * 86_400_000),
    ("w", 7 * 86_400_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// Longest time accepted: 100 years, far below where timers overflow.
const MOST: u64 = 100 * 365 * 86_400_000;

/// A time. A number without a unit is seconds.
pub(in crate::config) fn time(text: &str) -> Result<Duration, ParseError> {
    let wrong = || {
        let mistake = ParseError::new(format!("`{text}` is not a time"));
        if text.contains('.') {
            mistake.help("only whole numbers: write `1500ms` for a second and a half")
        } else {
            mistake.help("expected a number with a unit: ms, s, m, h, d, w, M (month), y; or several as in `1h30m`")
        }
    };
    let mut total: u64 = 0;
    let mut next_unit = 0;
    let mut rest = text;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let (digits, behind) = split(rest, |c| c.is_ascii_digit());
        let (unit, behind) = split(behind, |c| c.is_ascii_alphabetic());
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        let unit = if unit.is_empty() { "s" } else { unit };
        // Each unit once and the larger before the smaller, or `5m5h` would pass for something.
        let place = UNITS
            .iter()
            .position(|(name, _)| *name == unit)
            .filter(|place| *place >= next_unit)
            .ok_or_else(wrong)?;
        let (_, millis) = UNITS.get(place).copied().unwrap_or(("s", 1000));
        next_unit = place + 1;
        total = number
            .checked_mul(millis)
            .and_then(|part| total.checked_add(part))
            .filter(|total| *total <= MOST)
            .ok_or_else(|| {
                ParseError::new(format!("`{text}` is too long a time")).help("the most is 100y")
            })?;
        rest = behind.trim_start_matches(' ');
    }
    Ok(Duration::from_millis(total))
}

/// The longest beginning of `text` that `belongs`, and the rest.
fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_nginx_reads_them() {
        let millis = |text| time(text).map(|time| time.as_millis()).ok();
        assert_eq!(millis("60s"), Some(60_000));
        assert_eq!(millis("60"), Some(60_000));
        assert_eq!(millis("1h30m"), Some(5_400_000));
        assert_eq!(millis("1h 30m"), Some(5_400_000));
        assert_eq!(millis("1m500ms"), Some(60_500));
        assert_eq!(millis("1M"), Some(2_592_000_000));
        assert_eq!(millis("1y"), Some(31_536_000_000));
        assert_eq!(millis("0"), Some(0));
    }

    #[test]
    fn what_is_not_a_time_is_refused() {
        for wrong in [
            "",
            "s",
            "1.5s",
            "-1s",
            "5m5h",
            "1s1s",
            "1x",
            "10 apples",
            "101y",
            "99999999999999999999s",
        ] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
