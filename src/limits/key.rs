//! From a request to the few bytes its limits are counted under.
//!
//! The client's address alone is by far the most common key and costs nothing: the connection has it ready. One other
//! value of the request is used in place. Everything else is rendered into a buffer that the thread
//! keeps, so no key is ever allocated.
//!
//! A key's text form is its name in the API, so every key has one of its own, and parsing it gives the key again. Keys are
//! chosen by clients: nothing they contain reaches a terminal or a page as it is unless it can be printed.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};

use http::StatusCode;
use ipnet::IpNet;
use smallvec::SmallVec;

use crate::config::plan::{OnEmptyKey, Part, Template, Variable};
use crate::message::variables::{AmbiguousKey, KeyReader};
use crate::message::{ClientAddr, RequestRecord, variables};
use crate::store::Key;
use crate::text::{hex_byte, is_deceptive};

/// Where a zone's keys come from.
#[derive(Debug, PartialEq, Eq)]
pub struct KeySource {
    template: Template,
    shape: KeyShape,
    /// How parts of keys are read from a request.
    pub(super) reader: KeyReader,
    ipv6_prefix: u8,
    on_empty: OnEmptyKey,
}

/// What a key is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyShape {
    /// `$binary_remote_addr` and nothing else.
    BinaryAddress,
    /// A variable of `maps` and nothing else: it may give an address, or something else.
    Mapped,
    /// `$remote_addr` and nothing else.
    TextAddress,
    /// Another variable and nothing else.
    Single,
    /// Anything.
    Other,
}

/// A copy of a key's bytes.
pub(super) type KeyBytes = SmallVec<[u8; 32]>;

/// The result of looking for the key of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyLookup<T> {
    /// A key, and what was made of it.
    Key(T),
    /// None, and the zone does not limit such requests.
    Nothing,
    /// None, and the zone refuses such requests.
    Refuse(KeyFault),
}

impl<T> KeyLookup<T> {
    /// The key, if there is one.
    pub(super) fn key(self) -> Option<T> {
        match self {
            Self::Key(key) => Some(key),
            Self::Nothing | Self::Refuse(_) => None,
        }
    }
}

/// Why a request has no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyFault {
    /// A part of it was given more than once.
    Ambiguous,
    /// There is nothing it could be made from; refused with this status, where the zone names one.
    Empty(Option<StatusCode>),
}

impl KeySource {
    pub(super) fn new(template: &Template, ipv6_prefix: u8, on_empty: OnEmptyKey) -> Self {
        Self {
            shape: match template.as_variable() {
                Some(Variable::BinaryRemoteAddr) => KeyShape::BinaryAddress,
                Some(Variable::Map(_)) => KeyShape::Mapped,
                Some(Variable::RemoteAddr) => KeyShape::TextAddress,
                Some(_) => KeyShape::Single,
                None => KeyShape::Other,
            },
            template: template.clone(),
            reader: KeyReader::default(),
            ipv6_prefix,
            on_empty,
        }
    }

    /// The same, with its parts read like this.
    pub(super) fn with_reader(self, reader: KeyReader) -> Self {
        Self { reader, ..self }
    }

    /// Whether a key is the client's address, or that in place of a missing one.
    pub(super) fn is_address_of(&self, client: &ClientAddr, key: &[u8]) -> bool {
        let key = match (key, self.on_empty) {
            ([0, rest @ ..], OnEmptyKey::Address) => rest,
            (key, _) => key,
        };
        let masked = self.masked(client);
        key == client.binary() || masked.is_some_and(|masked| key == masked.octets())
    }

    /// Whether no client outside of a network, in which this one is, has the same key.
    pub(super) fn is_within(&self, network: IpNet, client: &ClientAddr, key: &[u8]) -> bool {
        let is_address = |part: &Part| {
            let Part::Variable(variable) = part else {
                return false;
            };
            matches!(variable, Variable::BinaryRemoteAddr | Variable::RemoteAddr)
        };
        let told_apart = match network {
            IpNet::V4(_) => true,
            IpNet::V6(network) => network.prefix_len() <= self.ipv6_prefix,
        };
        told_apart
            && (self.template.parts.iter().any(is_address) || self.is_address_of(client, key))
    }

