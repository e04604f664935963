//! Zones and the rules that use them, as compiled.
//!
//! Zones and the rules that use them.

use std::time::Duration;

use http::StatusCode;
use ipnet::IpNet;

use super::overrides::KeyVariables;
use super::refusal::RefusalAction;
use super::zones::CostSource;
use crate::algorithm::{AlgorithmParams, Delay, Excess, Rate};
use crate::config::compile::{Compiler, NameTable, Resolved};
use crate::config::decode::value::{List, NamedMap, OrOff, Text};
use crate::config::decode::{Field, Spanned, value};
use crate::config::maps::Map;
use crate::config::report::Diagnostic;
use crate::config::source::Span;
use crate::config::template::{Template, TemplatePhase};
use crate::config::{report, template};

pub(crate) mod raw {
    //! Zones, the rules that use them, and what clients are told of both.
    //! What a zone does with requests that have no key.
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use crate::config::decode::record::record;
    use crate::config::decode::value::{
        Burst, ConnLimit, Flag, HeaderForm, HeaderScope, Ipv6Prefix, NamedMap, OnAmbiguousKey,
        QueueSize, Rate, RateOrUnlimited, RefusalStatus, Size, Text, Time, choice,
    };
    use crate::config::decode::{Decode, DecodeContext, Field, Required};
    use crate::config::directive::limits;
    use crate::config::directive::refusal::raw::{OnConnExcess, OnExcess, RuleBody};
    use crate::config::directive::zones::raw::{AlgorithmWord, LimitOrUnlimited, WindowLimit};
    use crate::config::source::{Node, NodeKind};

    record! {
        /// A zone of `limit_req`: nginx's `limit_req_zone KEY zone=NAME:SIZE rate=RATE`.
        pub struct ReqZone {
            /// What requests are told apart by: any text of variables, such as `$binary_remote_addr`.
            key: Required<Text>,
            /// The bound of its memory, at least 32k. Default: 10m.
            size: Field<Size>,
            /// How it counts. Default: leaky_bucket, which is nginx's own.
            algorithm: Field<AlgorithmWord>,
            /// How fast requests may come: `10r/s`, `30r/m`, also r/h and r/d; up to three decimals. All algorithms need it that do not count in windows.
            rate: Field<Rate>,
            /// How many requests in a window, for fixed_window, sliding_window and sliding_log.
            limit: Field<WindowLimit>,
            /// How long that window is.
            window: Field<Time>,
            /// Into blocks of which length a sliding_window is divided: no window then holds more than the limit, and requests are forgotten up to one block late. Default: none, it is estimated from two counters.
            precision: Field<Time>,
            /// How long a request may have to wait for its turn, for paced, warm_up and bursty. Default: 500ms.
            max_wait: Field<Time>,
            /// How long it takes warm_up to get to its rate. Default: 10s.
            warm_up: Field<Time>,
            /// Refused requests are charged, too: who goes on asking stays out. Default: false.
            count_refused: Field<Flag>,
            /// Where its counters are kept: `local`, or one of `stores`. Default: local.
            store: Field<Text>,
            /// What to do with a request whose key is empty: `skip` it as nginx does, count it under the client's `address`, or `refuse` it, with a status of its own where it is `{ refuse: 401 }`. Default: skip.
            on_empty_key: Field<OnEmptyKey>,
            /// What to do with a request that gives a header, a cookie or an argument of its key more than once: `refuse` it with 400, or `join` it as nginx does. Default: refuse.
            on_ambiguous_key: Field<OnAmbiguousKey>,
            /// How many bits of an IPv6 address tell clients apart. Default: 128, all of them.
            ipv6_prefix: Field<Ipv6Prefix>,
            /// Rates of their own for some: under the address or network of clients, whatever the key is, or under the exact text of a key.
            overrides: Field<NamedMap<Override>>,
        }
    }

