//! Text becomes a plan; no sockets, no runtime, no clock.
//!
//! Three steps: `source` makes one tree of all files, `decode` makes from it what the user wrote (the `raw` modules of the
//! directives), and the directives are compiled to the [`plan`]. No step stops at an error; all of them fill one [`Report`].

pub mod amend;
mod checks;
mod compile;
pub(super) mod decode;
mod directive;
mod maps;
pub mod plan;
mod process;
pub(super) mod report;
mod secret;
pub(super) mod source;
mod template;

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value};

use self::compile::{Compiler, NameTable};
use self::decode::record::Record;
use self::decode::{Decode, DecodeContext};
use self::directive::proxy_pass::LocationPool;
use self::directive::server::TopLevel;
use self::directive::{client, content, limits, server, settings, store, tls, upstream, zones};
use self::process::raw::Config;
use self::secret::{HIDDEN, SecretIndex, logins, without};
use self::source::{Node, NodeKind, Scalar, read};

pub use self::plan::Plan;
pub use self::report::{ColorChoice, Report, Severity};
pub use self::secret::Secret;
pub use self::source::Span;
pub use self::source::read::{ConfigFiles, FileStamp, FileStamps, stamp};

/// Reads a file and all it includes.
///
/// # Errors
///
/// Everything that is wrong with it. Warnings come with the plan.
pub fn load(path: &Path) -> Result<(Plan, Report), Report> {
    let mut report = Report::default();
    let env = |name: &str| std::env::var(name).ok();
    let root = read::ConfigReader::new(&env, &mut report).file(path);
    finish(root, report)
}

/// The files that a configuration is made of, to be looked at for changes.
#[must_use]
pub fn watch(path: &Path) -> ConfigFiles {
    let mut report = Report::default();
    let env = |name: &str| std::env::var(name).ok();
    let mut reader = read::ConfigReader::new(&env, &mut report);
    // Their errors are reported when they are read.
    reader.file(path);
    reader.watch()
}

/// Reads a text as if it stood in a file called `name`; `env` gives the values of `${NAME}`.
///
/// # Errors
///
/// Everything that is wrong with it. Warnings come with the plan.
pub fn load_text(
    name: &str,
    text: &str,
    env: impl Fn(&str) -> Option<String>,
) -> Result<(Plan, Report), Report> {
    let mut report = Report::default();
    let root = read::ConfigReader::new(&env, &mut report).text(Path::new(name), text.to_owned());
    finish(root, report)
}

/// What users call a variable, without the dollar sign; `maps` are those of its plan.
#[must_use]
pub fn variable_name(variable: &template::Variable, maps: &[maps::Map]) -> String {
    match variable {
        template::Variable::Map(index) => maps.get(*index).map(|map| map.name.to_string()),
        other => Some(template::name(other)),
    }
    .unwrap_or_default()
}

/// The JSON Schema of the YAML, for editors.
#[must_use]
pub fn schema() -> String {
    let schema = schemars::generate::SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<Config>();
    let mut text = format!("{:#}", schema.as_value());
    text.push('\n');
    text
}

fn finish(root: Option<Node>, mut report: Report) -> Result<(Plan, Report), Report> {
    let plan = root.as_ref().and_then(|root| {
        // The place of a file that is empty, or only comments, is its beginning.
        let empty = Node {
            span: root.span,
            kind: NodeKind::Mapping(Vec::new()),
        };
        let root = match root.kind {
            NodeKind::Null => &empty,
            _ => root,
        };
        if let NodeKind::Scalar(_) = root.kind {
            // Perhaps a file with a token, given by accident.
            report.hidden_mut().add(root);
        }
        let mut context = DecodeContext::new(&mut report, homes);
        let config = Config::decode(root, &mut context)?;
        let mut plan = make_plan(&config, &mut report);
        plan.source = show(root, report.hidden()).to_string().into();
        Some(plan)
    });
    if let Some(root) = &root
        && !report.is_empty()
    {
        report.fill_paths(&root.paths());
    }
    report.hide_secrets();
    report.sort();
    match plan {
        Some(plan) if report.errors() == 0 => Ok((plan, report)),
        _ => Err(report),
    }
}