    /// Renders the key of a request and makes something of it.
    pub(super) fn find<T>(
        &self,
        record: &RequestRecord,
        make: impl FnOnce(&[u8]) -> KeyLookup<T>,
    ) -> KeyLookup<T> {
        if self.shape == KeyShape::BinaryAddress {
            return match self.masked(record.client()) {
                Some(masked) => make(&masked.octets()),
                None => make(record.client().binary()),
            };
        }
        if matches!(self.shape, KeyShape::Mapped | KeyShape::Single)
            && let [Part::Variable(variable)] = &*self.template.parts
            && self.reader.takes_as_is(variable)
            && let Some(value) = variables::borrowed(variable, record)
            && !value.is_empty()
        {
            return make(value);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            if let Err(AmbiguousKey) = self.render(record, scratch) {
                return KeyLookup::Refuse(KeyFault::Ambiguous);
            }
            if scratch.is_empty() {
                match self.on_empty {
                    OnEmptyKey::Skip => return KeyLookup::Nothing,
                    OnEmptyKey::Refuse(status) => {
                        return KeyLookup::Refuse(KeyFault::Empty(status));
                    }
                    OnEmptyKey::Address => self.append_address(record.client(), scratch),
                }
            }
            make(scratch)
        })
    }

    /// The bytes of a request's key; none if it has no key.
    pub(super) fn bytes(&self, record: &RequestRecord) -> KeyBytes {
        let mut copy = KeyBytes::new();
        self.find(record, |bytes| {
            copy.extend_from_slice(bytes);
            KeyLookup::<()>::Nothing
        });
        copy
    }

    /// A request's key, whatever operators have done to it.
    pub(super) fn key(&self, record: &RequestRecord) -> Option<Key> {
        let lookup = self.find(record, |bytes| KeyLookup::Key(Key::from_bytes(bytes)));
        lookup.key()
    }

    /// A request's key for people: as it is, with addresses in digits.
    pub(super) fn label(&self, record: &RequestRecord) -> String {
        let client = record.client();
        let address = match self.masked(client) {
            Some(masked) => format!("{masked}/{}", self.ipv6_prefix),
            None => client.text().to_owned(),
        };
        let mut label = String::new();
        let mut add = |bytes: &[u8]| {
            let is_address = |octets: &[u8]| !bytes.is_empty() && bytes == octets;
            if is_address(client.binary())
                || self.masked(client).is_some_and(|m| is_address(&m.octets()))
            {
                label.push_str(&address);
            } else {
                label.push_str(&String::from_utf8_lossy(bytes));
            }
        };
        let mut value = Vec::new();
        for part in &self.template.parts {
            match part {
                Part::Text(text) => add(text.as_bytes()),
                Part::Variable(variable) => {
                    value.clear();
                    if self.reader.append(variable, record, &mut value).is_err() {
                        return "(ambiguous key)".to_owned();
                    }
                    if let Some(masked) = self.masked(client) {
                        mask(variable, client, masked, &mut value, 0);
                    }
                    add(&value);
                }
            }
        }
        match (label.is_empty(), self.on_empty) {
            (false, _) => label,
            (true, OnEmptyKey::Address) => format!("(no key) {address}"),
            (true, _) => "(no key)".to_owned(),
        }
    }

    fn render(&self, record: &RequestRecord, out: &mut Vec<u8>) -> Result<(), AmbiguousKey> {
        let Some(masked) = self.masked(record.client()) else {
            return self.reader.render(&self.template, record, out);
        };
        for part in &self.template.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Variable(variable) => {
                    let start = out.len();
                    self.reader.append(variable, record, out)?;
                    mask(variable, record.client(), masked, out, start);
                }
            }
        }
        Ok(())
    }

    /// The client's address in place of a key that is not there.
    fn append_address(&self, client: &ClientAddr, out: &mut Vec<u8>) {
        // No header and no target can hold this byte: no client can send the key of another one's address.
        out.push(0);
        match self.masked(client) {
            Some(masked) => out.extend_from_slice(&masked.octets()),
            None => out.extend_from_slice(client.binary()),
        }
    }

    /// The client's network, where that is what tells clients apart.
    fn masked(&self, client: &ClientAddr) -> Option<Ipv6Addr> {
        match client.ip() {
            Some(IpAddr::V6(address)) => self.network(address),
            _ => None,
        }
    }

    /// The network an address belongs to, where that is what tells clients apart.
    pub(super) fn network(&self, address: Ipv6Addr) -> Option<Ipv6Addr> {
        let rest = 128u32.checked_sub(self.ipv6_prefix.into())?;
        let mask = u128::MAX.checked_shl(rest).unwrap_or(0);
        (rest > 0).then(|| Ipv6Addr::from_bits(address.to_bits() & mask))
    }
}

