//! HPACK's Huffman code (RFC 7541, appendix B), as far as it takes to find one character in it.
//!
//! The code is canonical: those of one length follow each other, and each length begins where the shorter ones end.
//! So how many there are of each length is all that it takes to tell where one ends and the next begins.

/// The bits of a string that have not made a whole symbol yet.
#[derive(Debug, Default)]
pub(super) struct HuffmanBits {
    bits: u64,
    count: u32,
}

/// The bits are no string in this code: h2 ends the connection (RFC 7541, 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotHuffman;

impl HuffmanBits {
    /// Whether there is a `#` in the next bytes of a string.
    pub(super) fn have_hash(&mut self, bytes: &[u8]) -> Result<bool, NotHuffman> {
        let mut found = false;
        for byte in bytes {
            self.bits = self.bits << 8 | u64::from(*byte);
            self.count += 8;
            // At most 29 bits are left after each byte: 30 make a symbol or an error.
            while let Some((length, code)) = self.first()? {
                self.count -= length;
                found |= (length, code) == HASH;
            }
        }
        Ok(found)
    }

    /// Checks what is left at the end of a string: fewer than eight bits, all set.
    pub(super) fn end(&self) -> Result<(), NotHuffman> {
        let padding = (1 << self.count) - 1;
        match self.count < 8 && self.bits & padding == padding {
            true => Ok(()),
            false => Err(NotHuffman),
        }
    }

    /// The next symbol's length and code, if all of it has come.
    fn first(&self) -> Result<Option<(u32, u32)>, NotHuffman> {
        if self.count < SHORTEST {
            return Ok(None);
        }
        // What has not come counts as nothing, which no code of the bits that have come depends on.
        let window = (self.bits << (64 - self.count) >> 32) as u32;
        // Beyond the last code there is only the end of string, which no string may contain.
        let (length, _) = LIMITS
            .iter()
            .find(|(_, limit)| window < *limit)
            .ok_or(NotHuffman)?;
        Ok((*length <= self.count).then(|| (*length, window >> (32 - length))))
    }
}

/// Twelve bits.
const HASH: (u32, u32) = (12, 0xffa);

const SHORTEST: u32 = 5;

/// How many codes of characters there are of each length. The end of string is one more of 30 bits, all set.
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
    (30, 3),
];

/// Each length, and the first of the 32 bits that begin with a longer code.
const LIMITS: [(u32, u32); LENGTHS.len()] = {
    let mut limits = [(0, 0); LENGTHS.len()];
    let (mut at, mut limit) = (0, 0_u64);
    while at < LENGTHS.len() {
        let (length, count) = LENGTHS[at];
        limit += (count as u64) << (32 - length);
        // Below 2^32: the end of string follows.
        limits[at] = (length, limit as u32);
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
            assert_eq!(
                HuffmanBits::default().have_hash(&bytes),
                Ok(found),
                "{bits}"
            );
        }
    }

    #[test]
    fn the_end_of_string_is_not_a_character() {
        for bytes in [
            &[0xff; 4][..],
            &[0xff; 100],
            // All of it and two more bits, which are not set.
            &[0xff, 0xff, 0xff, 0xfc],
            // Behind a character of five bits.
            &[0x07, 0xff, 0xff, 0xff, 0xff],
        ] {
            let said = HuffmanBits::default().have_hash(bytes);
            assert_eq!(said, Err(NotHuffman), "{bytes:x?}");
        }
    }

    #[test]
    fn a_string_is_padded_with_fewer_than_eight_set_bits() {
        for (bytes, good) in [
            (&b""[..], true),
            (&[0x07], true),
            (&[0x06], false),
            (&[0x07, 0xff], false),
            // Three bytes of a longer code, the rest of which does not come.
            (&[0xff, 0xff, 0xf6], false),
        ] {
            let mut symbols = HuffmanBits::default();
            symbols.have_hash(bytes).unwrap();
            assert_eq!(symbols.end().is_ok(), good, "{bytes:x?}");
        }
    }

    #[test]
    fn all_codes_together_fill_all_bits() {
        let all: u64 = LENGTHS
            .iter()
            .map(|(length, count)| u64::from(*count) << (32 - length))
            .sum();
        let end_of_string = 1 << (32 - 30);
        assert_eq!(all + end_of_string, 1 << 32);
    }
}
