//! Zones: what requests are counted by, how, and the overrides of some keys.

#[cfg(test)]
#[path = "tests/zones.rs"]
mod tests;

use std::net::IpAddr;
use std::time::Duration;

use http::StatusCode;
use ipnet::IpNet;

use super::store::{self, Store, StoreMode};
use crate::algorithm::{self, AlgorithmParams, BurstMeaning, Excess, ParamValues, Rate};
use crate::config::compile::{self, Compiler, Resolved};
use crate::config::decode::units;
use crate::config::decode::value::{Burst, NamedMap, Text, Time, choice};
use crate::config::decode::{Field, Spanned};
use crate::config::maps::Map;
use crate::config::report::{self, Report};
use crate::config::source::Span;
use crate::config::template::{self, Part, Template, TemplatePhase, Variable};

pub(crate) mod raw {
    //! Zones as the user writes them.
    use std::time::Duration;

    use schemars::json_schema;

    use super::OnAmbiguousKey;
    use crate::algorithm;
    use crate::config::decode::record::{Setting, record};
    use crate::config::decode::value::{
        self, Burst, Flag, Ipv6Prefix, NamedMap, Rate, RateOrUnlimited, RefusalStatus, Size, Text,
        Time, choice, number, scalar, schema,
    };
    use crate::config::decode::{Decode, DecodeContext, Field, Required, units};
    use crate::config::directive::zones;
    use crate::config::report::{self, ParseError};
    use crate::config::source::{Node, NodeKind};

    record! {
        /// What both kinds of zones have.
        pub(crate) struct ZoneDirectives {
            /// The key requests are counted by: a template, such as `$binary_remote_addr`.
            key: Required<Text>,
            /// The bound of its memory, at least 32k.
            size: Field<Size> = "10m" => usize; if at_least_32k,
            /// Where its counters are kept: `local`, or one of `stores`.
            store: Field<Text> = "local",
            /// What to do with a request whose key is empty: `skip` it as nginx does, count it under the client's `address`, or `refuse` it, with a status of its own where it is `{ refuse: 401 }`.
            on_empty_key: Field<OnEmptyKey> = "skip" => zones::OnEmptyKey,
            /// What to do with a request that gives a header, a cookie or an argument of its key more than once: `refuse` it with 400, or `join` it as nginx does.
            on_ambiguous_key: Field<OnAmbiguousKey> = "refuse" => OnAmbiguousKey,
            /// How many bits of an IPv6 address identify a client; 128 are all of them.
            ipv6_prefix: Field<Ipv6Prefix> = "128" => u8,
        }
    }

    record! {
        /// A zone of `limit_req`: nginx's `limit_req_zone KEY zone=NAME:SIZE rate=RATE`.
        pub(crate) struct ReqZone {
            /// How it counts; leaky_bucket is nginx's own.
            algorithm: Field<AlgorithmWord> = "leaky_bucket" => &'static str,
            /// The rate of requests: `10r/s`, `30r/m`, also r/h and r/d; up to three decimals. Required by all algorithms without windows.
            rate: Field<Rate>,
            /// How many requests in a window, for fixed_window, sliding_window and sliding_log.
            limit: Field<WindowLimit>,
            /// The length of that window.
            window: Field<Time>,
            /// The length of the blocks that a sliding_window is divided into: no window then holds more than the limit, and requests are forgotten up to one block late. Default: none, it is estimated from two counters.
            precision: Field<Time>,
            /// The longest time a request waits for its turn, for paced, warm_up and bursty.
            max_wait: Field<Time> = "500ms" => Duration,
            /// How long warm_up takes to reach its rate.
            warm_up: Field<Time> = "10s" => Duration,
            /// Refused requests are charged, too: a client that keeps sending too fast stays refused.
            count_refused: Field<Flag> = "false" => bool,
            /// Other numbers for some: under the address or network of clients, whatever the key is, or under the exact text of a key.
            overrides: Field<NamedMap<Override>>,
        }
        with zone: ZoneDirectives,
    }