/// Replaces the client's address, appended at `start`, by its network.
fn mask(
    variable: &Variable,
    client: &ClientAddr,
    masked: Ipv6Addr,
    out: &mut Vec<u8>,
    start: usize,
) {
    // A map may give the address too: `{ geo: $remote_addr, default: $binary_remote_addr, … }`.
    if !matches!(
        variable,
        Variable::BinaryRemoteAddr | Variable::Map(_) | Variable::RemoteAddr
    ) {
        return;
    }
    if &out[start..] == client.binary() {
        out.truncate(start);
        out.extend_from_slice(&masked.octets());
    } else if &out[start..] == client.as_bytes() {
        out.truncate(start);
        write!(out, "{masked}").expect("a vector takes everything");
    }
}

/// The bytes of the bucket that the clients of a network share where clients outside of it have the same key.
// Neither side must pay for what the other may do beyond it.
pub(super) fn network_bucket(network: IpNet, key: &[u8]) -> SmallVec<[u8; 64]> {
    let mut bytes = SmallVec::new();
    bytes.push(NETWORK_MARK);
    bytes.extend_from_slice(network.to_string().as_bytes());
    bytes.push(NETWORK_MARK);
    bytes.extend_from_slice(key);
    bytes
}

/// The network and the key of such a bucket.
pub(super) fn split_network_bucket(bytes: &[u8]) -> Option<(IpNet, &[u8])> {
    let rest = bytes.strip_prefix(&[NETWORK_MARK])?;
    let end = rest.iter().position(|byte| *byte == NETWORK_MARK)?;
    let network = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    Some((network, &rest[end + 1..]))
}

/// No header, cookie, argument or path can hold this byte: no client can send the key of another one's bucket.
const NETWORK_MARK: u8 = 1;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A key that a text may mean.
#[derive(Debug, Clone)]
pub struct ParsedKey {
    /// The key.
    pub key: Key,
    /// Its bytes, where they are known.
    pub bytes: Option<Vec<u8>>,
}

impl KeySource {
    /// A key as text; `bytes` are all its bytes or, if it is a long one, the first.
    #[must_use]
    pub fn format(&self, key: &Key, bytes: Option<&[u8]>) -> String {
        let plain = key.short_bytes();
        let bytes = plain.as_deref().or(bytes).unwrap_or_default();
        if bytes.len() > MAX_PLAIN || (bytes.is_empty() && plain.is_none()) {
            let cut = &bytes[..bytes.len().min(SHOWN_BYTES)];
            return format!("{}{CUT}{:032x}", escaped(cut), key.number());
        }
        if let Some((network, rest)) = split_network_bucket(bytes) {
            return format!(
                "({network}) {}",
                self.format(&Key::from_bytes(rest), Some(rest))
            );
        }
        if let (KeyShape::BinaryAddress | KeyShape::Mapped, Some(address)) =
            (self.shape, octets(bytes))
            && (self.shape == KeyShape::BinaryAddress || !is_printable(bytes))
        {
            return self.format_address(address);
        }
        if let ([0, rest @ ..], OnEmptyKey::Address) = (bytes, self.on_empty)
            && let Some(address) = octets(rest)
        {
            return format!("{ADDRESS_FOR_KEY}{}", self.format_address(address));
        }
        escaped(bytes)
    }

    /// The address that a key of these bytes is, where keys are addresses.
    pub(super) fn address(&self, bytes: &[u8]) -> Option<IpAddr> {
        match self.shape {
            KeyShape::BinaryAddress => octets(bytes),
            KeyShape::Mapped => octets(bytes).filter(|_| !is_printable(bytes)),
            KeyShape::TextAddress => std::str::from_utf8(bytes).ok()?.parse().ok(),
            KeyShape::Other | KeyShape::Single => None,
        }
    }

