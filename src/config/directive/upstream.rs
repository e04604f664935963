//! `upstreams`, those that a `proxy_pass` with an address brings with it, and the `resolver` of their names.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::health::{Breaker, HealthCheck};
use crate::config::compile::Compiler;
use crate::config::decode::units::{self, UpstreamAddress};
use crate::config::decode::value::{NamedMap, Shorthand, Time, choice};
use crate::config::decode::{Field, Spanned};
use crate::config::report::Report;
use crate::config::source::Span;
use crate::config::template::{Template, TemplatePhase};

pub(crate) mod raw {
    //! `upstreams` and `resolver`.
    use std::net::SocketAddr;
    use std::time::Duration;

    use crate::config::decode::record::record;
    use crate::config::decode::value::{
        Failures, Flag, HasShorthand, Idle, List, OrOff, QueueSize, RequestCount, Shorthand, Text,
        Time, Weight, choice, nonzero, number, scalar,
    };
    use crate::config::decode::{Field, Required, units};
    use crate::config::directive::health::raw::{Breaker, HealthCheck};
    use crate::config::directive::upstream;
    use crate::config::report::ParseError;

    record! {
        /// A group of servers.
        pub(crate) struct Upstream {
            /// How a server is selected: round_robin, least_conn, ip_hash, random, or { hash: KEY, consistent: true }, all as
            /// nginx computes them.
            balance: Field<Shorthand<Balance>> = "round_robin",
            /// Idle connections kept open, per worker.
            keepalive: Field<Idle> = "64" => usize,
            /// How long an idle connection is kept.
            keepalive_timeout: Field<Time> = "60s" => Duration; if nonzero,
            /// How many requests one connection carries.
            keepalive_requests: Field<RequestCount> = "1000" => u64,
            /// Where requests wait when every server has its max_conns. Default: they get 502 at once.
            queue: Field<UpstreamQueue>,
            /// How many requests may be sent again to another server, as a share of all: `20%`. Default: any number, as
            /// proxy_next_upstream allows.
            retry_budget: Field<Shorthand<RetryBudget>>,
            /// Checks every server periodically: a path, or a mapping. Default: none.
            health_check: Field<Shorthand<HealthCheck>>,
            /// Stops requests for a while to a server that fails too often; `{}` for one with all defaults.
            breaker: Field<OrOff<Breaker>> = "off",
            /// How often the names of its servers are resolved again. Default: they are not.
            resolve: Field<Time>,
            /// The servers; each may be written as its address alone.
            servers: Required<List<Shorthand<UpstreamServer>>>,
        }
    }

    record! {
        /// How a server is selected.
        pub(crate) struct Balance {
            /// By round robin, load, client address or at random.
            method: Field<BalanceMethod>,
            /// By the hash of this template.
            hash: Field<Text>,
            /// Whether adding or removing a server moves only its share of the keys.
            consistent: Field<Flag> = "false" => bool,
        }
    }

    record! {
        /// Requests waiting for an upstream.
        pub(crate) struct UpstreamQueue {
            /// How many may wait, in all workers together.
            size: Required<QueueSize>,
            /// For how long.
            timeout: Field<Time> = "60s" => Duration; if nonzero,
            /// Which request is served first: oldest_first or newest_first.
            order: Field<upstream::QueueOrder> = "oldest_first" => upstream::QueueOrder,
            /// A template; each of its values has its own queue, and the queues take turns. When all are full, the longest
            /// loses its last request. Default: none, one queue for all.
            fair: Field<Text>,
        }
    }

    record! {
        /// How many requests may be sent again.
        pub(crate) struct RetryBudget {
            /// The share of the requests of the last ten seconds: `20%`.
            share: Required<RequestShare>,
            /// How many a second in any case, over the same ten seconds.
            min_per_second: Field<RequestLimit> = "3" => u32,
            /// When all servers have failed, all are tried again, up to proxy_next_upstream_tries in all: after a random
            /// part of this time, twice of it the next time, and so on. Default: they are not.
            backoff: Field<Time>,
            /// The bound of that growth.
            backoff_max: Field<Time> = "1s" => Duration; if nonzero,
        }
    }

