//! Stores: where zones count that several gateways share.
//!
//! `stores`, and which of them a zone names.
//!
//! Texts that are compared with credentials, or become some: they are hidden like secrets.
//!
//! The keys of a map of `$http_authorization` are as good as the passwords in them, and so are the overrides of a zone
//! by `$http_x_api_key`.
//!
//! `redis://user:password@host:6379/0`, `rediss://…`, `unix:/run/redis.sock`: where a Redis is.

use std::time::Duration;

use super::limits::{self, entries};
use super::location::SetHeader;
use super::tls::TlsFile;
use super::upstream::UpstreamAddress;
use crate::algorithm::AlgorithmParams;
use crate::config::compile::{Compiler, Resolved};
use crate::config::decode::units::{ParseError, host_port};
use crate::config::decode::value::{NamedMap, OrOff, Text, mistaken};
use crate::config::decode::{Field, Spanned, value};
use crate::config::report;
use crate::config::secret::{Secret, is_credential, is_variable};
use crate::config::source::Span;
use crate::config::template::{Part, Variable, template_names};
use crate::text::percent_decode;

pub(crate) mod raw {
    //! `stores`: where zones count that several gateways share.
    //! Texts that may hold credentials, depending on what stands in them or before them.
    use std::borrow::Cow;

    use http::HeaderName;
    use schemars::{JsonSchema, Schema, SchemaGenerator};

    use crate::config::decode::record::record;
    use crate::config::decode::value::{Flag, List, OrOff, Text, Time, choice, number};
    use crate::config::decode::{Decode, DecodeContext, Field, Required};
    use crate::config::directive::store;
    use crate::config::secret::{Secret, is_credential, is_variable};
    use crate::config::source::Node;

    record! {
        /// A store of counters outside of this process.
        pub struct Store {
            /// Where Redis or Valkey is: `redis://user:password@host:6379/0`, `rediss://` for TLS, `unix:/run/redis.sock`; several are nodes of a cluster, or sentinels.
            redis: Required<List<StoreUrl>>,
            /// Whether what is at `redis` is a cluster; several addresses are one anyhow. Default: off.
            cluster: Field<Flag>,
            /// The name of a master: the servers of `redis` are sentinels and know where it is. Default: they are not.
            sentinel_master: Field<Text>,
            /// The ACL user that sentinels are asked as. Default: the default user.
            sentinel_user: Field<Text>,
            /// The password of sentinels that want one; the one in `redis` is the master's. Default: none.
            sentinel_password: Field<Secret>,
            /// PEM file with the roots that a server's certificate has to lead to. Default: the system's.
            trusted_certificate: Field<Text>,
            /// PEM file with the certificate that is shown to servers that ask for one. Default: none.
            certificate: Field<Text>,
            /// PEM file with its key.
            certificate_key: Field<Text>,
            /// What the names of its keys begin with, before a colon: letters, digits, `.`, `-`, `_`, `/` and `:`. Default: weir.
            prefix: Field<Text>,
            /// How long a decision may wait for an answer. Default: 5ms.
            timeout: Field<Time>,
            /// What decides while there is no answer: `local` for each gateway by itself with its share of the rate, `allow` or `refuse`. Default: local.
            on_outage: Field<OnOutage>,
            /// How it is asked: `exact` for one question a request, `leased` for questions that no request waits for. Default: exact.
            mode: Field<StoreMode>,
            /// Beyond which multiple of its limit a key is decided about without asking, until less is asked for; `off` for never. Default: 5.
            local_above: Field<OrOff<Multiple>>,
            /// How many gateways share it: each keeps its part of every limit for as long as it is cut off, and the others leave it that part. Default: as many as were heard of in the last minute.
            gateways: Field<Gateways>,
        }
    }

    choice! {
        /// What decides while a store does not answer.
        pub struct OnOutage(store::OnOutage) = "something to do without a store" {
            "local" => store::OnOutage::Local,
            "allow" => store::OnOutage::Allow,
            "refuse" => store::OnOutage::Refuse,
        }
    }

    number! {
        /// How many times a limit.
        pub struct Multiple(u32) = "a multiple of a limit", 1..=1_000_000
    }

    number! {
        /// How many gateways share a store.
        pub struct Gateways(u32) = "a number of gateways", 1..=100_000
    }

    choice! {
        /// How a store is asked.
        pub struct StoreMode(store::StoreMode) = "a way to ask a store" {
            "exact" => store::StoreMode::Exact,
            "leased" => store::StoreMode::Leased,
        }
    }