    record! {
        /// Numbers of its own for one key or for the clients of a network.
        pub(crate) struct Override {
            /// Instead of the zone's rate; `unlimited` for none. Default: the zone's.
            rate: Field<RateOrUnlimited>,
            /// Instead of the zone's limit; `unlimited` for none. Default: the zone's.
            limit: Field<LimitOrUnlimited>,
            /// Instead of the rule's burst. Default: the rule's.
            burst: Field<Burst>,
        }
    }

    record! {
        /// A zone of `limit_conn`: nginx's `limit_conn_zone KEY zone=NAME:SIZE`.
        pub(crate) struct ConnZone {}
        with zone: ZoneDirectives,
    }

    scalar! {
        /// How a zone counts.
        pub(crate) struct AlgorithmWord(&'static str);
        "an algorithm",
        |text| {
            let words = algorithm::names(|_, _| true);
            words.iter().copied().find(|word| *word == text).ok_or_else(|| {
                let hint = report::hint(text, words.iter().copied())
                    .unwrap_or_else(|| format!("expected one of {}", words.join(", ")));
                ParseError::new(format!("`{text}` is not an algorithm")).help(hint)
            })
        },
        { "enum": (algorithm::names(|_, _| true)) }
    }

    number! {
        /// How many requests in a window.
        pub(crate) struct WindowLimit(u32) = "a number of requests", 1..=100_000_000
    }

    scalar! {
        /// How many requests in a window, or any number.
        pub(crate) struct LimitOrUnlimited(Option<u32>);
        "a number of requests, or `unlimited`",
        |text| match text {
            "unlimited" => Ok(None),
            _ => units::whole(text, "a number of requests", 1, 100_000_000)
                .map(|number| u32::try_from(number).ok())
                .map_err(|error| value::or_unlimited(text, error)),
        },
        {
            "description": "A number of requests, or unlimited.",
            "anyOf": [
                { "type": "integer", "minimum": 1, "maximum": 100_000_000 },
                { "const": "unlimited" },
            ],
        }
    }

    /// `on_empty_key`: a word, or `{ refuse: STATUS }`.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct OnEmptyKey(zones::OnEmptyKey);

    choice! {
        /// What to do with a request whose key is empty.
        pub(crate) struct EmptyKeyWord(zones::OnEmptyKey) = "an action for empty keys" {
            "skip" => zones::OnEmptyKey::Skip,
            "address" => zones::OnEmptyKey::Address,
            "refuse" => zones::OnEmptyKey::Refuse(None),
        }
    }

    record! {
        /// Refuses requests whose key is empty.
        pub(crate) struct RefuseEmptyKey {
            /// The status they are refused with, 400 to 599.
            refuse: Required<RefusalStatus>,
        }
    }

    impl Decode for OnEmptyKey {
        fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
            if let NodeKind::Mapping(_) = node.kind {
                let parts: RefuseEmptyKey = context.record(node)?;
                let status = parts.refuse.value()?.plan();
                return Some(Self(zones::OnEmptyKey::Refuse(Some(status))));
            }
            EmptyKeyWord::decode(node, context).map(|word| Self(word.0))
        }
    }

    impl Setting<zones::OnEmptyKey> for OnEmptyKey {
        fn plan(&self) -> zones::OnEmptyKey {
            self.0
        }
    }

    schema! {
        OnEmptyKey = "OnEmptyKey", |generator| {
            let word = generator.subschema_for::<EmptyKeyWord>();
            let parts = generator.subschema_for::<RefuseEmptyKey>();
            json_schema!({ "anyOf": [word, parts] })
        };
    }

    /// nginx's bound: eight pages.
    fn at_least_32k(size: &Size, _: &str) -> Result<(), ParseError> {
        match size.0 < 32 << 10 {
            true => {
                Err(ParseError::new("a zone of this size is too small")
                    .help("must be at least 32k"))
            }
            false => Ok(()),
        }
    }
}

