//! Which override holds for a request, and which bucket it is counted in.
//!
//! An override by address gives the clients it names other numbers in the zone, and one bucket cannot be drained at two
//! rates. Where the key tells these clients from all others, as an address does, its bucket is theirs alone. Where others
//! have the same key, those who are named are counted apart: together, as all others are.

use smallvec::SmallVec;

use super::key::Found;
use super::overrides::{Held, apart, parted};
use super::zones::{Keyed, ReqZone};
use crate::message::Exchange;
use crate::store::Key;

impl ReqZone {
    /// The key of a request in a zone where some have numbers of their own.
    pub(super) fn find_own(&self, exchange: &Exchange, note: impl FnOnce(&[u8])) -> Found<Keyed> {
        self.find_held(exchange, |bytes, apart, held| {
            let own = match held {
                Held::Own(index) => Some(index),
                Held::Same => None,
                Held::Unlimited(_) => return Found::Nothing,
            };
            let frees = |bytes| self.watch.frees(&self.store.key(bytes), exchange);
            if frees(bytes) || apart.is_some_and(frees) {
                return Found::Nothing;
            }
            let bytes = apart.unwrap_or(bytes);
            note(bytes);
            let key = self.store.key(bytes);
            Found::Key(Keyed { key, own })
        })
    }

    /// Makes something of the bytes of a request's key, those of its bucket where that is one apart, and what holds for it.
    fn find_held<T>(
        &self,
        exchange: &Exchange,
        make: impl FnOnce(&[u8], Option<&[u8]>, Held) -> Found<T>,
    ) -> Found<T> {
        let client = exchange.client();
        let found = self.source.find(exchange, |bytes| {
            // The bytes of an address may read like a text.
            let text = (!self.source.is_address_of(client, bytes)).then_some(bytes);
            let held = self.overrides.find(text, client.ip());
            let named = match held {
                Held::Own(index) => self.overrides.clients(index),
                Held::Same | Held::Unlimited(_) => None,
            };
            let shared = named.filter(|clients| !self.source.is_within(*clients, client, bytes));
            match shared {
                Some(clients) => make(bytes, Some(&apart(clients, bytes)), held),
                None => make(bytes, None, held),
            }
        });
        match found {
            // Who is not limited here needs no key.
            Found::Refuse(_) if self.is_unlimited(exchange) => Found::Nothing,
            found => found,
        }
    }

    /// Whether an override frees the client of a request from this zone, whatever its key is.
    fn is_unlimited(&self, exchange: &Exchange) -> bool {
        let held = self.overrides.find(None, exchange.client().ip());
        matches!(held, Held::Unlimited(_))
    }

    /// The keys under which a request can be marked: its own, and that of its bucket where that is one apart.
    pub(super) fn marked_keys(&self, exchange: &Exchange) -> SmallVec<[Key; 2]> {
        let mut keys = SmallVec::new();
        self.find_held(exchange, |bytes, apart, _| {
            keys.push(self.store.key(bytes));
            keys.extend(apart.map(|bytes| self.store.key(bytes)));
            Found::<()>::Nothing
        });
        keys
    }

    /// The bytes of a request's bucket, if it has one; nothing is held while `act` looks at them.
    pub(super) fn with_key(&self, exchange: &Exchange, act: impl FnOnce(&[u8])) {
        let copied = self.find_held(exchange, |bytes, apart, _| {
            let bytes = apart.unwrap_or(bytes);
            Found::Key(SmallVec::<[u8; 32]>::from_slice(bytes))
        });
        if let Found::Key(key) = copied {
            act(&key);
        }
    }

    /// What a request's bucket is called for people.
    pub(super) fn label(&self, exchange: &Exchange) -> String {
        let mut network = None;
        self.with_key(exchange, |bytes| {
            network = parted(bytes).map(|(network, _)| network);
        });
        match network {
            Some(network) => format!("({network}) {}", self.source.label(exchange)),
            None => self.source.label(exchange),
        }
    }

    /// What the override that applies to a request is written under.
    pub(super) fn override_name(&self, exchange: &Exchange) -> Option<String> {
        let index = |held| match held {
            Held::Own(index) | Held::Unlimited(index) => Some(index),
            Held::Same => None,
        };
        let found = self.find_held(exchange, |_, _, held| Found::Key(held));
        let held = match found {
            Found::Key(held) => held,
            Found::Nothing | Found::Refuse(_) => self.overrides.find(None, exchange.client().ip()),
        };
        self.overrides.name(index(held)?)
    }
}
