//! What is answered when the answer proper is not to be had.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::{ProxyPass, Return, Template};

/// `fallback`: the ways are gone in this order, as far as they are given.
#[derive(Debug, Clone)]
pub struct Fallback {
    /// `on`: when.
    pub on: FallbackTriggers,
    /// `proxy_pass`: somebody else is asked.
    pub forward: Option<Arc<ProxyPass>>,
    /// `stale`: the last good answer.
    pub stale: Option<Stale>,
    /// `return`: always the same.
    pub answer: Option<Return>,
}

/// Which last good answers are given again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale {
    /// Those no older than this.
    pub max_age: Duration,
    /// What tells requests apart besides server, scheme, host and target.
    pub key: Option<Template>,
    /// Whether answers for one client are kept, too, for that client.
    pub private: bool,
}

/// When a fallback is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FallbackTriggers {
    /// `error`: no connection, or it broke, or what came was no answer.
    pub error: bool,
    /// `limited`: a limit refused.
    pub limited: bool,
    /// `no_server`: no server could be asked.
    pub no_server: bool,
    /// `open`: a breaker is.
    pub open: bool,
    /// `timeout`
    pub timeout: bool,
    /// These answers.
    pub statuses: Vec<StatusCode>,
}

/// One of `degrade_groups`; [`Site::degrade_group`](super::Site::degrade_group) is an index.
#[derive(Debug, Clone)]
pub struct DegradeGroup {
    /// Its name.
    pub name: Box<str>,
    /// What holds until somebody says otherwise.
    pub mode: DegradeMode,
}

/// Whether what is not essential is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DegradeMode {
    /// Where there is a reason to.
    #[default]
    Auto,
    /// Never: what goes wrong is seen to go wrong.
    Off,
    /// Always: nobody is asked.
    On,
}

impl DegradeMode {
    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::On => "on",
        }
    }
}