/// A `limit_req` zone.
#[derive(Debug, Clone)]
pub struct ReqZone {
    /// Its name.
    pub name: Box<str>,
    /// The key requests are counted by.
    pub key: Template,
    /// The bound of its memory, in bytes.
    pub size: usize,
    /// Its algorithm and its parameters.
    pub algorithm: AlgorithmParams,
    /// Whether refused requests are charged.
    pub count_refused: bool,
    /// Index of the store of its counters; `None` for this process.
    pub store: Option<usize>,
    /// What to do with a request without a key.
    pub on_empty_key: OnEmptyKey,
    /// What to do with a request that gives a part of its key more than once.
    pub on_ambiguous_key: OnAmbiguousKey,
    /// How many bits of an IPv6 address identify a client.
    pub ipv6_prefix: u8,
    /// Keys with limits of their own.
    pub overrides: Vec<Override>,
}

/// A `limit_conn` zone.
#[derive(Debug, Clone)]
pub struct ConnZone {
    /// Its name.
    pub name: Box<str>,
    /// The key requests are counted by.
    pub key: Template,
    /// The bound of its memory, in bytes.
    pub size: usize,
    /// Index of the store of its slots; `None` for this process.
    pub store: Option<usize>,
    /// What to do with a request without a key.
    pub on_empty_key: OnEmptyKey,
    /// What to do with a request that gives a part of its key more than once.
    pub on_ambiguous_key: OnAmbiguousKey,
    /// How many bits of an IPv6 address identify a client.
    pub ipv6_prefix: u8,
}

choice! {
    /// What to do with a request that gives a part of its key more than once, with different values.
    #[derive(Default)]
    pub enum OnAmbiguousKey as "OnAmbiguousKey" = "an action for ambiguous keys" {
        /// Refuse it with 400.
        #[default]
        Refuse = "refuse",
        /// Use what nginx uses: all lines of a header field, the first of several cookies or arguments.
        Join = "join",
    }
}

/// What to do with a request whose key is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnEmptyKey {
    /// Count it under the client's address.
    Address,
    /// Refuse it, with this status in place of the rule's.
    Refuse(Option<StatusCode>),
    /// Do not limit it, as nginx does.
    Skip,
}

/// Limits of its own for one key or for the clients of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    /// The keys it applies to.
    pub key: OverrideKey,
    /// Their limits; `None` for unlimited.
    pub own: Option<OverrideLimits>,
}

/// The limits of an override.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverrideLimits {
    /// Instead of the zone's; of the same kind.
    pub algorithm: AlgorithmParams,
    /// Instead of the rule's.
    pub burst: Option<Excess>,
}

/// The keys of an [`Override`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverrideKey {
    /// Clients in this network.
    Network(IpNet),
    /// A key with exactly this text.
    Text(Box<str>),
}

/// The largest number of blocks in a window: more take more memory than a log.
const MAX_BLOCKS: u128 = 1000;

/// The largest number of requests that a log in a store remembers: all of them are read for every decision.
const MAX_SHARED_LOG: u32 = 1000;

/// `limit_req_zones`
pub(crate) fn req_zones(
    named: &Field<NamedMap<raw::ReqZone>>,
    maps: &[Map],
    stores: &[Store],
    compiler: &mut Compiler<'_>,
) -> Vec<ReqZone> {
    let maps_are_known = compiler.report.errors() == 0;
    let zones = named.entries().iter().map(|(name, given)| {
        let algorithm = algorithm(given, compiler.report);
        let Spanned { value: given, .. } = given;
        room_for_a_key(
            given.limit.key(),
            algorithm,
            given.zone.size(),
            compiler.report,
        );
        warn_of_no_leases(given, &algorithm, stores, compiler.report);
        let errors = compiler.report.errors();
        let zone = ConnZone::compile(name, &given.zone, compiler);
        // Where something was not understood, the values that its keys may have are unknown.
        let keys = (maps_are_known && compiler.report.errors() == errors).then_some(KeyVariables {
            template: &zone.key,
            maps,
        });
        check_shared_log(given, &algorithm, zone.store, compiler.report);
        ReqZone {
            overrides: overrides(&given.overrides, algorithm, keys, compiler.report),
            name: zone.name,
            key: zone.key,
            size: zone.size,
            algorithm,
            count_refused: given.count_refused(),
            store: zone.store,
            on_empty_key: zone.on_empty_key,
            on_ambiguous_key: zone.on_ambiguous_key,
            ipv6_prefix: zone.ipv6_prefix,
        }
    });
    zones.collect()
}

