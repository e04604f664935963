//! `weir upstreams`, and `drain`, `enable` and `disable` for one of their servers.
//!
//! `weir breaker` and `weir degrade`: what happens when a backend fails, and an operator's hand on it.

use anstyle::Style;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::AdminArgs;
use crate::cli::answers::{Breaker, Group, Server, Upstream};
use crate::cli::client::{ApiRequest, escape};
use crate::cli::output::{
    BAD, Column, DOUBTFUL, FAINT, GOOD, Output, STRONG, TableCell, TextTable,
};
use crate::replay::number;

#[derive(Debug, Args)]
pub(in crate::cli) struct UpstreamsArgs {
    #[command(flatten)]
    ask: AdminArgs,
}

/// Which server of which upstream.
#[derive(Debug, Args)]
pub(in crate::cli) struct ServerArgs {
    /// The upstream
    upstream: String,
    /// The server's address, as `weir upstreams` shows it
    server: String,
    #[command(flatten)]
    ask: AdminArgs,
}

impl UpstreamsArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        self.ask.show(
            &ApiRequest::get("/api/upstreams"),
            |upstreams: Vec<Upstream>, page| {
                if upstreams.is_empty() {
                    page.line("there are no upstreams in the configuration");
                    return Ok(());
                }
                let pairs = upstreams.iter().flat_map(|upstream| {
                    let servers = upstream.servers.iter();
                    servers.map(|server| (upstream.name.as_str(), server))
                });
                page.table(&table(pairs));
                Ok(())
            },
        )
    }
}

impl ServerArgs {
    pub(super) fn run(self, state: &str) -> anyhow::Result<()> {
        let call = change(&self.upstream, &self.server, json!({ "state": state }));
        self.ask.show(&call, |server: Server, page| {
            page.table(&table([(self.upstream.as_str(), &server)]));
            Ok(())
        })
    }
}

/// The call that changes a server.
pub(in crate::cli) fn change(upstream: &str, server: &str, body: Value) -> ApiRequest {
    let (upstream, server) = (escape(upstream), escape(server));
    ApiRequest::patch(format!("/api/upstreams/{upstream}/servers/{server}"), body)
}

pub(super) fn table<'a>(servers: impl IntoIterator<Item = (&'a str, &'a Server)>) -> TextTable {
    let counts = [Column::Right("REQUESTS"), Column::Right("5XX")];
    let mut table = TextTable::new([&HEADS[..], &counts].concat());
    for (upstream, server) in servers {
        let mut row = cells(upstream, server);
        row.push(TableCell::from(number(server.requests)));
        row.push(TableCell::from(number(server.errors)).styled_if(server.errors > 0, DOUBTFUL));
        table.row(row);
    }
    table
}

/// Who a server is and how, as every table of servers begins.
pub(in crate::cli) const HEADS: [Column; 5] = [
    Column::Left("UPSTREAM"),
    Column::Left("SERVER"),
    Column::Left("STATE"),
    Column::Left("BREAKER"),
    Column::Right("ACTIVE"),
];

/// What stands below [`HEADS`].
pub(in crate::cli) fn cells(upstream: &str, server: &Server) -> Vec<TableCell> {
    let (state, style) = condition(server);
    let (breaker, breaker_style) = breaker(server);
    vec![
        TableCell::from(upstream).styled(STRONG),
        TableCell::from(&server.address),
        TableCell::from(state).styled(style),
        TableCell::from(breaker).styled(breaker_style),
        TableCell::from(number(server.active)),
    ]
}

/// How a server is, in a word or two, and how that looks.
pub(in crate::cli) fn condition(server: &Server) -> (&'static str, Style) {
    match server {
        Server { down: true, .. } => ("down", BAD),
        Server { draining: true, .. } => ("drained", DOUBTFUL),
        Server {
            healthy: Some(false),
            ..
        } => ("unhealthy", BAD),
        Server {
            up: true,
            backup: true,
            ..
        } => ("backup", FAINT),
        Server { up: true, .. } => ("up", GOOD),
        _ => ("out", BAD),
    }
}

/// What its breaker does.
fn breaker(server: &Server) -> (String, Style) {
    match &server.breaker {
        None => ("-".to_owned(), FAINT),
        Some(state) => state_of_breaker(state, server.forced.as_deref()),
    }
}

