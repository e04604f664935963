//! The JSON types of the admin API, each declared once: the server (`admin`) writes the responses and reads the requests, the
//! CLI reads the responses and writes the requests, and `openapi` describes both.
//!
//! A response word such as a verdict or a state is a [`Word`] and not an enum: a CLI that meets a newer server passes over
//! fields and shows words that it does not know. What a request may say is an enum: a server refuses what it does not know.

mod openapi;
mod process;
mod upstreams;
mod zones;

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::openapi::document;
pub use self::process::{
    ConnectionCounts, FleetMember, LoopLag, ReloadFailure, ReloadReport, RequestCounts, Status,
    Store, ZoneLease,
};
pub use self::upstreams::{
    Backend, BackendChange, BackendState, BreakerChange, BreakerForce, DegradeChange, DegradeGroup,
    DegradeMode, LatencyBucket, LocationBreaker, Upstream,
};
pub use self::zones::{
    ExplainRequest, Explanation, HeaderLines, KeyAction, KeyActionRequest, KeyActions, KeyReset,
    KeySort, KeyState, KeyStatus, NumberOrText, Refusal, Refusals, RuleExplanation, ShadowCounts,
    SkippedRefusals, TimeOrText, TopKey, VerdictCounts, VerdictRates, Zone, ZoneChange, ZoneDetail,
    ZoneOverride, ZoneRule,
};

/// A word of a closed list; the list is in the schema.
pub type Word = Cow<'static, str>;

/// The body of a response that reports an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Error")]
pub struct ErrorBody {
    /// What is wrong, in a sentence.
    pub error: String,
}
