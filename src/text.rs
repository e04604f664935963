//! Text from outside, made safe for where it is written: log lines, JSON, HTML, scripts, URLs and terminals.

use std::borrow::Cow;
use std::fmt;

/// Lets `write!` append to memory, which cannot fail: there is no result to look at.
pub trait Append {
    /// Appends formatted text.
    fn write_fmt(&mut self, text: fmt::Arguments<'_>);
}

impl Append for String {
    fn write_fmt(&mut self, text: fmt::Arguments<'_>) {
        fmt::Write::write_fmt(self, text).expect("a String takes every write");
    }
}

impl Append for Vec<u8> {
    fn write_fmt(&mut self, text: fmt::Arguments<'_>) {
        std::io::Write::write_fmt(self, text).expect("a Vec takes every write");
    }
}

/// Appends a value as nginx's `escape=default` does: quotes, backslashes and all that is not printable ASCII as `\xXX`.
pub fn escape_log(value: &[u8], out: &mut Vec<u8>) {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    let mut rest = value;
    while let Some(at) = rest.iter().position(|byte| !is_plain(*byte)) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(b"\\x");
        push_digits(rest[at], UPPER, out);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// Appends the inside of a JSON string; bytes that are not UTF-8 become U+FFFD.
pub fn escape_json(value: &[u8], out: &mut Vec<u8>) {
    let must_escape = |byte: u8| byte < b' ' || matches!(byte, b'"' | b'\\' | 0x7f);
    for chunk in value.utf8_chunks() {
        let mut rest = chunk.valid().as_bytes();
        while let Some(at) = rest.iter().position(|byte| must_escape(*byte)) {
            out.extend_from_slice(&rest[..at]);
            match rest[at] {
                b'"' => out.extend_from_slice(b"\\\""),
                b'\\' => out.extend_from_slice(b"\\\\"),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                control => {
                    out.extend_from_slice(b"\\u00");
                    push_digits(control, LOWER, out);
                }
            }
            rest = &rest[at + 1..];
        }
        out.extend_from_slice(rest);
        if !chunk.invalid().is_empty() {
            push_char(char::REPLACEMENT_CHARACTER, out);
        }
    }
}

/// Text for HTML, XML and SVG, between tags, in quoted attributes and in string literals of an inline script.
pub fn escape_html(text: &str) -> Cow<'_, str> {
    if !text.contains(|letter| html_entity(letter).is_some()) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match html_entity(letter) {
            Some(entity) => escaped.push_str(entity),
            None => escaped.push(letter),
        }
    }
    escaped.into()
}

fn html_entity(letter: char) -> Option<&'static str> {
    match letter {
        '&' => Some("&amp;"),
        '<' => Some("&lt;"),
        '>' => Some("&gt;"),
        '"' => Some("&quot;"),
        '\'' => Some("&#39;"),
        // Nothing to HTML, but to a script in it: they end a string, or keep a quote from ending it.
        '\\' => Some("&#92;"),
        '`' => Some("&#96;"),
        '\t' | '\n' | '\r' => None,
        // XML cannot express them.
        _ if letter.is_control() => Some("\u{fffd}"),
        _ => None,
    }
}

/// Appends text for a string literal of JavaScript.
pub fn escape_script(text: &str, out: &mut Vec<u8>) {
    for letter in text.chars() {
        match letter {
            ' ' | '-' | '.' | ',' | '_' => push_char(letter, out),
            _ if letter.is_alphanumeric() => push_char(letter, out),
            _ => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    out.extend_from_slice(format!("\\u{unit:04x}").as_bytes());
                }
            }
        }
    }
}

/// Appends text for a string or an identifier of CSS.
pub fn escape_css(text: &str, out: &mut Vec<u8>) {
    for letter in text.chars() {
        if letter.is_alphanumeric() {
            push_char(letter, out);
        } else {
            // Six digits: the letter behind them cannot be read as one more.
            out.extend_from_slice(format!("\\{:06x}", u32::from(letter)).as_bytes());
        }
    }
}

/// Appends bytes with all but those that `is_plain` accepts as `%XX`.
pub fn percent_encode(bytes: &[u8], is_plain: impl Fn(u8) -> bool, out: &mut Vec<u8>) {
    for &byte in bytes {
        if is_plain(byte) {
            out.push(byte);
        } else {
            out.push(b'%');
            push_digits(byte, UPPER, out);
        }
    }
}

/// Whether a byte means itself anywhere in a URL (RFC 3986, 2.3).
pub fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Decodes every `%XX`; `None` for an incomplete one, and where the result is not UTF-8.
pub fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let byte;
        (byte, rest) = match (first, after) {
            (b'%', [high, low, after @ ..]) => (hex_byte(*high, *low)?, after),
            (b'%', _) => return None,
            _ => (*first, after),
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

/// The byte that two hexadecimal digits stand for.
pub fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

/// Appends bytes in lower-case hexadecimal digits.
pub fn push_hex(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        push_digits(byte, LOWER, out);
    }
}

fn push_digits(byte: u8, digits: &[u8; 16], out: &mut Vec<u8>) {
    out.push(digits[usize::from(byte >> 4)]);
    out.push(digits[usize::from(byte & 15)]);
}

const UPPER: &[u8; 16] = b"0123456789ABCDEF";
const LOWER: &[u8; 16] = b"0123456789abcdef";

