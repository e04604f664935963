//! Zones, their keys, refusals, and the explanation of a request.

use std::collections::BTreeMap;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Word;

/// How often each verdict was given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct VerdictCounts {
    /// Requests let pass.
    pub pass: u64,
    /// Requests delayed.
    pub delay: u64,
    /// Requests refused.
    pub refuse: u64,
}

impl VerdictCounts {
    /// All requests.
    #[must_use]
    pub fn total(self) -> u64 {
        self.pass + self.delay + self.refuse
    }
}

/// How often each verdict was given, a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct VerdictRates {
    /// Requests let pass.
    pub pass: f64,
    /// Requests delayed.
    pub delay: f64,
    /// Requests refused.
    pub refuse: f64,
}

impl VerdictRates {
    /// All requests.
    #[must_use]
    pub fn total(self) -> f64 {
        self.pass + self.delay + self.refuse
    }
}

/// A zone: one of `GET /api/zones`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Zone {
    /// The zone's name.
    pub name: String,
    /// Whether it limits requests or connections.
    #[schemars(extend("enum" = ["limit_req", "limit_conn"]))]
    pub kind: Word,
    /// How it counts; null for limit_conn.
    pub algorithm: Option<Word>,
    /// What a key is held to now, as `10r/s` or `100r/1m`; null for limit_conn.
    pub rate: Option<String>,
    /// How many requests at once the rules of a limit_conn zone give a key, in order; empty for limit_req.
    pub limits: Vec<u32>,
    /// Keys it holds.
    pub keys: u64,
    /// Keys it can hold.
    pub capacity: u64,
    /// Its verdicts.
    #[serde(flatten)]
    pub verdicts: VerdictCounts,
    /// Keys pushed out before they had drained, or refused for want of room.
    pub evictions: u64,
    /// Penalties that were not given because there was no room for them; only where rules of the zone give some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub penalties_dropped: Option<u64>,
    /// The store it shares with other gateways.
    pub store: Option<String>,
    /// What was changed while it runs, until the next reload.
    pub r#override: Option<ZoneOverride>,
    /// Keys that are blocked, exempt or granted extra.
    pub marks: u64,
    /// What proposed limits say in this zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowCounts>,
}

/// What the proposed limits (`shadow`) of a zone say.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Shadow")]
pub struct ShadowCounts {
    /// Keys it holds.
    pub keys: u64,
    /// Their verdicts.
    #[serde(flatten)]
    pub verdicts: VerdictCounts,
    /// How many of those it would refuse the enforced limits let pass.
    pub refuses_passed: u64,
    /// How many of those it would let pass the enforced limits refused.
    pub passes_refused: u64,
}

/// What was changed of a zone while it runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Override")]
pub struct ZoneOverride {
    /// The burst of every rule that uses the zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u64>")]
    pub burst: Option<Value>,
    /// Requests in a window, or places of a limit_conn; or `unlimited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("type" = ["integer", "string"]))]
    pub limit: Option<Value>,
    /// Instead of the file's: `20r/s`, or `unlimited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub rate: Option<Value>,
}

impl ZoneOverride {
    /// Those of `numbers` that a zone has.
    #[must_use]
    pub fn of(numbers: &Map<String, Value>) -> Self {
        let number = |name| numbers.get(name).cloned();
        Self {
            burst: number("burst"),
            limit: number("limit"),
            rate: number("rate"),
        }
    }
}

/// A zone with its rules and marked keys: `GET /api/zones/{zone}`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ZoneDetail {
    /// The zone.
    #[serde(flatten)]
    pub zone: Zone,
    /// What tells requests apart.
    pub key: String,
    /// The rate in the file.
    pub configured: Option<String>,
    /// The rules that use it.
    pub rules: Vec<ZoneRule>,
    /// Its marked keys.
    pub marked: Vec<KeyAction>,
}

/// A rule that uses a zone.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ZoneRule {
    /// The server's first name, or nothing.
    pub server: String,
    /// The location as it is written; nothing for the server itself.
    pub location: String,
    /// Of a limit_req.
    pub burst: Option<f64>,
    /// Of a limit_conn.
    pub limit: Option<u64>,
    /// Whether it is only counted, and not enforced.
    pub dry_run: bool,
}

