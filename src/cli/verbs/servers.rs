//! `weir upstreams`, and `drain`, `enable` and `disable` for one of their servers.

use clap::Args;
use serde_json::{Value, json};

use super::AdminArgs;
use crate::cli::admin::answers::{Server, Upstream};
use crate::cli::admin::{ApiRequest, escape};
use crate::cli::table::{BAD, Column, DOUBTFUL, FAINT, GOOD, STRONG, TableCell, TextTable};
use crate::cli::words::number;
use anstyle::Style;

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