    scalar! {
        /// A share of a hundred.
        pub(crate) struct RequestShare(u32);
        "a share such as `20%`",
        |text| match text.strip_suffix('%') {
            Some(number) => units::whole(number, "a share", 0, 100).map(|share| u32::try_from(share).unwrap_or(100)),
            None => Err(ParseError::new(format!("`{text}` is not a share")).help("expected a share such as `20%`")),
        },
        { "description": "A share of a hundred, with % behind it.", "type": "string", "pattern": r"^[0-9]{1,3}%$" }
    }

    choice! {
        /// How a server is selected.
        pub(crate) struct BalanceMethod(upstream::Balance) = "a balancing method" {
            "round_robin" => upstream::Balance::RoundRobin,
            "least_conn" => upstream::Balance::LeastConn,
            "ip_hash" => upstream::Balance::IpHash,
            "random" => upstream::Balance::Random,
        }
    }

    number! {
        /// A number of requests; 0 for no limit where it is one.
        pub(crate) struct RequestLimit(u32) = "a number of requests", 0..=1_000_000
    }

    record! {
        /// One server of a group.
        pub(crate) struct UpstreamServer {
            /// Where it is: `127.0.0.1:9001`, `host:port` or `unix:/run/app.sock`.
            address: Required<Text>,
            /// Its share of the requests.
            weight: Field<Weight> = "1" => u32,
            /// The number of failures within `fail_timeout` after which it is unavailable; 0 for never, as where the upstream has
            /// a `breaker` and this is not given.
            max_fails: Field<Failures> = "1" => u32,
            /// The time in which failures are counted, and how long the server is then unavailable.
            fail_timeout: Field<Time> = "10s" => Duration; if nonzero,
            /// How many requests it gets at once, counted over all workers; 0 for no limit.
            max_conns: Field<RequestLimit> = "0" => u32,
            /// How long the weight of a recovered server takes to grow; with round_robin and least_conn.
            slow_start: Field<Time> = "0" => Duration,
            /// How often its name is resolved again; each of its addresses is a server. Default: as the upstream says.
            resolve: Field<Time>,
            /// Used only if no other server is available.
            backup: Field<Flag> = "false" => bool,
            /// Never used.
            down: Field<Flag> = "false" => bool,
        }
    }

    impl HasShorthand for Balance {
        const KEY: &'static str = "method";
    }

    impl HasShorthand for RetryBudget {
        const KEY: &'static str = "share";
    }

    impl HasShorthand for UpstreamServer {
        const KEY: &'static str = "address";
    }

    record! {
        /// DNS servers, as nginx's `resolver`.
        pub(crate) struct Resolver {
            /// DNS servers, asked in turn: `10.0.0.2`, `10.0.0.2:5353` or `[::1]:53`.
            address: Required<List<NameServer>>,
            /// How long a reply is valid, whatever its TTL. Default: its TTL, one second at least.
            valid: Field<Time>,
            /// How long a lookup may take.
            timeout: Field<Time> = "5s" => Duration; if nonzero,
            /// Whether IPv4 addresses are queried.
            ipv4: Field<Flag> = "on" => bool,
            /// Whether IPv6 addresses are queried.
            ipv6: Field<Flag> = "on" => bool,
        }
    }

    scalar! {
        /// A DNS server.
        pub(crate) struct NameServer(SocketAddr);
        "the address of a DNS server", units::name_server,
        { "description": "10.0.0.2, 10.0.0.2:53 or [::1]:53.", "type": "string" }
    }

    impl HasShorthand for Resolver {
        const KEY: &'static str = "address";
    }
}

