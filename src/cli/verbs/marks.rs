//! `weir block`, `unblock`, `exempt`, `grant` and `forget`: an operator's word about one key.

use clap::Args;
use serde_json::{Map, Value, json};

use super::{AdminArgs, keys, zones};
use crate::cli::admin::ApiRequest;
use crate::cli::admin::answers::{Forgotten, Marked};
use crate::replay::plot::visible;

/// Which key of which zone.
#[derive(Debug, Args)]
struct KeyArgs {
    /// The zone
    zone: String,
    /// The key, as `weir keys` shows it
    key: String,
}

/// For how long, and why.
#[derive(Debug, Args)]
struct DurationArgs {
    /// For how long, as in 10m; 1h if it is not given
    #[arg(long = "for", value_name = "TIME")]
    time: Option<String>,
    /// Shown to whoever asks why
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Take it back
    #[arg(long, conflicts_with_all = ["time", "reason"])]
    off: bool,
}

/// A mark that lasts for a time.
#[derive(Debug, Args)]
pub(in crate::cli) struct BlockArgs {
    #[command(flatten)]
    target: KeyArgs,
    #[command(flatten)]
    terms: DurationArgs,
    #[command(flatten)]
    ask: AdminArgs,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct UnblockArgs {
    #[command(flatten)]
    target: KeyArgs,
    #[command(flatten)]
    ask: AdminArgs,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct GrantArgs {
    #[command(flatten)]
    target: KeyArgs,
    /// How many it may have
    #[arg(required_unless_present = "off", conflicts_with = "off", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    #[command(flatten)]
    terms: DurationArgs,
    #[command(flatten)]
    ask: AdminArgs,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ResetArgs {
    #[command(flatten)]
    target: KeyArgs,
    #[command(flatten)]
    ask: AdminArgs,
}

impl BlockArgs {
    pub(super) fn run(self, mark: &str) -> anyhow::Result<()> {
        put(&self.ask, &self.target, mark, &self.terms, None)
    }
}

impl UnblockArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        tell(
            &self.ask,
            &self.target,
            &ApiRequest::delete(self.target.path("block")),
        )
    }
}

impl GrantArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        put(&self.ask, &self.target, "grant", &self.terms, self.requests)
    }
}

impl ResetArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let (zone, key) = (&self.target.zone, &self.target.key);
        self.ask
            .show(&forget(zone, key), |answer: Forgotten, page| {
                page.line(visible(&match answer.forgotten {
                    true => format!("{} begins anew in {zone}", answer.key),
                    false => format!("{zone} knew nothing of {}", answer.key),
                }));
                Ok(())
            })
    }
}

impl KeyArgs {
    fn path(&self, mark: &str) -> String {
        format!("{}/{mark}", keys::path(&self.zone, &self.key))
    }
}

/// The call that makes a zone forget a key.
pub(in crate::cli) fn forget(zone: &str, key: &str) -> ApiRequest {
    ApiRequest::delete(keys::path(zone, key))
}

/// The call that marks a key; a time that is not given is the API's.
pub(in crate::cli) fn mark(zone: &str, key: &str, mark: &str, time: Option<&str>) -> ApiRequest {
    let body = time.map_or_else(|| json!({}), |time| json!({ "for": time }));
    ApiRequest::put(format!("{}/{mark}", keys::path(zone, key)), body)
}

fn put(
    ask: &AdminArgs,
    target: &KeyArgs,
    mark: &str,
    terms: &DurationArgs,
    requests: Option<u64>,
) -> anyhow::Result<()> {
    let path = target.path(mark);
    if terms.off {
        return tell(ask, target, &ApiRequest::delete(path));
    }
    let mut body = Map::new();
    let texts = [("for", &terms.time), ("reason", &terms.reason)];
    for (name, text) in texts {
        if let Some(text) = text {
            body.insert(name.to_owned(), text.as_str().into());
        }
    }
    if let Some(requests) = requests {
        body.insert("requests".to_owned(), requests.into());
    }
    tell(ask, target, &ApiRequest::put(path, Value::Object(body)))
}

/// Says what holds for the key now.
fn tell(ask: &AdminArgs, target: &KeyArgs, call: &ApiRequest) -> anyhow::Result<()> {
    ask.show(call, |answer: Marked, page| {
        let (key, zone) = (&answer.key, &target.zone);
        if answer.marks.is_empty() {
            page.line(visible(&format!(
                "{key} is limited in {zone} as everybody is"
            )));
        } else {
            page.line(visible(&format!("in zone {zone}")));
            page.table(&zones::marked(&answer.marks));
        }
        Ok(())
    })
}