/// The body of `PATCH /api/zones/{zone}`. The server reads it with the words and bounds of the configuration.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZoneChange {
    /// `20r/s` or `unlimited`; null for the file's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("type" = ["string", "number", "null"], "x-null" = true))]
    pub rate: Option<String>,
    /// For every rule that uses the zone; null for the file's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-null" = true))]
    pub burst: Option<u64>,
    /// Of a zone that counts in windows, or of a limit_conn zone; null for the file's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("type" = ["integer", "string", "null"], "x-null" = true))]
    pub limit: Option<NumberOrText>,
}

/// A number; or a text, such as `unlimited` for a limit or `10m` for a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NumberOrText {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
}

/// What an operator has put on a key.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Mark")]
pub struct KeyAction {
    /// The key.
    pub key: String,
    /// What holds for it.
    #[schemars(extend("enum" = ["block", "exempt", "grant"]))]
    pub mark: Word,
    /// For how much longer.
    pub seconds: f64,
    /// What is left of a grant.
    pub requests: Option<u64>,
    /// The operator's reason.
    pub reason: Option<String>,
}

/// Everything an operator has put on one key: the response to `PUT` and `DELETE` of a mark.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Marked")]
pub struct KeyActions {
    /// The key.
    pub key: String,
    /// What holds for it.
    pub marks: Vec<KeyAction>,
}

/// The body of `PUT /api/zones/{zone}/keys/{key}/{mark}`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "MarkRequest")]
pub struct KeyActionRequest {
    /// For how long, as `10m`; seconds without a unit. Default: 1h; the most is 365d.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("type" = ["string", "integer"]))]
    pub r#for: Option<NumberOrText>,
    /// Shown to operators who ask why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 200))]
    pub reason: Option<String>,
    /// For a grant: how many extra.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub requests: Option<u64>,
}

words! {
    /// What busy keys are sorted by; the first has the most.
    pub enum KeySort {
        /// Requests refused a second, of late; among equals requests delayed, then all.
        Now = "now",
        /// Requests refused.
        Refuse = "refuse",
        /// Requests let pass.
        Pass = "pass",
        /// Requests delayed.
        Delay = "delay",
        /// How far a key is above its rate.
        Excess = "excess",
        /// All requests together.
        Demand = "demand",
    }
}

/// A busy key: one of `GET /api/zones/{zone}/keys`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BusyKey")]
pub struct TopKey {
    /// As people read it; percent-encoded it is the key's name in a path.
    pub key: String,
    /// Its verdicts.
    #[serde(flatten)]
    pub verdicts: VerdictCounts,
    /// Its verdicts a second, in the mean of the last three to six seconds.
    pub per_second: VerdictRates,
    /// Requests above the rate now; of a limit_conn the places taken now.
    pub excess: f64,
    /// How many more there may have been before this key came into the list.
    pub missed: u64,
    /// What holds for it besides the zone's limits.
    #[schemars(extend("enum" = ["block", "exempt", "grant", "penalty", null]))]
    pub mark: Option<Word>,
}

/// The state of one key: `GET /api/zones/{zone}/keys/{key}`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct KeyState {
    /// The key.
    pub key: String,
    /// Whether the zone remembers it; if not, it has all it may have.
    pub known: bool,
    /// Whether it is among those that are counted one by one; if not, the counts are 0.
    pub listed: bool,
    /// Its verdicts.
    #[serde(flatten)]
    pub verdicts: VerdictCounts,
    /// Its verdicts a second, in the mean of the last three to six seconds.
    pub per_second: VerdictRates,
    /// How many more there may have been before this key came into the list.
    pub missed: u64,
    /// Requests above the rate now; of a limit_conn the places taken now.
    pub excess: f64,
    /// What it may still have.
    #[serde(rename = "standing")]
    pub key_status: KeyStatus,
    /// Its own rate, where the file gives it one; `unlimited` for none.
    pub own: Option<String>,
    /// Seconds it still has to stay out.
    pub penalty: Option<f64>,
    /// What operators have put on it.
    pub marks: Vec<KeyAction>,
    /// Whether other gateways count it, too; this is then how this one last saw it.
    pub shared: bool,
}

/// What a key may still have, in whole requests, thousandths of requests and seconds.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Standing")]
pub struct KeyStatus {
    /// What a key may have at one moment, in whole requests or places.
    pub limit: u64,
    /// What is left of that.
    pub remaining: u64,
    /// Requests above the rate.
    pub excess: f64,
    /// Seconds until one more would be let in.
    pub retry_after: f64,
    /// Seconds until all of the limit is there again.
    pub reset_after: f64,
}

