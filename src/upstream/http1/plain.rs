//! The head of an answer that is written as nearly all are.
//!
//! Read once and written out in the same breath, which takes a third of what a reader for everything and a map take.
//! Whatever is not exactly as usual (another reason, a line feed alone, a tab, a field that is not passed on) is left to
//! the careful reader; so is a head that has not come to its end.

use http::{StatusCode, Version};
use memchr::memchr;

use super::head::{Ends, MOST_FIELDS};
use crate::message::Lines;
use crate::message::headers::passes;

/// Such a head.
pub(super) struct Plain {
    pub(super) status: StatusCode,
    pub(super) lines: Lines,
    pub(super) ends: Ends,
    /// How many bytes of what was read it takes.
    pub(super) length: usize,
}

/// Reads such a head.
pub(super) fn read(bytes: &[u8]) -> Option<Plain> {
    let (code, rest) = bytes.strip_prefix(b"HTTP/1.1 ")?.split_at_checked(3)?;
    let status = StatusCode::from_bytes(code).ok()?;
    let reason = status.canonical_reason()?.as_bytes();
    let rest = rest.strip_prefix(b" ")?.strip_prefix(reason)?;
    let mut rest = rest.strip_prefix(b"\r\n")?;
    let (mut lines, mut ends) = (Lines::new(), Ends::default());
    for _ in 0..=MOST_FIELDS {
        if let Some(body) = rest.strip_prefix(b"\r\n") {
            let length = bytes.len() - body.len();
            return Some(Plain {
                status,
                lines,
                ends,
                length,
            });
        }
        let feed = memchr(b'\n', rest)?;
        let line = rest[..feed].strip_suffix(b"\r")?;
        let (name, value) = lines.add_line(line)?;
        if !passes(name) {
            return None;
        }
        ends.note(name, value, Version::HTTP_11);
        rest = &rest[feed + 1..];
    }
    None
}