/// A breaker's state, and whether somebody wants it so.
pub(super) fn state_of_breaker(state: &str, forced: Option<&str>) -> (String, Style) {
    let style = match state {
        "closed" => GOOD,
        "open" => BAD,
        _ => DOUBTFUL,
    };
    match forced {
        Some(_) => (format!("{state}, forced"), style),
        None => (state.to_owned(), style),
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct BreakerArgs {
    /// What the breaker is to be; auto: it judges for itself
    #[arg(value_enum, requires = "second")]
    state: Option<Force>,
    /// The upstream; with --location the server's name
    #[arg(value_name = "UPSTREAM")]
    first: Option<String>,
    /// The server's address; with --location the location
    #[arg(value_name = "SERVER")]
    second: Option<String>,
    /// It is a location's breaker, not that of an upstream's server
    #[arg(long, requires = "second")]
    location: bool,
    #[command(flatten)]
    ask: AdminArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Force {
    Open,
    Closed,
    Auto,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct DegradeArgs {
    /// The group
    #[arg(requires = "mode")]
    group: Option<String>,
    /// Whether its locations answer without their backend; auto: when it fails
    #[arg(value_enum)]
    mode: Option<Mode>,
    #[command(flatten)]
    ask: AdminArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mode {
    On,
    Off,
    Auto,
}

impl BreakerArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let (Some(state), Some(first), Some(second)) = (self.state, &self.first, &self.second)
        else {
            return self.list();
        };
        let state = match state {
            Force::Open => "open",
            Force::Closed => "closed",
            Force::Auto => "auto",
        };
        if self.location {
            let body = json!({ "server": first, "location": second, "breaker": state });
            let call = ApiRequest::patch("/api/breakers", body);
            return self.ask.show(&call, |breaker: Breaker, page| {
                page.table(&locations(&[breaker]));
                Ok(())
            });
        }
        let call = change(first, second, json!({ "breaker": state }));
        self.ask.show(&call, |server: Server, page| {
            page.table(&table([(first.as_str(), &server)]));
            Ok(())
        })
    }

    /// Those of servers and those of locations; as JSON, the latter: the former are in the list of upstreams.
    fn list(&self) -> anyhow::Result<()> {
        self.ask.show(
            &ApiRequest::get("/api/breakers"),
            |breakers: Vec<Breaker>, page| {
                let upstreams: Vec<Upstream> = self
                    .ask
                    .reach
                    .admin()?
                    .ask(&ApiRequest::get("/api/upstreams"))?;
                let servers: Vec<_> = upstreams
                    .iter()
                    .flat_map(|upstream| {
                        upstream
                            .servers
                            .iter()
                            .map(|server| (upstream.name.as_str(), server))
                    })
                    .filter(|(_, server)| server.breaker.is_some())
                    .collect();
                draw(&servers, &breakers, page);
                Ok(())
            },
        )
    }
}

fn draw(servers: &[(&str, &Server)], breakers: &[Breaker], page: &mut Output) {
    if servers.is_empty() && breakers.is_empty() {
        page.line("there are no circuit breakers in the configuration");
    }
    if !servers.is_empty() {
        page.table(&table(servers.iter().copied()));
    }
    if !servers.is_empty() && !breakers.is_empty() {
        page.line("");
    }
    if !breakers.is_empty() {
        page.table(&locations(breakers));
    }
}

fn locations(breakers: &[Breaker]) -> TextTable {
    let mut table = TextTable::new([
        Column::Left("SERVER"),
        Column::Left("LOCATION"),
        Column::Left("BREAKER"),
        Column::Right("OPENED"),
    ]);
    for breaker in breakers {
        let (state, style) = state_of_breaker(&breaker.state, breaker.forced.as_deref());
        table.row([
            TableCell::from(&breaker.server).styled(STRONG),
            TableCell::from(&breaker.location),
            TableCell::from(state).styled(style),
            TableCell::from(number(breaker.opened)),
        ]);
    }
    table
}

impl DegradeArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let (Some(group), Some(mode)) = (&self.group, self.mode) else {
            return self.ask.show(
                &ApiRequest::get("/api/groups"),
                |groups: Vec<Group>, page| {
                    if groups.is_empty() {
                        page.line("there are no degrade groups in the configuration");
                    } else {
                        page.table(&groups_table(&groups));
                    }
                    Ok(())
                },
            );
        };
        let mode = match mode {
            Mode::On => "on",
            Mode::Off => "off",
            Mode::Auto => "auto",
        };
        let call = ApiRequest::patch(
            format!("/api/groups/{}", escape(group)),
            json!({ "mode": mode }),
        );
        self.ask.show(&call, |group: Group, page| {
            page.table(&groups_table(&[group]));
            Ok(())
        })
    }
}

fn groups_table(groups: &[Group]) -> TextTable {
    let mut table = TextTable::new([Column::Left("GROUP"), Column::Left("MODE")]);
    for group in groups {
        table.row([
            TableCell::from(&group.name).styled(STRONG),
            TableCell::from(&group.mode).styled_if(group.mode != "auto", DOUBTFUL),
        ]);
    }
    table
}
