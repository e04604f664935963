//! Groups of servers to forward to.
//!
//! Whom to ask for the addresses of names.
//!
//! `upstreams`, and those that a `proxy_pass` with an address brings with it.
//!
//! `resolver`, and what `resolve` says of servers.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::health::{Breaker, HealthCheck};
use crate::config::compile::Compiler;
use crate::config::decode::value::{OrOff, Shorthand, mistaken};
use crate::config::decode::{Spanned, units, value};
use crate::config::template::{Template, TemplatePhase};

pub(crate) mod raw {
    //! `upstreams`: groups of servers to forward to.
    //! `resolver`: whom to ask for the addresses of names.
    use std::net::SocketAddr;

    use crate::config::decode::record::record;
    use crate::config::decode::units::ParseError;
    use crate::config::decode::value::{
        Failures, Flag, HasShorthand, Idle, List, OrOff, QueueSize, RequestCount, Shorthand, Text,
        Time, Weight, choice, number, scalar,
    };
    use crate::config::decode::{Field, Required, units};
    use crate::config::directive::health::raw::{Breaker, HealthCheck};
    use crate::config::directive::upstream;

    record! {
        /// A group of servers.
        pub struct Upstream {
            /// How one is picked: round_robin, least_conn, ip_hash, random, or { hash: KEY, consistent: true }, all as
            /// nginx computes them. Default: round_robin.
            balance: Field<Shorthand<Balance>>,
            /// Idle connections kept open, per worker. Default: 64.
            keepalive: Field<Idle>,
            /// How long an idle one is kept. Default: 60s.
            keepalive_timeout: Field<Time>,
            /// How many requests one connection carries. Default: 1000.
            keepalive_requests: Field<RequestCount>,
            /// Where requests wait when every server has its max_conns. Default: they get 502 at once.
            queue: Field<UpstreamQueue>,
            /// How many requests may be sent again to another server, as a share of all: `20%`. Default: any number, as
            /// proxy_next_upstream allows.
            retry_budget: Field<Shorthand<RetryBudget>>,
            /// Asks every server again and again whether it is well; a path alone will do. Default: none.
            health_check: Field<Shorthand<HealthCheck>>,
            /// Leaves a server alone for a while that fails too often; `{}` for one with all defaults. Default: off.
            breaker: Field<OrOff<Breaker>>,
            /// How often the names of its servers are looked up again. Default: they are not.
            resolve: Field<Time>,
            /// The servers; each may be written as its address alone.
            servers: Required<List<Shorthand<UpstreamServer>>>,
        }
    }

    record! {
        /// How a server is picked.
        pub struct Balance {
            /// By turns, load, address or lot.
            method: Field<BalanceMethod>,
            /// By the hash of this text of variables.
            hash: Field<Text>,
            /// Whether one server more or less moves only its share of the keys. Default: false.
            consistent: Field<Flag>,
        }
    }

    record! {
        /// A waiting line before an upstream.
        pub struct UpstreamQueue {
            /// How many may wait, in all workers together.
            size: Required<QueueSize>,
            /// For how long. Default: 60s.
            timeout: Field<Time>,
            /// Who goes first: oldest_first or newest_first. Default: oldest_first.
            order: Field<UpstreamQueueOrder>,
            /// A text of variables; those for whom it is different take turns, and when the line is full the longest
            /// of their lines loses its last. Default: none, all stand in one line.
            fair: Field<Text>,
        }
    }

    record! {
        /// How many requests may be sent again.
        pub struct RetryBudget {
            /// The share of the requests of the last ten seconds: `20%`.
            share: Required<RequestShare>,
            /// How many a second in any case, over the same ten seconds. Default: 3.
            min_per_second: Field<Most>,
            /// When all servers have failed, all are asked again, up to proxy_next_upstream_tries in all: after a random
            /// part of this time, twice of it the next time, and so on. Default: they are not.
            backoff: Field<Time>,
            /// What that grows to at most. Default: 1s.
            backoff_max: Field<Time>,
        }
    }