    fn format_address(&self, address: IpAddr) -> String {
        match address {
            IpAddr::V6(_) if self.ipv6_prefix < 128 => {
                format!("{address}/{}", self.ipv6_prefix)
            }
            _ => address.to_string(),
        }
    }

    /// The keys that a text may mean; none if it is no key.
    #[must_use]
    pub fn parse(&self, text: &str) -> Vec<ParsedKey> {
        if let Some((_, number)) = text.rsplit_once(CUT) {
            let number = u128::from_str_radix(number, 16).ok();
            let key = number.and_then(Key::from_number);
            let key = key.map(|key| ParsedKey { key, bytes: None });
            return key.into_iter().collect();
        }
        let known = |bytes: Vec<u8>| ParsedKey {
            key: Key::from_bytes(&bytes),
            bytes: Some(bytes),
        };
        if let Some(address) = text.strip_prefix(ADDRESS_FOR_KEY)
            && self.on_empty == OnEmptyKey::Address
            && let Some(address) = self.parse_address(address)
        {
            let mut bytes = vec![0];
            bytes.extend(address_bytes(address));
            return vec![known(bytes)];
        }
        if let Some((network, rest)) = text.strip_prefix('(').and_then(|it| it.split_once(") "))
            && let Ok(network) = network.parse::<IpNet>()
        {
            let keys = self.parse(rest).into_iter().filter_map(|it| it.bytes);
            return keys
                .map(|it| known(network_bucket(network, &it).to_vec()))
                .collect();
        }
        let plain = unescaped(text).filter(|bytes| !bytes.is_empty());
        match (self.shape, self.parse_address(text)) {
            (KeyShape::BinaryAddress, Some(address)) => vec![known(address_bytes(address))],
            (KeyShape::TextAddress, Some(address)) => vec![known(address.to_string().into())],
            // A map may give the address in either form.
            (KeyShape::Mapped, Some(address)) => vec![
                known(address_bytes(address)),
                known(address.to_string().into()),
            ],
            // A client of a unix socket has no address; nothing else is a key here.
            (KeyShape::BinaryAddress | KeyShape::TextAddress, None) if text != UNIX => Vec::new(),
            _ => plain.map(known).into_iter().collect(),
        }
    }

