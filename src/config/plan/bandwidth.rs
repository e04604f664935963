//! How fast answers may leave.

use super::{Template, Variable};
use crate::config::units;

/// `limit_rate` and `limit_rate_after`
#[derive(Debug, Clone, Default)]
pub struct LimitRate {
    /// Bytes a second; 0 for any speed.
    pub rate: SizeTemplate,
    /// Bytes that leave at any speed first.
    pub after: SizeTemplate,
}

/// A number of bytes.
#[derive(Debug, Clone)]
pub enum SizeTemplate {
    /// The same for every answer.
    Fixed(u64),
    /// What this text gives, once there is an answer.
    Told(Template),
}

impl LimitRate {
    /// Whether it depends on a variable like this.
    #[must_use]
    pub fn may_use(&self, like: impl Fn(&Variable) -> bool) -> bool {
        [&self.rate, &self.after].into_iter().any(|it| match it {
            SizeTemplate::Fixed(_) => false,
            SizeTemplate::Told(template) => template.may_use(&like),
        })
    }
}

impl SizeTemplate {
    /// What a text of variables came to: a size, and nothing for an empty one.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<u64> {
        if text.is_empty() {
            return Some(0);
        }
        units::size(std::str::from_utf8(text).ok()?).ok()
    }
}

impl Default for SizeTemplate {
    fn default() -> Self {
        Self::Fixed(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_gives_a_size_or_nothing() {
        assert_eq!(SizeTemplate::parse(b""), Some(0));
        assert_eq!(SizeTemplate::parse(b"10k"), Some(10_240));
        for wrong in [&b"fast"[..], b"-1", b"1.5k", b"\xff"] {
            assert_eq!(SizeTemplate::parse(wrong), None);
        }
    }
}