    scalar! {
        /// A share of a hundred.
        pub struct RequestShare(u32);
        "a share such as `20%`",
        |text| match text.strip_suffix('%') {
            Some(number) => units::whole(number, "a share", 0, 100).map(|share| u32::try_from(share).unwrap_or(100)),
            None => Err(ParseError::new(format!("`{text}` is not a share")).help("expected a share such as `20%`")),
        },
        { "description": "A share of a hundred, with % behind it.", "type": "string", "pattern": r"^[0-9]{1,3}%$" }
    }

    choice! {
        /// Who goes first.
        pub struct UpstreamQueueOrder(upstream::QueueOrder) = "an order" {
            "oldest_first" => upstream::QueueOrder::OldestFirst,
            "newest_first" => upstream::QueueOrder::NewestFirst,
        }
    }

    choice! {
        /// Who is picked.
        pub struct BalanceMethod(upstream::Balance) = "a way to pick a server" {
            "round_robin" => upstream::Balance::RoundRobin,
            "least_conn" => upstream::Balance::LeastConn,
            "ip_hash" => upstream::Balance::IpHash,
            "random" => upstream::Balance::Random,
        }
    }

    number! {
        /// How many requests at once; 0 for any number.
        pub struct Most(u32) = "a number of requests", 0..=1_000_000
    }

    record! {
        /// One server of a group.
        pub struct UpstreamServer {
            /// Where it is: `127.0.0.1:9001`, `host:port` or `unix:/run/app.sock`.
            address: Required<Text>,
            /// Its share. Default: 1.
            weight: Field<Weight>,
            /// After how many failures within `fail_timeout` it is left alone; 0 for never. Default: 1.
            max_fails: Field<Failures>,
            /// Within which failures are counted, and for how long it is then left alone. Default: 10s.
            fail_timeout: Field<Time>,
            /// How many requests it gets at once, counted over all workers; 0 for any number. Default: 0.
            max_conns: Field<Most>,
            /// How long its weight takes to grow from nothing when it has come back; with round_robin and least_conn.
            /// Default: no time.
            slow_start: Field<Time>,
            /// How often its name is looked up again; each of its addresses is a server. Default: as the upstream says.
            resolve: Field<Time>,
            /// Only asked when no other can be. Default: false.
            backup: Field<Flag>,
            /// Never asked. Default: false.
            down: Field<Flag>,
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
        /// Whom to ask for the addresses of names, as nginx's `resolver`.
        pub struct Resolver {
            /// DNS servers, asked in turn: `10.0.0.2`, `10.0.0.2:5353` or `[::1]:53`.
            address: Required<List<NameServer>>,
            /// How long an answer holds, whatever it says of itself. Default: as it says, one second at least.
            valid: Field<Time>,
            /// How long a look-up may take. Default: 5s.
            timeout: Field<Time>,
            /// Whether IPv4 addresses are asked for. Default: true.
            ipv4: Field<Flag>,
            /// Whether IPv6 addresses are asked for. Default: true.
            ipv6: Field<Flag>,
        }
    }