/// Makes the plan.
fn make_plan(config: &Config, report: &mut Report) -> Plan {
    let compiler = &mut new_compiler(config, report);
    checks::hide_credentials(config, compiler);
    let maps = maps::compile(&config.maps, compiler);
    let resolver = upstream::resolver(&config.resolver, compiler.report);
    let stores = store::stores(&config.stores, compiler.report);
    let req_zones = zones::req_zones(&config.limit_req_zones, &maps, &stores, compiler);
    let conn_zones = zones::conn_zones(&config.limit_conn_zones, compiler);
    let default = settings::raw::BufferBounds::default();
    let buffers = config.buffers.value().unwrap_or(&default);
    let mut pool = LocationPool {
        req_zones: &req_zones,
        buffers,
        upstreams: upstream::upstreams(&config.upstreams, resolver.as_ref(), compiler),
        addresses: HashMap::new(),
        upstream_tls: Vec::new(),
        temp_paths: Vec::new(),
    };
    let top = TopLevel {
        settings: &config.settings,
        connection: &config.connection,
        tls: &config.tls,
    };
    let (servers, listeners) = server::servers(&config.servers, &top, &mut pool, compiler);
    let LocationPool {
        mut upstreams,
        upstream_tls,
        temp_paths,
        ..
    } = pool;
    checks::complete_health_checks(config, &mut upstreams, &servers, compiler.report);
    let admin = config.admin.value();
    let threads = || std::thread::available_parallelism().map_or(1, usize::from);
    let plan = Plan {
        workers: config.workers().unwrap_or_else(threads),
        shutdown_timeout: config.shutdown_timeout(),
        log: plan::Log::compile(&config.log, compiler),
        admin: admin.map(|admin| plan::Admin::compile(admin, compiler.report)),
        tracing: plan::Tracing::compile(&config.tracing, compiler.report),
        caps: plan::ConnectionLimits::compile(
            &config.max_connections,
            &config.max_connections_per_address,
        ),
        maps,
        stores,
        req_zones,
        conn_zones,
        degrade_groups: content::degrade_groups(&config.degrade_groups),
        stale_size: config.stale_size(),
        buffers: plan::BufferBounds::new(buffers),
        temp_paths,
        upstreams,
        upstream_tls,
        listeners,
        servers,
        source: Box::default(),
    };
    checks::warn_of_unused(config, &plan, compiler.report);
    checks::warn_of_ipv6(config, &plan, compiler.report);
    plan
}

/// The compiler with all names of a configuration.
fn new_compiler<'a>(config: &Config, report: &'a mut Report) -> Compiler<'a> {
    Compiler {
        report,
        maps: NameTable::new(&config.maps, "$"),
        late_maps: Vec::new(),
        req_zones: NameTable::new(&config.limit_req_zones, ""),
        conn_zones: NameTable::new(&config.limit_conn_zones, ""),
        stores: NameTable::new(&config.stores, ""),
        upstreams: NameTable::new(&config.upstreams, ""),
        degrade_groups: NameTable::new(&config.degrade_groups, ""),
    }
}

/// Where a key belongs that was found where it does not.
fn homes(key: &str) -> Option<String> {
    let places = [
        ("at the top level", Config::keys()),
        ("in a server", server::raw::Server::keys()),
        ("in a location", server::raw::Location::keys()),
        ("in an upstream", upstream::raw::Upstream::keys()),
        (
            "in a server of an upstream",
            upstream::raw::UpstreamServer::keys(),
        ),
        ("in `balance`", upstream::raw::Balance::keys()),
        ("in `retry_budget`", upstream::raw::RetryBudget::keys()),
        (
            "in the `queue` of an upstream",
            upstream::raw::UpstreamQueue::keys(),
        ),
        ("in `tracing`", process::raw::Tracing::keys()),
        ("in a limit_req zone", zones::raw::ReqZone::keys()),
        ("in a limit_conn zone", zones::raw::ConnZone::keys()),
        ("in a limit_req rule", limits::raw::ReqRule::keys()),
        ("in a limit_conn rule", limits::raw::ConnRule::keys()),
        ("in a map", maps::raw::MapDirective::keys()),
        ("in a store", store::raw::Store::keys()),
        ("in `tls`", tls::raw::Tls::keys()),
        ("in `real_ip`", client::raw::RealIp::keys()),
        ("in `buffers`", settings::raw::BufferBounds::keys()),
    ];
    let homes: Vec<_> = places
        .into_iter()
        .filter(|(_, keys)| keys.contains(&key))
        .map(|(place, _)| place)
        .collect();
    (!homes.is_empty()).then(|| format!("`{key}` belongs {}", homes.join(" or ")))
}

/// A tree as JSON, secrets replaced.
fn show(node: &Node, hidden: &SecretIndex) -> Value {
    match &node.kind {
        NodeKind::Null | NodeKind::Unset => Value::Null,
        NodeKind::Scalar(scalar) => match hidden.shown(node) {
            Some(shown) => shown.into(),
            None => show_scalar(scalar),
        },
        NodeKind::Sequence(items) => items.iter().map(|item| show(item, hidden)).collect(),
        NodeKind::Mapping(pairs) => show_mapping(pairs, hidden),
    }
}

fn show_mapping(pairs: &[(Node, Node)], hidden: &SecretIndex) -> Value {
    let mut shown = Map::new();
    for (number, (key, value)) in pairs.iter().enumerate() {
        let name = match hidden.shown(key) {
            // Numbered, because no two keys of a mapping are the same.
            Some(name) => format!("{name} {}", number + 1),
            None => key.text().unwrap_or_default().to_owned(),
        };
        shown.insert(name, show(value, hidden));
    }
    Value::Object(shown)
}