/// `limit_conn_zones`
pub(crate) fn conn_zones(
    named: &Field<NamedMap<raw::ConnZone>>,
    compiler: &mut Compiler<'_>,
) -> Vec<ConnZone> {
    let zones = named.entries().iter().map(|(name, given)| {
        if let Resolved::At(_) = compiler.req_zones.find(&name.value) {
            let sentence = format!("`{}` is also the name of a limit_req zone", name.value);
            let hint = "the names of all zones must differ";
            compiler.report.error_with(name.span, sentence, hint);
        }
        ConnZone::compile(name, &given.value.zone, compiler)
    });
    zones.collect()
}

impl ConnZone {
    fn compile(
        name: &Spanned<String>,
        given: &raw::ZoneDirectives,
        compiler: &mut Compiler<'_>,
    ) -> Self {
        let key = given.key.get();
        Self {
            name: name.value.as_str().into(),
            key: key.map_or_else(Template::default, |key| zone_key(key, compiler)),
            size: given.size(),
            store: store::of_zone(&given.store, compiler),
            on_empty_key: given.on_empty_key(),
            on_ambiguous_key: given.on_ambiguous_key(),
            ipv6_prefix: given.ipv6_prefix(),
        }
    }
}

fn zone_key(key: &Spanned<Text>, compiler: &mut Compiler<'_>) -> Template {
    let text = &key.value.text;
    if text.is_empty() {
        let sentence = "a zone with an empty key limits nothing";
        let hint = "expected a template, such as `$binary_remote_addr`";
        compiler.report.error_with(key.span, sentence, hint);
    }
    let template = Template::compile(key, TemplatePhase::Before, compiler);
    if template.as_literal().is_some_and(|text| !text.is_empty()) && !text.contains('$') {
        let sentence = format!("the key `{text}` has no variable: all requests share one counter");
        let hint = match report::near(text, template::variable_names()) {
            Some(meant) => format!("did you mean `${meant}`?"),
            None => "ignore this if it is intended".to_owned(),
        };
        compiler.report.warn(key.span, sentence, hint);
    }
    template
}

/// Reports a log that is too long to be kept in a store.
fn check_shared_log(
    given: &raw::ReqZone,
    algorithm: &AlgorithmParams,
    store: Option<usize>,
    report: &mut Report,
) {
    let is_long =
        algorithm.info().request_bytes > 0 && algorithm.values().limit > Some(MAX_SHARED_LOG);
    if let Some(given) = given
        .zone
        .store
        .get()
        .filter(|_| is_long && store.is_some())
    {
        let sentence = "a log of so many requests is too long to be shared";
        let hint = "a store logs up to 1000 requests; a `sliding_window` counts any number";
        report.error_with(given.span, sentence, hint);
    }
}

/// Warns of a zone whose requests are counted one by one, although its store leases.
fn warn_of_no_leases(
    zone: &raw::ReqZone,
    algorithm: &AlgorithmParams,
    stores: &[Store],
    report: &mut Report,
) {
    let Some(given) = zone.zone.store.get() else {
        return;
    };
    let named = |store: &&Store| *store.name == *given.value.text;
    let store = stores.iter().find(named);
    if store.is_none_or(|store| store.mode != StoreMode::Leased) {
        return;
    }
    let name = algorithm.name();
    let sentence = match algorithm.info().leasable {
        false if algorithm.values().precision.is_some() => {
            format!("a `{name}` with `precision` cannot be leased")
        }
        false => format!("a `{name}` zone cannot be leased"),
        _ if zone.count_refused() => "a zone with `count_refused` cannot be leased".to_owned(),
        _ => return,
    };
    let hint = "its requests are counted one by one, as in the mode `exact`";
    report.warn(given.span, sentence, hint);
}

