//! What the user writes, one struct per concept, with the place of every value.
//!
//! Names and shapes here are the contract with users; what they mean together is decided in
//! `config::compile`. The doc comments are what `weir schema` tells editors.

mod access;
mod algorithm;
mod bandwidth;
mod buffering;
mod client;
mod credential;
mod empty_key;
mod fallback;
mod health;
mod limits;
mod maps;
mod redirect;
mod resolver;
mod sanction;
mod server;
mod settings;
mod store;
mod tls;
mod top;
mod traces;
mod upstream;
mod values;

pub use access::AccessWord;
pub use algorithm::{AlgorithmWord, Counting, LimitOrUnlimited, WindowLimit};
pub use bandwidth::SizeText;
pub use buffering::{BufferBounds, Buffering};
pub use client::{ConnectionCount, ProxyProtocol, RealIp};
pub use credential::{HeaderText, StoreUrl};
pub use empty_key::{EmptyKeyWord, OnEmptyKey, RefuseEmptyKey};
pub use fallback::{DegradeMode, Fallback, Stale};
pub use health::{Breaker, CheckKind, Expect, FailureStatus, HealthCheck, Percent, Way};
pub use limits::{
    ConnRule, ConnZone, LimitHeaders, LimitHeadersParts, Override, Queue, ReqRule, ReqZone,
};
pub use maps::MapDirective;
pub use redirect::{ProxyRedirect, RedirectRule};
pub use resolver::{NameServer, Resolver};
pub use sanction::{BodyFile, BodyForms, BodyText, ExcessAction, OnConnExcess, OnExcess, RuleBody};
pub use server::{Listen, Location, Return, ReturnParts, Server};
pub use settings::{Buffers, BuffersParts, Connection, NextUpstream, Settings};
pub use store::{OnOutage, Store, StoreMode};
pub use tls::{Ciphers, Depth, Protocols, ProxySsl, Tls, VerifyClientWord};
pub use top::{AccessLog, Admin, Config, Log};
pub use traces::{BatchSize, TraceContext, Tracing};
pub use upstream::{Balance, RetryBudget, Upstream, UpstreamQueue, UpstreamServer};
pub use values::{
    AdminAddress, Burst, ConnLimit, ErrorLogLevel, Failures, Flag, HeaderCount, HeaderForm,
    HeaderScope, HttpVersion, Idle, Ipv6Prefix, ListenAddress, ListenText, LogLevel,
    OnAmbiguousKey, QueueSize, Rate, RateOrUnlimited, RefusalStatus, RequestCount, Size, Streams,
    Time, Tries, Weight, Workers,
};

use super::decode::Record;

/// Where a key belongs that was found where it does not.
pub(super) fn homes(key: &str) -> Option<String> {
    let places = [
        ("at the top level", Config::keys()),
        ("in a server", Server::keys()),
        ("in a location", Location::keys()),
        ("in an upstream", Upstream::keys()),
        ("in a server of an upstream", UpstreamServer::keys()),
        ("in `balance`", Balance::keys()),
        ("in `retry_budget`", RetryBudget::keys()),
        ("in the `queue` of an upstream", UpstreamQueue::keys()),
        ("in `tracing`", Tracing::keys()),
        ("in a limit_req zone", ReqZone::keys()),
        ("in a limit_conn zone", ConnZone::keys()),
        ("in a limit_req rule", ReqRule::keys()),
        ("in a limit_conn rule", ConnRule::keys()),
        ("in a map", MapDirective::keys()),
        ("in a store", Store::keys()),
        ("in `tls`", Tls::keys()),
        ("in `real_ip`", RealIp::keys()),
        ("in `buffers`", BufferBounds::keys()),
    ];
    let homes: Vec<_> = places
        .into_iter()
        .filter(|(_, keys)| keys.contains(&key))
        .map(|(place, _)| place)
        .collect();
    (!homes.is_empty()).then(|| format!("`{key}` belongs {}", homes.join(" or ")))
}