    record! {
        /// Numbers of its own for one key or for the clients of a network.
        pub struct Override {
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
        pub struct ConnZone {
            /// What requests are told apart by: any text of variables, such as `$binary_remote_addr`.
            key: Required<Text>,
            /// The bound of its memory, at least 32k. Default: 10m.
            size: Field<Size>,
            /// Where its counters are kept: `local`, or one of `stores`. Default: local.
            store: Field<Text>,
            /// What to do with a request whose key is empty: `skip` it as nginx does, count it under the client's `address`, or `refuse` it, with a status of its own where it is `{ refuse: 401 }`. Default: skip.
            on_empty_key: Field<OnEmptyKey>,
            /// What to do with a request that gives a header, a cookie or an argument of its key more than once: `refuse` it with 400, or `join` it as nginx does. Default: refuse.
            on_ambiguous_key: Field<OnAmbiguousKey>,
            /// How many bits of an IPv6 address tell clients apart. Default: 128, all of them.
            ipv6_prefix: Field<Ipv6Prefix>,
        }
    }

    record! {
        /// One `limit_req`.
        pub struct ReqRule {
            /// The zone, one of `limit_req_zones`.
            zone: Required<Text>,
            /// How many requests a key may be ahead of its rate; the capacity of a token_bucket, what a bursty zone saves while idle. Default: 0; 1 for a token_bucket, a second's worth for bursty.
            burst: Field<Burst>,
            /// Requests within the burst pass at once instead of waiting for their turn. Default: false.
            nodelay: Field<Flag>,
            /// So many requests of the burst pass at once, the others wait. Default: 0, all wait.
            delay: Field<Burst>,
            /// What a request weighs: a number, a text of variables that says one, `request_bytes` or `response_bytes`. What is only known with the answer is charged then. Default: 1.
            cost: Field<Text>,
            /// What becomes of requests beyond the burst: `reject` answers them, `delay` lets them wait until they are in rate, `drop` closes the connection without an answer. Default: reject.
            on_excess: Field<OnExcess>,
            /// With `on_excess: delay`: how long a request waits at most; one that would have to wait for longer is refused. Default: 10s.
            max_wait: Field<Time>,
            /// For how long a key that was refused stays out. Default: not at all.
            penalty: Field<Time>,
            /// The status of a request that this rule refuses, 400 to 599. Default: limit_req_status.
            status: Field<RefusalStatus>,
            /// What is answered to a request that this rule refuses: a text of variables or `{ file: … }`, JSON or HTML by its first letter; or several of `html`, `json` and `text`, of which the client gets what its `Accept` likes best. Default: a page in the form the client likes.
            body: Field<RuleBody>,
            /// The type of `body`. Default: by its first letter.
            content_type: Field<Text>,
        }
    }

    record! {
        /// One `limit_conn`.
        pub struct ConnRule {
            /// The zone, one of `limit_conn_zones`.
            zone: Required<Text>,
            /// How many requests at once.
            limit: Required<ConnLimit>,
            /// Where requests wait for a place. Default: they are refused at once.
            queue: Field<Queue>,
            /// What becomes of requests without a place: `reject` answers them, `drop` closes the connection without an answer. Default: reject.
            on_excess: Field<OnConnExcess>,
            /// The status of a request that this rule refuses, 400 to 599. Default: limit_conn_status.
            status: Field<RefusalStatus>,
            /// What is answered to a request that this rule refuses: a text of variables or `{ file: … }`, JSON or HTML by its first letter; or several of `html`, `json` and `text`, of which the client gets what its `Accept` likes best. Default: a page in the form the client likes.
            body: Field<RuleBody>,
            /// The type of `body`. Default: by its first letter.
            content_type: Field<Text>,
        }
    }

    record! {
        /// A waiting line before a `limit_conn`, first come first served.
        pub struct Queue {
            /// How many may wait for one key.
            size: Required<QueueSize>,
            /// How long each may wait.
            timeout: Required<Time>,
        }
    }

    /// `limit_headers`: a form alone, or with the responses that carry it.
    #[derive(Debug, Clone)]
    pub enum LimitHeaders {
        /// `ietf`, `legacy` or `off`, on refusals.
        Form(HeaderForm),
        /// In parts.
        Parts(Box<LimitHeadersParts>),
    }