/// The parameters of a zone's algorithm, with valid numbers in place of those that are reported.
fn algorithm(zone: &Spanned<raw::ReqZone>, report: &mut Report) -> AlgorithmParams {
    let Spanned { value: zone, span } = zone;
    if zone.algorithm.key().is_some() && zone.algorithm.value().is_none() {
        // The parameters of an algorithm that was not understood are not known.
        return AlgorithmParams::LeakyBucket {
            rate: Rate::per_second(1000),
        };
    }
    let word = zone.algorithm();
    let takes = |param| algorithm::takes(word, param);
    let mut required = |key: Option<Span>, param| {
        if takes(param) && key.is_none() {
            report.error(*span, format!("`{param}` is missing here"));
        }
        takes(param)
    };
    let second = Duration::from_secs(1);
    let mut values = ParamValues {
        rate: required(zone.rate.key(), "rate").then(|| {
            let rate = zone.rate.value();
            rate.map_or(Rate::per_second(1000), |rate| rate.0)
        }),
        limit: required(zone.limit.key(), "limit")
            .then(|| zone.limit.value().map_or(1, |limit| limit.0)),
        window: required(zone.window.key(), "window")
            .then(|| zone.window.value().map_or(second, |window| window.0)),
        max_wait: Some(zone.max_wait()),
        ..ParamValues::default()
    };
    let at_least_1ms = |given: &Field<Time>, value: Duration, report: &mut Report| {
        if let Some(given) = given.get().filter(|given| given.value.0.is_zero()) {
            let sentence = "this time must be longer than 0";
            report.error_with(given.span, sentence, "must be at least 1ms");
        }
        value.max(Duration::from_millis(1))
    };
    values.window = values
        .window
        .map(|window| at_least_1ms(&zone.window, window, report));
    if let (Some(window), Some(given)) = (values.window, zone.precision.get())
        && takes("precision")
    {
        let precision = at_least_1ms(&zone.precision, given.value.0, report);
        check_precision(window, precision, given.span, report);
        values.precision = Some(precision);
    }
    if takes("warm_up") {
        values.warm_up = Some(at_least_1ms(&zone.warm_up, zone.warm_up(), report));
    }
    refuse_other_params(word, zone, report);
    AlgorithmParams::new(word, &values).expect("every parameter of an algorithm is read")
}

/// Reports keys that the algorithm has no use for.
fn refuse_other_params(word: &str, zone: &raw::ReqZone, report: &mut Report) {
    // The algorithms with this parameter, as a sentence lists them.
    let with_param =
        |param: &str| report::listed(&algorithm::names(|_, params| params.contains(&param)));
    let is_for = |param: &str| format!("it is for {}", with_param(param));
    let by_rate = format!(
        "it counts by `rate`; {} count in windows",
        with_param("window")
    );
    let by_limit = "it counts in windows: give it a `limit` and a `window`";
    let given = [
        (zone.rate.key(), "rate", by_limit.to_owned()),
        (zone.limit.key(), "limit", by_rate.clone()),
        (zone.window.key(), "window", by_rate),
        (zone.precision.key(), "precision", is_for("precision")),
        (zone.max_wait.key(), "max_wait", is_for("max_wait")),
        (zone.warm_up.key(), "warm_up", is_for("warm_up")),
    ];
    for (key, name, hint) in given {
        if let Some(key) = key.filter(|_| !algorithm::takes(word, name)) {
            has_no_meaning(key, name, word, &hint, report);
        }
    }
}

/// Reports a key that has no meaning for an algorithm.
pub(crate) fn has_no_meaning(
    key: Span,
    name: &str,
    algorithm: &str,
    hint: &str,
    report: &mut Report,
) {
    let sentence = format!("`{name}` has no meaning for the algorithm `{algorithm}`");
    report.error_with(key, sentence, hint);
}

fn check_precision(window: Duration, precision: Duration, span: Span, report: &mut Report) {
    let (long, short) = (window.as_millis(), precision.as_millis());
    let blocks = long.div_ceil(short);
    if short > long {
        let sentence = "the window is shorter than its precision";
        let hint = "a precision is a part of the window, as `5s` is of `1m`";
        report.error_with(span, sentence, hint);
    } else if blocks > MAX_BLOCKS {
        let sentence = format!("a window of {blocks} blocks is too fine");
        let hint = format!("must be at most {MAX_BLOCKS}; `sliding_log` is exact");
        report.error_with(span, sentence, hint);
    } else if !long.is_multiple_of(short) {
        let sentence = "the window is not a multiple of its precision";
        let whole = blocks * short;
        let hint = format!("it is counted in {blocks} blocks, which make {whole}ms");
        report.warn(span, sentence, hint);
    }
}

