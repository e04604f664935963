//! What the user writes, one struct per concept, with the place of every value.
//!
//! Names and shapes here are the contract with users; what they mean together is decided in
//! `config::compile`. The doc comments are what `weir schema` tells editors.

use crate::config::decode::record::Record;

pub use crate::config::decode::value::{
    AdminAddress, Burst, ConnLimit, ErrorLogLevel, Failures, Flag, HeaderCount, HeaderForm,
    HeaderScope, HttpVersion, Idle, Ipv6Prefix, ListenAddress, ListenText, LogLevel,
    OnAmbiguousKey, QueueSize, Rate, RateOrUnlimited, RefusalStatus, RequestCount, Size, Streams,
    Time, Tries, Weight, Workers,
};
pub use crate::config::directive::client::raw::{
    AccessWord, ConnectionCount, ProxyProtocol, RealIp,
};
pub use crate::config::directive::content::raw::{DegradeMode, Fallback, Stale};
pub use crate::config::directive::health::raw::{
    Breaker, CheckKind, Expect, FailureStatus, HealthCheck, Percent, Way,
};
pub use crate::config::directive::limits::raw::{
    ConnRule, ConnZone, EmptyKeyWord, LimitHeaders, LimitHeadersParts, OnEmptyKey, Override, Queue,
    RefuseEmptyKey, ReqRule, ReqZone,
};
pub use crate::config::directive::proxy_pass::raw::{ProxyRedirect, RedirectRule};
pub use crate::config::directive::refusal::raw::{
    BodyFile, BodyForms, BodyText, ExcessAction, OnConnExcess, OnExcess, RuleBody,
};
pub use crate::config::directive::server::raw::{Listen, Location, Return, ReturnParts, Server};
pub use crate::config::directive::settings::raw::{
    BufferBounds, BufferingDirectives, Buffers, BuffersParts, ClientDirectives, LimitDirectives,
    NextUpstream, ProxyDirectives, ServerDirectives, Settings, SizeText,
};
pub use crate::config::directive::store::raw::{HeaderText, OnOutage, Store, StoreMode, StoreUrl};
pub use crate::config::directive::tls::raw::{
    Ciphers, Depth, Protocols, ProxySsl, Tls, VerifyClientWord,
};
pub use crate::config::directive::upstream::raw::{
    Balance, NameServer, Resolver, RetryBudget, Upstream, UpstreamQueue, UpstreamServer,
};
pub use crate::config::directive::zones::raw::{AlgorithmWord, LimitOrUnlimited, WindowLimit};
pub use crate::config::maps::raw::MapDirective;
pub use crate::config::process::raw::{
    AccessLog, Admin, BatchSize, Config, Log, TraceContext, Tracing,
};

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
