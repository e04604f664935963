//! SipHash, the keyed hash that nobody can find collisions of without knowing its secret.
//!
//! Our own because of two things the standard library's cannot do: 128 bits in one pass, so that a long key is
//! identified and found by the same hash, and sixteen bytes at once without a detour over a buffer. One round for a
//! word and three at the end, as the standard library has it; the published numbers are for two and four.

use std::hash::{BuildHasher, RandomState};

/// A secret; `WORD` rounds for a word and `END` at the end.
#[derive(Debug, Clone, Copy)]
pub(super) struct SipHasher<const WORD: usize = 1, const END: usize = 3>(u64, u64);

#[derive(Clone, Copy)]
struct SipState(u64, u64, u64, u64);

impl SipHasher {
    /// A random secret.
    pub(super) fn random() -> Self {
        let random = RandomState::new();
        Self(random.hash_one(0), random.hash_one(1))
    }

    /// One that is no secret.
    pub(super) fn known() -> Self {
        Self(0, 0)
    }
}

impl<const WORD: usize, const END: usize> SipHasher<WORD, END> {
    /// The hash of sixteen bytes, given as two words of little endian.
    pub(super) fn short(&self, words: [u64; 2]) -> u64 {
        let mut state = self.start();
        for word in words {
            state.take::<WORD>(word);
        }
        state.take::<WORD>(16 << 56);
        state.2 ^= 0xff;
        state.end::<END>()
    }

    /// The 128 bits of bytes of any length.
    pub(super) fn long(&self, bytes: &[u8]) -> [u64; 2] {
        let mut state = self.start();
        state.1 ^= 0xee;
        let (words, rest) = bytes.as_chunks();
        for word in words {
            state.take::<WORD>(u64::from_le_bytes(*word));
        }
        // Only the lowest byte of the length, as it is defined.
        let length = u64::from(bytes.len().to_le_bytes()[0]) << 56;
        state.take::<WORD>(rest_of(bytes, rest) | length);
        state.2 ^= 0xee;
        let first = state.end::<END>();
        state.1 ^= 0xdd;
        [first, state.end::<END>()]
    }

    fn start(&self) -> SipState {
        SipState(
            self.0 ^ 0x736f_6d65_7073_6575,
            self.1 ^ 0x646f_7261_6e64_6f6d,
            self.0 ^ 0x6c79_6765_6e65_7261,
            self.1 ^ 0x7465_6462_7974_6573,
        )
    }
}

/// The last bytes that make no whole word, as a word.
fn rest_of(bytes: &[u8], rest: &[u8]) -> u64 {
    match bytes.last_chunk() {
        // With those before them they do; no loop, because this is where most keys end.
        Some(end) => {
            let others = 8 * (8 - rest.len());
            let word = u64::from_le_bytes(*end);
            word.checked_shr(u32::try_from(others).unwrap_or(64))
                .unwrap_or(0)
        }
        None => rest
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

impl SipState {
    fn take<const ROUNDS: usize>(&mut self, word: u64) {
        self.3 ^= word;
        self.rounds::<ROUNDS>();
        self.0 ^= word;
    }

    fn end<const ROUNDS: usize>(&mut self) -> u64 {
        self.rounds::<ROUNDS>();
        self.0 ^ self.1 ^ self.2 ^ self.3
    }

    fn rounds<const ROUNDS: usize>(&mut self) {
        for _ in 0..ROUNDS {
            self.0 = self.0.wrapping_add(self.1);
            self.2 = self.2.wrapping_add(self.3);
            self.1 = self.1.rotate_left(13) ^ self.0;
            self.3 = self.3.rotate_left(16) ^ self.2;
            self.0 = self.0.rotate_left(32);
            self.2 = self.2.wrapping_add(self.1);
            self.0 = self.0.wrapping_add(self.3);
            self.1 = self.1.rotate_left(17) ^ self.2;
            self.3 = self.3.rotate_left(21) ^ self.0;
            self.2 = self.2.rotate_left(32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of the published numbers: the bytes 0 to 15.
    const KNOWN: SipHasher<2, 4> = SipHasher(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);

    /// The inputs there: so many of the bytes 0, 1, 2 and so on.
    fn bytes<const LENGTH: usize>() -> [u8; LENGTH] {
        std::array::from_fn(|at| u8::try_from(at).unwrap())
    }

    #[test]
    fn sixteen_bytes_hash_to_the_published_number() {
        let words = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let expected = [0xdb, 0x9b, 0xc2, 0x57, 0x7f, 0xcc, 0x2a, 0x3f];
        assert_eq!(KNOWN.short(words).to_le_bytes(), expected);
    }

    #[test]
    fn any_bytes_hash_to_the_published_128_bits() {
        let long = |bytes: &[u8]| {
            let [first, second] = KNOWN.long(bytes);
            format!("{:016x}{:016x}", first.swap_bytes(), second.swap_bytes())
        };
        assert_eq!(long(&bytes::<0>()), "a3817f04ba25a8e66df67214c7550293");
        assert_eq!(long(&bytes::<1>()), "da87c1d86b99af44347659119b22fc45");
        assert_eq!(long(&bytes::<8>()), "3b62a9ba6258f5610f83e264f31497b4");
        assert_eq!(long(&bytes::<15>()), "5493e99933b0a8117e08ec0f97cfc3d9");
        assert_eq!(long(&bytes::<16>()), "6ee2a4ca67b054bbfd3315bf85230577");
        assert_eq!(long(&bytes::<17>()), "473d06e8738db89854c066c47ae47740");
    }

    #[test]
    fn every_secret_is_another() {
        let (one, other) = (SipHasher::random(), SipHasher::random());
        assert_ne!(one.short([0; 2]), other.short([0; 2]));
        assert_ne!(one.long(b"long"), other.long(b"long"));
    }
}
