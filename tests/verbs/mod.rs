//! The verbs for a running weir: the binary talks to another one through its admin listener.

mod changes;
mod connect;
mod show;
mod top;

use std::process::{Command, Output};

use crate::support::api::TOKEN;
use crate::support::weir::BINARY;
use crate::support::{Origin, Weir};

/// Two zones for requests and one for connections; `one` passes three requests and then none for a while.
fn limited(origin: &Origin) -> Weir {
    Weir::before(
        origin,
        &format!(
            "admin: {{ listen: ADMIN, token: {TOKEN} }}
limit_req_zones:
  one: {{ key: $binary_remote_addr, size: 1m, rate: 1r/m }}
  paths: {{ key: $uri, size: 1m, rate: 1r/m }}
limit_conn_zones: {{ places: {{ key: $binary_remote_addr, size: 1m }} }}
degrade_groups: {{ extras: auto }}
upstreams: {{ app: {{ breaker: {{}}, servers: [ 'ORIGIN' ] }} }}
servers:
- listen: LISTEN
  server_name: front
  limit_req: {{ zone: one, burst: 2, nodelay: true }}
  limit_conn: {{ zone: places, limit: 5 }}
  locations:
  - {{ path: /, proxy_pass: app }}
  - {{ path: /paths/, limit_req: {{ zone: paths, nodelay: true }}, proxy_pass: app }}
  - {{ path: /extras/, proxy_pass: app, breaker: {{}}, degrade_group: extras }}
"
        ),
    )
}

/// A verb, with the address and the token in the environment.
fn verb(running: &Weir, arguments: &[&str]) -> Output {
    Command::new(BINARY)
        .args(arguments)
        .env("WEIR_ADMIN", running.admin_address().to_string())
        .env("WEIR_TOKEN", TOKEN)
        .output()
        .expect("the binary can be run")
}

/// What a verb prints; it has to end well.
fn told(running: &Weir, arguments: &[&str]) -> String {
    let output = verb(running, arguments);
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(
        output.status.code(),
        Some(0),
        "{arguments:?}: {said}{complained}"
    );
    assert_eq!(complained, "", "{arguments:?}");
    said
}

/// What a verb prints with `--json`.
fn json(running: &Weir, arguments: &[&str]) -> serde_json::Value {
    let mut arguments = arguments.to_vec();
    arguments.push("--json");
    let said = told(running, &arguments);
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{arguments:?}: {error} in {said}"))
}

/// The line of a table that begins with this name, in words.
fn row<'t>(table: &'t str, name: &str) -> Vec<&'t str> {
    let mut lines = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = lines.find(|words| words.first() == Some(&name));
    found.unwrap_or_else(|| panic!("no {name} in\n{table}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
