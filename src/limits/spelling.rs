//! How a key is written for people, and read back.
//!
//! What is shown is the key's name in the API, so every key has a spelling of its own, and what is read is what was
//! shown. Keys are chosen by clients: nothing they contain reaches a terminal or a page as it is unless it can be printed.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

use super::key::{KeyShape, KeySource};
use super::overrides::{apart, parted};
use crate::config::plan::OnEmptyKey;
use crate::store::Key;

/// A key that a text can stand for.
#[derive(Debug, Clone)]
pub struct ParsedKey {
    /// The key.
    pub key: Key,
    /// Its bytes, where they are known.
    pub bytes: Option<Vec<u8>>,
}

impl KeySource {
    /// The spelling of a key, of which `bytes` are all bytes or, if it is a long one, the first.
    pub(super) fn spell(&self, key: &Key, bytes: Option<&[u8]>) -> String {
        let plain = key.plain();
        let bytes = plain.as_deref().or(bytes).unwrap_or_default();
        if bytes.len() > LONGEST || (bytes.is_empty() && plain.is_none()) {
            let cut = &bytes[..bytes.len().min(SHOWN)];
            return format!("{}{CUT}{:032x}", escaped(cut), key.number());
        }
        if let Some((network, rest)) = parted(bytes) {
            return format!(
                "({network}) {}",
                self.spell(&Key::from_bytes(rest), Some(rest))
            );
        }
        if let (KeyShape::BinaryAddress | KeyShape::Mapped, Some(address)) =
            (self.shape(), octets(bytes))
            && (self.shape() == KeyShape::BinaryAddress || !is_printable(bytes))
        {
            return self.spell_address(address);
        }
        if let ([0, rest @ ..], OnEmptyKey::Address) = (bytes, self.on_empty())
            && let Some(address) = octets(rest)
        {
            return format!("{STAND_IN}{}", self.spell_address(address));
        }
        escaped(bytes)
    }

    /// The address that a key of these bytes is, where keys are addresses.
    pub(super) fn address(&self, bytes: &[u8]) -> Option<IpAddr> {
        match self.shape() {
            KeyShape::BinaryAddress => octets(bytes),
            KeyShape::Mapped => octets(bytes).filter(|_| !is_printable(bytes)),
            KeyShape::TextAddress => std::str::from_utf8(bytes).ok()?.parse().ok(),
            KeyShape::Other | KeyShape::Single => None,
        }
    }

    fn spell_address(&self, address: IpAddr) -> String {
        match address {
            IpAddr::V6(_) if self.ipv6_prefix() < 128 => {
                format!("{address}/{}", self.ipv6_prefix())
            }
            _ => address.to_string(),
        }
    }

    /// What a spelling stands for; nothing if it is none.
    pub(super) fn read(&self, text: &str) -> Vec<ParsedKey> {
        if let Some((_, number)) = text.rsplit_once(CUT) {
            let number = u128::from_str_radix(number, 16).ok();
            let key = number.and_then(Key::numbered);
            let key = key.map(|key| ParsedKey { key, bytes: None });
            return key.into_iter().collect();
        }
        let known = |bytes: Vec<u8>| ParsedKey {
            key: Key::from_bytes(&bytes),
            bytes: Some(bytes),
        };
        if let Some(address) = text.strip_prefix(STAND_IN)
            && self.on_empty() == OnEmptyKey::Address
            && let Some(address) = self.read_address(address)
        {
            let mut bytes = vec![0];
            bytes.extend(address_bytes(address));
            return vec![known(bytes)];
        }
        if let Some((network, rest)) = text.strip_prefix('(').and_then(|it| it.split_once(") "))
            && let Ok(network) = network.parse::<IpNet>()
        {
            let keys = self.read(rest).into_iter().filter_map(|it| it.bytes);
            return keys.map(|it| known(apart(network, &it).to_vec())).collect();
        }
        let plain = unescaped(text).filter(|bytes| !bytes.is_empty());
        match (self.shape(), self.read_address(text)) {
            (KeyShape::BinaryAddress, Some(address)) => vec![known(address_bytes(address))],
            (KeyShape::TextAddress, Some(address)) => vec![known(address.to_string().into())],
            // A map may give the address in either form.
            (KeyShape::Mapped, Some(address)) => vec![
                known(address_bytes(address)),
                known(address.to_string().into()),
            ],
            // Who asks over a unix socket has no address; nothing else is a key here.
            (KeyShape::BinaryAddress | KeyShape::TextAddress, None) if text != UNIX => Vec::new(),
            _ => plain.map(known).into_iter().collect(),
        }
    }

