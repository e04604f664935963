//! The JSON types of the admin API, each declared once, for the server (`admin`), the CLI and the OpenAPI document.
//!
//! A word in a response, such as a verdict or a state, is a [`Word`] and not an enum: a CLI that meets a newer server ignores
//! unknown fields and shows unknown words. A word in a request is an enum: the server rejects unknown ones.

/// Declares an enum of the words that a request may use.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$doc:meta])* $variant:ident = $word:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[schemars(inline)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The word.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }
    };
}

mod process;
mod schema;
mod upstreams;
mod zones;

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::process::{
    ConnectionCounts, FleetMember, LoopLag, ReloadFailure, ReloadReport, RequestCounts, Status,
    Store, ZoneLease,
};
pub use self::schema::Schemas;
pub use self::upstreams::{
    Backend, BackendChange, BackendState, BreakerChange, BreakerForce, DegradeChange, DegradeGroup,
    DegradeMode, LatencyBucket, LocationBreaker, Upstream,
};
pub use self::zones::{
    ExplainRequest, Explanation, HeaderLines, KeyAction, KeyActionRequest, KeyActions, KeyReset,
    KeySort, KeyState, KeyStatus, NumberOrText, Refusal, Refusals, RuleExplanation, ShadowCounts,
    SkippedRefusals, TopKey, VerdictCounts, VerdictRates, Zone, ZoneChange, ZoneDetail,
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
