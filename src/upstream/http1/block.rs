//! When a block of header fields that is still arriving is worth parsing.
//!
//! A parser begins at the first byte each time. Run for every piece that arrives, a head that a backend drips byte by byte
//! would cost the square of its length.

use memchr::memchr_iter;

/// Decides when to parse a block: at first, where an empty line has arrived, and each time its length has doubled.
#[derive(Debug, Default)]
pub(super) struct HeadBlockScan {
    // How much had arrived when it was last looked at, and when it was last parsed.
    seen: usize,
    parsed: usize,
}

impl HeadBlockScan {
    /// Whether to parse what has arrived of a block that may be as large as `largest`.
    pub(super) fn is_due(&mut self, block: &[u8], largest: usize) -> bool {
        if block.len() <= self.seen {
            return false;
        }
        // An empty line may have begun in what was seen.
        let new = &block[self.seen.saturating_sub(EMPTY_LINE.len() - 1)..];
        self.seen = block.len();
        let due = self.parsed == 0
            || block.len() / 2 >= self.parsed
            || block.len() > largest
            || has_empty_line(new);
        if due {
            self.parsed = block.len();
        }
        due
    }
}

fn has_empty_line(bytes: &[u8]) -> bool {
    memchr_iter(b'\n', bytes).any(|at| matches!(bytes[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]))
}

/// The longest end of a block, the end of its last line included.
const EMPTY_LINE: &[u8] = b"\n\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    /// How many bytes are parsed of a block that arrives byte by byte.
    fn parsed(block: &[u8]) -> usize {
        let mut scan = HeadBlockScan::default();
        (1..=block.len())
            .filter(|length| scan.is_due(&block[..*length], 64 * 1024))
            .sum()
    }

    #[test]
    fn a_dripped_block_is_parsed_in_proportion_to_its_length() {
        for line in ["a: b\r\n", "a: b\n", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"] {
            let block = line.repeat(32 * 1024 / line.len());
            assert!(parsed(block.as_bytes()) < 4 * block.len(), "{line:?}");
        }
    }

    #[test]
    fn the_end_of_a_block_is_seen_however_it_is_cut() {
        for block in ["a: b\r\n\r\n", "a: b\n\n", "a: b\n\r\n", "a: b\r\n\n"] {
            let block = block.repeat(2);
            for cut in 1..block.len() / 2 {
                let mut scan = HeadBlockScan::default();
                scan.is_due(&block.as_bytes()[..cut], 100);
                assert!(scan.is_due(block.as_bytes(), 100), "{block:?} {cut}");
            }
        }
    }

    #[test]
    fn what_is_too_large_is_parsed_at_once() {
        let mut scan = HeadBlockScan::default();
        assert!(scan.is_due(&[b'a'; 60], 64));
        assert!(!scan.is_due(&[b'a'; 64], 64));
        assert!(scan.is_due(&[b'a'; 65], 64));
    }
}
