//! Zones, the rules that use them, and what clients are told of both.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::algorithm::{AlgorithmWord, LimitOrUnlimited, WindowLimit};
use super::empty_key::OnEmptyKey;
use super::sanction::{OnConnExcess, OnExcess, RuleBody};
use super::values::{
    Burst, ConnLimit, Flag, HeaderForm, HeaderScope, Ipv6Prefix, OnAmbiguousKey, QueueSize, Rate,
    RateOrUnlimited, RefusalStatus, Size, Time,
};
use crate::config::decode::{Decode, DecodeContext, Field, NamedMap, Required, Text, record};
use crate::config::tree::{Node, NodeKind};

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
