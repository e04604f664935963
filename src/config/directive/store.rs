//! `stores`: Redis or Valkey servers in which several gateways share the counters of zones.

use std::time::Duration;

use super::tls::{self, TlsFile};
use crate::config::compile::{Compiler, Resolved};
use crate::config::decode::units::{UpstreamAddress, host_port};
use crate::config::decode::value::{NamedMap, Text, choice};
use crate::config::decode::{Field, Spanned};
use crate::config::report::{self, ParseError, Report};
use crate::config::secret::Secret;
use crate::config::source::Span;
use crate::text::percent_decode;

pub(crate) mod raw {
    //! `stores` as the user writes them.
    use std::time::Duration;

    use super::{OnOutage, StoreMode};
    use crate::config::decode::record::record;
    use crate::config::decode::value::{Flag, List, OrOff, Text, Time, number, schema};
    use crate::config::decode::{Decode, DecodeContext, Field, Required};
    use crate::config::directive::store;
    use crate::config::report::ParseError;
    use crate::config::secret::Secret;
    use crate::config::source::Node;

    record! {
        /// A store of counters outside of this process.
        pub(crate) struct Store {
            /// Where Redis or Valkey is: `redis://user:password@host:6379/0`, `rediss://` for TLS, `unix:/run/redis.sock`; several are nodes of a cluster, or sentinels.
            redis: Required<List<StoreUrl>>,
            /// Whether the server in `redis` is a node of a cluster; several servers always are.
            cluster: Field<Flag> = "off" => bool,
            /// The name of a master: the servers of `redis` are sentinels that know its address. Default: they are not.
            sentinel_master: Field<Text>,
            /// The ACL user for sentinels. Default: the default user.
            sentinel_user: Field<Text>,
            /// The password of sentinels that require one; the one in `redis` is the master's. Default: none.
            sentinel_password: Field<Secret>,
            /// PEM file with the roots that verify a server's certificate. Default: the system's.
            trusted_certificate: Field<Text>,
            /// PEM file with weir's own certificate, for servers that require one. Default: none.
            certificate: Field<Text>,
            /// PEM file with its key.
            certificate_key: Field<Text>,
            /// The prefix of its keys in Redis, before a colon: letters, digits, `.`, `-`, `_`, `/` and `:`.
            prefix: Field<Text> = "weir" => Box<str>; if key_prefix,
            /// How long a decision may wait for a reply: every request waits that long during an outage.
            timeout: Field<Time> = "5ms" => Duration; if up_to_1s,
            /// What decides while there is no reply: `local` for each gateway by itself with its share of the rate, `allow` or `refuse`.
            on_outage: Field<OnOutage> = "local" => OnOutage,
            /// How requests are counted: `exact` for one query a request, `leased` for queries that no request waits for.
            mode: Field<StoreMode> = "exact" => StoreMode,
            /// The multiple of its limit beyond which a key is refused without a query, until its rate falls; `off` for never.
            local_above: Field<OrOff<Multiple>> = "5" => Option<u32>,
            /// How many gateways share it: each keeps its share of every limit while it is disconnected, and the others leave it that share. Default: as many as were seen in the last minute.
            gateways: Field<Gateways>,
        }
    }

    number! {
        /// How many times a limit.
        pub(crate) struct Multiple(u32) = "a multiple of a limit", 1..=1_000_000
    }

    number! {
        /// How many gateways share a store.
        pub(crate) struct Gateways(u32) = "a number of gateways", 1..=100_000
    }

    /// The longest prefix: every query carries it.
    const MAX_PREFIX: usize = 64;

    fn key_prefix(given: &Text, default: &str) -> Result<(), ParseError> {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || ".-_/:".contains(letter);
        match (1..=MAX_PREFIX).contains(&given.text.len()) && given.text.chars().all(is_plain) {
            true => Ok(()),
            false => Err(ParseError::new("invalid prefix for keys in Redis").help(format!(
                "expected 1 to 64 letters, digits, `.`, `-`, `_`, `/` or `:`; the default is `{default}`"
            ))),
        }
    }