    scalar! {
        /// A DNS server.
        pub struct NameServer(SocketAddr);
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
    /// Who is asked for the addresses of those of its servers that are looked up again; the system where it is none.
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
    /// Who goes first.
    pub order: QueueOrder,
    /// What tells those apart who take turns.
    pub fair: Option<Template>,
}

/// Who of those who wait goes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// Who has come last, and is likeliest to be there still.
    NewestFirst,
    /// Who has come first.
    #[default]
    OldestFirst,
}

impl Upstream {
    /// A group of these servers with every setting at its default.
    #[must_use]
    pub fn of(name: &str, servers: Vec<UpstreamServer>) -> Self {
        Self {
            name: name.into(),
            balance: Balance::RoundRobin,
            keepalive: 64,
            keepalive_timeout: Duration::from_secs(60),
            keepalive_requests: 1000,
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
    /// Whoever has the least to do.
    LeastConn,
    /// The less loaded of two drawn by lot.
    Random,
    /// Smooth weighted round robin, nginx's own.
    #[default]
    RoundRobin,
}

impl Balance {
    /// Whether somebody can wait until no other can be asked.
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
        Self {
            name: match &address {
                UpstreamAddress::Tcp { host, port } => format!("{host}:{port}").into(),
                UpstreamAddress::Unix(path) => format!("unix:{}", path.display()).into(),
            },
            address,
            weight: 1,
            max_fails: 1,
            fail_timeout: Duration::from_secs(10),
            max_conns: 0,
            slow_start: Duration::ZERO,
            resolve: None,
            backup: false,
            down: false,
        }
    }
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum UpstreamAddress {
    /// A name or an address, and a port; a name with several addresses is several servers.
    Tcp {
        /// Name or address, an IPv6 one without brackets.
        host: Box<str>,
        /// Port.
        port: u16,
    },
    /// A unix socket.
    Unix(PathBuf),
}

/// DNS servers, and how they are asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolver {
    /// Asked in turn; at least one.
    pub servers: Vec<SocketAddr>,
    /// How long an answer holds; as it says itself where this is none.
    pub valid: Option<Duration>,
    /// How long a look-up may take.
    pub timeout: Duration,
    /// Whether IPv4 addresses are asked for.
    pub ipv4: bool,
    /// Whether IPv6 addresses are asked for.
    pub ipv6: bool,
}

impl Compiler<'_> {
    /// `upstreams`, in the file's order.
    pub(in crate::config) fn upstreams(&mut self) {
        let named = self.config.upstreams.value();
        let resolver = self.resolver();
        for (name, group) in named.map_or(&[][..], |named| &named.entries) {
            let wrong = |c: char| c.is_whitespace() || matches!(c, '/' | ':' | '$');
            if name.value.is_empty() || name.value.contains(wrong) {
                let sentence = format!("`{}` cannot be the name of an upstream", name.value);
                self.complain_with(name.span, sentence, "no spaces, `/`, `:` or `$` in it");
            }
            let mut upstream = self.upstream(name, &group.value);
            upstream.resolver.clone_from(&resolver);
            self.upstreams.push(upstream);
        }
    }

    fn upstream(&mut self, name: &Spanned<String>, group: &raw::Upstream) -> Upstream {
        let listed = group.servers.value().map_or(&[][..], |list| &list.0);
        let balance = self.balance(group.balance.get());
        let mut servers = Vec::new();
        let breaker = match group.breaker.value() {
            Some(OrOff::On(given)) => Some(self.breaker(given)),
            Some(OrOff::Off) | None => None,
        };
        // Where there is a breaker, it judges alone unless told otherwise.
        let max_fails = u32::from(breaker.is_none());
        for server in listed {
            servers.extend(self.upstream_server(&server.value.0, group, &balance, max_fails));
        }
        if group.servers.value().is_some_and(|list| list.0.is_empty()) {
            let sentence = format!("the upstream `{}` has no servers", name.value);
            self.complain(name.span, sentence);
        } else if !servers.is_empty() && servers.len() == listed.len() {
            if servers.iter().all(|server| server.down) {
                let sentence = format!("all servers of the upstream `{}` are down", name.value);
                self.complain_with(
                    name.span,
                    sentence,
                    "to answer without an upstream use `return`",
                );
            } else if servers.iter().all(|server| server.backup) {
                let sentence = format!("all servers of the upstream `{}` are backups", name.value);
                self.complain_with(
                    name.span,
                    sentence,
                    "take `backup` from at least one of them",
                );
            }
        }
        let check = group.health_check.value();
        let health_check =
            check.map(|Shorthand(given)| self.health_check(given, &name.value, &servers));
        let mut upstream = Upstream::of(&name.value, servers);
        upstream.health_check = health_check;
        upstream.breaker = breaker;
        upstream.balance = balance;
        upstream.retry_budget = self.retry_budget(group);
        upstream.queue = self.upstream_queue(group, &upstream.servers);
        if let Some(most) = group.keepalive.value() {
            upstream.keepalive = most.0;
        }
        upstream.keepalive_timeout = self.some_time(group.keepalive_timeout.get(), 60);
        if let Some(most) = group.keepalive_requests.value() {
            upstream.keepalive_requests = most.0;
        }
        upstream
    }

