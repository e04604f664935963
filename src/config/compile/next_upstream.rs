//! `proxy_next_upstream` and what belongs to it.

use std::time::Duration;

use http::StatusCode;

use super::sites::SettingLevels;
use crate::config::plan::{MaxTries, NextUpstream};

/// When the next server may be tried.
pub(super) fn compile(levels: SettingLevels<'_>) -> NextUpstream {
    let default = ["error".to_owned(), "timeout".to_owned()];
    let words = levels
        .find(|settings| &settings.proxy_next_upstream)
        .map_or(&default[..], |given| &given.value.0);
    let has = |word: &str| words.iter().any(|given| given == word);
    NextUpstream {
        error: has("error"),
        timeout: has("timeout"),
        invalid_header: has("invalid_header"),
        non_idempotent: has("non_idempotent"),
        statuses: words
            .iter()
            .filter_map(|word| StatusCode::from_bytes(word.strip_prefix("http_")?.as_bytes()).ok())
            .collect(),
        tries: match levels
            .find(|s| &s.proxy_next_upstream_tries)
            .map(|tries| tries.value.0)
        {
            None | Some(0) => MaxTries::Each,
            Some(most) => MaxTries::Most(most),
        },
        within: levels
            .find(|s| &s.proxy_next_upstream_timeout)
            .map(|time| time.value.0)
            .filter(|time| *time > Duration::ZERO),
    }
}
