//! The checksum that a header of version 2 may carry, over all of itself.
//!
//! It guards against a proxy's mistake, not against anybody's intent, so few send it; whoever does expects it to be
//! looked at.

/// Whether a whole header, whose values begin at `values`, has no checksum or the right one.
pub(super) fn is_right(header: &[u8], values: usize) -> bool {
    let Some(place) = place(header, values) else {
        return true;
    };
    let (before, rest) = header.split_at(place);
    let (said, after) = rest.split_at(LENGTH);
    let parts = [before, &[0; LENGTH], after];
    let sum = !parts.into_iter().flatten().fold(u32::MAX, add);
    said == sum.to_be_bytes()
}

/// Where the checksum stands.
fn place(header: &[u8], values: usize) -> Option<usize> {
    let mut at = values;
    loop {
        let (kind, length) = match header.get(at..at + 3)? {
            [kind, high, low] => (*kind, usize::from(*high) << 8 | usize::from(*low)),
            _ => return None,
        };
        let value = at + 3;
        header.get(value..value + length)?;
        if kind == CRC32C && length == LENGTH {
            return Some(value);
        }
        at = value + length;
    }
}

/// One more byte of CRC-32C. Bit by bit: a header has a few hundred bytes, once in a connection.
fn add(sum: u32, byte: &u8) -> u32 {
    (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
        (sum >> 1) ^ (POLYNOMIAL & (sum & 1).wrapping_neg())
    })
}

/// The kind of the value that holds it.
const CRC32C: u8 = 3;
const LENGTH: usize = 4;
/// Castagnoli's, its bits in reverse.
const POLYNOMIAL: u32 = 0x82f6_3b78;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_the_one_everybody_computes() {
        let sum = !b"123456789".iter().fold(u32::MAX, add);
        assert_eq!(sum, 0xe306_9283);
    }

    #[test]
    fn it_is_found_among_others() {
        let header = [1, 0, 1, b'x', 3, 0, 4, 9, 9, 9, 9];
        assert_eq!(place(&header, 0), Some(7));
        assert_eq!(place(&header[..10], 0), None);
        assert_eq!(place(&[3, 0, 1, 5], 0), None);
    }
}