fn show_scalar(scalar: &Scalar) -> Value {
    let text = &scalar.text;
    if text.contains("PRIVATE KEY-----") {
        return HIDDEN.into();
    }
    if !scalar.quoted
        && let Ok(value @ (Value::Bool(_) | Value::Number(_))) = serde_json::from_str(text)
    {
        return value;
    }
    Value::String(without(text, &logins(text)))
}

#[cfg(test)]
#[path = "tests/reference.rs"]
mod reference;

#[cfg(test)]
mod tests {

    use proptest::prelude::*;

    use super::*;

    const TOUR: &str = include_str!("../../conf/weir.yaml");

    #[test]
    fn a_setting_may_come_from_the_environment() {
        let text = "workers: ${COUNT}\nservers: { return: '${STATUS:-204}' }\n";
        let (plan, _) = load_text("weir.yaml", text, |name| {
            (name == "COUNT").then(|| "3".to_owned())
        })
        .unwrap();
        assert_eq!(plan.workers, 3);
    }

    #[test]
    fn json_is_yaml() {
        let text = r#"{ "workers": 2, "servers": [ { "listen": "8080", "return": 204 } ] }"#;
        assert!(load_text("weir.json", text, |_| None).is_ok());
    }

    proptest! {
        /// What comes out does not matter, but it comes out.
        #[test]
        fn no_text_is_too_strange(
            cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), "[ -~äß\\n\\t]{0,6}"), 1..4),
        ) {
            let mut text: Vec<char> = TOUR.chars().collect();
            for (from, length, patch) in cuts {
                let start = from.index(text.len());
                let end = (start + length.index(20)).min(text.len());
                text.splice(start..end, patch.chars());
            }
            let text: String = text.into_iter().collect();
            match load_text("weir.yaml", &text, |_| None) {
                Ok((_, report)) | Err(report) => prop_assert!(report.to_string().len() < 1 << 20),
            }
        }
    }
}

#[cfg(test)]
mod view_tests {

    use serde_json::json;

    use super::load_text;

    #[test]
    fn what_runs_is_shown_and_secrets_are_not() {
        let text = r#"
workers: 2
admin: { token: "${TOKEN}" }
tracing: { otlp: "http://127.0.0.1:4318", headers: { x-team: team-word } }
stores:
  shared: { redis: "redis://user:pass-word@127.0.0.1:6379/2" }
  watched: { redis: redis://127.0.0.1, sentinel_master: m, sentinel_password: $entinel-word }
maps:
  $tier: { map: $http_x_api_key, default: free, values: { key-of-alice: gold, key-of-bob: free } }
  $backend_auth: { map: $host, default: Bearer default-word, values: { a: Bearer map-word } }
  $place: { geo: $remote_addr, default: out, values: { 10.0.0.0/8: in } }
limit_req_zones:
  perkey: { key: $http_x_api_key, rate: 1r/s, overrides: { key-of-alice: { rate: 5r/s } } }
  perip: { key: $binary_remote_addr, rate: 1r/s, overrides: { 10.0.0.1: { rate: 5r/s } } }
servers:
- listen: 8080
  limit_req: [ { zone: perip }, { zone: perkey } ]
  locations:
  - path: /
    proxy_pass: http://127.0.0.1:9001
    proxy_set_header: { Authorization: "Basic YWxpY2U=", X-Tier: $tier, X-Place: $place, X-Token: $http_x_token, X-Session: $backend_auth }
"#;
        let (plan, _) = load_text("weir.yaml", text, |_| Some("from-outside".into())).unwrap();
        for secret in [
            "from-outside",
            "pass-word",
            "team-word",
            "entinel-word",
            "default-word",
            "map-word",
            "alice",
            "bob",
            "YWxpY2U",
        ] {
            assert!(!plan.source.contains(secret), "{secret} in {}", plan.source);
        }
        let shown: serde_json::Value = serde_json::from_str(&plan.source).unwrap();
        assert_eq!(shown["workers"], 2);
        assert_eq!(shown["admin"]["token"], "***");
        assert_eq!(
            shown["stores"]["shared"]["redis"],
            "redis://***@127.0.0.1:6379/2"
        );
        assert_eq!(
            shown["maps"]["$tier"]["values"],
            json!({ "*** 1": "gold", "*** 2": "free" })
        );
        assert_eq!(
            shown["maps"]["$place"]["values"],
            json!({ "10.0.0.0/8": "in" })
        );
        let zones = &shown["limit_req_zones"];
        assert_eq!(zones["perip"]["overrides"]["10.0.0.1"]["rate"], "5r/s");
        assert_eq!(zones["perkey"]["key"], "$http_x_api_key");
        let fields = &shown["servers"][0]["locations"][0]["proxy_set_header"];
        assert_eq!(
            (&fields["Authorization"], &fields["X-Tier"]),
            (&json!("***"), &json!("$tier"))
        );
        assert_eq!(fields["X-Token"], "$http_x_token");
    }
}
