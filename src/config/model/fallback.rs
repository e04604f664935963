//! `fallback` and `degrade_groups`: what is answered when the answer proper is not to be had.

use super::server::Return;
use super::values::{Flag, Time};
use crate::config::decode::{Field, HasShorthand, List, Shorthand, Text, record, scalar};
use crate::config::near;
use crate::config::plan;
use crate::config::units::ParseError;

record! {
    /// What is answered when the answer proper is not to be had; of several ways the first that leads somewhere is gone.
    pub struct Fallback {
        /// When: open, no_server, timeout, error, limited, or statuses of 400 to 599. Default: open, no_server, timeout, error, 500, 502, 503, 504.
        on: Field<List<Text>>,
        /// First: another upstream, written as for a location. Only for what may be sent again.
        proxy_pass: Field<Text>,
        /// Second: the last good response, no older than this time, of those that HTTP allows a shared cache to keep; or a mapping.
        stale: Field<Shorthand<Stale>>,
        /// Third: always the same answer.
        r#return: Field<Return>,
    }
    instead fixed;
}

record! {
    /// Which last good responses are given again.
    pub struct Stale {
        /// Those no older than this. Default: 10m.
        max_age: Field<Time>,
        /// What tells requests apart besides virtual server, scheme, host and target: a text with variables.
        key: Field<Text>,
        /// Responses to requests with credentials are kept, too, each for requests with the same `key`. Default: false.
        private: Field<Flag>,
    }
}

impl HasShorthand for Stale {
    const KEY: &'static str = "max_age";
}

/// What reads like a `return` is meant as one.
fn fixed(text: &str) -> Option<String> {
    let answers = text.starts_with(|first: char| first.is_ascii_digit());
    answers.then(|| format!("write `{{ return: \"{text}\" }}`"))
}

scalar! {
    /// Whether a group is degraded.
    pub struct DegradeMode(plan::DegradeMode);
    "`auto`, `on` or `off`",
    // Both are also flags of YAML's older dialect.
    |text| match text {
        "auto" => Ok(plan::DegradeMode::Auto),
        "on" | "true" | "yes" => Ok(plan::DegradeMode::On),
        "off" | "false" | "no" => Ok(plan::DegradeMode::Off),
        _ => {
            let words = ["auto", "on", "off"];
            let hint = near::hint(text, words).unwrap_or_else(|| "expected `auto`, `on` or `off`".to_owned());
            Err(ParseError::new(format!("`{text}` is no way to degrade")).help(hint))
        }
    },
    { "enum": ["auto", "on", "off", true, false] }
}