/// A group of servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Its name, or host and port where `proxy_pass` gave an address.
    pub name: Box<str>,
    /// How one is picked.
    pub balance: Balance,
    /// Idle connections kept open, per event loop.
    pub keepalive: usize,
    /// How long an idle one is kept.
    pub keepalive_timeout: Duration,
    /// How many requests one connection carries.
    pub keepalive_requests: u64,
    /// Where requests wait when every server has its `max_conns`.
    pub queue: Option<UpstreamQueue>,
    /// How many requests may be sent again.
    pub retry_budget: Option<RetryBudget>,
    /// `health_check`
    pub health_check: Option<HealthCheck>,
    /// `breaker`: of each of its servers.
    pub breaker: Option<Breaker>,
    /// The DNS servers for names that are resolved again; the system's where it is `None`.
    pub resolver: Option<Arc<Resolver>>,
    /// At least one.
    pub servers: Vec<UpstreamServer>,
}

/// How many requests may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryBudget {
    /// Of a hundred requests.
    pub percent: u32,
    /// In a second, whatever came.
    pub least: u32,
    /// When all servers may be asked once more after all have failed.
    pub backoff: Option<Backoff>,
}

/// How long to wait before servers that have failed are asked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// At most so long for the first time, twice as long for the next, and so on.
    pub base: Duration,
    /// Never longer.
    pub max: Duration,
}

/// A waiting line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamQueue {
    /// How many may wait.
    pub size: u32,
    /// For how long.
    pub timeout: Duration,
    /// Which request is served first.
    pub order: QueueOrder,
    /// The template whose values have queues of their own.
    pub fair: Option<Template>,
}

choice! {
    /// Which of the waiting requests is served first.
    pub enum QueueOrder as "UpstreamQueueOrder" = "an order" {
        /// The oldest.
        OldestFirst = "oldest_first",
        /// The newest, whose client is most likely still there.
        NewestFirst = "newest_first",
    }
}

impl Upstream {
    /// A group of these servers with every setting at its default.
    #[must_use]
    pub fn of(name: &str, servers: Vec<UpstreamServer>) -> Self {
        Self::new(&raw::Upstream::default(), name, servers)
    }

    fn new(given: &raw::Upstream, name: &str, servers: Vec<UpstreamServer>) -> Self {
        Self {
            name: name.into(),
            balance: Balance::default(),
            keepalive: given.keepalive(),
            keepalive_timeout: given.keepalive_timeout(),
            keepalive_requests: given.keepalive_requests(),
            queue: None,
            retry_budget: None,
            health_check: None,
            breaker: None,
            resolver: None,
            servers,
        }
    }
}

/// How a server is picked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Balance {
    /// By a key, on a ring: one server more or less moves few keys.
    ConsistentHash(Template),
    /// By a key.
    Hash(Template),
    /// By the client's address.
    IpHash,
    /// The server with the fewest requests.
    LeastConn,
    /// The less loaded of two that are drawn at random by weight: the power of two choices.
    Random,
    /// Smooth weighted round robin, nginx's own.
    #[default]
    RoundRobin,
}

impl Balance {
    /// Whether it supports backup servers.
    #[must_use]
    pub fn has_backups(&self) -> bool {
        matches!(self, Self::LeastConn | Self::RoundRobin)
    }
}

/// One server of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamServer {
    /// As it was written: where a consistent hash puts it depends on nothing else.
    pub name: Box<str>,
    /// Where it is.
    pub address: UpstreamAddress,
    /// Its share.
    pub weight: u32,
    /// After how many failures it is left alone; 0 for never.
    pub max_fails: u32,
    /// Within which they are counted, and for how long it is then left alone.
    pub fail_timeout: Duration,
    /// How many requests it gets at once; 0 for any number.
    pub max_conns: u32,
    /// How long its weight takes to grow when it has come back; zero for no time.
    pub slow_start: Duration,
    /// How often its name is looked up again; never for an address.
    pub resolve: Option<Duration>,
    /// Only asked when no other can be.
    pub backup: bool,
    /// Never asked.
    pub down: bool,
}

