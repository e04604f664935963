//! nginx's units, and what else has a syntax of its own: text in, value or mistake out.
//!
//! Pure functions without positions: whoever reads the text knows where it stood.

mod address;
mod network;
mod percent;
mod rate;
mod redis_url;
mod size;
mod time;

pub(super) use address::{HTTP, HTTPS, host_port, listen, name_server};
pub(super) use network::network;
pub(super) use percent::percent;
pub(super) use rate::{rate, thousandths};
pub(super) use redis_url::{RedisUrl, redis_url};
pub(super) use size::size;
pub(super) use time::time;

/// Why a text does not mean what it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParseError {
    /// What is wrong.
    pub(super) sentence: String,
    /// What to do about it.
    pub(super) hint: Option<String>,
}

impl ParseError {
    /// What is wrong.
    pub(super) fn new(sentence: impl Into<String>) -> Self {
        Self {
            sentence: sentence.into(),
            hint: None,
        }
    }

    /// And what to do about it.
    pub(super) fn help(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// A whole number within bounds.
pub(super) fn whole(text: &str, what: &str, least: u64, most: u64) -> Result<u64, ParseError> {
    let number: u64 = if text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().ok()
    } else {
        None
    }
    .ok_or_else(|| {
        ParseError::new(format!("`{text}` is not {what}")).help("expected a whole number")
    })?;
    if number < least {
        Err(ParseError::new(format!("`{text}` is too small for {what}"))
            .help(format!("the least is {least}")))
    } else if number > most {
        Err(ParseError::new(format!("`{text}` is too large for {what}"))
            .help(format!("the most is {most}")))
    } else {
        Ok(number)
    }
}

/// `on` or `off`, and the other words people write for it.
pub(super) fn flag(text: &str) -> Result<bool, ParseError> {
    match text {
        "on" | "true" | "yes" => Ok(true),
        "off" | "false" | "no" => Ok(false),
        _ => Err(
            ParseError::new(format!("`{text}` is neither `on` nor `off`"))
                .help("expected `true` or `false` (`on` and `off`, `yes` and `no` mean the same)"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_know_their_bounds() {
        assert_eq!(whole("7", "a weight", 1, 10), Ok(7));
        for wrong in [
            "0",
            "11",
            "-1",
            "+1",
            "1.5",
            "x",
            "",
            "99999999999999999999999",
        ] {
            assert!(whole(wrong, "a weight", 1, 10).is_err(), "{wrong}");
        }
    }

    #[test]
    fn flags_are_the_words_of_nginx_and_of_yaml() {
        assert_eq!(flag("on"), Ok(true));
        assert_eq!(flag("false"), Ok(false));
        assert!(flag("1").is_err());
    }
}