    record! {
        /// Which header fields tell clients of their limits, and on which responses.
        pub struct LimitHeadersParts {
            /// Which fields: `ietf` for RateLimit and RateLimit-Policy, `legacy` for X-RateLimit-*, or `off`. Default: ietf.
            form: Field<HeaderForm>,
            /// Which responses carry them: `refused`, or `all`, which adds those to requests that were let in. Default: refused.
            on: Field<HeaderScope>,
        }
    }

    impl Decode for LimitHeaders {
        fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
            match node.kind {
                NodeKind::Mapping(_) => context
                    .record(node)
                    .map(|parts| Self::Parts(Box::new(parts))),
                NodeKind::Null | NodeKind::Scalar(_) | NodeKind::Sequence(_) | NodeKind::Unset => {
                    HeaderForm::decode(node, context).map(Self::Form)
                }
            }
        }
    }

    impl JsonSchema for LimitHeaders {
        fn schema_name() -> Cow<'static, str> {
            "LimitHeaders".into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let form = generator.subschema_for::<HeaderForm>();
            let parts = generator.subschema_for::<LimitHeadersParts>();
            json_schema!({ "anyOf": [form, parts] })
        }
    }

    /// `on_empty_key`: a word, or `{ refuse: STATUS }`.
    #[derive(Debug, Clone, Copy)]
    pub struct OnEmptyKey(pub limits::OnEmptyKey);

    choice! {
        /// What to do with a request whose key is empty.
        pub struct EmptyKeyWord(limits::OnEmptyKey) = "something to do with an empty key" {
            "skip" => limits::OnEmptyKey::Skip,
            "address" => limits::OnEmptyKey::Address,
            "refuse" => limits::OnEmptyKey::Refuse(None),
        }
    }

    record! {
        /// Refuses requests whose key is empty.
        pub struct RefuseEmptyKey {
            /// The status they are refused with, 400 to 599.
            refuse: Required<RefusalStatus>,
        }
    }

    impl Decode for OnEmptyKey {
        fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
            if let NodeKind::Mapping(_) = node.kind {
                let parts: RefuseEmptyKey = context.record(node)?;
                let status = http::StatusCode::from_u16(parts.refuse.value()?.0).ok();
                return Some(Self(limits::OnEmptyKey::Refuse(status)));
            }
            EmptyKeyWord::decode(node, context).map(|word| Self(word.0))
        }
    }

    impl JsonSchema for OnEmptyKey {
        fn schema_name() -> Cow<'static, str> {
            "OnEmptyKey".into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let word = generator.subschema_for::<EmptyKeyWord>();
            let parts = generator.subschema_for::<RefuseEmptyKey>();
            json_schema!({ "anyOf": [word, parts] })
        }
    }
}

/// A `limit_req` zone.
#[derive(Debug, Clone)]
pub struct ReqZone {
    /// Its name.
    pub name: Box<str>,
    /// What requests are told apart by.
    pub key: Template,
    /// The bound of its memory, in bytes.
    pub size: usize,
    /// How it counts, and with which numbers.
    pub algorithm: AlgorithmParams,
    /// Whether refused requests are charged, too.
    pub count_refused: bool,
    /// Where it counts together with others; `None` for this process alone.
    pub store: Option<usize>,
    /// What to do with a request without a key.
    pub on_empty_key: OnEmptyKey,
    /// What to do with a request that gives a part of its key more than once.
    pub on_ambiguous_key: OnAmbiguousKey,
    /// How much of an IPv6 address tells clients apart, in bits; 128 for all of it.
    pub ipv6_prefix: u8,
    /// Keys with numbers of their own.
    pub overrides: Vec<Override>,
}

