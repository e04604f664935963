//! A look of our own at a client's compressed fields, for what h2 does not tell.
//!
//! h2 cuts a `:path` at its `#` and forgets pseudo fields in trailers; both are malformed (RFC 9113, 8.1 and 8.3). So
//! the blocks are followed on their way to h2, field by field: where a name or a value is not of interest, which is
//! nearly always, its bytes are skipped. Of the dynamic table only those entries are kept that matter here, by how
//! many were inserted before them, which is all that an index says, whatever has been thrown out since.
//!
//! HPACK's Huffman code (RFC 7541, appendix B), as far as it takes to find one character in it.
//!
//! The code is canonical: those of one length follow each other, and each length begins where the shorter ones end.
//! So how many there are of each length is all that it takes to tell where one ends and the next begins.

use std::collections::VecDeque;

/// Where in the blocks of a connection we are.
#[derive(Debug, Default)]
pub(super) struct HpackScanner {
    state: HpackState,
    field: HpackField,
    inserted: u64,
    // With the number of entries inserted before.
    entries: VecDeque<(u64, TableEntry)>,
    found: BlockSummary,
}

/// What the fields of a block come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BlockSummary {
    /// There is one whose name begins with a colon.
    pub(super) pseudo: bool,
    /// There is a `#` in its path.
    pub(super) fragment: bool,
    /// It is not HPACK, or comes after what was not.
    pub(super) unreadable: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TableEntry {
    Path { fragment: bool },
    Pseudo,
}

#[derive(Debug, Clone, Copy, Default)]
enum HpackState {
    /// Before a field.
    #[default]
    Start,
    /// In the number that a field begins with.
    Index(HpackInteger),
    /// Before a string.
    Length,
    /// In the length of one.
    LongLength(HpackInteger),
    /// In one, with so many bytes to come.
    Text(u32),
    /// Not HPACK: h2 ends the connection.
    Lost,
}

/// A number of more than one byte.
#[derive(Debug, Clone, Copy)]
struct HpackInteger {
    value: u32,
    shift: u32,
}

/// The field that is being read.
#[derive(Debug, Default)]
struct HpackField {
    kind: FieldRepr,
    name: FieldName,
    huffman: bool,
    // The beginning of a name that is spelled out, and how long it is.
    prefix: [u8; PATH.len()],
    length: u32,
    symbols: HuffmanBits,
    fragment: bool,
}

/// How a field is given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum FieldRepr {
    /// As an entry of the table.
    Indexed,
    /// Spelled out, and made an entry.
    Inserted,
    /// A change of the table's size.
    Resized,
    #[default]
    Spelled,
}

/// What a field's name is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum FieldName {
    /// To be read.
    Spelled,
    Path,
    Pseudo,
    #[default]
    Other,
}

