//! `weir set`: other numbers for a zone, until the next reload.

use clap::Args;
use serde_json::{Map, Value};

use super::{AdminArgs, zones};
use crate::cli::admin::answers::Detail;
use crate::cli::admin::{ApiRequest, escape};

#[derive(Debug, Args)]
#[group(skip)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub(in crate::cli) struct SetArgs {
    /// The zone
    zone: String,
    /// Another rate, as in 20r/s; or unlimited
    #[arg(long, group = "what")]
    rate: Option<String>,
    /// Another burst, for every rule that uses the zone
    #[arg(long, value_name = "N", group = "what")]
    burst: Option<u64>,
    /// Another limit, of a zone that counts in windows or of a limit_conn zone; or unlimited
    #[arg(long, value_name = "N", group = "what")]
    limit: Option<String>,
    /// Back to what the file says
    #[arg(long, group = "what", conflicts_with_all = ["rate", "burst", "limit"])]
    reset: bool,
    #[command(flatten)]
    ask: AdminArgs,
}

impl SetArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let path = format!("/api/zones/{}", escape(&self.zone));
        let call = match self.reset {
            true => ApiRequest::delete(format!("{path}/override")),
            false => ApiRequest::patch(path, self.change()),
        };
        self.ask.show(&call, |zone: Detail, page| {
            zones::detail(&zone, page);
            Ok(())
        })
    }

    fn change(&self) -> Value {
        let mut change = Map::new();
        let limit = self.limit.as_deref();
        let limit = limit.map(|text| {
            text.parse::<u64>()
                .map_or_else(|_| text.into(), Value::from)
        });
        let parts = [
            ("rate", self.rate.as_deref().map(Value::from)),
            ("burst", self.burst.map(Value::from)),
            ("limit", limit),
        ];
        for (name, value) in parts {
            change.extend(value.map(|value| (name.to_owned(), value)));
        }
        Value::Object(change)
    }
}
