//! A key as a zone stores it: sixteen bytes, whatever its length.
//!
//! A fixed length makes the memory of a zone predictable. Short keys, IPv4 addresses among them, are stored as they are;
//! long ones as 120 bits of a keyed hash. Clients choose keys, so every hash is seeded, at random for each process: no client
//! can choose keys that collide. All zones of a process share one secret, so that one hash of a client's address serves
//! all of them.
//!
//! The hash is SipHash-1-3, as in the standard library; the published test vectors are for SipHash-2-4. The standard library's
//! implementation cannot give 128 bits in one pass, which identify and find a long key by one hash, and cannot hash two
//! words without a buffer.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use smallvec::SmallVec;

/// A key, ready to be looked up in any zone of this process.
///
/// ```
/// use weir::store::Key;
///
/// let key = Key::from_bytes(&[192, 0, 2, 7]);
/// assert_eq!(key.short_bytes().as_deref(), Some(&[192, 0, 2, 7][..]));
/// let long = Key::from_bytes(b"a key of more than fifteen bytes");
/// assert_eq!(long.short_bytes(), None);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Key {
    pub(super) packed: PackedKey,
    pub(super) hash: u64,
    /// The slot where it was last found, or [`Key::NO_SLOT`]; another key may have it by now.
    pub(super) slot: u32,
}

/// What a table stores of a key.
///
/// The last byte tells two kinds apart: the length of a key that is stored as it is, or [`HASHED`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedKey([u64; 2]);

static SECRET: OnceLock<SipHasher> = OnceLock::new();

fn secret() -> &'static SipHasher {
    SECRET.get_or_init(SipHasher::random)
}

/// Fixes the hash secret of this process, if it has none yet.
///
/// A replay needs the same result in every run, also where a full zone chooses which key to evict, and no client of it can
/// choose keys by the secret.
pub fn fix_secret() {
    SECRET.get_or_init(|| SipHasher(0, 0));
}

impl Key {
    pub(super) const NO_SLOT: u32 = u32::MAX;

    pub(super) fn new(packed: PackedKey, hash: u64) -> Self {
        Self {
            packed,
            hash,
            slot: Self::NO_SLOT,
        }
    }

    /// The key of these bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let secret = secret();
        if bytes.len() <= LONGEST_AS_IS {
            let packed = pack(bytes);
            return Self::new(packed, secret.hash_words(packed.0));
        }
        let [first, second] = secret.hash_bytes(bytes);
        let kind = u64::from(HASHED) << 56;
        Self::new(PackedKey([first, second | kind]), first)
    }

    /// A key that only rules of this class share.
    pub(super) fn with_class(&self, class: u64) -> Self {
        let PackedKey([first, second]) = self.packed;
        Self::from(PackedKey([first ^ class.wrapping_mul(SPREAD), second]))
    }

    /// The bytes of a short key.
    #[must_use]
    pub fn short_bytes(&self) -> Option<SmallVec<[u8; 16]>> {
        let bytes = self.packed.bytes();
        let (bytes, kind) = bytes.split_at(LONGEST_AS_IS);
        let length = kind.iter().copied().map(usize::from).sum();
        bytes.get(..length).map(SmallVec::from_slice)
    }

    /// The number of a long key, which names it for as long as this process runs.
    #[must_use]
    pub fn number(&self) -> u128 {
        u128::from_be_bytes(self.packed.bytes())
    }

    /// The long key with this [`Key::number`].
    #[must_use]
    pub fn from_number(number: u128) -> Option<Self> {
        let bytes = number.to_be_bytes();
        let ([first, second], []) = bytes.as_chunks() else {
            return None;
        };
        let packed = PackedKey([u64::from_le_bytes(*first), u64::from_le_bytes(*second)]);
        (bytes.last() == Some(&HASHED)).then(|| Self::from(packed))
    }

    /// What tells it apart from all other keys.
    #[must_use]
    pub fn id(&self) -> [u64; 2] {
        self.packed.0
    }
}

impl From<PackedKey> for Key {
    fn from(packed: PackedKey) -> Self {
        Self::new(packed, packed.hash())
    }
}

impl PackedKey {
    /// The hash of the key; a growing table needs it again.
    pub(super) fn hash(self) -> u64 {
        count_steps(1);
        let [first, second] = self.0;
        if second.to_le_bytes()[7] == HASHED {
            // Already the output of a keyed hash.
            return first;
        }
        secret().hash_words([first, second])
    }

    fn bytes(self) -> [u8; 16] {
        let [first, second] = self.0.map(u64::to_le_bytes);
        let mut bytes = [0; 16];
        let (front, back) = bytes.split_at_mut(first.len());
        front.copy_from_slice(&first);
        back.copy_from_slice(&second);
        bytes
    }
}

fn pack(bytes: &[u8]) -> PackedKey {
    let length = u64::try_from(bytes.len()).unwrap_or_default() << 56;
    // IPv4 addresses, the most frequent keys, need no buffer.
    if let Ok(four) = bytes.try_into() {
        return PackedKey([u32::from_le_bytes(four).into(), length]);
    }
    let mut packed = [0; 16];
    packed[..bytes.len()].copy_from_slice(bytes);
    let [first, second] = packed.as_chunks().0 else {
        unreachable!("sixteen bytes are two words");
    };
    PackedKey([
        u64::from_le_bytes(*first),
        u64::from_le_bytes(*second) | length,
    ])
}

/// Odd, so that no two classes give the same key.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