impl HpackScanner {
    /// Reads more of a block.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if let HpackState::Text(left) = self.state {
                let (text, after) = bytes.split_at(bytes.len().min(left as usize));
                self.add_text(text, left);
                bytes = after;
                continue;
            }
            bytes = rest;
            match self.state {
                HpackState::Start => self.begin(byte),
                HpackState::Index(number) => match number.add(byte) {
                    Ok(index) => self.set_index(index),
                    Err(more) => self.state = more.map_or(HpackState::Lost, HpackState::Index),
                },
                HpackState::Length => {
                    self.field.huffman = byte & 0x80 != 0;
                    match byte & 0x7f {
                        0x7f => self.state = HpackState::LongLength(HpackInteger::after(0x7f)),
                        length => self.set_length(u32::from(length)),
                    }
                }
                HpackState::LongLength(number) => match number.add(byte) {
                    Ok(length) => self.set_length(length),
                    Err(more) => self.state = more.map_or(HpackState::Lost, HpackState::LongLength),
                },
                HpackState::Text(_) | HpackState::Lost => return,
            }
        }
    }

    /// Ends the block, and returns what was found in it.
    pub(super) fn end(&mut self) -> BlockSummary {
        if !matches!(self.state, HpackState::Start) {
            self.state = HpackState::Lost;
            // h2 ends the connection. Should it read on, nothing that we cannot follow gets through.
            self.found.unreadable = true;
        }
        std::mem::take(&mut self.found)
    }

    fn begin(&mut self, byte: u8) {
        let (kind, bits) = match byte.leading_zeros() {
            0 => (FieldRepr::Indexed, 0x7f),
            1 => (FieldRepr::Inserted, 0x3f),
            2 => (FieldRepr::Resized, 0x1f),
            _ => (FieldRepr::Spelled, 0x0f),
        };
        self.field = HpackField {
            kind,
            ..HpackField::default()
        };
        match byte & bits {
            index if index == bits => {
                self.state = HpackState::Index(HpackInteger::after(u32::from(bits)))
            }
            index => self.set_index(u32::from(index)),
        }
    }

    fn set_index(&mut self, index: u32) {
        self.state = match self.field.kind {
            FieldRepr::Indexed | FieldRepr::Resized => HpackState::Start,
            FieldRepr::Inserted | FieldRepr::Spelled => HpackState::Length,
        };
        if self.field.kind == FieldRepr::Resized {
            return;
        }
        let entry = self.entry(index);
        self.field.name = match (index, entry) {
            (0, _) => FieldName::Spelled,
            (_, Some(TableEntry::Path { fragment })) => {
                self.field.fragment = fragment && self.field.kind == FieldRepr::Indexed;
                FieldName::Path
            }
            (_, Some(TableEntry::Pseudo)) => FieldName::Pseudo,
            (_, None) => FieldName::Other,
        };
        if self.field.kind == FieldRepr::Indexed {
            self.note();
        }
    }

    /// What an index stands for.
    fn entry(&self, index: u32) -> Option<TableEntry> {
        match index {
            4 | 5 => Some(TableEntry::Path { fragment: false }),
            1..=LAST_PSEUDO => Some(TableEntry::Pseudo),
            ..FIRST_DYNAMIC => None,
            _ => {
                let back = u64::from(index - FIRST_DYNAMIC) + 1;
                let number = self.inserted.checked_sub(back)?;
                let state = self.entries.binary_search_by_key(&number, |entry| entry.0);
                Some(self.entries[state.ok()?].1)
            }
        }
    }

    fn set_length(&mut self, length: u32) {
        self.field.length = length;
        self.state = HpackState::Text(length);
        if length == 0 {
            self.end_text();
        }
    }

    fn add_text(&mut self, text: &[u8], left: u32) {
        let field = &mut self.field;
        match field.name {
            FieldName::Spelled => {
                let passed = (field.length - left) as usize;
                let prefix = field.prefix.iter_mut().skip(passed);
                prefix.zip(text).for_each(|(own, byte)| *own = *byte);
            }
            FieldName::Path if field.huffman => match field.symbols.have_hash(text) {
                Ok(found) => field.fragment |= found,
                Err(NotHuffman) => {
                    self.state = HpackState::Lost;
                    return;
                }
            },
            FieldName::Path => field.fragment |= memchr::memchr(b'#', text).is_some(),
            FieldName::Pseudo | FieldName::Other => {}
        }
        // No longer than what is left, which is a number of this type.
        let left = left - text.len() as u32;
        self.state = HpackState::Text(left);
        if left == 0 {
            self.end_text();
        }
    }

    fn end_text(&mut self) {
        if self.field.name == FieldName::Spelled {
            self.field.name = self.field.spelled();
            self.state = HpackState::Length;
            return;
        }
        if self.field.huffman && self.field.symbols.end().is_err() {
            self.state = HpackState::Lost;
            return;
        }
        self.state = HpackState::Start;
        let entry = self.note();
        if self.field.kind == FieldRepr::Inserted {
            if let Some(entry) = entry {
                self.entries.push_back((self.inserted, entry));
            }
            self.inserted += 1;
            let oldest = self.inserted.saturating_sub(MOST_ENTRIES);
            while self.entries.front().is_some_and(|entry| entry.0 < oldest) {
                self.entries.pop_front();
            }
        }
    }

    /// A field is complete.
    fn note(&mut self) -> Option<TableEntry> {
        let fragment = self.field.fragment;
        let entry = match self.field.name {
            FieldName::Path => TableEntry::Path { fragment },
            FieldName::Pseudo => TableEntry::Pseudo,
            FieldName::Spelled | FieldName::Other => return None,
        };
        self.found.pseudo = true;
        self.found.fragment |= fragment;
        Some(entry)
    }
}

impl HpackField {
    /// What the name is that was spelled out.
    fn spelled(&self) -> FieldName {
        let [first, ..] = self.prefix;
        let is_path = match self.huffman {
            true => self.length == 4 && u32_of(&self.prefix) >> 3 == PATH_IN_HUFFMAN,
            false => self.prefix == PATH && self.length as usize == PATH.len(),
        };
        let is_pseudo = match self.huffman {
            true => first >> 1 == COLON_IN_HUFFMAN,
            false => first == b':',
        };
        match (is_path, is_pseudo) {
            (true, _) => FieldName::Path,
            (false, true) => FieldName::Pseudo,
            (false, false) => FieldName::Other,
        }
    }
}

