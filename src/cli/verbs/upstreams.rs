//! The verbs about backends: `weir upstreams` lists them, `drain`, `enable` and `disable` switch a server, `weir breaker`
//! and `weir degrade` show and change what happens when a backend fails.

use anstyle::Style;
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};

use super::AdminArgs;
use crate::api::{
    Backend, BackendChange, BackendState, BreakerChange, BreakerForce, DegradeChange, DegradeGroup,
    DegradeMode, LocationBreaker, Upstream,
};
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
    pub(super) fn run(self, state: BackendState) -> anyhow::Result<()> {
        let wanted = BackendChange {
            state: Some(state),
            breaker: None,
        };
        let call = change(&self.upstream, &self.server, &wanted);
        self.ask.show(&call, |server: Backend, page| {
            page.table(&table([(self.upstream.as_str(), &server)]));
            Ok(())
        })
    }
}

/// The call that changes a server.
pub(in crate::cli) fn change(upstream: &str, server: &str, body: &BackendChange) -> ApiRequest {
    let (upstream, server) = (escape(upstream), escape(server));
    ApiRequest::patch(format!("/api/upstreams/{upstream}/servers/{server}"), body)
}

pub(super) fn table<'a>(servers: impl IntoIterator<Item = (&'a str, &'a Backend)>) -> TextTable {
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
pub(in crate::cli) fn cells(upstream: &str, server: &Backend) -> Vec<TableCell> {
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
pub(in crate::cli) fn condition(server: &Backend) -> (&'static str, Style) {
    match server {
        Backend { down: true, .. } => ("down", BAD),
        Backend { draining: true, .. } => ("drained", DOUBTFUL),
        Backend {
            healthy: Some(false),
            ..
        } => ("unhealthy", BAD),
        Backend {
            up: true,
            backup: true,
            ..
        } => ("backup", FAINT),
        Backend { up: true, .. } => ("up", GOOD),
        _ => ("out", BAD),
    }
}

/// What its breaker does.
fn breaker(server: &Backend) -> (String, Style) {
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
    state: Option<BreakerForce>,
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

impl ValueEnum for BreakerForce {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Open, Self::Closed, Self::Auto]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Auto => "auto",
        }))
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct DegradeArgs {
    /// The group
    #[arg(requires = "mode")]
    group: Option<String>,
    /// Whether its locations answer without their backend; auto: when it fails
    #[arg(value_enum)]
    mode: Option<DegradeMode>,
    #[command(flatten)]
    ask: AdminArgs,
}

impl ValueEnum for DegradeMode {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::On, Self::Off, Self::Auto]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Auto => "auto",
        }))
    }
}

impl BreakerArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let (Some(state), Some(first), Some(second)) = (self.state, &self.first, &self.second)
        else {
            return self.list();
        };
        if self.location {
            let body = BreakerChange {
                server: first.clone(),
                location: second.clone(),
                breaker: state,
            };
            let call = ApiRequest::patch("/api/breakers", &body);
            return self.ask.show(&call, |breaker: LocationBreaker, page| {
                page.table(&locations(&[breaker]));
                Ok(())
            });
        }
        let wanted = BackendChange {
            state: None,
            breaker: Some(state),
        };
        let call = change(first, second, &wanted);
        self.ask.show(&call, |server: Backend, page| {
            page.table(&table([(first.as_str(), &server)]));
            Ok(())
        })
    }

    /// Those of servers and those of locations; as JSON, the latter: the former are in the list of upstreams.
    fn list(&self) -> anyhow::Result<()> {
        self.ask.show(
            &ApiRequest::get("/api/breakers"),
            |breakers: Vec<LocationBreaker>, page| {
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

fn draw(servers: &[(&str, &Backend)], breakers: &[LocationBreaker], page: &mut Output) {
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

fn locations(breakers: &[LocationBreaker]) -> TextTable {
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
                |groups: Vec<DegradeGroup>, page| {
                    if groups.is_empty() {
                        page.line("there are no degrade groups in the configuration");
                    } else {
                        page.table(&groups_table(&groups));
                    }
                    Ok(())
                },
            );
        };
        let path = format!("/api/groups/{}", escape(group));
        let call = ApiRequest::patch(path, &DegradeChange { mode });
        self.ask.show(&call, |group: DegradeGroup, page| {
            page.table(&groups_table(&[group]));
            Ok(())
        })
    }
}

fn groups_table(groups: &[DegradeGroup]) -> TextTable {
    let mut table = TextTable::new([Column::Left("GROUP"), Column::Left("MODE")]);
    for group in groups {
        table.row([
            TableCell::from(&group.name).styled(STRONG),
            TableCell::from(&group.mode).styled_if(group.mode != "auto", DOUBTFUL),
        ]);
    }
    table
}
