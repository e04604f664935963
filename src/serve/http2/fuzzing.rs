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
}