/// The response to `DELETE /api/zones/{zone}/keys/{key}`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Forgotten")]
pub struct KeyReset {
    /// The key.
    pub key: String,
    /// Whether there was something to forget.
    pub forgotten: bool,
}

/// The request that `POST /api/explain` is about.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// Default: GET.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Default: none, which is the default server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// With its query. Default: /.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Default: 127.0.0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub remote_addr: Option<IpAddr>,
    /// Its header fields.
    #[serde(default)]
    pub headers: BTreeMap<String, HeaderLines>,
    /// Which listener, where there are several, as in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
}

/// The lines of a header field: one, or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum HeaderLines {
    /// One line.
    One(String),
    /// Several lines.
    Several(Vec<String>),
}

/// What would happen to a request: the response to `POST /api/explain`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Explained")]
pub struct Explanation {
    /// The server's first name, or nothing.
    pub server: String,
    /// The listener.
    pub listen: String,
    /// As it is written; nothing where none matches.
    pub location: String,
    /// The address that counts as the client's, after real_ip.
    pub client: String,
    /// Where the response would come from, such as `forward to app`.
    pub action: String,
    /// What all limits together say.
    #[schemars(extend("enum" = ["pass", "delay", "refuse"]))]
    pub verdict: Word,
    /// The status of a refusal.
    pub status: Option<u16>,
    /// Seconds it would have to wait.
    pub wait: f64,
    /// Seconds until it would be let in, where it is refused and that is known.
    pub retry_after: Option<f64>,
    /// Why, in a sentence.
    pub reason: String,
    /// Every rule that applies.
    pub rules: Vec<RuleExplanation>,
    /// What else would keep it from its backend: access, breakers, degraded groups.
    pub obstacles: Vec<String>,
}

/// What one rule says to a request.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ExplainedRule")]
pub struct RuleExplanation {
    /// Whether it limits requests or connections.
    #[schemars(extend("enum" = ["limit_req", "limit_conn"]))]
    pub kind: Word,
    /// Its zone.
    pub zone: String,
    /// null where the request has none, and is not limited by this rule.
    pub key: Option<String>,
    /// The entry of `overrides` that applies.
    pub r#override: Option<String>,
    /// What a key is held to; null for limit_conn.
    pub rate: Option<String>,
    /// Of a limit_req.
    pub burst: Option<f64>,
    /// Of a limit_conn.
    pub limit: Option<u64>,
    /// Whether it is only counted, and not enforced.
    pub dry_run: bool,
    /// The key's state before this request.
    pub state: Option<KeyStatus>,
    /// What it says.
    #[schemars(extend("enum" = ["pass", "delay", "refuse"]))]
    pub verdict: Word,
    /// Seconds it would have to wait.
    pub wait: f64,
    /// Seconds until it would be let in, where it is refused and that is known.
    pub retry_after: Option<f64>,
    /// Why, in a sentence.
    pub reason: String,
}

/// The last refusals: `GET /api/refusals`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Refusals {
    /// Oldest first.
    pub refusals: Vec<Refusal>,
    /// Refusals since the start that were counted and not recorded.
    pub skipped: u64,
}

/// The `skipped` event of `GET /api/refusals/stream`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct SkippedRefusals {
    /// Refusals since the last event that were counted and not recorded.
    pub skipped: u64,
}

/// A refusal and its reason.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// One more than that of the refusal before it.
    pub id: u64,
    /// Milliseconds since the Unix epoch.
    pub time: u64,
    /// Whether requests or connections were limited.
    #[schemars(extend("enum" = ["limit_req", "limit_conn"]))]
    pub kind: Word,
    /// The zone that refused it.
    pub zone: String,
    /// null where the request had none.
    pub key: Option<String>,
    /// Why, in a word.
    #[schemars(extend("enum" = ["rate", "connections", "penalty", "block", "no_key", "ambiguous_key"]))]
    pub reason: Word,
    /// The reason in a sentence.
    pub detail: String,
    /// Requests above the rate, with this one.
    pub excess: Option<f64>,
    /// Seconds.
    pub retry_after: Option<f64>,
    /// The status of the response.
    pub status: u16,
    /// Whether it was only counted, and let pass.
    pub dry_run: bool,
    /// The client's address.
    pub client: String,
    /// The server's first name, or nothing.
    pub server: String,
    /// The request's method.
    pub method: String,
    /// The host it names.
    pub host: String,
    /// Its path.
    pub path: String,
}