    fn retry_budget(&mut self, group: &raw::Upstream) -> Option<RetryBudget> {
        let Shorthand(budget) = group.retry_budget.value()?;
        let most = budget.backoff_max.get();
        if let Some(most) = most.filter(|_| budget.backoff.key().is_none()) {
            self.complain_with(
                most.span,
                "`backoff_max` bounds a `backoff`, and there is none",
                "expected { share: 20%, backoff: 25ms, backoff_max: 1s }",
            );
        }
        let backoff = budget.backoff.get().map(|base| Backoff {
            base: self.some_time(Some(base), 1),
            max: self.some_time(most, 1),
        });
        Some(RetryBudget {
            percent: budget.share.value()?.0,
            least: budget.min_per_second.value().map_or(3, |least| least.0),
            backoff,
        })
    }

    fn upstream_queue(
        &mut self,
        group: &raw::Upstream,
        servers: &[UpstreamServer],
    ) -> Option<UpstreamQueue> {
        let queue = &group.queue.get()?.value;
        if let Some(key) = group.queue.key()
            && servers.iter().all(|server| server.max_conns == 0)
        {
            self.warn(
                key,
                "nobody ever waits here: no server has a `max_conns`",
                "give the servers of this upstream a `max_conns`",
            );
        }
        let fair = queue.fair.get();
        let fair = fair.map(|key| self.template(key, TemplatePhase::Before));
        let timeout = self.some_time(queue.timeout.get(), 60);
        Some(UpstreamQueue {
            size: queue.size.value()?.0,
            timeout,
            order: queue.order.value().map(|order| order.0).unwrap_or_default(),
            fair,
        })
    }

    fn balance(&mut self, given: Option<&Spanned<Shorthand<raw::Balance>>>) -> Balance {
        let Some(given) = given else {
            return Balance::default();
        };
        let Shorthand(balance) = &given.value;
        let consistent = balance.consistent.value().is_some_and(|flag| flag.0);
        if balance.hash.get().is_none()
            && let Some(key) = balance.consistent.key()
        {
            let sentence = "`consistent` says how a key is hashed, and there is none";
            self.complain_with(key, sentence, "expected { hash: KEY, consistent: true }");
        }
        if let (Some(hash), Some(_)) = (balance.hash.key(), balance.method.key()) {
            self.complain(hash, "a server is picked either by a method or by a hash");
        }
        match (balance.hash.get(), balance.method.value()) {
            (Some(key), _) => {
                if key.value.text.is_empty() {
                    self.complain(key.span, "an empty key leads to no server");
                }
                let template = self.template(key, TemplatePhase::Before);
                match consistent {
                    true => Balance::ConsistentHash(template),
                    false => Balance::Hash(template),
                }
            }
            (None, Some(method)) => method.0.clone(),
            (None, None) => {
                let keys = [
                    balance.hash.key(),
                    balance.method.key(),
                    balance.consistent.key(),
                ];
                if keys.iter().all(Option::is_none) {
                    self.complain(given.span, "this does not say how a server is picked");
                }
                Balance::default()
            }
        }
    }

    fn upstream_server(
        &mut self,
        server: &raw::UpstreamServer,
        group: &raw::Upstream,
        balance: &Balance,
        max_fails: u32,
    ) -> Option<UpstreamServer> {
        if !balance.has_backups() {
            let backup = server.backup.get().filter(|flag| flag.value.0);
            let slow = server.slow_start.get().map(|time| time.span);
            for (at, what) in [
                (backup.map(|flag| flag.span), "backup"),
                (slow, "slow_start"),
            ] {
                if let Some(at) = at {
                    let sentence = format!("this way to pick a server knows no `{what}`");
                    self.complain_with(at, sentence, "round_robin and least_conn do");
                }
            }
        }
        let given = server.address.get()?;
        let address = units::host_port(&given.value.text, units::HTTP)
            .map_err(|mistake| self.report.add(mistaken(given.span, mistake)))
            .ok()?;
        Some(UpstreamServer {
            resolve: self.resolve(server, group, &address),
            weight: server.weight.value().map_or(1, |weight| weight.0),
            max_fails: server.max_fails.value().map_or(max_fails, |fails| fails.0),
            fail_timeout: self.some_time(server.fail_timeout.get(), 10),
            backup: server.backup.value().is_some_and(|flag| flag.0),
            down: server.down.value().is_some_and(|flag| flag.0),
            max_conns: server.max_conns.value().map_or(0, |most| most.0),
            slow_start: server
                .slow_start
                .value()
                .map_or(Duration::ZERO, |time| time.0),
            name: given.value.text.as_str().into(),
            ..UpstreamServer::at(address)
        })
    }

