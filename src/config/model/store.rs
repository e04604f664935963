//! `stores`: where zones count that several gateways share.

use super::credential::StoreUrl;
use super::values::{Flag, Time};
use crate::config::Secret;
use crate::config::decode::{Field, List, OrOff, Required, Text, choice, number, record};
use crate::config::plan;

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
    pub struct OnOutage(plan::OnOutage) = "something to do without a store" {
        "local" => plan::OnOutage::Local,
        "allow" => plan::OnOutage::Allow,
        "refuse" => plan::OnOutage::Refuse,
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
    pub struct StoreMode(plan::StoreMode) = "a way to ask a store" {
        "exact" => plan::StoreMode::Exact,
        "leased" => plan::StoreMode::Leased,
    }
}