    /// The URL of a store, with or without a login.
    #[derive(Debug, Clone)]
    pub struct StoreUrl(pub Secret);

    /// The value of a header field.
    #[derive(Debug, Clone)]
    pub struct HeaderText(pub Text);

    impl Decode for StoreUrl {
        const SECRET: bool = true;

        fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
            let Some(text) = node.text() else {
                context.hide(node);
                context.expected(node, "the address of a Redis");
                return None;
            };
            let start = text.find("://").map_or(0, |scheme| scheme + "://".len());
            match text.rfind('@').filter(|at| *at >= start) {
                Some(at) => context.hide_part(node, start..at),
                // Where it cannot be read, a password may stand anywhere in it.
                None if store::redis_url(text).is_err() => context.hide(node),
                None => {}
            }
            Some(Self(Secret::new(text)))
        }
    }

    impl Decode for HeaderText {
        fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
            let is_plain = node
                .text()
                .is_some_and(|text| text.is_empty() || is_variable(text));
            let name = context.name();
            // What is no name may be half of one.
            let may_be = is_credential(name) || HeaderName::try_from(name).is_err();
            if may_be && !is_plain {
                context.hide(node);
            }
            Text::decode(node, context).map(Self)
        }
    }

    impl JsonSchema for StoreUrl {
        fn schema_name() -> Cow<'static, str> {
            Text::schema_name()
        }

        fn inline_schema() -> bool {
            true
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            Text::json_schema(generator)
        }
    }

    impl JsonSchema for HeaderText {
        fn schema_name() -> Cow<'static, str> {
            Text::schema_name()
        }

        fn inline_schema() -> bool {
            true
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            Text::json_schema(generator)
        }
    }
}

/// A store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// Its name.
    pub name: Box<str>,
    /// What the names of its keys begin with.
    pub prefix: Box<str>,
    /// How its servers stand to each other.
    pub shape: StoreTopology,
    /// One server, or those of a cluster or the sentinels that are known from the start.
    pub servers: Vec<UpstreamAddress>,
    /// What they are spoken to as; where they are sentinels, what the master is.
    pub login: Login,
    /// What sentinels are spoken to as.
    pub sentinel_login: Login,
    /// How they are met over TLS; `None` for plain connections.
    pub tls: Option<StoreTls>,
    /// How long a decision may wait for an answer.
    pub timeout: Duration,
    /// What decides while there is none.
    pub on_outage: OnOutage,
    /// How it is asked.
    pub mode: StoreMode,
    /// Beyond which multiple of its limit a key is not asked about any more; `None` for never.
    pub local_above: Option<u32>,
    /// How many gateways share it at least; `None` for as many as were heard of lately.
    pub gateways: Option<u32>,
}

/// How the servers of a store stand to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreTopology {
    /// They share the keys among each other.
    Cluster,
    /// They know which server is the master of this name.
    Sentinel(Box<str>),
    /// There is one.
    Single,
}

/// What a server is told when it is connected to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// An ACL user; `None` for the default one.
    pub user: Option<Box<str>>,
    /// Its password.
    pub password: Option<Secret>,
    /// The number of the database.
    pub database: u16,
}

/// How a store is met over TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreTls {
    /// Whom to trust; `None` for the system's roots.
    pub trusted: Option<TlsFile>,
    /// What to show: a certificate and its key.
    pub own: Option<(TlsFile, TlsFile)>,
}

/// What decides while a store does not answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnOutage {
    /// Nobody: all pass.
    Allow,
    /// Each gateway for itself, with its share of the rate.
    #[default]
    Local,
    /// Nobody: all are refused.
    Refuse,
}