/// A `limit_conn` zone.
#[derive(Debug, Clone)]
pub struct ConnZone {
    /// Its name.
    pub name: Box<str>,
    /// What requests are told apart by.
    pub key: Template,
    /// The bound of its memory, in bytes.
    pub size: usize,
    /// Where its places are counted together with others; `None` for this process alone.
    pub store: Option<usize>,
    /// What to do with a request without a key.
    pub on_empty_key: OnEmptyKey,
    /// What to do with a request that gives a part of its key more than once.
    pub on_ambiguous_key: OnAmbiguousKey,
    /// How much of an IPv6 address tells clients apart, in bits; 128 for all of it.
    pub ipv6_prefix: u8,
}

/// What to do with a request that gives a part of its key more than once, with different values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnAmbiguousKey {
    /// Take what nginx takes: all lines of a header field, the first of several cookies or arguments.
    Join,
    /// Refuse it with 400.
    #[default]
    Refuse,
}

/// What to do with a request whose key is empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnEmptyKey {
    /// Count it under the client's address.
    Address,
    /// Turn it away, with this status in place of the rule's.
    Refuse(Option<StatusCode>),
    /// Do not limit it, as nginx does.
    #[default]
    Skip,
}

/// Numbers of its own for one key or for the clients of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    /// Whom it is for.
    pub key: OverrideKey,
    /// What holds for them; `None` for unlimited.
    pub own: Option<OverrideLimits>,
}

/// What holds for a key with numbers of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverrideLimits {
    /// Instead of the zone's; of the same kind.
    pub algorithm: AlgorithmParams,
    /// Instead of the rule's.
    pub burst: Option<Excess>,
}

/// Whom an [`Override`] is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverrideKey {
    /// Clients in this network.
    Network(IpNet),
    /// A key with exactly this text.
    Text(Box<str>),
}

/// One `limit_req` of a location.
#[derive(Debug, Clone)]
pub struct ReqRule {
    /// Index of its zone.
    pub zone: usize,
    /// How far a key may go above its rate.
    pub burst: Excess,
    /// Which of the excess waits.
    pub delay: Delay,
    /// What a request weighs.
    pub weight: CostSource,
    /// What becomes of the rest.
    pub action: RefusalAction,
}

/// One `limit_conn` of a location.
#[derive(Debug, Clone)]
pub struct ConnRule {
    /// Index of its zone.
    pub zone: usize,
    /// How many requests at once.
    pub limit: u32,
    /// Where requests wait for a place; `None`: they are refused at once.
    pub queue: Option<ConnQueue>,
    /// What becomes of requests without a place.
    pub action: RefusalAction,
}

/// A waiting line before a `limit_conn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnQueue {
    /// How many may wait for one key.
    pub size: u32,
    /// How long each may wait.
    pub timeout: Duration,
}

/// At which level a refusal is logged; a delay goes one lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// The default.
    Error,
    /// Least severe.
    Info,
    /// Between the two below.
    Notice,
    /// One below error.
    Warn,
}

/// Which header fields tell clients of their limits besides `Retry-After`, and on which responses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitHeaders {
    /// Which fields.
    pub form: HeaderForm,
    /// On which responses.
    pub on: HeaderScope,
}

/// Which responses carry the fields of `limit_headers`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HeaderScope {
    /// Those to requests that were let in, too.
    All,
    /// Refusals.
    #[default]
    Refused,
}

/// How clients are told of their limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HeaderForm {
    /// `RateLimit-Policy` and `RateLimit`.
    #[default]
    Ietf,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
    Legacy,
    /// None.
    Off,
}

/// nginx's least size of a zone: eight pages.
const LEAST_SIZE: u64 = 32 << 10;

/// The size of a zone that gives none: room for a hundred thousand addresses.
const DEFAULT_SIZE: u64 = 10 << 20;

/// Which kind of zone a rule looks for.
#[derive(Clone, Copy)]
enum RuleKind {
    Conn,
    Req,
}