/// Text that shows on a terminal what it is: control characters, changes of direction and invisible characters are replaced.
// One key could look like another otherwise.
pub fn visible(text: &str) -> String {
    let shown = |letter: char| match letter.is_control() || is_deceptive(letter) {
        true => char::REPLACEMENT_CHARACTER,
        false => letter,
    };
    text.chars().map(shown).collect()
}

/// Whether a character is invisible or changes how those around it are shown.
pub fn is_deceptive(letter: char) -> bool {
    matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Whether the byte behind `before` is escaped by a backslash that is not itself escaped.
pub fn is_escaped(before: &[u8]) -> bool {
    let backslashes = before.iter().rev().take_while(|byte| **byte == b'\\');
    backslashes.count() % 2 == 1
}

/// Bytes in base64, padded.
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut word = [0; 3];
        word[..group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes([0, word[0], word[1], word[2]]);
        for place in 0..4 {
            let digit = (bits >> (18 - 6 * place)) & 63;
            text.push(match place <= group.len() {
                true => char::from(DIGITS[digit as usize]),
                false => '=',
            });
        }
    }
    text
}

/// Appends the bytes that base64 text stands for, padded or not; false if it is not base64.
pub fn decode_base64(encoded: &[u8], out: &mut Vec<u8>) -> bool {
    let end = encoded.iter().position(|byte| *byte == b'=');
    let (mut bits, mut count) = (0_u32, 0);
    for &byte in &encoded[..end.unwrap_or(encoded.len())] {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return false,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count & 0xff) as u8);
        }
    }
    true
}

fn push_char(letter: char, out: &mut Vec<u8>) {
    out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
}

#[cfg(test)]
mod tests {

    use proptest::prelude::*;

    use super::*;

    fn written(escape: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        escape(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn log_lines_are_escaped_as_nginx_does() {
        let escaped = |value: &[u8]| written(|out| escape_log(value, out));
        assert_eq!(
            escaped(b"a\"b\\c\n\x00\x1f ~\x7f\x80\xffz"),
            r"a\x22b\x5Cc\x0A\x00\x1F ~\x7F\x80\xFFz"
        );
        assert_eq!(escaped(b"\r\x1b[31m"), r"\x0D\x1B[31m");
        assert_eq!(escaped(b""), "");
    }

    #[test]
    fn json_keeps_utf8_and_replaces_the_rest() {
        assert_eq!(
            written(|out| escape_json(b"\"\\\n\r\t\x01\x7f \xc3\xa9 \xff\xfe/", out)),
            "\\\"\\\\\\n\\r\\t\\u0001\\u007f é \u{fffd}\u{fffd}/"
        );
    }

    #[test]
    fn markup_and_scripts_cannot_be_left() {
        assert_eq!(escape_html("plain"), "plain");
        assert_eq!(
            escape_html("<a href=\"x\">&'"),
            "&lt;a href=&quot;x&quot;&gt;&amp;&#39;"
        );
        assert_eq!(
            escape_html("a\\`\u{1}\t\u{e9}"),
            "a&#92;&#96;\u{fffd}\t\u{e9}"
        );
        assert_eq!(
            written(|out| escape_script("it's `${x}`</script>\u{2028}\u{1f600}", out)),
            "it\\u0027s \\u0060\\u0024\\u007bx\\u007d\\u0060\\u003c\\u002fscript\\u003e\\u2028\\ud83d\\ude00"
        );
        assert_eq!(
            written(|out| escape_css("a\"b}", out)),
            "a\\000022b\\00007d"
        );
    }

    #[test]
    fn a_name_cannot_leave_its_segment_of_a_path() {
        let encoded =
            |name: &str| written(|out| percent_encode(name.as_bytes(), is_unreserved, out));
        assert_eq!(encoded("2001:db8::/64"), "2001%3Adb8%3A%3A%2F64");
        assert_eq!(encoded("a b\r\n?#%"), "a%20b%0D%0A%3F%23%25");
        assert_eq!(encoded("é"), "%C3%A9");
        assert_eq!(encoded("192.0.2.7"), "192.0.2.7");
    }

    #[test]
    fn only_whole_percent_escapes_are_decoded() {
        assert_eq!(percent_decode("a%2fb%C3%A9").as_deref(), Some("a/bé"));
        for bad in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(percent_decode(bad), None, "{bad}");
        }
    }

    #[test]
    fn base64_is_written_padded_and_read_either_way() {
        let made: Vec<_> = ["", "f", "fo", "foo", "foob"]
            .iter()
            .map(|text| base64(text.as_bytes()))
            .collect();
        assert_eq!(made, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]);
        for text in ["Zm9vYg==", "Zm9vYg"] {
            assert_eq!(
                written(|out| assert!(decode_base64(text.as_bytes(), out))),
                "foob"
            );
        }
        assert!(!decode_base64(b"Zm9v!", &mut Vec::new()));
    }

    proptest! {
        #[test]
        fn escaped_log_text_is_printable_whatever_comes(value: Vec<u8>) {
            let out = written(|out| escape_log(&value, out));
            prop_assert!(out.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"'));
        }

        #[test]
        fn escaped_json_reads_back(value: Vec<u8>) {
            let quoted = format!("\"{}\"", written(|out| escape_json(&value, out)));
            let back: String = serde_json::from_str(&quoted).unwrap();
            prop_assert_eq!(back, String::from_utf8_lossy(&value));
            prop_assert!(!quoted.contains(|c: char| c.is_ascii_control()));
        }
    }
}
