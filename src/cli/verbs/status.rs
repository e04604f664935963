//! `weir status`: how it is, in one look.

use clap::Args;

use super::AdminArgs;
use crate::cli::admin::ApiRequest;
use crate::cli::admin::answers::{Status, Store};
use crate::cli::words::{lag, number, span, verdicts};
use crate::replay::plot::visible;

#[derive(Debug, Args)]
pub(in crate::cli) struct StatusArgs {
    #[command(flatten)]
    ask: AdminArgs,
}

impl StatusArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        self.ask
            .show(&ApiRequest::get("/api/status"), |status: Status, page| {
                let stores: Vec<Store> = self
                    .ask
                    .reach
                    .admin()?
                    .ask(&ApiRequest::get("/api/store"))?;
                for line in lines(&status, &stores) {
                    page.line(visible(&line));
                }
                Ok(())
            })
    }
}

fn lines(status: &Status, stores: &[Store]) -> Vec<String> {
    let ready = match status.ready {
        true => "takes requests",
        false => "is starting or stopping",
    };
    let reloaded = match status.generation.saturating_sub(1) {
        0 => "never reloaded".to_owned(),
        1 => "reloaded once".to_owned(),
        times => format!("reloaded {} times", number(times)),
    };
    let mut lines = vec![
        format!("weir {}, pid {}: {ready}", status.version, status.pid),
        format!("up           {}, {reloaded}", span(status.uptime)),
        format!(
            "connections  {} open, {} accepted",
            number(status.connections.active),
            number(status.connections.accepted)
        ),
        format!("requests     {}", number(status.requests.total)),
        format!("limits       {}", verdicts(status.limits)),
        format!(
            "event loops  {}, at most {} late; {} in the last minute",
            status.loops.len(),
            lag(status.lag()),
            lag(status.worst_lag())
        ),
    ];
    for store in stores {
        let how = match (store.degraded, &store.why) {
            (false, _) => "well".to_owned(),
            (true, Some(why)) => format!("degraded: {why}"),
            (true, None) => "degraded".to_owned(),
        };
        lines.push(format!("store        {}: {how}", store.name));
    }
    lines
}