    /// An address, or its network where that is what tells clients apart.
    fn parse_address(&self, text: &str) -> Option<IpAddr> {
        let address = match text.parse::<IpAddr>() {
            Ok(address) => address,
            Err(_) => {
                let network = text.parse::<IpNet>().ok()?;
                let told_apart = match network {
                    IpNet::V4(_) => 32,
                    IpNet::V6(_) => self.ipv6_prefix,
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
                // Would be taken for the end of a long key, or for the beginning of a missing one.
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
            (b'\\', [b'x', high, low, after @ ..]) => (hex_byte(*high, *low)?, after),
            (b'\\', _) => return None,
            _ => (*first, after),
        };
        bytes.push(byte);
    }
    Some(bytes)
}

/// Separates the beginning of a long key from its number.
const CUT: &str = "…#";

/// nginx's address of clients that have none.
const UNIX: &str = "unix:";

/// Precedes an address that takes the place of a key.
const ADDRESS_FOR_KEY: &str = "(no key) ";

/// As many bytes of a key as its text form needs.
pub(super) fn key_prefix(bytes: &[u8]) -> Box<[u8]> {
    bytes[..bytes.len().min(MAX_PLAIN + 1)].into()
}

/// A key of more bytes has a number.
const MAX_PLAIN: usize = 128;

/// The bytes of a long key that are shown.
const SHOWN_BYTES: usize = 32;

#[cfg(test)]
mod tests {

    use proptest::prelude::*;

    use super::*;
    use crate::config::plan::{Template, Variable};
    use crate::limits::tests::support::key as header;

    fn source(variable: Variable, prefix: u8, on_empty: OnEmptyKey) -> KeySource {
        KeySource::new(&Template::variable(variable), prefix, on_empty)
    }

    fn format(source: &KeySource, bytes: &[u8]) -> String {
        source.format(&Key::from_bytes(bytes), Some(bytes))
    }

    #[test]
    fn addresses_are_shown_as_such() {
        let binary = source(Variable::BinaryRemoteAddr, 64, OnEmptyKey::Skip);
        assert_eq!(format(&binary, &[192, 0, 2, 7]), "192.0.2.7");
        let network: Ipv6Addr = "2001:db8:1:2::".parse().unwrap();
        assert_eq!(format(&binary, &network.octets()), "2001:db8:1:2::/64");
        let read = |text| binary.parse(text)[0].key.id();
        let key = Key::from_bytes(&network.octets());
        assert_eq!(read("2001:db8:1:2::/64"), key.id());
        assert_eq!(
            read("2001:db8:1:2::99"),
            key.id(),
            "an address of that network"
        );
        assert_eq!(format(&binary, b"unix:"), "unix:");
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
            assert!(binary.parse(text).is_empty(), "{text} is no key");
        }
        let whole = source(Variable::BinaryRemoteAddr, 128, OnEmptyKey::Skip);
        assert_eq!(format(&whole, &network.octets()), "2001:db8:1:2::");
        let text = source(Variable::RemoteAddr, 128, OnEmptyKey::Skip);
        assert_eq!(format(&text, b"192.0.2.7"), "192.0.2.7");
        let mapped = source(Variable::Map(0), 128, OnEmptyKey::Skip);
        assert_eq!(format(&mapped, &[192, 0, 2, 7]), "192.0.2.7");
        assert_eq!(format(&mapped, b"gold"), "gold");
        assert_eq!(mapped.parse("192.0.2.7").len(), 2);
    }

    #[test]
    fn what_cannot_be_printed_is_escaped_and_an_address_in_place_of_a_key_is_marked() {
        let text = KeySource::new(&header("x-key"), 128, OnEmptyKey::Address);
        assert_eq!(format(&text, b"a\\b\x1b[31m\xff"), r"a\\b\x1b[31m\xff");
        assert_eq!(format(&text, "zö\u{202e}".as_bytes()), r"zö\xe2\x80\xae");
        assert_eq!(format(&text, &[0, 192, 0, 2, 7]), "(no key) 192.0.2.7");
        assert_eq!(
            format(&text, b"(no key) 192.0.2.7"),
            r"\x28no key) 192.0.2.7"
        );
        assert!(text.parse(r"\q").is_empty() && text.parse("").is_empty());
    }

    #[test]
    fn a_long_key_is_cut_and_found_by_its_number() {
        let text = KeySource::new(&header("x-key"), 128, OnEmptyKey::Skip);
        let long = vec![b'x'; 300];
        let shown = format(&text, &long);
        assert!(shown.len() < 80, "{shown}");
        assert_eq!(text.parse(&shown)[0].key.id(), Key::from_bytes(&long).id());
        assert!(text.parse("x…#12").is_empty());
    }

    #[test]
    fn a_bucket_of_a_network_names_its_network_and_its_key() {
        let network = "2001:db8::/32".parse().unwrap();
        assert_eq!(
            split_network_bucket(&network_bucket(network, b"k")),
            Some((network, &b"k"[..]))
        );
        assert_eq!(split_network_bucket(b"k"), None);
        assert_eq!(split_network_bucket(b"\x01k\x01"), None);
    }

    proptest! {
        #[test]
        fn a_key_is_parsed_from_its_text(bytes in prop::collection::vec(any::<u8>(), 1..140), which in 0..4usize) {
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
            let shown = format(&source, &bytes);
            let key = Key::from_bytes(&bytes).id();
            prop_assert!(source.parse(&shown).iter().any(|read| read.key.id() == key), "{shown:?}");
        }

        #[test]
        fn any_text_can_be_parsed(text in "\\PC{0,60}") {
            let source = KeySource::new(&header("x-key"), 128, OnEmptyKey::Address);
            for ParsedKey { key, bytes } in source.parse(&text) {
                prop_assert_eq!(bytes.is_some_and(|bytes| Key::from_bytes(&bytes).id() != key.id()), false);
            }
        }
    }
}
