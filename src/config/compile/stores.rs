//! `stores`, and which of them a zone names.

use std::time::Duration;

use super::limits::entries;
use super::{Compiler, Resolved};
use crate::config::decode::{Field, OrOff, Spanned, Text, mistaken};
use crate::config::model;
use crate::config::near;
use crate::config::plan::{AlgorithmParams, Login, Store, StoreMode, StoreTls, StoreTopology};
use crate::config::span::Span;
use crate::config::units::{self, RedisUrl};

/// The word for a zone's counters in this process.
const LOCAL: &str = "local";

/// How many requests a log in a store remembers at most: all of them are read for every decision.
const LONGEST_LOG: u32 = 1000;

/// How long a decision may wait where nothing is said: longer than Redis takes on a network of one's own, and too
/// short to be noticed.
const TIMEOUT: Duration = Duration::from_millis(5);

/// What the names of keys begin with where nothing is said.
const PREFIX: &str = "weir";

/// The longest beginning: every question carries it.
const LONGEST_PREFIX: usize = 64;

/// Beyond which multiple of a limit asking about each request is waste, where nothing is said.
const LOCAL_ABOVE: u32 = 5;

impl Compiler<'_> {
    /// `stores`
    pub(super) fn stores(&mut self) -> Vec<Store> {
        let entries = entries(&self.config.stores);
        entries
            .iter()
            .filter_map(|(name, store)| {
                if name.value == LOCAL {
                    let hint = "`local` is the word for counters in this process";
                    self.complain_with(name.span, "a store cannot be called `local`", hint);
                }
                self.store(name, &store.value)
            })
            .collect()
    }

    /// The store a zone names; `None` for counters in this process.
    pub(super) fn zone_store(&mut self, given: Option<&Spanned<Text>>) -> Option<usize> {
        let given = given.filter(|given| given.value.text != LOCAL)?;
        let name = given.value.text.as_str();
        match self.stores.find(name) {
            Resolved::At(index) => Some(index),
            Resolved::Broken => None,
            Resolved::Nowhere => {
                let hint = near::hint(name, self.stores.all().into_iter().chain([LOCAL]))
                    .unwrap_or_else(|| "it is `local`, or one of `stores`".to_owned());
                self.complain_with(given.span, format!("unknown store `{name}`"), hint);
                None
            }
        }
    }

    /// The store of a zone that counts like this.
    pub(super) fn req_zone_store(
        &mut self,
        given: Option<&Spanned<Text>>,
        algorithm: &AlgorithmParams,
    ) -> Option<usize> {
        let store = self.zone_store(given)?;
        if let AlgorithmParams::SlidingLog { limit, .. } = algorithm
            && *limit > LONGEST_LOG
            && let Some(given) = given
        {
            let sentence = "a log of so many requests is too long to be shared";
            let hint =
                "up to 1000 requests can be logged there; a `sliding_window` counts any number";
            self.complain_with(given.span, sentence, hint);
        }
        Some(store)
    }

    /// Says of a zone that it is asked about request by request, where its store would lease.
    pub(super) fn warn_of_no_leases(&mut self, zone: &model::ReqZone, algorithm: &AlgorithmParams) {
        let config = self.config;
        let Some(given) = zone.store.get() else {
            return;
        };
        let stores = entries(&config.stores);
        let named = stores
            .iter()
            .find(|(name, _)| name.value == given.value.text);
        if !named.is_some_and(|(_, store)| mode(&store.value) == StoreMode::Leased) {
            return;
        }
        let sentence = match algorithm {
            AlgorithmParams::Bursty { .. } | AlgorithmParams::WarmUp { .. } => {
                format!("a `{}` zone cannot be leased", algorithm.name())
            }
            AlgorithmParams::SlidingWindow {
                precision: Some(_), ..
            } => "a `sliding_window` with `precision` cannot be leased".to_owned(),
            _ if matches!(zone.count_refused.value(), Some(model::Flag(true))) => {
                "a zone with `count_refused` cannot be leased".to_owned()
            }
            _ => return,
        };
        let hint = "its requests are asked about one by one, as in the mode `exact`";
        self.warn(given.span, sentence, hint);
    }

    fn store(&mut self, name: &Spanned<String>, store: &model::Store) -> Option<Store> {
        let list = store.redis.get()?;
        let mut urls: Vec<(Span, RedisUrl)> = Vec::new();
        for text in &list.value.0 {
            match units::redis_url(text.value.0.expose()) {
                Ok(url) => urls.push((text.span, url)),
                Err(mistake) => self.report.add(mistaken(text.span, mistake)),
            }
        }
        let Some((_, first)) = urls.first().cloned() else {
            if list.value.0.is_empty() {
                self.complain(list.span, "a store without a server");
            }
            return None;
        };
        for (span, url) in &urls {
            if (url.tls, &url.login) != (first.tls, &first.login) {
                let sentence = "servers of one store differ in more than their address";
                let hint = "TLS, user, password and database are the same for all of them";
                self.complain_with(*span, sentence, hint);
            }
        }
        let shape = self.shape(store, urls.len());
        if shape == StoreTopology::Cluster && first.login.database != 0 {
            let hint = "leave the number out";
            self.complain_with(list.span, "a cluster has database 0 only", hint);
        }
        Some(Store {
            name: name.value.as_str().into(),
            prefix: self.store_prefix(store.prefix.get()),
            shape,
            servers: urls.into_iter().map(|(_, url)| url.address).collect(),
            login: first.login,
            sentinel_login: self.sentinel_login(store),
            tls: self.store_tls(store, first.tls),
            timeout: self.store_timeout(store.timeout.get()),
            on_outage: store
                .on_outage
                .value()
                .map(|word| word.0)
                .unwrap_or_default(),
            mode: mode(store),
            local_above: match store.local_above.value() {
                None => Some(LOCAL_ABOVE),
                Some(OrOff::Off) => None,
                Some(OrOff::On(multiple)) => Some(multiple.0),
            },
            gateways: store.gateways.value().map(|gateways| gateways.0),
        })
    }

    fn shape(&mut self, store: &model::Store, servers: usize) -> StoreTopology {
        let said = store.cluster.value().map(|flag| flag.0);
        match (store.sentinel_master.get(), said) {
            (Some(master), said) => {
                if let (Some(true), Some(key)) = (said, store.cluster.key()) {
                    let hint = "`sentinel_master` is for a master and its replicas; leave one of the two out";
                    self.complain_with(key, "sentinels do not watch a cluster", hint);
                }
                StoreTopology::Sentinel(master.value.text.as_str().into())
            }
            (None, Some(false)) if servers > 1 => {
                if let Some(key) = store.cluster.key() {
                    let hint = "name one server, or the nodes of a cluster";
                    self.complain_with(key, "several servers that are no cluster", hint);
                }
                StoreTopology::Cluster
            }
            (None, Some(true)) => StoreTopology::Cluster,
            (None, _) if servers > 1 => StoreTopology::Cluster,
            (None, _) => StoreTopology::Single,
        }
    }

    fn sentinel_login(&mut self, store: &model::Store) -> Login {
        let keys = [store.sentinel_user.key(), store.sentinel_password.key()];
        for key in keys {
            if let Some(key) = key
                && store.sentinel_master.key().is_none()
            {
                let sentence = "this store has no sentinels";
                let hint = "`sentinel_master` says that its servers are; user and password of a server stand in `redis`";
                self.complain_with(key, sentence, hint);
            }
        }
        let user = store.sentinel_user.value();
        Login {
            user: user.map(|user| user.text.as_str().into()),
            password: store.sentinel_password.value().cloned(),
            database: 0,
        }
    }

    fn store_tls(&mut self, store: &model::Store, used: bool) -> Option<StoreTls> {
        let mut file = |field: &Field<Text>| {
            let text = field.get()?;
            if !used {
                let hint = "`rediss://` instead of `redis://` asks for it";
                self.complain_with(text.span, "this store is not met over TLS", hint);
            }
            Some(self.file(text))
        };
        let trusted = file(&store.trusted_certificate);
        let (certificate, key) = (file(&store.certificate), file(&store.certificate_key));
        if certificate.is_some() != key.is_some()
            && let Some(span) = store
                .certificate
                .key()
                .or_else(|| store.certificate_key.key())
        {
            let hint = "`certificate` and `certificate_key` belong together";
            self.complain_with(span, "half of a certificate", hint);
        }
        used.then_some(StoreTls {
            trusted,
            own: certificate.zip(key),
        })
    }

    fn store_prefix(&mut self, given: Option<&Spanned<Text>>) -> Box<str> {
        let Some(given) = given else {
            return PREFIX.into();
        };
        let text = given.value.text.as_str();
        let plain = |letter: char| letter.is_ascii_alphanumeric() || ".-_/:".contains(letter);
        if text.is_empty() || text.len() > LONGEST_PREFIX || !text.chars().all(plain) {
            let hint = "expected 1 to 64 letters, digits, `.`, `-`, `_`, `/` or `:`; the default is `weir`";
            self.complain_with(given.span, "no prefix for keys in Redis", hint);
        }
        text.into()
    }

    fn store_timeout(&mut self, given: Option<&Spanned<model::Time>>) -> Duration {
        let Some(given) = given else { return TIMEOUT };
        if given.value.0.is_zero() || given.value.0 > Duration::from_secs(1) {
            let hint = "expected 1ms to 1s: every request waits for the answer; the default is 5ms";
            self.complain_with(given.span, "no useful time to wait for a decision", hint);
        }
        given.value.0
    }
}

fn mode(store: &model::Store) -> StoreMode {
    store.mode.value().map(|word| word.0).unwrap_or_default()
}
