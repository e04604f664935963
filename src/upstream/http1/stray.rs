//! Lines in the head of an answer that are no fields, because there is no colon in them: a word that a script has printed, or
//! the status line twice, as IIS sends it.
//!
//! nginx passes them over or makes fields without a value of them. They say nothing about where the answer ends, so they are
//! skipped. A line that begins with a space continues the one before it, and one with a control character in it is
//! not text: answers with those stay refused.

use bytes::BytesMut;
use memchr::memchr;

/// What has become of such lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StrayLines {
    /// The head has not come whole.
    Incomplete,
    /// There are none that may be skipped.
    Nothing,
    /// They are gone.
    Removed,
}

/// Takes them out of the head at the front of what was read, which may be as long as `largest`.
pub(super) fn without_stray_lines(read: &mut BytesMut, largest: usize) -> StrayLines {
    let mut kept = BytesMut::with_capacity(read.len());
    let mut rest = &read[..];
    let mut removed = false;
    loop {
        let Some(end) = memchr(b'\n', rest) else {
            return match read.len() <= largest {
                true => StrayLines::Incomplete,
                false => StrayLines::Nothing,
            };
        };
        let (line, after) = rest.split_at(end + 1);
        rest = after;
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        // Of the first line the parser has thought well.
        if !kept.is_empty() && !text.is_empty() && is_stray(text) {
            removed = true;
            continue;
        }
        kept.extend_from_slice(line);
        if text.is_empty() {
            break;
        }
    }
    if !removed {
        return StrayLines::Nothing;
    }
    kept.extend_from_slice(rest);
    *read = kept;
    StrayLines::Removed
}

fn is_stray(line: &[u8]) -> bool {
    !line[0].is_ascii_whitespace()
        && !line
            .iter()
            .any(|byte| *byte == b':' || byte.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sifted(text: &str) -> (StrayLines, String) {
        let mut read = BytesMut::from(text);
        let stray = without_stray_lines(&mut read, 1000);
        (stray, String::from_utf8_lossy(&read).into_owned())
    }

    #[test]
    fn lines_without_a_colon_are_taken_out_of_the_head_only() {
        let head =
            "HTTP/1.1 200 OK\r\nHTTP/1.1 200 OK\r\na: b\r\ngarbage\nmore of it\r\n\r\nbody\r\n";
        let expected = "HTTP/1.1 200 OK\r\na: b\r\n\r\nbody\r\n";
        assert_eq!(sifted(head), (StrayLines::Removed, expected.to_owned()));
    }

    #[test]
    fn what_could_be_read_in_two_ways_stays() {
        for line in [" folded", "\tfolded", "  ", "a\rb", "a\0b", "bad name: x"] {
            let head = format!("HTTP/1.1 200 OK\r\na: b\r\n{line}\r\n\r\n");
            assert_eq!(
                sifted(&head),
                (StrayLines::Nothing, head.clone()),
                "{line:?}"
            );
        }
    }

    #[test]
    fn a_head_is_awaited_to_its_end() {
        let head = "HTTP/1.1 200 OK\r\ngarbage\r\na: b\r\n";
        assert_eq!(sifted(head), (StrayLines::Incomplete, head.to_owned()));
        let endless = format!("HTTP/1.1 200 OK\r\n{}", "x".repeat(1000));
        assert_eq!(sifted(&endless).0, StrayLines::Nothing);
    }
}