    /// An address, or the network it belongs to where that is what clients are told apart by.
    fn read_address(&self, text: &str) -> Option<IpAddr> {
        let address = match text.parse::<IpAddr>() {
            Ok(address) => address,
            Err(_) => {
                let network = text.parse::<IpNet>().ok()?;
                let told_apart = match network {
                    IpNet::V4(_) => 32,
                    IpNet::V6(_) => self.ipv6_prefix(),
                };
                (network.prefix_len() == told_apart).then(|| network.addr())?
            }
        };
        Some(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(self.network(address).unwrap_or(address)),
            v4 => v4,
        })
    }
}

fn address_bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn octets(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes)
            .ok()
            .map(|octets| IpAddr::V6(Ipv6Addr::from(octets))),
        _ => None,
    }
}

fn is_printable(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, b' '..=b'~'))
}

fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                // Would be taken for the end of a long one, or for the beginning of none.
                '…' => escape(&mut text, "…".as_bytes()),
                '(' if text.is_empty() => escape(&mut text, b"("),
                letter if letter.is_control() || is_deceptive(letter) => {
                    escape(&mut text, letter.encode_utf8(&mut [0; 4]).as_bytes());
                }
                letter => text.push(letter),
            }
        }
        escape(&mut text, chunk.invalid());
    }
    text
}

/// Whether it changes how the letters around it are shown.
fn is_deceptive(letter: char) -> bool {
    matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

fn escape(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string cannot fail.
        let _written = write!(text, "\\x{byte:02x}");
    }
}

fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let byte;
        (byte, rest) = match (first, after) {
            (b'\\', [b'\\', after @ ..]) => (b'\\', after),
            (b'\\', [b'x', high, low, after @ ..]) => {
                let [high, low] = [*high, *low].map(|digit| char::from(digit).to_digit(16));
                (u8::try_from(high? * 16 + low?).ok()?, after)
            }
            (b'\\', _) => return None,
            _ => (*first, after),
        };
        bytes.push(byte);
    }
    Some(bytes)
}

/// Stands between the beginning of a long key and its number.
const CUT: &str = "…#";

/// What nginx calls the address of who has none.
const UNIX: &str = "unix:";

/// Stands before an address that takes the place of a key.
const STAND_IN: &str = "(no key) ";

/// A key of more bytes has a number.
pub(super) const LONGEST: usize = 128;

