//! The verbs that speak to a running weir. Each is a call of its API, and a way to show what comes back.

mod breakers;
mod explain;
pub(super) mod keys;
pub(super) mod marks;
pub(super) mod refusals;
mod reload;
pub(super) mod servers;
mod set;
mod status;
mod zones;

use clap::{Args, Subcommand};
use serde::de::DeserializeOwned;

use super::admin::{AdminOptions, ApiRequest};
use super::page::{self, Output};
use super::top;

/// What can be asked of a running weir, and told to it.
#[derive(Debug, Subcommand)]
pub(super) enum AdminCommand {
    /// Have a running weir read its configuration again, and say what came of it
    Reload(reload::ReloadArgs),
    /// Show how a running weir is: connections, requests, verdicts, event loops
    Status(status::StatusArgs),
    /// Watch zones, keys, upstreams and refusals live
    Top(top::TopArgs),
    /// List zones, or show one with its rules and marked keys
    Zones(zones::ZonesArgs),
    /// List a zone's busiest or most refused keys, or show where one stands
    Keys(keys::KeysArgs),
    /// Show the last refusals with the reason for each
    Refusals(refusals::RefusalsArgs),
    /// Tell what would happen to a request, rule by rule; nothing is charged
    Explain(explain::ExplainArgs),
    /// List upstreams, their servers and how they are
    Upstreams(servers::UpstreamsArgs),
    /// Refuse all requests of a key for a time
    Block(marks::BlockArgs),
    /// Take a block back
    Unblock(marks::UnblockArgs),
    /// Do not limit a key for a time
    Exempt(marks::BlockArgs),
    /// Let a key have so many requests more
    Grant(marks::GrantArgs),
    /// Let a key begin anew: forget its count and its penalty
    Forget(marks::ResetArgs),
    /// Change a zone's rate, limit or burst until the next reload
    Set(set::SetArgs),
    /// Send a server no new requests; those it has go on
    Drain(servers::ServerArgs),
    /// Send a server requests again
    Enable(servers::ServerArgs),
    /// Take a server for down
    Disable(servers::ServerArgs),
    /// List circuit breakers, force one, or let it judge again
    Breaker(breakers::BreakerArgs),
    /// List degrade groups, or switch one
    Degrade(breakers::DegradeArgs),
}

impl AdminCommand {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Reload(flags) => flags.run(),
            Self::Status(flags) => flags.run(),
            Self::Top(flags) => flags.run(),
            Self::Zones(flags) => flags.run(),
            Self::Keys(flags) => flags.run(),
            Self::Refusals(flags) => flags.run(),
            Self::Explain(flags) => flags.run(),
            Self::Upstreams(flags) => flags.run(),
            Self::Block(flags) => flags.run("block"),
            Self::Unblock(flags) => flags.run(),
            Self::Exempt(flags) => flags.run("exempt"),
            Self::Grant(flags) => flags.run(),
            Self::Forget(flags) => flags.run(),
            Self::Set(flags) => flags.run(),
            Self::Drain(flags) => flags.run("drain"),
            Self::Enable(flags) => flags.run("up"),
            Self::Disable(flags) => flags.run("down"),
            Self::Breaker(flags) => flags.run(),
            Self::Degrade(flags) => flags.run(),
        }
    }
}

/// What all of them can be told.
#[derive(Debug, Args)]
struct AdminArgs {
    #[command(flatten)]
    reach: AdminOptions,
    /// Print what the API answers, as JSON
    #[arg(long)]
    json: bool,
}

impl AdminArgs {
    /// Makes a call, and prints what is answered: as it is, or as `draw` shows it.
    fn show<T: DeserializeOwned>(
        &self,
        call: &ApiRequest,
        draw: impl FnOnce(T, &mut Output) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let admin = self.reach.admin()?;
        let text = admin.text(call)?;
        if self.json {
            // Only what is JSON is passed on as such.
            admin.read::<serde::de::IgnoredAny>(&text)?;
            return Ok(page::print_json(&text)?);
        }
        let mut page = Output::new();
        draw(admin.read(&text)?, &mut page)?;
        Ok(page.print()?)
    }
}
