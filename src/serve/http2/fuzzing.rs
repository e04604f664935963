//! A door for the fuzzer, which stands outside.

use super::budget::Budgets;
use crate::message::frames::Frames;

/// Lets bytes pass in pieces of this length as a client's, and again as ours; says how many frames they were.
#[must_use]
pub fn watch(bytes: &[u8], piece: usize) -> usize {
    let pass = |mut frames: Frames| {
        let mut budgets = Budgets::new(256, tokio::time::Instant::now());
        let mut count = 0;
        for mut piece in bytes.chunks(piece.max(1)) {
            while let Some(frame) = frames.next(&mut piece) {
                count += 1;
                if budgets.receive(frame).is_err() || budgets.send(frame).is_err() {
                    return count;
                }
            }
        }
        count
    };
    pass(Frames::from_client()) + pass(Frames::from_server())
}

#[cfg(test)]
mod tests {
    #[test]
    fn anything_may_pass() {
        assert_eq!(super::watch(&[0; 24], 5), 2);
        assert_eq!(super::watch(&[255; 100], 7), 0);
    }

    /// The fuzzer found it: a path in Huffman's code whose bits make no symbol.
    #[test]
    fn a_path_may_be_no_huffman_code() {
        let found = [
            0x01, 0x27, 0xfb, 0x00, 0x38, 0xff, 0xff, 0xff, 0xe7, 0x38, 0xff, 0x7f, 0xff, 0xff,
            0xff, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xff, 0x06, 0x00, 0x01, 0x04,
            0x01, 0x00, 0x00, 0x00, 0x00, 0x34, 0xff, 0xff, 0xff, 0xe7, 0x38, 0x05, 0xff, 0xff,
            0x00, 0xff, 0xff, 0xff, 0xff, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x40, 0x01,
            0x01, 0x00, 0x00, 0x00,
        ];
        let (length, bytes) = found.split_first().unwrap();
        let whole = super::watch(bytes, bytes.len());
        assert_eq!(super::watch(bytes, usize::from(*length)), whole);
    }
}