/// So many of its bytes are shown.
const SHOWN: usize = 32;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::plan::{Template, Variable};
    use crate::limits::tests::support::key as header;

    fn source(variable: Variable, prefix: u8, on_empty: OnEmptyKey) -> KeySource {
        KeySource::new(&Template::variable(variable), prefix, on_empty)
    }

    fn spell(source: &KeySource, bytes: &[u8]) -> String {
        source.spell(&Key::from_bytes(bytes), Some(bytes))
    }

    #[test]
    fn addresses_are_shown_as_such() {
        let binary = source(Variable::BinaryRemoteAddr, 64, OnEmptyKey::Skip);
        assert_eq!(spell(&binary, &[192, 0, 2, 7]), "192.0.2.7");
        let network: Ipv6Addr = "2001:db8:1:2::".parse().unwrap();
        assert_eq!(spell(&binary, &network.octets()), "2001:db8:1:2::/64");
        let read = |text| binary.read(text)[0].key.id();
        let key = Key::from_bytes(&network.octets());
        assert_eq!(read("2001:db8:1:2::/64"), key.id());
        assert_eq!(
            read("2001:db8:1:2::99"),
            key.id(),
            "an address of that network"
        );
        assert_eq!(spell(&binary, b"unix:"), "unix:");
        assert_eq!(read("unix:"), Key::from_bytes(b"unix:").id());
        let v4 = Key::from_bytes(&[192, 0, 2, 7]);
        for text in ["192.0.2.7", "192.0.2.7/32", "::ffff:192.0.2.7"] {
            assert_eq!(read(text), v4.id(), "{text}");
        }
        for text in [
            "192.0.2.0/24",
            "2001:db8::/32",
            "192.0.2.300",
            "localhost",
            "192.0.2.7:80",
            " 192.0.2.7",
        ] {
            assert!(binary.read(text).is_empty(), "{text} is no key");
        }
        let whole = source(Variable::BinaryRemoteAddr, 128, OnEmptyKey::Skip);
        assert_eq!(spell(&whole, &network.octets()), "2001:db8:1:2::");
        let text = source(Variable::RemoteAddr, 128, OnEmptyKey::Skip);
        assert_eq!(spell(&text, b"192.0.2.7"), "192.0.2.7");
        let mapped = source(Variable::Map(0), 128, OnEmptyKey::Skip);
        assert_eq!(spell(&mapped, &[192, 0, 2, 7]), "192.0.2.7");
        assert_eq!(spell(&mapped, b"gold"), "gold");
        assert_eq!(mapped.read("192.0.2.7").len(), 2);
    }

    #[test]
    fn what_cannot_be_printed_is_escaped_and_what_stands_in_for_a_key_is_told() {
        let text = KeySource::new(&header("x-key"), 128, OnEmptyKey::Address);
        assert_eq!(spell(&text, b"a\\b\x1b[31m\xff"), r"a\\b\x1b[31m\xff");
        assert_eq!(spell(&text, "zö\u{202e}".as_bytes()), r"zö\xe2\x80\xae");
        assert_eq!(spell(&text, &[0, 192, 0, 2, 7]), "(no key) 192.0.2.7");
        assert_eq!(
            spell(&text, b"(no key) 192.0.2.7"),
            r"\x28no key) 192.0.2.7"
        );
        assert!(text.read(r"\q").is_empty() && text.read("").is_empty());
    }

    #[test]
    fn a_long_key_is_cut_and_found_by_its_number() {
        let text = KeySource::new(&header("x-key"), 128, OnEmptyKey::Skip);
        let long = vec![b'x'; 300];
        let shown = spell(&text, &long);
        assert!(shown.len() < 80, "{shown}");
        assert_eq!(text.read(&shown)[0].key.id(), Key::from_bytes(&long).id());
        assert!(text.read("x…#12").is_empty());
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_was_shown(bytes in prop::collection::vec(any::<u8>(), 1..140), which in 0..4usize) {
            let bytes = match which {
                // Such keys are addresses and nothing else.
                0 if bytes.len() >= 16 => bytes[..16].to_vec(),
                0 => [bytes[0]; 4].to_vec(),
                _ => bytes,
            };
            let source = match which {
                0 => source(Variable::BinaryRemoteAddr, 128, OnEmptyKey::Skip),
                1 => KeySource::new(&header("x-key"), 128, OnEmptyKey::Skip),
                2 => KeySource::new(&header("x-key"), 128, OnEmptyKey::Address),
                _ => source(Variable::Map(0), 128, OnEmptyKey::Skip),
            };
            let shown = spell(&source, &bytes);
            let key = Key::from_bytes(&bytes).id();
            prop_assert!(source.read(&shown).iter().any(|read| read.key.id() == key), "{shown:?}");
        }

        #[test]
        fn nothing_is_too_strange_to_be_read(text in "\\PC{0,60}") {
            let source = KeySource::new(&header("x-key"), 128, OnEmptyKey::Address);
            for ParsedKey { key, bytes } in source.read(&text) {
                prop_assert_eq!(bytes.is_some_and(|bytes| Key::from_bytes(&bytes).id() != key.id()), false);
            }
        }
    }
}