impl UpstreamServer {
    /// A server with every setting at its default, nginx's.
    #[must_use]
    pub fn at(address: UpstreamAddress) -> Self {
        let name = match &address {
            UpstreamAddress::Tcp { host, port } => format!("{host}:{port}"),
            UpstreamAddress::Unix(path) => format!("unix:{}", path.display()),
        };
        Self::new(&raw::UpstreamServer::default(), &name, address)
    }

    fn new(given: &raw::UpstreamServer, name: &str, address: UpstreamAddress) -> Self {
        Self {
            name: name.into(),
            address,
            weight: given.weight(),
            max_fails: given.max_fails(),
            fail_timeout: given.fail_timeout(),
            max_conns: given.max_conns(),
            slow_start: given.slow_start(),
            resolve: None,
            backup: given.backup(),
            down: given.down(),
        }
    }
}

/// DNS servers, and how they are asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolver {
    /// Asked in turn; at least one.
    pub servers: Vec<SocketAddr>,
    /// How long a reply is valid; `None` for its TTL.
    pub valid: Option<Duration>,
    /// How long a look-up may take.
    pub timeout: Duration,
    /// Whether IPv4 addresses are asked for.
    pub ipv4: bool,
    /// Whether IPv6 addresses are asked for.
    pub ipv6: bool,
}

/// `upstreams`, in the file's order.
pub(crate) fn upstreams(
    named: &Field<NamedMap<raw::Upstream>>,
    resolver: Option<&Arc<Resolver>>,
    compiler: &mut Compiler<'_>,
) -> Vec<Upstream> {
    let upstreams = named.entries().iter().map(|(name, given)| {
        let is_wrong = |c: char| c.is_whitespace() || matches!(c, '/' | ':' | '$');
        if name.value.is_empty() || name.value.contains(is_wrong) {
            let sentence = format!("`{}` cannot be the name of an upstream", name.value);
            let hint = "a name has no spaces, `/`, `:` or `$`";
            compiler.report.error_with(name.span, sentence, hint);
        }
        let mut upstream = upstream(name, &given.value, compiler);
        upstream.resolver = resolver.cloned();
        upstream
    });
    upstreams.collect()
}

fn upstream(
    name: &Spanned<String>,
    given: &raw::Upstream,
    compiler: &mut Compiler<'_>,
) -> Upstream {
    let balance = balance(given.balance.get(), compiler);
    let report = &mut *compiler.report;
    let breaker = given.breaker.on();
    let breaker = breaker.map(|breaker| Breaker::compile(breaker, report));
    let servers: Vec<_> = given
        .servers
        .items()
        .iter()
        .filter_map(|server| {
            let Shorthand(server) = &server.value;
            let mut compiled = upstream_server(server, given, &balance, report)?;
            // Where there is a breaker, it decides alone unless `max_fails` is given.
            if breaker.is_some() && server.max_fails.value().is_none() {
                compiled.max_fails = 0;
            }
            Some(compiled)
        })
        .collect();
    check_servers(name, given, &servers, report);
    let mut upstream = Upstream::new(given, &name.value, servers);
    let is_unix = |server: &UpstreamServer| matches!(server.address, UpstreamAddress::Unix(_));
    let has_unix = upstream.servers.iter().any(is_unix);
    let check = given.health_check.record();
    upstream.health_check =
        check.map(|check| HealthCheck::compile(check, &name.value, has_unix, report));
    upstream.breaker = breaker;
    upstream.balance = balance;
    upstream.retry_budget = retry_budget(given, report);
    upstream.queue = queue(given, &upstream.servers, compiler);
    upstream
}