impl Compiler<'_> {
    /// `limit_req_zones`
    pub(in crate::config) fn req_zones(&mut self, maps: &[Map]) -> Vec<ReqZone> {
        let entries = entries(&self.config.limit_req_zones);
        let sound = self.report.errors() == 0;
        entries
            .iter()
            .map(|(name, zone)| {
                let algorithm = self.algorithm(zone);
                self.algorithms.push(algorithm);
                let zone = &zone.value;
                let size = self.zone_size(zone.size.get());
                self.room_for_a_key(zone.limit.key(), algorithm, size);
                self.warn_of_no_leases(zone, &algorithm);
                let errors = self.report.errors();
                let key = self.zone_key(zone.key.get());
                // Where something was not understood, what its keys may be is unknown.
                let keys = (sound && self.report.errors() == errors).then_some(KeyVariables {
                    template: &key,
                    maps,
                });
                ReqZone {
                    name: name.value.as_str().into(),
                    overrides: self.overrides(&zone.overrides, algorithm, keys),
                    key,
                    size,
                    algorithm,
                    count_refused: zone.count_refused.value().is_some_and(|flag| flag.0),
                    store: self.req_zone_store(zone.store.get(), &algorithm),
                    on_empty_key: zone
                        .on_empty_key
                        .value()
                        .map(|word| word.0)
                        .unwrap_or_default(),
                    on_ambiguous_key: zone
                        .on_ambiguous_key
                        .value()
                        .map(|word| word.0)
                        .unwrap_or_default(),
                    ipv6_prefix: zone.ipv6_prefix.value().map_or(128, |bits| bits.0),
                }
            })
            .collect()
    }

    /// `limit_conn_zones`
    pub(in crate::config) fn conn_zones(&mut self) -> Vec<ConnZone> {
        let entries = entries(&self.config.limit_conn_zones);
        entries
            .iter()
            .map(|(name, zone)| {
                let zone = &zone.value;
                if let Resolved::At(_) = self.req_zones.find(&name.value) {
                    let sentence = format!("a limit_req zone is called `{}`, too", name.value);
                    self.complain_with(
                        name.span,
                        sentence,
                        "names of zones are given once, whatever their kind",
                    );
                }
                ConnZone {
                    name: name.value.as_str().into(),
                    key: self.zone_key(zone.key.get()),
                    size: self.zone_size(zone.size.get()),
                    store: self.zone_store(zone.store.get()),
                    on_empty_key: zone
                        .on_empty_key
                        .value()
                        .map(|word| word.0)
                        .unwrap_or_default(),
                    on_ambiguous_key: zone
                        .on_ambiguous_key
                        .value()
                        .map(|word| word.0)
                        .unwrap_or_default(),
                    ipv6_prefix: zone.ipv6_prefix.value().map_or(128, |bits| bits.0),
                }
            })
            .collect()
    }

    fn zone_key(&mut self, key: Option<&Spanned<Text>>) -> Template {
        let Some(key) = key else {
            return Template::default();
        };
        if key.value.text.is_empty() {
            let sentence = "an empty key limits nobody";
            self.complain_with(
                key.span,
                sentence,
                "expected a text of variables, such as `$binary_remote_addr`",
            );
        }
        let template = self.template(key, TemplatePhase::Before);
        if template.as_literal().is_some_and(|text| !text.is_empty())
            && !key.value.text.contains('$')
        {
            let sentence = format!(
                "the key `{}` has no variable: all requests share one bucket",
                key.value.text
            );
            let hint = match report::near(&key.value.text, template::variable_names()) {
                Some(meant) => format!("did you mean `${meant}`?"),
                None => "if that is meant, all is well".to_owned(),
            };
            self.warn(key.span, sentence, hint);
        }
        template
    }

    fn zone_size(&mut self, size: Option<&Spanned<value::Size>>) -> usize {
        let bytes = size.map_or(DEFAULT_SIZE, |size| size.value.0);
        if let Some(size) = size.filter(|_| bytes < LEAST_SIZE) {
            self.complain_with(
                size.span,
                "a zone of this size is too small",
                "the least is 32k",
            );
        }
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// A `limit_req` list.
    pub(in crate::config) fn req_rules(
        &mut self,
        given: Option<&Spanned<OrOff<List<raw::ReqRule>>>>,
    ) -> Vec<ReqRule> {
        let mut seen = Vec::new();
        let rules = rules(given);
        rules
            .iter()
            .filter_map(|rule| {
                let rule = &rule.value;
                let zone = self.zone(rule.zone.get()?, RuleKind::Req, &mut seen)?;
                // A zone that was not understood has no algorithm of its own.
                let algorithm = self.algorithms.get(zone).copied();
                let algorithm = algorithm.unwrap_or(AlgorithmParams::LeakyBucket {
                    rate: Rate::per_second(1000),
                });
                let (burst, delay) = self.burst_and_delay(rule, algorithm);
                Some(ReqRule {
                    zone,
                    burst,
                    delay,
                    weight: self.weight(rule.cost.get()),
                    action: self.req_sanction(rule, algorithm),
                })
            })
            .collect()
    }

    /// A `limit_conn` list.
    pub(in crate::config) fn conn_rules(
        &mut self,
        given: Option<&Spanned<OrOff<List<raw::ConnRule>>>>,
    ) -> Vec<ConnRule> {
        let mut seen = Vec::new();
        let rules = rules(given);
        rules
            .iter()
            .filter_map(|rule| {
                let rule = &rule.value;
                let zone = self.zone(rule.zone.get()?, RuleKind::Conn, &mut seen)?;
                let queue = rule.queue.value().and_then(|queue| {
                    let timeout = queue.timeout.get()?;
                    Some(ConnQueue {
                        size: queue.size.value()?.0,
                        timeout: self.some_time(Some(timeout), 1),
                    })
                });
                Some(ConnRule {
                    zone,
                    limit: rule.limit.value()?.0,
                    queue,
                    action: self.conn_sanction(rule),
                })
            })
            .collect()
    }

    /// The zone a rule names, which no other rule of its list may name.
    fn zone(
        &mut self,
        name: &Spanned<Text>,
        kind: RuleKind,
        seen: &mut Vec<usize>,
    ) -> Option<usize> {
        let (own, other, this_kind, other_kind) = match kind {
            RuleKind::Req => (&self.req_zones, &self.conn_zones, "limit_req", "limit_conn"),
            RuleKind::Conn => (&self.conn_zones, &self.req_zones, "limit_conn", "limit_req"),
        };
        let text = name.value.text.as_str();
        match own.find(text) {
            Resolved::At(index) if seen.contains(&index) => {
                let sentence = format!("the zone `{text}` stands twice in this list");
                self.complain(name.span, sentence);
                None
            }
            Resolved::At(index) => {
                seen.push(index);
                Some(index)
            }
            Resolved::Broken => None,
            Resolved::Nowhere => {
                let complaint = unknown_zone(name.span, text, own, other, this_kind, other_kind);
                self.report.add(complaint);
                None
            }
        }
    }
}

fn unknown_zone(
    span: Span,
    name: &str,
    own: &NameTable,
    other: &NameTable,
    kind: &str,
    other_kind: &str,
) -> Diagnostic {
    if let Resolved::At(_) = other.find(name) {
        return Diagnostic::new(span, format!("`{name}` is a {other_kind} zone"))
            .help(format!("`{kind}` needs one of `{kind}_zones`"));
    }
    let hint = report::hint(name, own.all()).or_else(|| {
        own.known
            .is_empty()
            .then(|| format!("there are no `{kind}_zones`"))
    });
    Diagnostic::new(span, format!("unknown zone `{name}`")).hint(hint)
}

pub(in crate::config) fn entries<T>(
    named: &Field<NamedMap<T>>,
) -> &[(Spanned<String>, Spanned<T>)] {
    named.value().map_or(&[], |named| &named.entries)
}

fn rules<T>(given: Option<&Spanned<OrOff<List<T>>>>) -> &[Spanned<T>] {
    match given.map(|given| &given.value) {
        Some(OrOff::On(list)) => &list.0,
        Some(OrOff::Off) | None => &[],
    }
}
