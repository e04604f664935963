//! The commands about backends: `weir upstreams` lists them, `drain`, `enable` and `disable` switch a server, `weir breaker`
//! and `weir degrade` show and change what happens when a backend fails.

use anstyle::Style;
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};

use crate::api::{
    Backend, BackendChange, BackendState, BreakerChange, BreakerForce, DegradeChange, DegradeGroup,
    DegradeMode, LocationBreaker, Upstream,
};
use crate::cli::client::{AdminArgs, ApiRequest, escape};
use crate::cli::output::{
    BAD, DOUBTFUL, FAINT, GOOD, Output, STRONG, TableCell, TextTable, number,
};

/// `weir upstreams`
pub(in crate::cli) fn list(admin: &AdminArgs) -> anyhow::Result<()> {
    let request = ApiRequest::get("/api/upstreams");
    admin.show(
        &request,
        |upstreams: Vec<Upstream>, output| match upstreams.is_empty() {
            true => output.line("the configuration has no upstreams"),
            false => output.table(&table(servers(&upstreams))),
        },
    )
}

/// All servers with the names of their upstreams.
pub(in crate::cli) fn servers(upstreams: &[Upstream]) -> impl Iterator<Item = (&str, &Backend)> {
    upstreams.iter().flat_map(|upstream| {
        let servers = upstream.servers.iter();
        servers.map(|server| (upstream.name.as_str(), server))
    })
}

/// A server of an upstream.
#[derive(Debug, Args)]
pub(in crate::cli) struct ServerArgs {
    /// The upstream
    upstream: String,
    /// The server's address, as `weir upstreams` shows it
    server: String,
    #[command(flatten)]
    admin: AdminArgs,
}

impl ServerArgs {
    pub(in crate::cli) fn run(self, state: BackendState) -> anyhow::Result<()> {
        let body = BackendChange {
            state: Some(state),
            breaker: None,
        };
        change_and_show(&self.admin, &self.upstream, &self.server, &body)
    }
}

/// The request that changes a server.
pub(in crate::cli) fn change(upstream: &str, server: &str, body: &BackendChange) -> ApiRequest {
    let (upstream, server) = (escape(upstream), escape(server));
    let path = format!("/api/upstreams/{upstream}/servers/{server}");
    ApiRequest::with_body("PATCH", path, body)
}

fn change_and_show(
    admin: &AdminArgs,
    upstream: &str,
    server: &str,
    body: &BackendChange,
) -> anyhow::Result<()> {
    admin.show(
        &change(upstream, server, body),
        |server: Backend, output| {
            output.table(&table([(upstream, &server)]));
        },
    )
}

fn table<'a>(servers: impl IntoIterator<Item = (&'a str, &'a Backend)>) -> TextTable {
    let mut table = TextTable::new(&format!("{COLUMNS}  >REQUESTS  >5XX"));
    for (upstream, server) in servers {
        let mut row = cells(upstream, server);
        row.push(TableCell::from(number(server.requests)));
        row.push(TableCell::from(number(server.errors)).styled_if(server.errors > 0, DOUBTFUL));
        table.row(row);
    }
    table
}

/// The first columns of every table of servers.
pub(in crate::cli) const COLUMNS: &str = "UPSTREAM  SERVER  STATE  BREAKER  >ACTIVE";

/// The cells of [`COLUMNS`].
pub(in crate::cli) fn cells(upstream: &str, server: &Backend) -> Vec<TableCell> {
    let (state, style) = condition(server);
    let (breaker, breaker_style) = match &server.breaker {
        None => ("-".to_owned(), FAINT),
        Some(state) => breaker_state(state, server.forced.as_deref()),
    };
    vec![
        TableCell::from(upstream).styled(STRONG),
        TableCell::from(&server.address),
        TableCell::from(state).styled(style),
        TableCell::from(breaker).styled(breaker_style),
        TableCell::from(number(server.active)),
    ]
}

/// The condition of a server in a word, and its style.
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

