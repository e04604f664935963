//! A key as a zone keeps it: sixteen bytes, whatever it was before.
//!
//! A fixed length is what makes a zone's memory a number one can promise. Short keys, IPv4 addresses among
//! them, are kept as they are; long ones as 120 bits of a keyed hash, so that none is ever too long to be
//! limited. Keys are chosen by those who are to be limited: every hash is seeded, at random and anew for
//! each process, and nobody can pick keys that meet in one bucket. All zones of a process have the same secret, so
//! that one hash of a client's address does for all of them.
//!
//! SipHash, the keyed hash that nobody can find collisions of without knowing its secret.
//!
//! Our own because of two things the standard library's cannot do: 128 bits in one pass, so that a long key is
//! identified and found by the same hash, and sixteen bytes at once without a detour over a buffer. One round for a
//! word and three at the end, as the standard library has it; the published numbers are for two and four.
//!
//! How much an operation did, counted in tests alone: they promise that it is never much, whatever the clock says.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use smallvec::SmallVec;

/// The secret of a zone's hashes.
#[derive(Debug, Clone, Copy)]
pub(super) struct HashSeeds(SipHasher);

/// A key, ready to be looked up: made once, good for every question to a zone.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    pub(super) packed: PackedKey,
    pub(super) hash: u64,
    /// The slot it was last found in, or [`Key::NOWHERE`]. Somebody else may be there by now.
    pub(super) slot: u32,
}

/// What is stored of a key.
///
/// The last byte tells the two kinds apart: the length of a key kept as it is, or [`HASHED`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedKey([u64; 2]);

impl Key {
    pub(super) const NOWHERE: u32 = u32::MAX;

    /// What is stored of it, ready to be looked up.
    pub(super) fn of(packed: PackedKey, hash: u64) -> Self {
        Self {
            packed,
            hash,
            slot: Self::NOWHERE,
        }
    }
}

/// Gives the process a secret that everybody knows, if it has none yet: for a replay, which is asked by nobody but its
/// user, and whose answer must be the same always, also where a full zone has to choose whom it forgets.
pub fn fix_secret() {
    SECRET.get_or_init(SipHasher::known);
}

static SECRET: OnceLock<SipHasher> = OnceLock::new();

impl Default for HashSeeds {
    /// The process's own.
    fn default() -> Self {
        Self(*SECRET.get_or_init(SipHasher::random))
    }
}

impl HashSeeds {
    pub(super) fn key(&self, bytes: &[u8]) -> Key {
        let (packed, hash) = if bytes.len() <= LONGEST_AS_IS {
            let packed = pack(bytes);
            (packed, self.0.short(packed.0))
        } else {
            let [first, second] = self.0.long(bytes);
            let kind = u64::from(HASHED) << 56;
            (PackedKey([first, second | kind]), first)
        };
        Key::of(packed, hash)
    }

    /// The same key once more, apart from those of other classes.
    pub(super) fn apart(&self, key: &Key, class: u64) -> Key {
        let PackedKey([first, second]) = key.packed;
        let packed = PackedKey([first ^ class.wrapping_mul(SPREAD), second]);
        Key::of(packed, self.hash(packed))
    }

    /// The key that this is stored of.
    pub(super) fn unpacked(&self, packed: PackedKey) -> Key {
        Key {
            packed,
            hash: self.hash(packed),
            slot: Key::NOWHERE,
        }
    }

    /// Where to look for it; can be had again from what is stored, because a growing table has to.
    pub(super) fn hash(&self, packed: PackedKey) -> u64 {
        count(1);
        let PackedKey([first, second]) = packed;
        if second.to_le_bytes()[7] == HASHED {
            // Already the output of a keyed hash.
            return first;
        }
        self.0.short([first, second])
    }
}

impl Key {
    /// The key these bytes are in every zone of this process.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        HashSeeds::default().key(bytes)
    }

    /// The bytes it was made from, if it is short.
    #[must_use]
    pub fn plain(&self) -> Option<SmallVec<[u8; 16]>> {
        let bytes = self.packed.bytes();
        let (bytes, kind) = bytes.split_at(LONGEST_AS_IS);
        let length = kind.iter().copied().map(usize::from).sum();
        bytes.get(..length).map(SmallVec::from_slice)
    }

    /// What a long one can be named by for as long as this process runs.
    #[must_use]
    pub fn number(&self) -> u128 {
        u128::from_be_bytes(self.packed.bytes())
    }

    /// The long one of this number.
    #[must_use]
    pub fn numbered(number: u128) -> Option<Self> {
        let bytes = number.to_be_bytes();
        let ([first, second], []) = bytes.as_chunks() else {
            return None;
        };
        let packed = PackedKey([u64::from_le_bytes(*first), u64::from_le_bytes(*second)]);
        (bytes.last() == Some(&HASHED)).then(|| HashSeeds::default().unpacked(packed))
    }

    /// What tells it apart from all others.
    #[must_use]
    pub fn id(&self) -> [u64; 2] {
        self.packed.0
    }
}

impl PackedKey {
    fn bytes(self) -> [u8; 16] {
        let [first, second] = self.0.map(u64::to_le_bytes);
        let mut bytes = [0; 16];
        let (front, back) = bytes.split_at_mut(first.len());
        front.copy_from_slice(&first);
        back.copy_from_slice(&second);
        bytes
    }
}

/// A short key as it is.
fn pack(bytes: &[u8]) -> PackedKey {
    let length = u64::try_from(bytes.len()).unwrap_or_default() << 56;
    // IPv4, by far the most common: spared the detour over a buffer.
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

/// Odd, so that no two classes are the same.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

const LONGEST_AS_IS: usize = 15;
const HASHED: u8 = 0xFF;

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
thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// So many keys were moved, hashed or looked at.
#[cfg_attr(not(test), expect(unused_variables, reason = "only tests count"))]
pub(super) fn count(steps: usize) {
    #[cfg(test)]
    STEPS.set(STEPS.get() + steps);
}

/// The steps since the last time.
#[cfg(test)]
pub(super) fn steps() -> usize {
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
    fn short_keys_can_be_read_and_long_ones_have_a_number() {
        for bytes in [&b""[..], b"a", b"\x7f\0\0\x01", b"fifteen letters"] {
            assert_eq!(Key::from_bytes(bytes).plain().as_deref(), Some(bytes));
        }
        let long = Key::from_bytes(b"2001:db8:1:2:3:4:5:6");
        assert_eq!(long.plain(), None);
        let again = Key::numbered(long.number()).unwrap();
        assert_eq!((again.packed, again.hash), (long.packed, long.hash));
        assert!(Key::numbered(Key::from_bytes(b"short").number()).is_none());
    }

    #[test]
    fn a_trailing_zero_makes_another_key() {
        assert_ne!(pack(b"a"), pack(b"a\0"));
    }

    #[test]
    fn long_keys_are_hashed_and_told_apart_by_their_last_byte() {
        let seeds = HashSeeds::default();
        let mut long = vec![b'x'; 70_000];
        let one = seeds.key(&long);
        *long.last_mut().unwrap() = b'y';
        let other = seeds.key(&long);
        assert_ne!(one.packed, other.packed);
        assert_eq!(one.packed.0[1].to_le_bytes()[7], HASHED);
        assert_eq!(seeds.hash(one.packed), one.hash);
    }
}

#[cfg(test)]
mod sip_tests {

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