const LONGEST_AS_IS: usize = 15;
const HASHED: u8 = 0xFF;

/// SipHash with a secret: `WORD` rounds for each word and `END` rounds at the end.
#[derive(Debug, Clone, Copy)]
struct SipHasher<const WORD: usize = 1, const END: usize = 3>(u64, u64);

#[derive(Clone, Copy)]
struct SipState(u64, u64, u64, u64);

impl SipHasher {
    fn random() -> Self {
        let random = RandomState::new();
        Self(random.hash_one(0), random.hash_one(1))
    }
}

impl<const WORD: usize, const END: usize> SipHasher<WORD, END> {
    /// The hash of sixteen bytes, given as two little-endian words.
    fn hash_words(&self, words: [u64; 2]) -> u64 {
        let mut state = self.start();
        for word in words {
            state.absorb::<WORD>(word);
        }
        state.absorb::<WORD>(16 << 56);
        state.2 ^= 0xff;
        state.finish::<END>()
    }

    /// The 128-bit hash of bytes of any length.
    fn hash_bytes(&self, bytes: &[u8]) -> [u64; 2] {
        let mut state = self.start();
        state.1 ^= 0xee;
        let (words, rest) = bytes.as_chunks();
        for word in words {
            state.absorb::<WORD>(u64::from_le_bytes(*word));
        }
        // SipHash defines that only the lowest byte of the length counts.
        let length = u64::from(bytes.len().to_le_bytes()[0]) << 56;
        state.absorb::<WORD>(last_word(bytes, rest) | length);
        state.2 ^= 0xee;
        let first = state.finish::<END>();
        state.1 ^= 0xdd;
        [first, state.finish::<END>()]
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

/// The last bytes, which make no whole word, as a word.
fn last_word(bytes: &[u8], rest: &[u8]) -> u64 {
    match bytes.last_chunk() {
        // Together with the bytes before them they do: no loop, because most keys end here.
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
    fn absorb<const ROUNDS: usize>(&mut self, word: u64) {
        self.3 ^= word;
        self.rounds::<ROUNDS>();
        self.0 ^= word;
    }

    fn finish<const ROUNDS: usize>(&mut self) -> u64 {
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
thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts keys that were moved, hashed or compared: tests check that no operation touches many.
#[cfg_attr(not(test), expect(unused_variables, reason = "only tests count"))]
pub(super) fn count_steps(steps: usize) {
    #[cfg(test)]
    STEPS.set(STEPS.get() + steps);
}

/// The steps since the last call.
#[cfg(test)]
pub(super) fn take_steps() -> usize {
    STEPS.replace(0)
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn short_keys_are_kept_as_they_are() {
        let packed = |bytes: &[u8]| pack(bytes).0.map(u64::to_le_bytes);
        assert_eq!(
            packed(b"\x7f\0\0\x01"),
            [*b"\x7f\0\0\x01\0\0\0\0", *b"\0\0\0\0\0\0\0\x04"]
        );
        assert_eq!(packed(b""), [[0; 8]; 2]);
    }

    #[test]
    fn short_keys_give_their_bytes_and_long_keys_a_number() {
        for bytes in [&b""[..], b"a", b"\x7f\0\0\x01", b"fifteen letters"] {
            assert_eq!(Key::from_bytes(bytes).short_bytes().as_deref(), Some(bytes));
        }
        let long = Key::from_bytes(b"2001:db8:1:2:3:4:5:6");
        assert_eq!(long.short_bytes(), None);
        let again = Key::from_number(long.number()).unwrap();
        assert_eq!((again.packed, again.hash), (long.packed, long.hash));
        assert!(Key::from_number(Key::from_bytes(b"short").number()).is_none());
    }

    #[test]
    fn a_trailing_zero_makes_a_different_key() {
        assert_ne!(pack(b"a"), pack(b"a\0"));
    }

    #[test]
    fn long_keys_are_hashed_and_told_apart_by_their_last_byte() {
        let mut long = vec![b'x'; 70_000];
        let one = Key::from_bytes(&long);
        *long.last_mut().unwrap() = b'y';
        let other = Key::from_bytes(&long);
        assert_ne!(one.packed, other.packed);
        assert_eq!(one.packed.0[1].to_le_bytes()[7], HASHED);
        assert_eq!(one.packed.hash(), one.hash);
    }
}

#[cfg(test)]
mod sip_tests {

    use super::*;

    /// The secret of the published vectors: the bytes 0 to 15.
    const KNOWN: SipHasher<2, 4> = SipHasher(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);

    /// The published inputs: the bytes 0, 1, 2 and so on.
    fn bytes<const LENGTH: usize>() -> [u8; LENGTH] {
        std::array::from_fn(|at| u8::try_from(at).unwrap())
    }

    #[test]
    fn sixteen_bytes_hash_to_the_published_number() {
        let words = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let expected = [0xdb, 0x9b, 0xc2, 0x57, 0x7f, 0xcc, 0x2a, 0x3f];
        assert_eq!(KNOWN.hash_words(words).to_le_bytes(), expected);
    }

    #[test]
    fn any_bytes_hash_to_the_published_128_bits() {
        let long = |bytes: &[u8]| {
            let [first, second] = KNOWN.hash_bytes(bytes);
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
    fn every_secret_is_different() {
        let (one, other) = (SipHasher::random(), SipHasher::random());
        assert_ne!(one.hash_words([0; 2]), other.hash_words([0; 2]));
        assert_ne!(one.hash_bytes(b"long"), other.hash_bytes(b"long"));
    }
}