fn breaker_state(state: &str, forced: Option<&str>) -> (String, Style) {
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
    /// The state to force the breaker into; auto lets it decide
    #[arg(value_enum, requires = "second")]
    state: Option<BreakerForce>,
    /// The upstream; with --location the server's name
    #[arg(value_name = "UPSTREAM")]
    first: Option<String>,
    /// The server's address; with --location the location
    #[arg(value_name = "SERVER")]
    second: Option<String>,
    /// A location's breaker instead of that of a server
    #[arg(long, requires = "second")]
    location: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

macro_rules! value_enum {
    ($($words:ty),*) => {
        $(impl ValueEnum for $words {
            fn value_variants<'a>() -> &'a [Self] {
                Self::ALL
            }

            fn to_possible_value(&self) -> Option<PossibleValue> {
                Some(PossibleValue::new(self.as_str()))
            }
        })*
    };
}

value_enum!(BreakerForce, DegradeMode);

#[derive(Debug, Args)]
pub(in crate::cli) struct DegradeArgs {
    /// The group
    #[arg(requires = "mode")]
    group: Option<String>,
    /// Whether its locations respond without their backend; auto: when it fails
    #[arg(value_enum)]
    mode: Option<DegradeMode>,
    #[command(flatten)]
    admin: AdminArgs,
}

impl BreakerArgs {
    pub(in crate::cli) fn run(self) -> anyhow::Result<()> {
        let (Some(breaker), Some(first), Some(second)) = (self.state, self.first, self.second)
        else {
            return list_breakers(&self.admin);
        };
        if !self.location {
            let body = BackendChange {
                state: None,
                breaker: Some(breaker),
            };
            return change_and_show(&self.admin, &first, &second, &body);
        }
        let body = BreakerChange {
            server: first,
            location: second,
            breaker,
        };
        let request = ApiRequest::with_body("PATCH", "/api/breakers", &body);
        self.admin
            .show(&request, |breaker: LocationBreaker, output| {
                output.table(&locations(&[breaker]));
            })
    }
}

/// The breakers of servers and of locations; as JSON only the latter, because the list of upstreams has the former.
fn list_breakers(admin: &AdminArgs) -> anyhow::Result<()> {
    let request = ApiRequest::get("/api/breakers");
    admin.show_with(&request, |admin, breakers: Vec<LocationBreaker>, output| {
        let upstreams: Vec<Upstream> = admin.fetch(&ApiRequest::get("/api/upstreams"))?;
        let servers = servers(&upstreams).filter(|(_, server)| server.breaker.is_some());
        draw_breakers(&servers.collect::<Vec<_>>(), &breakers, output);
        Ok(())
    })
}

fn draw_breakers(servers: &[(&str, &Backend)], breakers: &[LocationBreaker], output: &mut Output) {
    if servers.is_empty() && breakers.is_empty() {
        output.line("the configuration has no circuit breakers");
    }
    if !servers.is_empty() {
        output.table(&table(servers.iter().copied()));
    }
    if !servers.is_empty() && !breakers.is_empty() {
        output.line("");
    }
    if !breakers.is_empty() {
        output.table(&locations(breakers));
    }
}

fn locations(breakers: &[LocationBreaker]) -> TextTable {
    let mut table = TextTable::new("SERVER  LOCATION  BREAKER  >OPENED");
    for breaker in breakers {
        let (state, style) = breaker_state(&breaker.state, breaker.forced.as_deref());
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
    pub(in crate::cli) fn run(self) -> anyhow::Result<()> {
        if let (Some(group), Some(mode)) = (&self.group, self.mode) {
            let path = format!("/api/groups/{}", escape(group));
            let request = ApiRequest::with_body("PATCH", path, &DegradeChange { mode });
            return self.admin.show(&request, |group: DegradeGroup, output| {
                output.table(&groups_table(&[group]));
            });
        }
        let request = ApiRequest::get("/api/groups");
        self.admin
            .show(&request, |groups: Vec<DegradeGroup>, output| {
                match groups.is_empty() {
                    true => output.line("the configuration has no degrade groups"),
                    false => output.table(&groups_table(&groups)),
                }
            })
    }
}

fn groups_table(groups: &[DegradeGroup]) -> TextTable {
    let mut table = TextTable::new("GROUP  MODE");
    for group in groups {
        table.row([
            TableCell::from(&group.name).styled(STRONG),
            TableCell::from(&group.mode).styled_if(group.mode != "auto", DOUBTFUL),
        ]);
    }
    table
}
