//! HPACK's Huffman code (RFC 7541, appendix B), as far as it takes to find one character in it.
//!
//! The code is canonical: those of one length follow each other, and each length begins where the shorter ones end.
//! So how many there are of each length is all that it takes to tell where one ends and the next begins.

/// The bits of a string that have not made a whole symbol yet.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    bits: u64,
    count: u32,
}

impl Symbols {
    /// Whether there is a `#` in the next bytes of a string.
    pub(super) fn have_hash(&mut self, bytes: &[u8]) -> bool {
        let mut found = false;
        for byte in bytes {
            self.bits = self.bits << 8 | u64::from(*byte);
            self.count += 8;
            while let Some((length, code)) = self.first() {
                self.count -= length;
                found |= (length, code) == HASH;
            }
        }
        found
    }

    /// The next symbol's length and code.
    fn first(&self) -> Option<(u32, u32)> {
        if self.count < SHORTEST {
            return None;
        }
        // What has not come counts as nothing, which no code of the bits that have come depends on.
        let window = (self.bits << (64 - self.count) >> 32) as u32;
        let (length, _) = LIMITS.iter().find(|(_, limit)| window < *limit)?;
        (*length <= self.count).then(|| (*length, window >> (32 - length)))
    }
}

/// Twelve bits.
const HASH: (u32, u32) = (12, 0xffa);

const SHORTEST: u32 = 5;

/// How many codes there are of each length.
const LENGTHS: [(u32, u32); 21] = [
    (5, 10),
    (6, 26),
    (7, 32),
    (8, 6),
    (10, 5),
    (11, 3),
    (12, 2),
    (13, 6),
    (14, 2),
    (15, 3),
    (19, 3),
    (20, 8),
    (21, 13),
    (22, 26),
    (23, 29),
    (24, 12),
    (25, 4),
    (26, 15),
    (27, 19),
    (28, 29),
    (30, 4),
];

/// Each length, and the first of the 32 bits that begin with a longer code.
const LIMITS: [(u32, u32); LENGTHS.len()] = {
    let mut limits = [(0, 0); LENGTHS.len()];
    let (mut at, mut limit) = (0, 0_u64);
    while at < LENGTHS.len() {
        let (length, count) = LENGTHS[at];
        limit += (count as u64) << (32 - length);
        // The last ends where 32 bits do.
        let end = if limit > u32::MAX as u64 {
            u32::MAX as u64
        } else {
            limit
        };
        limits[at] = (length, end as u32);
        at += 1;
    }
    limits
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_hash_is_one() {
        // `/a#` and `/a>`, whose code is the next, and `#` twice.
        for (bits, found) in [
            ("011000 00011 111111111010", true),
            ("011000 00011 111111111011", false),
            ("111111111010 111111111010", true),
            // The same bits within a longer code, of the character 1.
            ("11111111111111111011000", false),
        ] {
            let bits: String = bits.chars().filter(|bit| *bit != ' ').collect();
            let padded = format!("{bits:1<32}");
            let bytes = u32::from_str_radix(&padded, 2).unwrap().to_be_bytes();
            assert_eq!(Symbols::default().have_hash(&bytes), found, "{bits}");
        }
    }

    #[test]
    fn all_codes_together_fill_all_bits() {
        let all: u64 = LENGTHS
            .iter()
            .map(|(length, count)| u64::from(*count) << (32 - length))
            .sum();
        assert_eq!(all, 1 << 32);
    }
}
