//! What a backend says of itself first: how large a head it takes.
//!
//! h2 reads it and keeps it to itself. A head that is too large ends the connection with some backends, and with it the
//! requests of others, so it is better not sent.

use std::sync::OnceLock;

use tokio::sync::Notify;

/// What is known of a backend's terms.
#[derive(Debug, Default)]
pub(super) struct PeerSettings {
    largest_head: OnceLock<usize>,
    known: Notify,
}

/// The first frame a backend sends, which has to be its settings.
#[derive(Debug, Default)]
pub(super) struct SettingsReader(Vec<u8>);

impl PeerSettings {
    /// They have come.
    pub(super) fn agree(&self, largest_head: usize) {
        // Said once.
        let _first = self.largest_head.set(largest_head);
        self.known.notify_waiters();
    }

    /// How large a head may be; waits until that is known.
    pub(super) async fn largest_head(&self) -> usize {
        loop {
            let known = self.known.notified();
            if let Some(largest_head) = self.largest_head.get() {
                return *largest_head;
            }
            known.await;
        }
    }
}

impl SettingsReader {
    /// Adds what has come; how large a head may be, once it is all there.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Option<usize> {
        let room = LONGEST.saturating_sub(self.0.len());
        self.0.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let (head, rest) = self.0.split_at_checked(HEAD)?;
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        if head[0] != 0 || head[3] != SETTINGS || length > LONGEST - HEAD {
            // h2 will have something to say about it.
            return Some(usize::MAX);
        }
        let settings = rest.get(..length)?.chunks_exact(6);
        let largest = settings
            .rev()
            .find(|setting| setting[..2] == MAX_HEADER_LIST_SIZE)
            .map(|setting| u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]));
        Some(largest.map_or(usize::MAX, |largest| largest as usize))
    }
}

const HEAD: usize = 9;
const SETTINGS: u8 = 4;
const MAX_HEADER_LIST_SIZE: [u8; 2] = [0, 6];
/// More than anybody has to say.
const LONGEST: usize = HEAD + 6 * 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], piece: usize) -> Option<usize> {
        let mut preface = SettingsReader::default();
        bytes.chunks(piece).find_map(|piece| preface.read(piece))
    }

    #[test]
    fn the_largest_head_is_found_however_it_comes() {
        let settings = [
            0, 0, 12, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 128, 0, 6, 0, 0, 0x20, 0, 0, 0, 0, 4, 1,
        ];
        for piece in 1..settings.len() {
            assert_eq!(read(&settings, piece), Some(8192), "{piece}");
        }
        assert_eq!(read(&settings[..20], 5), None);
    }

    #[test]
    fn who_does_not_say_takes_anything() {
        assert_eq!(read(&[0, 0, 0, 4, 0, 0, 0, 0, 0], 9), Some(usize::MAX));
        assert_eq!(read(b"HTTP/1.1 400 Bad Request", 9), Some(usize::MAX));
        assert_eq!(read(&[0, 255, 255, 4, 0, 0, 0, 0, 0], 9), Some(usize::MAX));
    }

    #[tokio::test]
    async fn whoever_needs_them_waits() {
        let terms = std::sync::Arc::new(PeerSettings::default());
        let waiting = tokio::spawn({
            let terms = std::sync::Arc::clone(&terms);
            async move { terms.largest_head().await }
        });
        tokio::task::yield_now().await;
        terms.agree(5);
        assert_eq!(waiting.await.unwrap(), 5);
        assert_eq!(terms.largest_head().await, 5);
    }
}
