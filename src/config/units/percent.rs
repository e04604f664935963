//! Shares of a whole, written as percentages.

use super::ParseError;
use crate::config::plan::CallShare;

/// `50%`, `12.5%`: at most one decimal, at most the whole.
pub(in crate::config) fn percent(text: &str) -> Result<CallShare, ParseError> {
    let wrong = || {
        ParseError::new(format!("`{text}` is not a percentage"))
            .help("expected for example `50%` or `12.5%`")
    };
    let number = text.strip_suffix('%').ok_or_else(wrong)?.trim_end();
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str, most: usize| {
        let sound = (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        sound.then(|| text.parse::<u32>().ok()).flatten()
    };
    let thousandths =
        digits(whole, 3).ok_or_else(wrong)? * 10 + digits(tenth, 1).ok_or_else(wrong)?;
    if thousandths > 1000 {
        return Err(
            ParseError::new(format!("`{text}` is more than there is")).help("the most is 100%")
        );
    }
    Ok(CallShare(thousandths))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_have_at_most_one_decimal() {
        assert_eq!(percent("50%"), Ok(CallShare(500)));
        assert_eq!(percent("12.5%"), Ok(CallShare(125)));
        assert_eq!(percent("100 %"), Ok(CallShare(1000)));
        assert_eq!(percent("0%"), Ok(CallShare(0)));
        for wrong in [
            "50", "%", "1.25%", "-1%", "100.1%", "1000%", ".5%", "5.%", "x%",
        ] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }
}