/// Reports an upstream none of whose servers can be used.
fn check_servers(
    name: &Spanned<String>,
    given: &raw::Upstream,
    servers: &[UpstreamServer],
    report: &mut Report,
) {
    let listed = given.servers.items().len();
    let name_text = &name.value;
    if given.servers.value().is_some() && listed == 0 {
        report.error(
            name.span,
            format!("the upstream `{name_text}` has no servers"),
        );
    } else if servers.is_empty() || servers.len() < listed {
        // Those that are left out are reported already.
    } else if servers.iter().all(|server| server.down) {
        let sentence = format!("all servers of the upstream `{name_text}` are down");
        let hint = "use `return` for responses without an upstream";
        report.error_with(name.span, sentence, hint);
    } else if servers.iter().all(|server| server.backup) {
        let sentence = format!("all servers of the upstream `{name_text}` are backups");
        let hint = "at least one needs `backup: false`";
        report.error_with(name.span, sentence, hint);
    }
}

fn retry_budget(given: &raw::Upstream, report: &mut Report) -> Option<RetryBudget> {
    let budget = given.retry_budget.record()?;
    let base = budget.backoff.get();
    if let Some(base) = base.filter(|base| base.value.0.is_zero()) {
        report.error(base.span, "`backoff` must be longer than 0");
    }
    if let Some(max) = budget.backoff_max.get()
        && budget.backoff.key().is_none()
    {
        let sentence = "`backoff_max` has no meaning without `backoff`";
        let hint = "expected { share: 20%, backoff: 25ms, backoff_max: 1s }";
        report.error_with(max.span, sentence, hint);
    }
    Some(RetryBudget {
        percent: budget.share.value()?.0,
        least: budget.min_per_second(),
        backoff: base.map(|base| Backoff {
            base: base.value.0,
            max: budget.backoff_max(),
        }),
    })
}

fn queue(
    given: &raw::Upstream,
    servers: &[UpstreamServer],
    compiler: &mut Compiler<'_>,
) -> Option<UpstreamQueue> {
    let queue = given.queue.value()?;
    if let Some(key) = given.queue.key()
        && servers.iter().all(|server| server.max_conns == 0)
    {
        compiler.report.warn(
            key,
            "this queue is never used: no server has a `max_conns`",
            "give the servers of this upstream a `max_conns`",
        );
    }
    let fair = queue.fair.get();
    let fair = fair.map(|key| Template::compile(key, TemplatePhase::Before, compiler));
    Some(UpstreamQueue {
        size: queue.size.value()?.0,
        timeout: queue.timeout(),
        order: queue.order(),
        fair,
    })
}

fn balance(
    given: Option<&Spanned<Shorthand<raw::Balance>>>,
    compiler: &mut Compiler<'_>,
) -> Balance {
    let Some(given) = given else {
        return Balance::default();
    };
    let Shorthand(balance) = &given.value;
    let report = &mut *compiler.report;
    if let (None, Some(key)) = (balance.hash.get(), balance.consistent.key()) {
        let sentence = "`consistent` has no meaning without `hash`";
        report.error_with(key, sentence, "expected { hash: KEY, consistent: true }");
    }
    if let (Some(hash), Some(_)) = (balance.hash.key(), balance.method.key()) {
        report.error(hash, "`method` and `hash` exclude each other");
    }
    let keys = [
        balance.hash.key(),
        balance.method.key(),
        balance.consistent.key(),
    ];
    if keys.iter().all(Option::is_none) {
        report.error(given.span, "`balance` needs a `method` or a `hash`");
    }
    let Some(key) = balance.hash.get() else {
        let method = balance.method.value();
        return method.map_or_else(Balance::default, |method| method.0.clone());
    };
    if key.value.text.is_empty() {
        report.error(key.span, "the key of `hash` is empty");
    }
    let template = Template::compile(key, TemplatePhase::Before, compiler);
    match balance.consistent() {
        true => Balance::ConsistentHash(template),
        false => Balance::Hash(template),
    }
}

