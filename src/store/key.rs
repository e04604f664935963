//! A key as a zone keeps it: sixteen bytes, whatever it was before.
//!
//! A fixed length is what makes a zone's memory a number one can promise. Short keys, IPv4 addresses among
//! them, are kept as they are; long ones as 120 bits of a keyed hash, so that none is ever too long to be
//! limited. Keys are chosen by those who are to be limited: every hash is seeded, at random and anew for
//! each process, and nobody can pick keys that meet in one bucket. All zones of a process have the same secret, so
//! that one hash of a client's address does for all of them.

use std::sync::OnceLock;

use smallvec::SmallVec;

use super::sip::SipHasher;
use super::work;

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
        work::count(1);
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
