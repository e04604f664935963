//! How fast answers may leave.

use super::{Template, Variable};
use crate::config::units;

/// `limit_rate` and `limit_rate_after`
#[derive(Debug, Clone, Default)]
pub struct Bandwidth {
    /// Bytes a second; 0 for any speed.
    pub rate: Volume,
    /// Bytes that leave at any speed first.
    pub after: Volume,
}

/// A number of bytes.
#[derive(Debug, Clone)]
pub enum Volume {
    /// The same for every answer.
    Fixed(u64),
    /// What this text gives, once there is an answer.
    Told(Template),
}

impl Bandwidth {
    /// Whether it depends on a variable like this.
    #[must_use]
    pub fn may_use(&self, like: impl Fn(&Variable) -> bool) -> bool {
        [&self.rate, &self.after].into_iter().any(|it| match it {
            Volume::Fixed(_) => false,
            Volume::Told(template) => template.may_use(&like),
        })
    }
}

impl Volume {
    /// What a text of variables came to: a size, and nothing for an empty one.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<u64> {
        if text.is_empty() {
            return Some(0);
        }
        units::size(std::str::from_utf8(text).ok()?).ok()
    }
}

impl Default for Volume {
    fn default() -> Self {
        Self::Fixed(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_gives_a_size_or_nothing() {
        assert_eq!(Volume::parse(b""), Some(0));
        assert_eq!(Volume::parse(b"10k"), Some(10_240));
        for wrong in [&b"fast"[..], b"-1", b"1.5k", b"\xff"] {
            assert_eq!(Volume::parse(wrong), None);
        }
    }
}
