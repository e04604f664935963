//! The zones of a plan as they run: each with its keys, its numbers and the store that counts.
//!
//! Made once for a plan and shared by all locations, so that two of them that name one zone count in one
//! place, and a thousand overrides are held once.

use std::sync::Arc;

use super::fields::Name;
use super::key::{Found, Source};
use super::overrides::{Held, Overrides};
use crate::config::plan::{self, Plan, Rate};
use crate::message::Exchange;
use crate::store::algorithm::leaky_bucket::Terms;
use crate::store::{Key, Slots, Zone};

/// Every zone of a plan, under the plan's indices.
#[derive(Debug, Default)]
pub struct Zones {
    /// Those of `limit_req`.
    pub req: Vec<Arc<ReqZone>>,
    /// Those of `limit_conn`.
    pub conn: Vec<Arc<ConnZone>>,
}

/// A `limit_req` zone.
#[derive(Debug)]
pub struct ReqZone {
    /// Where its buckets are.
    pub store: Arc<Zone>,
    pub(super) name: Arc<Name>,
    pub(super) rate: Rate,
    source: Source,
    overrides: Overrides,
}

/// A `limit_conn` zone.
#[derive(Debug)]
pub struct ConnZone {
    /// Where its places are.
    pub store: Arc<Slots>,
    pub(super) name: Arc<Name>,
    source: Source,
}

/// A request's key in a `limit_req` zone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keyed {
    pub(super) key: Key,
    /// Its own numbers, where it has some.
    pub(super) own: Option<Terms>,
}

impl Keyed {
    /// What it is held to where a rule gives `terms`.
    pub(super) fn terms<'a>(&'a self, terms: &'a Terms) -> &'a Terms {
        self.own.as_ref().unwrap_or(terms)
    }
}

impl Zones {
    /// Builds the zones of a plan, all empty.
    #[must_use]
    pub fn build(plan: &Plan) -> Self {
        Self {
            req: plan
                .req_zones
                .iter()
                .map(|zone| Arc::new(ReqZone::new(zone)))
                .collect(),
            conn: plan
                .conn_zones
                .iter()
                .map(|zone| Arc::new(ConnZone::new(zone)))
                .collect(),
        }
    }
}

impl ReqZone {
    fn new(zone: &plan::ReqZone) -> Self {
        let slowest = zone
            .overrides
            .iter()
            .filter_map(|one| one.rate)
            .fold(zone.rate, Rate::min);
        Self {
            store: Arc::new(Zone::new(&zone.name, zone.size, slowest)),
            name: Arc::new(Name::new(&zone.name)),
            rate: zone.rate,
            source: Source::new(&zone.key, zone.ipv6_prefix, zone.on_empty_key),
            overrides: Overrides::new(&zone.overrides),
        }
    }

    /// The key of a request, with its own numbers where it has some instead of a rule's `terms`.
    pub(super) fn find(&self, exchange: &Exchange, terms: &Terms) -> Found<Keyed> {
        let found = self.source.find(exchange, |bytes| {
            let held = if self.overrides.is_empty() {
                Held::Same
            } else {
                let address = exchange.client().ip().filter(|_| self.source.is_address());
                self.overrides.find(bytes, address, terms)
            };
            (self.store.key(bytes), held)
        });
        match found {
            Found::Key((key, Held::Same)) => Found::Key(Keyed { key, own: None }),
            Found::Key((key, Held::Own(terms))) => Found::Key(Keyed {
                key,
                own: Some(terms),
            }),
            Found::Key((_, Held::Unlimited)) | Found::Nothing => Found::Nothing,
            Found::Refuse => Found::Refuse,
        }
    }
}

impl ConnZone {
    fn new(zone: &plan::ConnZone) -> Self {
        Self {
            store: Slots::new(&zone.name, zone.size),
            name: Arc::new(Name::new(&zone.name)),
            source: Source::new(&zone.key, zone.ipv6_prefix, zone.on_empty_key),
        }
    }

    /// The key of a request.
    pub(super) fn find(&self, exchange: &Exchange) -> Found<Key> {
        self.source.find(exchange, |bytes| self.store.key(bytes))
    }
}