/// How a store is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StoreMode {
    /// About every request.
    #[default]
    Exact,
    /// Now and then, for as many requests as are likely to come.
    Leased,
}

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
    pub(in crate::config) fn stores(&mut self) -> Vec<Store> {
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
    pub(in crate::config) fn zone_store(&mut self, given: Option<&Spanned<Text>>) -> Option<usize> {
        let given = given.filter(|given| given.value.text != LOCAL)?;
        let name = given.value.text.as_str();
        match self.stores.find(name) {
            Resolved::At(index) => Some(index),
            Resolved::Broken => None,
            Resolved::Nowhere => {
                let hint = report::hint(name, self.stores.all().into_iter().chain([LOCAL]))
                    .unwrap_or_else(|| "it is `local`, or one of `stores`".to_owned());
                self.complain_with(given.span, format!("unknown store `{name}`"), hint);
                None
            }
        }
    }

    /// The store of a zone that counts like this.
    pub(in crate::config) fn req_zone_store(
        &mut self,
        given: Option<&Spanned<Text>>,
        algorithm: &AlgorithmParams,
    ) -> Option<usize> {
        let store = self.zone_store(given)?;
        if algorithm.info().request_bytes > 0
            && algorithm.values().limit > Some(LONGEST_LOG)
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
    pub(in crate::config) fn warn_of_no_leases(
        &mut self,
        zone: &limits::raw::ReqZone,
        algorithm: &AlgorithmParams,
    ) {
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
        let name = algorithm.name();
        let sentence = match algorithm.info().leasable {
            false if algorithm.values().precision.is_some() => {
                format!("a `{name}` with `precision` cannot be leased")
            }
            false => format!("a `{name}` zone cannot be leased"),
            _ if matches!(zone.count_refused.value(), Some(value::Flag(true))) => {
                "a zone with `count_refused` cannot be leased".to_owned()
            }
            _ => return,
        };
        let hint = "its requests are asked about one by one, as in the mode `exact`";
        self.warn(given.span, sentence, hint);
    }

    fn store(&mut self, name: &Spanned<String>, store: &raw::Store) -> Option<Store> {
        let list = store.redis.get()?;
        let mut urls: Vec<(Span, RedisUrl)> = Vec::new();
        for text in &list.value.0 {
            match redis_url(text.value.0.expose()) {
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

    fn shape(&mut self, store: &raw::Store, servers: usize) -> StoreTopology {
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

    fn sentinel_login(&mut self, store: &raw::Store) -> Login {
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

    fn store_tls(&mut self, store: &raw::Store, used: bool) -> Option<StoreTls> {
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

    fn store_timeout(&mut self, given: Option<&Spanned<value::Time>>) -> Duration {
        let Some(given) = given else { return TIMEOUT };
        if given.value.0.is_zero() || given.value.0 > Duration::from_secs(1) {
            let hint = "expected 1ms to 1s: every request waits for the answer; the default is 5ms";
            self.complain_with(given.span, "no useful time to wait for a decision", hint);
        }
        given.value.0
    }
}

fn mode(store: &raw::Store) -> StoreMode {
    store.mode.value().map(|word| word.0).unwrap_or_default()
}

impl Compiler<'_> {
    /// Hides what is compared with credentials.
    pub(in crate::config) fn hide_credential_keys(&mut self) {
        let config = self.config;
        for (_, map) in entries(&config.maps) {
            let source = map.value.map.value();
            if let Some(values) = map.value.values.value()
                && source.is_some_and(|source| self.reads_credentials(&source.text, MOST_MAPS))
            {
                self.hide_keys(values);
            }
        }
        for (_, zone) in entries(&config.limit_req_zones) {
            let key = zone.value.key.value();
            if let Some(overrides) = zone.value.overrides.value()
                && key.is_some_and(|key| self.reads_credentials(&key.text, MOST_MAPS))
            {
                self.hide_keys(overrides);
            }
        }
    }

    /// Hides what the value of a header field is made of, if that is a credential; `text` is how it was written.
    pub(in crate::config) fn hide_credential_value(
        &mut self,
        header: &SetHeader,
        text: &Spanned<Text>,
    ) {
        if !is_credential(header.name.as_str()) {
            return;
        }
        match header.value.as_variable() {
            Some(Variable::Map(index)) => self.hide_values(*index),
            Some(_) => {}
            None => {
                let hidden = self.report.hidden_mut();
                hidden.add_text(&text.value.text, text.span);
                for part in &header.value.parts {
                    if let Part::Variable(Variable::Map(index)) = part {
                        self.hide_values(*index);
                    }
                }
            }
        }
    }

    /// Whether a text is made from what clients show to prove who they are; `most` maps are followed.
    fn reads_credentials(&self, text: &str, most: usize) -> bool {
        template_names(text).any(|name| match self.maps.find(name) {
            Resolved::At(index) => {
                let map = entries(&self.config.maps).get(index);
                let source = map.and_then(|(_, map)| map.value.map.value());
                most > 0 && source.is_some_and(|map| self.reads_credentials(&map.text, most - 1))
            }
            Resolved::Broken | Resolved::Nowhere => is_credential(name),
        })
    }

    fn hide_keys<T>(&mut self, named: &NamedMap<T>) {
        for (key, _) in &named.entries {
            self.report.hidden_mut().add_key(&key.value, key.span);
        }
    }

    /// Hides what a map becomes.
    fn hide_values(&mut self, index: usize) {
        let Some((_, map)) = entries(&self.config.maps).get(index) else {
            return;
        };
        let values = map.value.values.value();
        let values = values.map_or(&[][..], |values| &values.entries);
        let values = values.iter().map(|(_, value)| value);
        for text in values.chain(map.value.default.get()) {
            if !text.value.text.is_empty() && !is_variable(&text.value.text) {
                let hidden = self.report.hidden_mut();
                hidden.add_text(&text.value.text, text.span);
            }
        }
    }
}

/// How long a chain of maps is followed; circles are complained about elsewhere.
const MOST_MAPS: usize = 8;

/// What an address of a Redis says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::config) struct RedisUrl {
    /// Where it is.
    pub(in crate::config) address: UpstreamAddress,
    /// Whether it is spoken to over TLS.
    pub(in crate::config) tls: bool,
    /// What it is told.
    pub(in crate::config) login: Login,
}

/// Redis's port where none is given.
const PORT: u16 = 6379;

/// Reads one.
// What is wrong with it is said without repeating it: there may be a password in it.
pub(in crate::config) fn redis_url(text: &str) -> Result<RedisUrl, ParseError> {
    if text.starts_with("unix:") {
        return Ok(RedisUrl {
            address: host_port(text, PORT).map_err(|_| wrong())?,
            tls: false,
            login: Login::default(),
        });
    }
    let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
    let tls = match scheme {
        "redis" => false,
        "rediss" => true,
        _ => return Err(wrong()),
    };
    let (rest, database) = match rest.split_once('/') {
        None | Some((_, "")) => (rest.trim_end_matches('/'), 0),
        Some((rest, number)) => (rest, number.parse().map_err(|_| wrong())?),
    };
    let (login, host) = match rest.rsplit_once('@') {
        None => (Login::default(), rest),
        Some((login, host)) => (parse_login(login)?, host),
    };
    if host.is_empty() || host.starts_with("unix:") {
        return Err(wrong());
    }
    Ok(RedisUrl {
        address: host_port(host, PORT).map_err(|_| wrong())?,
        tls,
        login: Login { database, ..login },
    })
}

/// `user:password`, `:password` or `user`, each with `%41` for a byte that has a meaning here.
fn parse_login(text: &str) -> Result<Login, ParseError> {
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (text, None),
    };
    Ok(Login {
        user: Some(decode(user)?).filter(|user| !user.is_empty()),
        password: password.map(decode).transpose()?.map(Secret::new),
        database: 0,
    })
}

fn decode(text: &str) -> Result<Box<str>, ParseError> {
    percent_decode(text).map(Into::into).ok_or_else(wrong)
}

fn wrong() -> ParseError {
    ParseError::new("this is not the address of a Redis").help(
        "expected `redis://host:6379`, `rediss://user:password@host:6379/0` or `unix:/run/redis.sock`; \
         in a user or password write `%40` for `@`, `%2F` for `/` and `%3A` for `:`",
    )
}

#[cfg(test)]
mod tests {

    use super::*;

    fn tcp(host: &str, port: u16) -> UpstreamAddress {
        UpstreamAddress::Tcp {
            host: host.into(),
            port,
        }
    }

    #[test]
    fn addresses_are_read_as_redis_cli_reads_them() {
        let plain = redis_url("redis://localhost").unwrap();
        assert_eq!(plain.address, tcp("localhost", 6379));
        assert!(!plain.tls);
        let full = redis_url("rediss://me:p%40ss%2F@10.0.0.1:6380/3").unwrap();
        assert_eq!(full.address, tcp("10.0.0.1", 6380));
        assert!(full.tls);
        assert_eq!(full.login.user.as_deref(), Some("me"));
        assert_eq!(full.login.password, Some(Secret::new("p@ss/")));
        assert_eq!(full.login.database, 3);
        let password = redis_url("redis://:x@[::1]:1/").unwrap();
        assert_eq!(password.login.user, None);
        assert_eq!(password.address, tcp("::1", 1));
        assert!(matches!(
            redis_url("unix:/run/r.sock").unwrap().address,
            UpstreamAddress::Unix(_)
        ));
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for text in [
            "",
            "localhost:6379",
            "http://:secret@a",
            "redis://",
            "redis://:secret@",
            "redis://:%zz@a",
            "redis://:secret@a/x",
            "redis://:%ff@a",
        ] {
            let mistake = redis_url(text).unwrap_err();
            assert!(!mistake.sentence.contains("secret"), "{mistake:?}");
        }
    }
}
