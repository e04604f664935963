//! `fallback` and `degrade_groups`: what is answered when the answer proper is not to be had.

use super::server::Return;
use super::values::Time;
use crate::config::decode::{Field, List, Text, record, scalar};
use crate::config::near;
use crate::config::plan;
use crate::config::units::Mistake;

record! {
    /// What is answered when the answer proper is not to be had; of several ways the first that leads somewhere is gone.
    pub struct Fallback {
        /// When: open, no_server, timeout, error, limited, or statuses of 400 to 599. Default: open, no_server, timeout, error, 500, 502, 503, 504.
        on: Field<List<Text>>,
        /// First: another upstream, written as for a location. Only for what may be sent again.
        proxy_pass: Field<Text>,
        /// Second: the last good answer, no older than this; only of what HTTP allows to be kept.
        stale: Field<Time>,
        /// Third: always the same answer.
        r#return: Field<Return>,
    }
    instead fixed;
}

/// What reads like a `return` is meant as one.
fn fixed(text: &str) -> Option<String> {
    let answers = text.starts_with(|first: char| first.is_ascii_digit());
    answers.then(|| format!("write `{{ return: \"{text}\" }}`"))
}

scalar! {
    /// Whether a group is degraded.
    pub struct DegradeWord(plan::Degrade);
    "`auto`, `on` or `off`",
    // Both are also flags of YAML's older dialect.
    |text| match text {
        "auto" => Ok(plan::Degrade::Auto),
        "on" | "true" | "yes" => Ok(plan::Degrade::On),
        "off" | "false" | "no" => Ok(plan::Degrade::Off),
        _ => {
            let words = ["auto", "on", "off"];
            let hint = near::hint(text, words).unwrap_or_else(|| "expected `auto`, `on` or `off`".to_owned());
            Err(Mistake::new(format!("`{text}` is no way to degrade")).help(hint))
        }
    },
    { "enum": ["auto", "on", "off", true, false] }
}
