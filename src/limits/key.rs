//! From a request to the few bytes its limits are counted under.
//!
//! The client's address alone is by far the most common key and costs nothing: the connection has it ready. One other
//! value of the request is taken from where it stands. Everything else is rendered into a buffer that the thread
//! keeps, so no key is ever allocated.

use std::cell::RefCell;
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};

use smallvec::SmallVec;

use crate::config::plan::{OnEmptyKey, Part, Template, Variable};
use crate::message::{Client, Exchange, vars};

/// Where a zone's keys come from.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Source {
    template: Template,
    shape: Shape,
    ipv6_prefix: u8,
    on_empty: OnEmptyKey,
}

/// What a key is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
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
pub(super) enum Found<T> {
    /// A key, and what was made of it.
    Key(T),
    /// None, and the zone does not limit such requests.
    Nothing,
    /// None, and the zone turns such requests away.
    Refuse,
}

impl Source {
    pub(super) fn new(template: &Template, ipv6_prefix: u8, on_empty: OnEmptyKey) -> Self {
        Self {
            shape: match template.as_variable() {
                Some(Variable::BinaryRemoteAddr) => Shape::BinaryAddress,
                Some(Variable::Map(_)) => Shape::Mapped,
                Some(Variable::RemoteAddr) => Shape::TextAddress,
                Some(_) => Shape::Single,
                None => Shape::Other,
            },
            template: template.clone(),
            ipv6_prefix,
            on_empty,
        }
    }

    /// Whether its keys are clients' addresses.
    pub(super) fn is_address(&self) -> bool {
        matches!(self.shape, Shape::BinaryAddress | Shape::TextAddress)
    }

    /// What its keys are made of.
    pub(super) fn shape(&self) -> Shape {
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
        exchange: &Exchange,
        make: impl FnOnce(&[u8]) -> Found<T>,
    ) -> Found<T> {
        if self.shape == Shape::BinaryAddress {
            return match self.masked(exchange.client()) {
                Some(masked) => make(&masked.octets()),
                None => make(exchange.client().binary()),
            };
        }
        if matches!(self.shape, Shape::Mapped | Shape::Single)
            && let [Part::Variable(variable)] = &*self.template.parts
            && let Some(value) = vars::lent(variable, exchange)
            && !value.is_empty()
        {
            return make(value);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            self.render(exchange, scratch);
            if scratch.is_empty() {
                match self.on_empty {
                    OnEmptyKey::Skip => return Found::Nothing,
                    OnEmptyKey::Refuse => return Found::Refuse,
                    OnEmptyKey::Address => self.stand_in(exchange.client(), scratch),
                }
            }
            make(scratch)
        })
    }

    /// The bytes of a request's key, if it has one; nothing is held while `act` looks at them.
    pub(super) fn with(&self, exchange: &Exchange, act: impl FnOnce(&[u8])) {
        let copied = self.find(exchange, |bytes| {
            Found::Key(SmallVec::<[u8; 32]>::from_slice(bytes))
        });
        if let Found::Key(key) = copied {
            act(&key);
        }
    }

    /// What a request's key looks like to people: as it is, with addresses in digits.
    pub(super) fn label(&self, exchange: &Exchange) -> String {
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
                    vars::append(variable, exchange, &mut value);
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

    fn render(&self, exchange: &Exchange, out: &mut Vec<u8>) {
        let Some(masked) = self.masked(exchange.client()) else {
            return vars::render(&self.template, exchange, out);
        };
        for part in &self.template.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Variable(variable) => {
                    let start = out.len();
                    vars::append(variable, exchange, out);
                    mask(variable, exchange.client(), masked, out, start);
                }
            }
        }
    }

    /// The client's address in place of a key that is not there.
    fn stand_in(&self, client: &Client, out: &mut Vec<u8>) {
        // No header and no target can hold this byte: nobody can send the key of somebody else's address.
        out.push(0);
        match self.masked(client) {
            Some(masked) => out.extend_from_slice(&masked.octets()),
            None => out.extend_from_slice(client.binary()),
        }
    }

    /// The client's network, where that is what tells clients apart.
    fn masked(&self, client: &Client) -> Option<Ipv6Addr> {
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
fn mask(variable: &Variable, client: &Client, masked: Ipv6Addr, out: &mut Vec<u8>, start: usize) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::tests::support::{exchange, exchange_from, header, key};

    fn found(source: &Source, exchange: &Exchange) -> Found<Vec<u8>> {
        source.find(exchange, |bytes| Found::Key(bytes.to_vec()))
    }

    fn binary(prefix: u8) -> Source {
        let template = Template::variable(Variable::BinaryRemoteAddr);
        Source::new(&template, prefix, OnEmptyKey::Skip)
    }

    #[test]
    fn an_address_is_its_bytes() {
        let exchange = exchange_from("127.0.0.1", &[]);
        assert_eq!(
            found(&binary(128), &exchange),
            Found::Key(vec![127, 0, 0, 1])
        );
        let exchange = exchange_from("2001:db8::1", &[]);
        assert!(matches!(found(&binary(128), &exchange), Found::Key(key) if key.len() == 16));
    }

    #[test]
    fn a_prefix_makes_one_key_of_a_network() {
        let one = found(&binary(64), &exchange_from("2001:db8:1:2:aaaa::1", &[]));
        let same = found(&binary(64), &exchange_from("2001:db8:1:2:bbbb::9", &[]));
        let other = found(&binary(64), &exchange_from("2001:db8:1:3:aaaa::1", &[]));
        assert_eq!(one, same);
        assert_ne!(one, other);
        let all = found(&binary(0), &exchange_from("2001:db8::1", &[]));
        assert_eq!(all, Found::Key(vec![0; 16]));
    }

    #[test]
    fn a_prefix_leaves_ipv4_alone() {
        let one = found(&binary(64), &exchange_from("10.0.0.1", &[]));
        assert_eq!(one, Found::Key(vec![10, 0, 0, 1]));
    }

    #[test]
    fn a_prefix_reaches_into_a_longer_key() {
        let source = Source::new(
            &Template {
                parts: Box::new([
                    Part::Variable(Variable::ServerName),
                    Part::Text("|".into()),
                    Part::Variable(Variable::RemoteAddr),
                ]),
            },
            48,
            OnEmptyKey::Skip,
        );
        let exchange = exchange_from("2001:db8:1:2::7", &[]);
        assert_eq!(
            found(&source, &exchange),
            Found::Key(b"front|2001:db8:1::".to_vec())
        );
    }

    #[test]
    fn a_header_is_a_key() {
        let source = Source::new(&key("x-api-key"), 128, OnEmptyKey::Skip);
        let exchange = exchange(&[header("x-api-key", "abc")]);
        assert_eq!(found(&source, &exchange), Found::Key(b"abc".to_vec()));
    }

    #[test]
    fn an_empty_key_is_what_the_zone_says() {
        let source = |on_empty| Source::new(&key("x-api-key"), 128, on_empty);
        let exchange = exchange_from("127.0.0.1", &[]);
        assert_eq!(found(&source(OnEmptyKey::Skip), &exchange), Found::Nothing);
        assert_eq!(found(&source(OnEmptyKey::Refuse), &exchange), Found::Refuse);
        assert_eq!(
            found(&source(OnEmptyKey::Address), &exchange),
            Found::Key(vec![0, 127, 0, 0, 1])
        );
    }
}
