//! How a zone counts, as the user writes it.

use crate::config::decode::{choice, number, scalar};
use crate::config::near;
use crate::config::units;

/// The words for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// `bursty`
    Bursty,
    /// `fixed_window`
    FixedWindow,
    /// `gcra`
    Gcra,
    /// `leaky_bucket`
    LeakyBucket,
    /// `paced`
    Paced,
    /// `sliding_log`
    SlidingLog,
    /// `sliding_window`
    SlidingWindow,
    /// `token_bucket`
    TokenBucket,
    /// `warm_up`
    WarmUp,
}

choice! {
    /// How a zone counts.
    pub struct AlgorithmWord(Counting) = "an algorithm" {
        "leaky_bucket" => Counting::LeakyBucket,
        "token_bucket" => Counting::TokenBucket,
        "gcra" => Counting::Gcra,
        "fixed_window" => Counting::FixedWindow,
        "sliding_window" => Counting::SlidingWindow,
        "sliding_log" => Counting::SlidingLog,
        "paced" => Counting::Paced,
        "warm_up" => Counting::WarmUp,
        "bursty" => Counting::Bursty,
    }
}

number! {
    /// How many requests in a window.
    pub struct WindowLimit(u32) = "a number of requests", 1..=100_000_000
}

scalar! {
    /// How many requests in a window, or as many as they like.
    pub struct LimitOrUnlimited(Option<u32>);
    "a number of requests, or `unlimited`",
    |text| match text {
        "unlimited" => Ok(None),
        _ => units::whole(text, "a number of requests", 1, 100_000_000)
            .map(|number| u32::try_from(number).ok())
            .map_err(|mistake| match near::hint(text, ["unlimited"]) {
                Some(hint) => mistake.help(hint),
                None => mistake,
            }),
    },
    {
        "description": "A number of requests, or unlimited.",
        "anyOf": [
            { "type": "integer", "minimum": 1, "maximum": 100_000_000 },
            { "const": "unlimited" },
        ],
    }
}
