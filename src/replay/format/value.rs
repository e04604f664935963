//! Values as they were before they were written into a line.

use memchr::memchr;

use super::EscapeStyle;

/// Appends a value with its escapes undone.
pub(in crate::replay) fn unescape(value: &[u8], escape: EscapeStyle, out: &mut Vec<u8>) {
    let mut rest = value;
    if escape != EscapeStyle::None {
        while let Some(at) = memchr(b'\\', rest) {
            out.extend_from_slice(&rest[..at]);
            let taken = sequence(&rest[at + 1..], out);
            rest = &rest[at + 1 + taken..];
        }
    }
    out.extend_from_slice(rest);
}

/// Appends what the letters behind a backslash stand for, and says how many they are. What stands for nothing stays.
fn sequence(behind: &[u8], out: &mut Vec<u8>) -> usize {
    match behind {
        [b'x', high, low, ..] => {
            if let Some(byte) = hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low) {
                // Two digits make one byte.
                out.push(byte as u8);
                return 3;
            }
        }
        [b'u', digits @ ..] => {
            if let Some((letter, taken)) = unicode(digits) {
                out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                return 1 + taken;
            }
        }
        [plain @ (b'"' | b'\\' | b'/'), ..] => {
            out.push(*plain);
            return 1;
        }
        [letter @ (b'n' | b'r' | b't' | b'b' | b'f'), ..] => {
            out.push(match letter {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'b' => 8,
                _ => 12,
            });
            return 1;
        }
        _ => {}
    }
    out.push(b'\\');
    0
}

/// Four digits, or twice four with a backslash and a `u` between them.
fn unicode(digits: &[u8]) -> Option<(char, usize)> {
    let first = four(digits)?;
    if let Some(letter) = char::from_u32(first) {
        return Some((letter, 4));
    }
    let second = four(digits.get(4..)?.strip_prefix(b"\\u")?)?;
    let mut pair = char::decode_utf16([u16::try_from(first).ok()?, u16::try_from(second).ok()?]);
    let letter = pair.next()?.ok()?;
    Some((letter, 10))
}

fn four(digits: &[u8]) -> Option<u32> {
    let digits = digits.get(..4)?;
    digits
        .iter()
        .try_fold(0, |number, digit| Some(number << 4 | hex(*digit)?))
}

fn hex(digit: u8) -> Option<u32> {
    char::from(digit).to_digit(16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain(value: &str, escape: EscapeStyle) -> Vec<u8> {
        let mut out = Vec::new();
        unescape(value.as_bytes(), escape, &mut out);
        out
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(
            plain(r"a\x22b\x5Cc\xff", EscapeStyle::Backslash),
            b"a\"b\\c\xff"
        );
        assert_eq!(plain(r#"a\"b\\c\/"#, EscapeStyle::Json), b"a\"b\\c/");
        assert_eq!(
            plain(r"\u00e9\ud83d\ude00\n", EscapeStyle::Json),
            "é😀\n".as_bytes()
        );
        assert_eq!(plain(r"\x22", EscapeStyle::None), br"\x22");
    }

    #[test]
    fn what_is_no_escape_stays() {
        for text in [r"\", r"\q", r"\x", r"\xg0", r"\u12", r"\ud800"] {
            assert_eq!(plain(text, EscapeStyle::Json), text.as_bytes(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn json_texts_are_what_they_were(text: String) {
            let written = serde_json::to_string(&text).unwrap();
            let inside = written.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap();
            prop_assert_eq!(plain(inside, EscapeStyle::Json), text.as_bytes());
        }
    }
}