impl HpackInteger {
    fn after(value: u32) -> Self {
        Self { value, shift: 0 }
    }

    /// The number, if this is its last byte; else the state to go on with, unless the number is too large.
    fn add(self, byte: u8) -> Result<u32, Option<Self>> {
        if self.shift > 21 {
            return Err(None);
        }
        let value = self.value + (u32::from(byte & 0x7f) << self.shift);
        match byte & 0x80 {
            0 => Ok(value),
            _ => Err(Some(Self {
                value,
                shift: self.shift + 7,
            })),
        }
    }
}

fn u32_of(bytes: &[u8; PATH.len()]) -> u32 {
    let [a, b, c, d, _] = *bytes;
    u32::from_be_bytes([a, b, c, d])
}

const PATH: [u8; 5] = *b":path";
/// Its 29 bits; three of padding follow.
const PATH_IN_HUFFMAN: u32 = 0xb958_d33f >> 3;
const COLON_IN_HUFFMAN: u8 = 0x5c;
/// The last name in the static table that begins with a colon.
const LAST_PSEUDO: u32 = 14;
/// Where the dynamic table begins.
const FIRST_DYNAMIC: u32 = 62;
/// An entry comes to 32 bytes at least, and all to 4096 at most.
const MOST_ENTRIES: u64 = 128;

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

    /// What is in one block.
    fn found(fields: &mut HpackScanner, block: &[u8]) -> BlockSummary {
        fields.read(block);
        fields.end()
    }

    fn has_fragment(block: &[u8]) -> bool {
        found(&mut HpackScanner::default(), block).fragment
    }

    #[test]
    fn a_hash_is_seen_in_every_spelling_of_a_path() {
        for (block, fragment) in [
            (&b"\x04\x04/a#b"[..], true),
            (b"\x44\x04/a#b", true),
            (b"\x15\x04/a#b", true),
            (b"\x00\x05:path\x04/a#b", true),
            (b"\x00\x84\xb9\x58\xd3\x3f\x04/a#b", true),
            // `/#` in Huffman's code: 011000 111111111010 and padding.
            (b"\x04\x83\x63\xfe\xbf", true),
            // `/` and `?` there.
            (b"\x04\x83\x63\xf9\xff", false),
            (b"\x04\x04/a/b", false),
            // The same in other fields: of a name we know, of a pseudo field, of a name that only begins alike.
            (b"\x0f\x24\x04/a#b", false),
            (b"\x01\x04/a#b", false),
            (b"\x00\x06:paths\x04/a#b", false),
            (b"\x00\x04:pat\x04/a#b", false),
        ] {
            assert_eq!(has_fragment(block), fragment, "{block:x?}");
        }
    }

    #[test]
    fn entries_of_the_table_mean_what_they_were_made_of() {
        let fields = &mut HpackScanner::default();
        assert!(found(fields, b"\x44\x04/a#b").fragment);
        assert!(found(fields, b"\xbe").fragment);
        // Two more entries, which move it back; the second has its name from it.
        assert!(!found(fields, b"\x40\x01x\x01y").pseudo);
        assert!(!found(fields, b"\x7f\x00\x02/a").fragment);
        assert!(!found(fields, b"\xbe").fragment);
        assert!(found(fields, b"\xbe").pseudo);
        assert!(!found(fields, b"\xbf").pseudo);
        assert!(found(fields, b"\xc0").fragment);
    }

    #[test]
    fn cuts_make_no_difference_and_nonsense_is_seen() {
        let block =
            b"\x82\x86\x00\x84\xb9\x58\xd3\x3f\x83\x63\xfe\xbf\x40\x0acustom-key\x0dcustom-header";
        for piece in 1..block.len() {
            let mut fields = HpackScanner::default();
            block.chunks(piece).for_each(|piece| fields.read(piece));
            assert!(fields.end().fragment, "{piece}");
        }
        let fields = &mut HpackScanner::default();
        assert!(found(fields, b"\x04\x7f\xff\xff\xff\xff\xff\xff").unreadable);
        assert!(found(fields, b"\x04\x04/a#b").unreadable);
        // A path in Huffman's code that contains the end of string, and one that ends within a character.
        assert!(found(&mut HpackScanner::default(), b"\x04\x84\xff\xff\xff\xff").unreadable);
        assert!(found(&mut HpackScanner::default(), b"\x04\x81\xfe").unreadable);
    }
}

#[cfg(test)]
mod huffman_tests {

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
