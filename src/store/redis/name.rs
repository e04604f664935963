//! What a key is called in Redis.
//!
//! Keys are written by those who are to be limited. So whatever is not a plain letter is written as its number: no
//! text can close the braces that tell a cluster where a key lives, and a person sees in `redis-cli` what is there.
//! A long one is cut down to a hash that nobody can find two texts for.

use aws_lc_rs::digest::{SHA256, digest};

/// Adds what the key of a zone is called in a store with this prefix.
pub(super) fn append(name: &mut Vec<u8>, prefix: &str, zone: &str, key: &[u8]) {
    name.extend_from_slice(prefix.as_bytes());
    name.extend_from_slice(b":{");
    for (index, part) in zone.split(':').enumerate() {
        // Only the first colon stands between zone and key.
        if index > 0 {
            name.extend_from_slice(b"%3a");
        }
        escape(name, part.as_bytes());
    }
    name.push(b':');
    let start = name.len();
    if key.len() <= LONGEST {
        escape(name, key);
    }
    if key.len() > LONGEST || name.len() - start > LONGEST {
        name.truncate(start);
        name.push(b'#');
        for byte in digest(&SHA256, key).as_ref().iter().take(HASH) {
            hex(name, *byte);
        }
    }
    name.push(b'}');
}

fn escape(name: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' | b'/' | b'@' | b':' => {
                name.push(*byte);
            }
            other => {
                name.push(b'%');
                hex(name, *other);
            }
        }
    }
}

fn hex(name: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    name.push(DIGITS[usize::from(byte >> 4)]);
    name.push(DIGITS[usize::from(byte & 15)]);
}

/// The most bytes of a key as it is written; a longer one is hashed. Room for an IPv6 address in binary.
const LONGEST: usize = 64;

/// Bytes of the hash: 128 bits.
const HASH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn name(zone: &str, key: &[u8]) -> String {
        let mut name = Vec::new();
        append(&mut name, "weir", zone, key);
        String::from_utf8(name).unwrap()
    }

    #[test]
    fn plain_keys_are_readable() {
        assert_eq!(name("perip", b"10.0.0.1"), "weir:{perip:10.0.0.1}");
        assert_eq!(name("perip", &[127, 0, 0, 1]), "weir:{perip:%7f%00%00%01}");
    }

    #[test]
    fn nobody_can_leave_the_braces_or_be_somebody_else() {
        assert_eq!(name("a", b"}x{"), "weir:{a:%7dx%7b}");
        assert_ne!(name("a", b"%7d"), name("a", b"}"));
        assert_ne!(name("a:b", b"c"), name("a%3ab", b"c"));
        assert_ne!(name("a:b", b"c"), name("a", b"b:c"));
        let hashed = name("a", &[b'x'; 100]);
        assert_ne!(name("a", hashed.as_bytes()), hashed);
        assert!(!name("a", b"#").contains('#'));
    }

    #[test]
    fn long_keys_are_told_apart_and_stay_short() {
        let mut long = vec![b'x'; 70_000];
        let one = name("a", &long);
        *long.last_mut().unwrap() = b'y';
        let other = name("a", &long);
        assert_ne!(one, other);
        assert!(one.len() < 64, "{one}");
    }
}
