//! `32k`, `10m`, `1g`: nginx's sizes.

use super::ParseError;

/// A size in bytes.
pub(in crate::config) fn size(text: &str) -> Result<u64, ParseError> {
    let wrong = || {
        ParseError::new(format!("`{text}` is not a size"))
            .help("expected a whole number of bytes, or with `k`, `m` or `g` behind it")
    };
    let (digits, shift) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 10),
        None => match text.strip_suffix(['m', 'M']) {
            Some(digits) => (digits, 20),
            None => match text.strip_suffix(['g', 'G']) {
                Some(digits) => (digits, 30),
                None => (text, 0),
            },
        },
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .filter(|bytes| *bytes <= i64::MAX.unsigned_abs())
        .ok_or_else(|| ParseError::new(format!("`{text}` is too large a size")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_nginx_reads_them() {
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("32k"), Ok(32_768));
        assert_eq!(size("10M"), Ok(10 << 20));
        assert_eq!(size("2g"), Ok(2 << 30));
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for wrong in ["", "k", "10mb", "1.5m", "-1", "10 m", "99999999999g"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
