//! `weir upstreams`, and `drain`, `enable` and `disable` for one of their servers.

use clap::Args;
use serde_json::{Value, json};

use super::Ask;
use crate::cli::admin::answers::{Server, Upstream};
use crate::cli::admin::{Call, escape};
use crate::cli::table::{BAD, Cell, DOUBTFUL, FAINT, GOOD, Head, STRONG, Table};
use crate::cli::words::number;
use anstyle::Style;

#[derive(Debug, Args)]
pub(in crate::cli) struct List {
    #[command(flatten)]
    ask: Ask,
}

/// Which server of which upstream.
#[derive(Debug, Args)]
pub(in crate::cli) struct Switch {
    /// The upstream
    upstream: String,
    /// The server's address, as `weir upstreams` shows it
    server: String,
    #[command(flatten)]
    ask: Ask,
}

impl List {
    pub(super) fn run(self) -> anyhow::Result<()> {
        self.ask.show(
            &Call::get("/api/upstreams"),
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

impl Switch {
    pub(super) fn run(self, state: &str) -> anyhow::Result<()> {
        let call = change(&self.upstream, &self.server, json!({ "state": state }));
        self.ask.show(&call, |server: Server, page| {
            page.table(&table([(self.upstream.as_str(), &server)]));
            Ok(())
        })
    }
}

/// The call that changes a server.
pub(in crate::cli) fn change(upstream: &str, server: &str, body: Value) -> Call {
    let (upstream, server) = (escape(upstream), escape(server));
    Call::patch(format!("/api/upstreams/{upstream}/servers/{server}"), body)
}

pub(super) fn table<'a>(servers: impl IntoIterator<Item = (&'a str, &'a Server)>) -> Table {
    let counts = [Head::Right("REQUESTS"), Head::Right("5XX")];
    let mut table = Table::new([&HEADS[..], &counts].concat());
    for (upstream, server) in servers {
        let mut row = cells(upstream, server);
        row.push(Cell::from(number(server.requests)));
        row.push(Cell::from(number(server.errors)).styled_if(server.errors > 0, DOUBTFUL));
        table.row(row);
    }
    table
}

/// Who a server is and how, as every table of servers begins.
pub(in crate::cli) const HEADS: [Head; 5] = [
    Head::Left("UPSTREAM"),
    Head::Left("SERVER"),
    Head::Left("STATE"),
    Head::Left("BREAKER"),
    Head::Right("ACTIVE"),
];

/// What stands below [`HEADS`].
pub(in crate::cli) fn cells(upstream: &str, server: &Server) -> Vec<Cell> {
    let (state, style) = condition(server);
    let (breaker, breaker_style) = breaker(server);
    vec![
        Cell::from(upstream).styled(STRONG),
        Cell::from(&server.address),
        Cell::from(state).styled(style),
        Cell::from(breaker).styled(breaker_style),
        Cell::from(number(server.active)),
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
