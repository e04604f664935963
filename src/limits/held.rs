//! Which override holds for a request, and which bucket it is counted in.
//!
//! An override by address gives the clients it names other numbers in the zone, and one bucket cannot be drained at two
//! rates. Where the key tells these clients from all others, as an address does, its bucket is theirs alone. Where others
//! have the same key, those who are named are counted apart: together, as all others are.

use smallvec::SmallVec;

use super::key::KeyLookup;
use super::overrides::{OverrideMatch, apart, parted};
use super::zones::{ReqZone, RuleKey};
use crate::message::RequestRecord;
use crate::store::Key;

impl ReqZone {
    /// The key of a request in a zone where some have numbers of their own.
    pub(super) fn find_own(
        &self,
        exchange: &RequestRecord,
        note: impl FnOnce(&[u8]),
    ) -> KeyLookup<RuleKey> {
        self.find_held(exchange, |bytes, apart, held| {
            let own = match held {
                OverrideMatch::Own(index) => Some(index),
                OverrideMatch::Same => None,
                OverrideMatch::Unlimited(_) => return KeyLookup::Nothing,
            };
            let frees = |bytes| self.watch.frees(&self.store.key(bytes), exchange);
            if frees(bytes) || apart.is_some_and(frees) {
                return KeyLookup::Nothing;
            }
            let bytes = apart.unwrap_or(bytes);
            note(bytes);
            let key = self.store.key(bytes);
            KeyLookup::Key(RuleKey { key, own })
        })
    }

    /// Makes something of the bytes of a request's key, those of its bucket where that is one apart, and what holds for it.
    fn find_held<T>(
        &self,
        exchange: &RequestRecord,
        make: impl FnOnce(&[u8], Option<&[u8]>, OverrideMatch) -> KeyLookup<T>,
    ) -> KeyLookup<T> {
        let client = exchange.client();
        let found = self.source.find(exchange, |bytes| {
            // The bytes of an address may read like a text.
            let text = (!self.source.is_address_of(client, bytes)).then_some(bytes);
            let held = self.overrides.find(text, client.ip());
            let named = match held {
                OverrideMatch::Own(index) => self.overrides.clients(index),
                OverrideMatch::Same | OverrideMatch::Unlimited(_) => None,
            };
            let shared = named.filter(|clients| !self.source.is_within(*clients, client, bytes));
            match shared {
                Some(clients) => make(bytes, Some(&apart(clients, bytes)), held),
                None => make(bytes, None, held),
            }
        });
        match found {
            // Who is not limited here needs no key.
            KeyLookup::Refuse(_) if self.is_unlimited(exchange) => KeyLookup::Nothing,
            found => found,
        }
    }

    /// Whether an override frees the client of a request from this zone, whatever its key is.
    fn is_unlimited(&self, exchange: &RequestRecord) -> bool {
        let held = self.overrides.find(None, exchange.client().ip());
        matches!(held, OverrideMatch::Unlimited(_))
    }

    /// The keys under which a request can be marked: its own, and that of its bucket where that is one apart.
    pub(super) fn marked_keys(&self, exchange: &RequestRecord) -> SmallVec<[Key; 2]> {
        let mut keys = SmallVec::new();
        self.find_held(exchange, |bytes, apart, _| {
            keys.push(self.store.key(bytes));
            keys.extend(apart.map(|bytes| self.store.key(bytes)));
            KeyLookup::<()>::Nothing
        });
        keys
    }

    /// The bytes of a request's bucket, if it has one; nothing is held while `act` looks at them.
    pub(super) fn with_key(&self, exchange: &RequestRecord, act: impl FnOnce(&[u8])) {
        let copied = self.find_held(exchange, |bytes, apart, _| {
            let bytes = apart.unwrap_or(bytes);
            KeyLookup::Key(SmallVec::<[u8; 32]>::from_slice(bytes))
        });
        if let KeyLookup::Key(key) = copied {
            act(&key);
        }
    }

    /// What a request's bucket is called for people.
    pub(super) fn label(&self, exchange: &RequestRecord) -> String {
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
    pub(super) fn override_name(&self, exchange: &RequestRecord) -> Option<String> {
        let index = |held| match held {
            OverrideMatch::Own(index) | OverrideMatch::Unlimited(index) => Some(index),
            OverrideMatch::Same => None,
        };
        let found = self.find_held(exchange, |_, _, held| KeyLookup::Key(held));
        let held = match found {
            KeyLookup::Key(held) => held,
            KeyLookup::Nothing | KeyLookup::Refuse(_) => {
                self.overrides.find(None, exchange.client().ip())
            }
        };
        self.overrides.name(index(held)?)
    }
}