/// The limits of one key of a zone with this algorithm; `None` for unlimited.
pub(crate) fn override_limits(
    own: &raw::Override,
    zone: AlgorithmParams,
    report: &mut Report,
) -> Option<OverrideLimits> {
    let (rate, limit) = (own.rate.value(), own.limit.value());
    if rate.is_some_and(|rate| rate.0.is_none()) || limit.is_some_and(|limit| limit.0.is_none()) {
        return None;
    }
    let mut values = zone.values();
    if let Some(number) = &mut values.rate {
        *number = rate.and_then(|rate| rate.0).unwrap_or(*number);
        if let Some(limit) = own.limit.key() {
            has_no_meaning(limit, "limit", zone.name(), "it counts by `rate`", report);
        }
    }
    if let Some(number) = &mut values.limit {
        *number = limit.and_then(|limit| limit.0).unwrap_or(*number);
        if let Some(rate) = own.rate.key() {
            let hint = "give it a `limit`, of the zone's window";
            has_no_meaning(rate, "rate", zone.name(), hint, report);
        }
    }
    Some(OverrideLimits {
        algorithm: AlgorithmParams::new(zone.name(), &values)
            .expect("the zone has every parameter of its algorithm"),
        burst: burst(&own.burst, zone, report),
    })
}

/// A `burst`, with a report where it has no meaning for the zone's algorithm.
pub(crate) fn burst(
    given: &Field<Burst>,
    zone: AlgorithmParams,
    report: &mut Report,
) -> Option<Excess> {
    match (zone.info().burst, given.get()) {
        (BurstMeaning::Nothing(hint), _) => {
            if let Some(key) = given.key() {
                has_no_meaning(key, "burst", zone.name(), hint, report);
            }
        }
        (BurstMeaning::Capacity, Some(burst)) if burst.value.0 == 0 => {
            let sentence = "a token bucket without room for one token refuses every request";
            let hint = "its `burst` is its capacity and must be at least 1";
            report.error_with(burst.span, sentence, hint);
        }
        _ => {}
    }
    given.value().map(|burst| Excess::requests(burst.0))
}

/// Reports a zone that has no room for a single key.
pub(crate) fn room_for_a_key(
    limit: Option<Span>,
    algorithm: AlgorithmParams,
    size: usize,
    report: &mut Report,
) {
    let requests = algorithm.values().limit.map_or(0, u64::from);
    let bytes = requests * algorithm.info().request_bytes;
    if let Some(key) = limit.filter(|_| bytes > 0 && bytes + 1024 > size as u64) {
        let sentence =
            format!("a key of this zone may take {bytes} bytes, which is more than its size");
        let hint = "use a larger `size`, or `sliding_window`, which does not log requests";
        report.error_with(key, sentence, hint);
    }
}

/// The variables that a zone's keys are made from.
#[derive(Debug, Clone, Copy)]
struct KeyVariables<'p> {
    template: &'p Template,
    maps: &'p [Map],
}

/// The `overrides` of a zone with this algorithm; `keys` where they were understood.
fn overrides(
    named: &Field<NamedMap<raw::Override>>,
    zone: AlgorithmParams,
    keys: Option<KeyVariables<'_>>,
    report: &mut Report,
) -> Vec<Override> {
    let mut overrides: Vec<Override> = Vec::new();
    for (key, own) in named.entries() {
        let raw::Override { rate, limit, burst } = &own.value;
        if [rate.key(), limit.key(), burst.key()] == [None; 3] {
            let sentence = format!("the override of `{}` changes nothing", key.value);
            report.error_with(
                key.span,
                sentence,
                "give it a `rate`, a `limit` or a `burst`",
            );
        }
        let override_key = override_key(key, report);
        if let (OverrideKey::Text(text), Some(keys)) = (&override_key, keys) {
            check_override_text(key.span, text, keys, report);
        }
        if overrides.iter().any(|known| known.key == override_key) {
            report.error(key.span, format!("`{}` is given twice", key.value));
        }
        overrides.push(Override {
            key: override_key,
            own: override_limits(&own.value, zone, report),
        });
    }
    overrides
}

