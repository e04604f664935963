//! From a request to the few bytes its limits are counted under.
//!
//! The client's address alone is by far the most common key and costs nothing: the connection has it ready. One other
//! value of the request is taken from where it stands. Everything else is rendered into a buffer that the thread
//! keeps, so no key is ever allocated.

use std::cell::RefCell;
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};

use http::StatusCode;
use ipnet::IpNet;
use smallvec::SmallVec;

use crate::config::plan::{OnEmptyKey, Part, Template, Variable};
use crate::message::vars::{self, AmbiguousKey, KeyReader};
use crate::message::{ClientAddr, RequestRecord};

/// Where a zone's keys come from.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeySource {
    template: Template,
    shape: KeyShape,
    parts: KeyReader,
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

/// What was found of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyLookup<T> {
    /// A key, and what was made of it.
    Key(T),
    /// None, and the zone does not limit such requests.
    Nothing,
    /// None, and the zone refuses such requests.
    Refuse(KeyFault),
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
            parts: KeyReader::default(),
            ipv6_prefix,
            on_empty,
        }
    }

    /// The same, with its parts read like this.
    pub(super) fn reading(self, parts: KeyReader) -> Self {
        Self { parts, ..self }
    }

    /// How the parts of its keys are read.
    pub(super) fn parts(&self) -> KeyReader {
        self.parts
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

    /// What its keys are made of.
    pub(super) fn shape(&self) -> KeyShape {
        self.shape
    }

    /// What becomes of requests without a key.
    pub(super) fn on_empty(&self) -> OnEmptyKey {
        self.on_empty
    }

    /// How much of an IPv6 address tells clients apart, in bits.
    pub(super) fn ipv6_prefix(&self) -> u8 {
        self.ipv6_prefix
    }

    /// Renders the key of a request and makes something of it.
    pub(super) fn find<T>(
        &self,
        exchange: &RequestRecord,
        make: impl FnOnce(&[u8]) -> KeyLookup<T>,
    ) -> KeyLookup<T> {
        if self.shape == KeyShape::BinaryAddress {
            return match self.masked(exchange.client()) {
                Some(masked) => make(&masked.octets()),
                None => make(exchange.client().binary()),
            };
        }
        if matches!(self.shape, KeyShape::Mapped | KeyShape::Single)
            && let [Part::Variable(variable)] = &*self.template.parts
            && self.parts.takes_as_is(variable)
            && let Some(value) = vars::lent(variable, exchange)
            && !value.is_empty()
        {
            return make(value);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            if let Err(AmbiguousKey) = self.render(exchange, scratch) {
                return KeyLookup::Refuse(KeyFault::Ambiguous);
            }
            if scratch.is_empty() {
                match self.on_empty {
                    OnEmptyKey::Skip => return KeyLookup::Nothing,
                    OnEmptyKey::Refuse(status) => {
                        return KeyLookup::Refuse(KeyFault::Empty(status));
                    }
                    OnEmptyKey::Address => self.stand_in(exchange.client(), scratch),
                }
            }
            make(scratch)
        })
    }

    /// The bytes of a request's key, if it has one; nothing is held while `act` looks at them.
    pub(super) fn with(&self, exchange: &RequestRecord, act: impl FnOnce(&[u8])) {
        let copied = self.find(exchange, |bytes| {
            KeyLookup::Key(SmallVec::<[u8; 32]>::from_slice(bytes))
        });
        if let KeyLookup::Key(key) = copied {
            act(&key);
        }
    }

    /// What a request's key looks like to people: as it is, with addresses in digits.
    pub(super) fn label(&self, exchange: &RequestRecord) -> String {
        let client = exchange.client();
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
                    if self.parts.append(variable, exchange, &mut value).is_err() {
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

    fn render(&self, exchange: &RequestRecord, out: &mut Vec<u8>) -> Result<(), AmbiguousKey> {
        let Some(masked) = self.masked(exchange.client()) else {
            return self.parts.render(&self.template, exchange, out);
        };
        for part in &self.template.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Variable(variable) => {
                    let start = out.len();
                    self.parts.append(variable, exchange, out)?;
                    mask(variable, exchange.client(), masked, out, start);
                }
            }
        }
        Ok(())
    }

    /// The client's address in place of a key that is not there.
    fn stand_in(&self, client: &ClientAddr, out: &mut Vec<u8>) {
        // No header and no target can hold this byte: nobody can send the key of somebody else's address.
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

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
