//! `10r/s`, `30r/m`: rates, in nginx's notation and a little beyond.

use super::ParseError;
use crate::config::plan::Rate;

/// A rate. Without a period it is a second's.
pub(in crate::config) fn rate(text: &str) -> Result<Rate, ParseError> {
    let wrong = || {
        ParseError::new(format!("`{text}` is not a rate"))
            .help("expected a number with r/s, r/m, r/h or r/d behind it, as in `10r/s`")
    };
    type Make = fn(u64) -> Rate;
    let periods: [(&str, Make, u64); 4] = [
        ("r/s", Rate::per_second, 1),
        ("r/m", Rate::per_minute, 60),
        ("r/h", Rate::per_hour, 3600),
        ("r/d", Rate::per_day, 86_400),
    ];
    let (number, make, seconds) = periods
        .into_iter()
        .find_map(|(suffix, make, seconds)| Some((text.strip_suffix(suffix)?, make, seconds)))
        .unwrap_or((text, Rate::per_second, 1));
    let thousandths = thousandths(number).ok_or_else(wrong)?;
    if number
        .split_once('.')
        .is_some_and(|(_, decimals)| decimals.len() > 3)
    {
        return Err(
            ParseError::new(format!("`{text}` has more than three decimals"))
                .help("a slower rate is exact with a longer period: r/m, r/h, r/d"),
        );
    }
    if thousandths == Some(0) {
        return Err(ParseError::new("a rate of nothing would refuse everybody")
            .help("to turn clients away use `deny`, or `return` with a status"));
    }
    thousandths
        .filter(|milli| *milli <= Rate::MAX_PER_SECOND * 1000 * seconds)
        .map(make)
        .ok_or_else(|| {
            ParseError::new(format!("`{text}` is too fast a rate"))
                .help(format!("the most is {}r/s", Rate::MAX_PER_SECOND))
        })
}

/// A decimal in thousandths, what is finer cut off; `Some(None)` when it is one but too large.
pub(in crate::config) fn thousandths(number: &str) -> Option<Option<u64>> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) {
        return None;
    }
    let padded: String = decimals.chars().chain("000".chars()).take(3).collect();
    let whole = whole
        .parse::<u64>()
        .ok()
        .and_then(|whole| whole.checked_mul(1000));
    Some(
        whole
            .zip(padded.parse().ok())
            .and_then(|(whole, part): (u64, u64)| whole.checked_add(part)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_exact() {
        assert_eq!(rate("10r/s"), Ok(Rate::per_second(10_000)));
        assert_eq!(rate("10"), Ok(Rate::per_second(10_000)));
        assert_eq!(rate("30r/m"), Ok(Rate::per_minute(30_000)));
        assert_eq!(rate("0.5r/h"), Ok(Rate::per_hour(500)));
        assert_eq!(rate("1.125r/d"), Ok(Rate::per_day(1125)));
    }

    #[test]
    fn what_is_not_a_rate_is_refused() {
        for wrong in [
            "",
            "r/s",
            "0r/s",
            "0.0",
            "-1r/s",
            "1r/w",
            "10 r/s",
            "1.r/s",
            ".5r/s",
            "0.0001r/s",
            "1000000001r/s",
            "99999999999999999999r/d",
            "10rps",
        ] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