    fn up_to_1s(given: &Time, default: &str) -> Result<(), ParseError> {
        match given.0.is_zero() || given.0 > Duration::from_secs(1) {
            true => Err(ParseError::new("invalid timeout of a store").help(format!(
                "expected 1ms to 1s: every request may wait that long; the default is {default}"
            ))),
            false => Ok(()),
        }
    }

    /// The URL of a store, with or without a login.
    #[derive(Debug, Clone)]
    pub(crate) struct StoreUrl(pub Secret);

    impl Decode for StoreUrl {
        const SECRET: bool = true;

        fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
            let Some(text) = node.text() else {
                context.hide(node);
                context.type_error(node, "the address of a Redis server");
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

    schema!(text: StoreUrl);
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
    /// TLS settings; `None` for plain connections.
    pub tls: Option<StoreTls>,
    /// How long a decision may wait for a reply.
    pub timeout: Duration,
    /// What decides while there is none.
    pub on_outage: OnOutage,
    /// How it is asked.
    pub mode: StoreMode,
    /// Beyond which multiple of its limit a key is not asked about any more; `None` for never.
    pub local_above: Option<u32>,
    /// How many gateways share it at least; `None` for as many as were seen lately.
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

/// User, password and database of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// An ACL user; `None` for the default one.
    pub user: Option<Box<str>>,
    /// Its password.
    pub password: Option<Secret>,
    /// The number of the database.
    pub database: u16,
}

/// TLS settings of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreTls {
    /// The roots to trust; `None` for the system's roots.
    pub trusted: Option<TlsFile>,
    /// What to show: a certificate and its key.
    pub own: Option<(TlsFile, TlsFile)>,
}

choice! {
    /// What decides while a store does not reply.
    pub enum OnOutage as "OnOutage" = "an outage policy" {
        /// Each gateway by itself, with its share of the rate.
        Local = "local",
        /// All requests pass.
        Allow = "allow",
        /// All requests are refused.
        Refuse = "refuse",
    }
}

choice! {
    /// How requests are counted in a store.
    pub enum StoreMode as "StoreMode" = "a store mode" {
        /// One query for each request.
        Exact = "exact",
        /// A query now and then, for as many requests as are likely to come.
        Leased = "leased",
    }
}

/// The word for a zone's counters in this process.
const LOCAL: &str = "local";

/// `stores`
pub(crate) fn stores(named: &Field<NamedMap<raw::Store>>, report: &mut Report) -> Vec<Store> {
    let stores = named.entries().iter().filter_map(|(name, given)| {
        if name.value == LOCAL {
            let hint = "`local` stands for counters in this process";
            report.error_with(name.span, "a store cannot be named `local`", hint);
        }
        Store::compile(name, &given.value, report)
    });
    stores.collect()
}

/// The store a zone names; `None` for counters in this process.
pub(crate) fn of_zone(given: &Field<Text>, compiler: &mut Compiler<'_>) -> Option<usize> {
    let given = given.get().filter(|given| given.value.text != LOCAL)?;
    let name = given.value.text.as_str();
    match compiler.stores.find(name) {
        Resolved::At(index) => Some(index),
        Resolved::Broken => None,
        Resolved::Nowhere => {
            let names = compiler.stores.all();
            let hint = report::hint(name, names.into_iter().chain([LOCAL]))
                .unwrap_or_else(|| "expected `local` or one of `stores`".to_owned());
            let sentence = format!("unknown store `{name}`");
            compiler.report.error_with(given.span, sentence, hint);
            None
        }
    }
}

impl Store {
    fn compile(name: &Spanned<String>, given: &raw::Store, report: &mut Report) -> Option<Self> {
        let list = given.redis.get()?;
        let mut urls: Vec<(Span, RedisUrl)> = Vec::new();
        for text in &list.value.0 {
            let url = report.parsed(text.span, redis_url(text.value.0.expose()));
            urls.extend(url.map(|url| (text.span, url)));
        }
        let Some((_, first)) = urls.first().cloned() else {
            if list.value.0.is_empty() {
                report.error(list.span, "a store without a server");
            }
            return None;
        };
        for (span, url) in &urls {
            if (url.tls, &url.login) != (first.tls, &first.login) {
                let sentence = "the servers of a store may differ in their addresses only";
                let hint = "TLS, user, password and database are the same for all of them";
                report.error_with(*span, sentence, hint);
            }
        }
        let shape = topology(given, urls.len(), report);
        if shape == StoreTopology::Cluster && first.login.database != 0 {
            let hint = "leave the number out";
            report.error_with(list.span, "a cluster has database 0 only", hint);
        }
        Some(Self {
            name: name.value.as_str().into(),
            prefix: given.prefix(),
            shape,
            servers: urls.into_iter().map(|(_, url)| url.address).collect(),
            sentinel_login: sentinel_login(given, report),
            tls: store_tls(given, first.tls, report),
            login: first.login,
            timeout: given.timeout(),
            on_outage: given.on_outage(),
            mode: given.mode(),
            local_above: given.local_above(),
            gateways: given.gateways.value().map(|gateways| gateways.0),
        })
    }
}

fn topology(given: &raw::Store, servers: usize, report: &mut Report) -> StoreTopology {
    let cluster = given.cluster.key();
    if let Some(master) = given.sentinel_master.value() {
        if let Some(key) = cluster.filter(|_| given.cluster()) {
            let hint =
                "`sentinel_master` is for a master and its replicas; leave one of the two out";
            report.error_with(key, "sentinels do not watch a cluster", hint);
        }
        return StoreTopology::Sentinel(master.text.as_str().into());
    }
    if let Some(key) = cluster.filter(|_| !given.cluster() && servers > 1) {
        let hint = "name one server, or the nodes of a cluster";
        report.error_with(key, "several servers that are not a cluster", hint);
    }
    match given.cluster() || servers > 1 {
        true => StoreTopology::Cluster,
        false => StoreTopology::Single,
    }
}

fn sentinel_login(given: &raw::Store, report: &mut Report) -> Login {
    let keys = [given.sentinel_user.key(), given.sentinel_password.key()];
    for key in keys.into_iter().flatten() {
        if given.sentinel_master.key().is_none() {
            let hint =
                "sentinels need `sentinel_master`; user and password of a server stand in `redis`";
            report.error_with(key, "this store has no sentinels", hint);
        }
    }
    let user = given.sentinel_user.value();
    Login {
        user: user.map(|user| user.text.as_str().into()),
        password: given.sentinel_password.value().cloned(),
        database: 0,
    }
}

fn store_tls(given: &raw::Store, used: bool, report: &mut Report) -> Option<StoreTls> {
    let mut file = |field: &Field<Text>| {
        let text = field.get()?;
        if !used {
            let hint = "TLS needs `rediss://` in place of `redis://`";
            report.error_with(text.span, "this store does not use TLS", hint);
        }
        Some(tls::file(text, report))
    };
    let trusted = file(&given.trusted_certificate);
    let (certificate, key) = (file(&given.certificate), file(&given.certificate_key));
    let keys = [given.certificate.key(), given.certificate_key.key()];
    if certificate.is_some() != key.is_some()
        && let Some(span) = keys.into_iter().flatten().next()
    {
        let sentence = "`certificate` and `certificate_key` must be given together";
        report.error(span, sentence);
    }
    used.then_some(StoreTls {
        trusted,
        own: certificate.zip(key),
    })
}

/// The address of a Redis server and what connections to it need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RedisUrl {
    /// Where it is.
    pub(crate) address: UpstreamAddress,
    /// Whether it is spoken to over TLS.
    pub(crate) tls: bool,
    /// User, password and database.
    pub(crate) login: Login,
}

/// Redis's port where none is given.
const PORT: u16 = 6379;

/// Reads the address of a Redis server.
// Errors do not repeat the text: there may be a password in it.
pub(crate) fn redis_url(text: &str) -> Result<RedisUrl, ParseError> {
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
    ParseError::new("this is not the address of a Redis server").help(
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
    fn errors_do_not_contain_the_password() {
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
            let error = redis_url(text).unwrap_err();
            assert!(!error.sentence.contains("secret"), "{error:?}");
        }
    }
}
