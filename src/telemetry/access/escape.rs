//! Making values safe to stand inside a line.

/// As nginx does unless told otherwise: quotes, backslashes, and whatever is not printable ASCII, as `\xXX`.
pub(super) fn text(value: &[u8], out: &mut Vec<u8>) {
    let mut rest = value;
    while let Some(at) = rest.iter().position(|byte| !is_plain(*byte)) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(b"\\x");
        push_hex(rest[at], b"0123456789ABCDEF", out);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// As JSON asks; what is not UTF-8 becomes U+FFFD.
pub(in crate::telemetry) fn json(value: &[u8], out: &mut Vec<u8>) {
    for chunk in value.utf8_chunks() {
        let mut rest = chunk.valid().as_bytes();
        while let Some(at) = rest.iter().position(|byte| breaks_json(*byte)) {
            out.extend_from_slice(&rest[..at]);
            match rest[at] {
                b'"' => out.extend_from_slice(b"\\\""),
                b'\\' => out.extend_from_slice(b"\\\\"),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                control => {
                    out.extend_from_slice(b"\\u00");
                    push_hex(control, b"0123456789abcdef", out);
                }
            }
            rest = &rest[at + 1..];
        }
        out.extend_from_slice(rest);
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\'
}

fn breaks_json(byte: u8) -> bool {
    byte < b' ' || matches!(byte, b'"' | b'\\' | 0x7f)
}

fn push_hex(byte: u8, digits: &[u8; 16], out: &mut Vec<u8>) {
    out.push(digits[usize::from(byte >> 4)]);
    out.push(digits[usize::from(byte & 15)]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn escaped(escape: fn(&[u8], &mut Vec<u8>), value: &[u8]) -> String {
        let mut out = Vec::new();
        escape(value, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn text_is_escaped_as_nginx_does() {
        assert_eq!(
            escaped(text, b"a\"b\\c\n\x00\x1f ~\x7f\x80\xffz"),
            r"a\x22b\x5Cc\x0A\x00\x1F ~\x7F\x80\xFFz"
        );
        assert_eq!(escaped(text, b""), "");
    }

    #[test]
    fn json_keeps_utf8_and_replaces_the_rest() {
        assert_eq!(
            escaped(json, b"\"\\\n\r\t\x01\x7f \xc3\xa9 \xff\xfe/"),
            "\\\"\\\\\\n\\r\\t\\u0001\\u007f é \u{fffd}\u{fffd}/"
        );
    }

    proptest! {
        #[test]
        fn escaped_text_is_printable_whatever_comes(value: Vec<u8>) {
            let out = escaped(text, &value);
            prop_assert!(out.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"'));
        }

        #[test]
        fn escaped_json_reads_back(value: Vec<u8>) {
            let quoted = format!("\"{}\"", escaped(json, &value));
            let back: String = serde_json::from_str(&quoted).unwrap();
            prop_assert_eq!(back, String::from_utf8_lossy(&value));
            prop_assert!(!quoted.contains(|c: char| c.is_ascii_control()));
        }
    }
}
