//! A door for the fuzzer, which stands outside.

use super::flood::FloodBudgets;
use crate::message::{FrameHeader, FrameScanner};

/// Lets bytes pass in pieces of this length as a client's, and again as ours; gives the frames that were seen.
pub fn watch(bytes: &[u8], piece: usize) -> Vec<FrameHeader> {
    let pass = |mut frames: FrameScanner| {
        let mut budgets = FloodBudgets::new(256, tokio::time::Instant::now());
        let mut seen = Vec::new();
        for mut piece in bytes.chunks(piece.max(1)) {
            while let Some(frame) = frames.next(&mut piece) {
                seen.push(frame);
                // The results depend on the time, and so may differ from one run to the next.
                let _verdicts = (budgets.receive(frame), budgets.send(frame));
            }
        }
        seen
    };
    let [client, server] = [FrameScanner::from_client(), FrameScanner::from_server()].map(pass);
    [client, server].concat()
}

#[cfg(test)]
mod tests {

    #[test]
    fn anything_may_pass() {
        assert_eq!(super::watch(&[0; 24], 5).len(), 2);
        assert_eq!(super::watch(&[255; 100], 7), []);
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