fn override_key(key: &Spanned<String>, report: &mut Report) -> OverrideKey {
    let Ok(network) = units::network(&key.value) else {
        return OverrideKey::Text(key.value.as_str().into());
    };
    let network = compile::masked(key, network, report);
    if network.prefix_len() == network.max_prefix_len() && network.addr().is_unspecified() {
        let sentence = format!("no client has the address `{}`", key.value);
        let hint = format!("write `{}/0` for all addresses", network.addr());
        report.error_with(key.span, sentence, hint);
    }
    OverrideKey::Network(network)
}

/// Reports a text that no key of the zone can be.
fn check_override_text(span: Span, text: &str, keys: KeyVariables<'_>, report: &mut Report) {
    if text.is_empty() {
        let hint = "`on_empty_key` handles requests without one";
        report.error_with(span, "an empty text is not a key", hint);
    } else if !keys.can_be(text, keys.template) {
        let hint = match keys.template.as_variable() {
            Some(Variable::BinaryRemoteAddr | Variable::RemoteAddr) => {
                "the keys of this zone are addresses: expected an address as in `192.0.2.7`, or a network as in `10.0.0.0/8`"
            }
            Some(Variable::Host) => "`$host` is in lower case and has no port",
            _ => "expected the whole text of a key, an address or a network",
        };
        let sentence = format!("`{text}` never applies: no key of this zone is this text");
        report.error_with(span, sentence, hint);
    }
}

impl KeyVariables<'_> {
    /// Whether a template may give this text.
    fn can_be(self, text: &str, template: &Template) -> bool {
        let variables = template.parts.iter();
        let variables = variables.filter(|part| matches!(part, Part::Variable(_)));
        // Every way to divide the text is tried, which takes long only for keys of unusually many parts.
        let ways = text
            .len()
            .saturating_pow(u32::try_from(variables.count()).unwrap_or(u32::MAX));
        ways > MAX_WAYS || self.starts_with(text, &template.parts)
    }

    fn starts_with(self, text: &str, parts: &[Part]) -> bool {
        match parts {
            [] => text.is_empty(),
            [Part::Text(literal), rest @ ..] => text
                .strip_prefix(&**literal)
                .is_some_and(|behind| self.starts_with(behind, rest)),
            [Part::Variable(last)] => self.can_be_value(last, text),
            [Part::Variable(first), rest @ ..] => {
                let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
                let mut cuts = ends.map(|at| text.split_at(at));
                cuts.any(|(front, behind)| {
                    self.can_be_value(first, front) && self.starts_with(behind, rest)
                })
            }
        }
    }

    /// Whether a variable may have this value. In doubt it may.
    fn can_be_value(self, variable: &Variable, text: &str) -> bool {
        let is_trimmed = || text.trim_ascii() == text && !text.contains(|c: char| c.is_control());
        match variable {
            // Its bytes, which are no text.
            Variable::BinaryRemoteAddr => text == UNIX,
            Variable::RemoteAddr => {
                let address = text.parse::<IpAddr>();
                text == UNIX || address.is_ok_and(|address| address.to_string() == text)
            }
            Variable::Cookie(_) | Variable::Http(_) => is_trimmed(),
            Variable::Host => !text.contains(|c: char| c.is_ascii_uppercase()) && is_trimmed(),
            Variable::Map(index) => self.maps.get(*index).is_none_or(|map| {
                let mut outcomes = map.outcomes().into_iter();
                outcomes.any(|outcome| self.can_be(text, outcome))
            }),
            Variable::Scheme => ["http", "https"].contains(&text),
            _ => true,
        }
    }
}

/// The address of clients that have none.
const UNIX: &str = "unix:";

/// The largest number of ways to divide a text that are tried.
const MAX_WAYS: usize = 1_000_000;