fn upstream_server(
    server: &raw::UpstreamServer,
    group: &raw::Upstream,
    balance: &Balance,
    report: &mut Report,
) -> Option<UpstreamServer> {
    let backup = server.backup.get().filter(|flag| flag.value.0);
    let backup = backup.map(|flag| flag.span);
    let slow_start = server.slow_start.get().map(|time| time.span);
    for (span, key) in [(backup, "backup"), (slow_start, "slow_start")] {
        if let Some(span) = span.filter(|_| !balance.has_backups()) {
            let sentence = format!("this balancing method does not support `{key}`");
            report.error_with(span, sentence, "round_robin and least_conn do");
        }
    }
    let given = server.address.get()?;
    let text = &given.value.text;
    let address = report.parsed(given.span, units::host_port(text, units::HTTP))?;
    Some(UpstreamServer {
        resolve: resolve(server, group, &address, report),
        ..UpstreamServer::new(server, text, address)
    })
}

/// `resolver`
pub(crate) fn resolver(
    given: &Field<Shorthand<raw::Resolver>>,
    report: &mut Report,
) -> Option<Arc<Resolver>> {
    let resolver = given.record()?;
    let address = resolver.address.get()?;
    let servers = resolver.address.items().iter();
    let servers: Vec<_> = servers.map(|server| server.value.0).collect();
    if servers.is_empty() {
        report.error(address.span, "a resolver without a DNS server");
    }
    let (ipv4, ipv6) = (resolver.ipv4(), resolver.ipv6());
    if let Some(given) = given.get().filter(|_| !ipv4 && !ipv6) {
        let sentence = "a resolver with neither IPv4 nor IPv6 addresses";
        report.error_with(given.span, sentence, "leave `ipv4` or `ipv6` on");
    }
    let valid = resolver.valid.get();
    Some(Arc::new(Resolver {
        servers,
        valid: valid.map(|valid| interval(valid, report)),
        timeout: resolver.timeout(),
        ipv4,
        ipv6,
    }))
}

/// How often the name of a server is resolved again.
fn resolve(
    server: &raw::UpstreamServer,
    group: &raw::Upstream,
    address: &UpstreamAddress,
    report: &mut Report,
) -> Option<Duration> {
    let is_name =
        matches!(address, UpstreamAddress::Tcp { host, .. } if host.parse::<IpAddr>().is_err());
    if let Some(key) = server.resolve.key().filter(|_| !is_name) {
        let sentence = "`resolve` applies to names only";
        report.warn(key, sentence, "this server is given by its address");
    }
    let every = server.resolve.get().or_else(|| group.resolve.get());
    let every = every.map(|every| interval(every, report));
    every.filter(|_| is_name)
}

fn interval(given: &Spanned<Time>, report: &mut Report) -> Duration {
    if given.value.0.is_zero() {
        let sentence = "the time between two lookups must be longer than 0";
        report.error_with(given.span, sentence, "expected a time such as `30s`");
    }
    given.value.0
}

/// Warns of a `resolve` without a name, and of a `resolver` without a `resolve`.
pub(crate) fn warn_of_unresolved(
    named: &Field<NamedMap<raw::Upstream>>,
    resolver: Option<Span>,
    upstreams: &[Upstream],
    report: &mut Report,
) {
    let is_used = |upstream: &Upstream| {
        let mut servers = upstream.servers.iter();
        servers.any(|server| server.resolve.is_some())
    };
    for ((_, given), upstream) in named.entries().iter().zip(upstreams) {
        if let Some(key) = given.value.resolve.key().filter(|_| !is_used(upstream)) {
            let sentence = "no server here is resolved again";
            report.warn(key, sentence, "all of them are given by their addresses");
        }
    }
    if let Some(key) = resolver.filter(|_| !upstreams.iter().any(is_used)) {
        let hint = "it is for names of upstreams with `resolve: 30s`";
        report.warn(key, "this resolver is never used", hint);
    }
}