    /// The upstream for an address, the same one for the same address.
    pub(in crate::config) fn upstream_at(
        &mut self,
        name: String,
        address: UpstreamAddress,
    ) -> usize {
        if let Some(known) = self.addresses.get(&name) {
            return *known;
        }
        let server = UpstreamServer::at(address);
        self.upstreams.push(Upstream::of(&name, vec![server]));
        let index = self.upstreams.len() - 1;
        self.addresses.insert(name, index);
        index
    }
}

impl Compiler<'_> {
    /// `resolver`
    pub(in crate::config) fn resolver(&mut self) -> Option<Arc<Resolver>> {
        let given = self.config.resolver.get()?;
        let Shorthand(resolver) = &given.value;
        let address = resolver.address.get()?;
        let servers: Vec<_> = address
            .value
            .0
            .iter()
            .map(|server| server.value.0)
            .collect();
        if servers.is_empty() {
            self.complain(address.span, "a resolver without a DNS server to ask");
        }
        let flag = |given: Option<&value::Flag>| given.is_none_or(|flag| flag.0);
        let (ipv4, ipv6) = (flag(resolver.ipv4.value()), flag(resolver.ipv6.value()));
        if !ipv4 && !ipv6 {
            let sentence = "nothing to ask for: both kinds of addresses are off";
            self.complain_with(given.span, sentence, "leave `ipv4` or `ipv6` on");
        }
        let valid = resolver.valid.get();
        Some(Arc::new(Resolver {
            servers,
            valid: valid.map(|valid| self.interval(valid)),
            timeout: self.some_time(resolver.timeout.get(), 5),
            ipv4,
            ipv6,
        }))
    }

    /// How often the name of a server is looked up again.
    pub(in crate::config) fn resolve(
        &mut self,
        server: &raw::UpstreamServer,
        group: &raw::Upstream,
        address: &UpstreamAddress,
    ) -> Option<Duration> {
        let name = is_name(address);
        if let Some(key) = server.resolve.key().filter(|_| !name) {
            let sentence = "only a name is looked up again";
            self.warn(key, sentence, "this server is given by its address");
        }
        let every = server.resolve.get().or_else(|| group.resolve.get());
        let every = every.map(|every| self.interval(every));
        every.filter(|_| name)
    }

    fn interval(&mut self, given: &Spanned<value::Time>) -> Duration {
        if given.value.0.is_zero() {
            let sentence = "a name cannot be looked up all the time";
            self.complain_with(given.span, sentence, "expected a time such as `30s`");
        }
        given.value.0
    }

    /// Warns of a `resolve` without a name, and of a `resolver` without a `resolve`.
    pub(in crate::config) fn warn_of_unresolved(&mut self, upstreams: &[Upstream]) {
        let named = self.config.upstreams.value();
        let groups = named.map_or(&[][..], |named| &named.entries);
        let mut keys = Vec::new();
        for ((_, group), upstream) in groups.iter().zip(upstreams) {
            if !looks_up(upstream) {
                keys.extend(group.value.resolve.key());
            }
        }
        for key in keys {
            let sentence = "no server here is looked up again";
            self.warn(key, sentence, "all of them are given by their addresses");
        }
        if let Some(key) = self.config.resolver.key()
            && !upstreams.iter().any(looks_up)
        {
            let sentence = "nobody asks this resolver";
            self.warn(
                key,
                sentence,
                "it is for names of upstreams with `resolve: 30s`",
            );
        }
    }
}

fn looks_up(upstream: &Upstream) -> bool {
    upstream
        .servers
        .iter()
        .any(|server| server.resolve.is_some())
}

fn is_name(address: &UpstreamAddress) -> bool {
    matches!(address, UpstreamAddress::Tcp { host, .. } if host.parse::<IpAddr>().is_err())
}
