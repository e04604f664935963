//! What users read of settings (docs/, conf/weir.schema.json) is what the code declares.
//!
//! `UPDATE_REFERENCE=1 cargo test --lib reference` writes the tables and the schema; without it they are compared.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::decode::record::{SettingRow, tidy};
use super::directive::settings::REFERENCE;
use super::{load_text, schema};

/// Ends a table.
const END: &str = "<!-- end of settings -->";

/// The page and the section that describe each record of the schema, without the settings of the tables that are written
/// here.
const SECTIONS: [(&str, &str, &str); 37] = [
    ("AccessLog", "configuration", "Top level"),
    ("Admin", "configuration", "Top level"),
    ("Balance", "upstreams", "Balancing"),
    ("BodyFile", "configuration", "Limits"),
    ("BodyForms", "configuration", "Limits"),
    ("Breaker", "resilience", "Circuit breakers"),
    ("BufferBounds", "configuration", "Top level"),
    ("BuffersParts", "configuration", "Clients"),
    ("Config", "configuration", "Top level"),
    ("ConnRule", "configuration", "Limits"),
    ("ConnZone", "configuration", "Zones"),
    ("ErrorLog", "configuration", "Top level"),
    ("Expect", "resilience", "Health checks"),
    ("Fallback", "resilience", "Fallbacks"),
    ("HealthCheck", "resilience", "Health checks"),
    ("LimitHeadersParts", "configuration", "Limits"),
    ("Listen", "configuration", "Servers"),
    ("Location", "configuration", "Locations"),
    ("Log", "configuration", "Top level"),
    ("MapDirective", "configuration", "Maps"),
    ("Override", "configuration", "Zones"),
    ("Queue", "configuration", "Limits"),
    ("RealIp", "clients", "Behind a proxy"),
    ("RefuseEmptyKey", "configuration", "Zones"),
    ("ReqRule", "configuration", "Limits"),
    ("ReqZone", "configuration", "Zones"),
    ("Resolver", "upstreams", "Names"),
    ("RetryBudget", "upstreams", "Trying again"),
    ("ReturnParts", "configuration", "Return"),
    ("Server", "configuration", "Servers"),
    ("Stale", "resilience", "The last good response"),
    ("Store", "redis", "Settings of a store"),
    ("Tls", "tls", ""),
    ("Tracing", "tracing", "Tracing"),
    ("Upstream", "configuration", "Upstreams"),
    ("UpstreamQueue", "upstreams", "Waiting: max_conns and queue"),
    ("UpstreamServer", "configuration", "Upstreams"),
];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(file(name)).unwrap()
}

/// Compares a file with what it should be, or makes it so.
fn settle(name: &str, wanted: &str) {
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(file(name), wanted).unwrap();
    }
    assert!(
        read(name) == wanted,
        "{name} is not what the code declares: `UPDATE_REFERENCE=1 cargo test --lib reference` writes it"
    );
}

/// What stands between the markers of a table.
fn table(contexts: &str, rows: &[SettingRow]) -> String {
    let mut text =
        format!("\nWhere: {contexts}.\n\n| key | default | meaning |\n| --- | --- | --- |\n");
    for row in rows {
        let default = match (row.default, row.otherwise) {
            (Some(default), _) => format!("`{default}`"),
            (None, words) => words.unwrap_or_default().to_owned(),
        };
        let see = row
            .see
            .map_or_else(String::new, |page| format!(" See {page}."));
        writeln!(
            text,
            "| `{}` | {default} | {}{see} |",
            row.key,
            tidy(row.doc)
        )
        .unwrap();
    }
    text.push('\n');
    text
}

#[test]
fn reference_tables_are_what_the_code_declares() {
    let name = "docs/configuration.md";
    let mut page = read(name);
    for (title, contexts, rows) in REFERENCE {
        let marker = format!("<!-- settings: {title} -->\n");
        let (before, rest) = page.split_once(&marker).expect(&marker);
        let (_, after) = rest.split_once(END).expect(END);
        page = format!("{before}{marker}{}{END}{after}", table(contexts, rows));
    }
    settle(name, &page);
}

#[test]
fn reference_schema_is_what_the_code_declares() {
    settle("conf/weir.schema.json", &schema());
}

/// A row of a table in docs/; of `log.error.level` each part is a key.
struct DocRow {
    page: String,
    section: String,
    keys: Vec<String>,
    /// The second cell; a default, where the table's second column is called so.
    default: String,
    says_default: bool,
}

/// The texts between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn doc_rows() -> Vec<DocRow> {
    let mut rows = Vec::new();
    for path in std::fs::read_dir(file("docs")).unwrap() {
        let path = path.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let page = path.file_stem().unwrap().to_string_lossy().into_owned();
        let mut section = String::new();
        let mut says_default = false;
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            if line.starts_with('#') {
                section = line.trim_start_matches(['#', ' ']).to_owned();
            }
            let mut cells = line.split('|').skip(1);
            let (Some(keys), Some(default)) = (cells.next(), cells.next()) else {
                continue;
            };
            if keys.starts_with(" key") {
                says_default = default.trim() == "default";
            } else if !keys.contains('`') && !keys.contains("---") {
                says_default = false;
            }
            rows.push(DocRow {
                page: page.clone(),
                section: section.clone(),
                keys: quoted(keys)
                    .flat_map(|key| key.split('.'))
                    .map(|key| key.trim_end_matches("[]").to_owned())
                    .collect(),
                default: default.trim().to_owned(),
                says_default,
            });
        }
    }
    rows
}

/// A default of the schema, as it is written.
fn written(default: &Value) -> Option<String> {
    match default {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => Some(
            items
                .iter()
                .filter_map(written)
                .collect::<Vec<_>>()
                .join(", "),
        ),
        other => Some(other.to_string()),
    }
}

impl DocRow {
    fn is_about(&self, key: &str, default: Option<&str>) -> bool {
        self.keys.iter().any(|known| known == key)
            && default.is_none_or(|default| {
                self.default.replace('`', "") == default
                    || quoted(&self.default).any(|given| given == default)
            })
    }
}

#[test]
fn reference_knows_every_key_of_the_schema() {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    let rows = doc_rows();
    let in_tables = |key: &str| {
        let mut tables = REFERENCE.iter().map(|(_, _, rows)| rows);
        tables.any(|rows| rows.iter().any(|row| row.key == key))
    };
    let records = schema["$defs"].as_object().unwrap().iter();
    let root = "Config".to_owned();
    let mut missing = Vec::new();
    for (name, record) in records.chain([(&root, &schema)]) {
        let Some(properties) = record["properties"].as_object() else {
            continue;
        };
        let section = SECTIONS.iter().find(|(record, _, _)| record == name);
        for (key, value) in properties {
            let inherits = ["Config", "Server", "Location"].contains(&name.as_str());
            if key == "include" || (inherits && in_tables(key)) {
                continue;
            }
            let (page, section) = match section {
                _ if key.starts_with("proxy_ssl_") => ("tls", "Upstreams"),
                _ if key == "real_ip" => ("configuration", "Clients"),
                Some((_, page, section)) => (*page, *section),
                None => ("", ""),
            };
            let default = written(&value["default"]);
            let is_known = rows.iter().any(|row| {
                row.page == page
                    && (section.is_empty() || row.section == section)
                    && row.is_about(key, default.as_deref())
            });
            if !is_known {
                missing.push(format!("{name}.{key} {default:?} in {page}.md, {section}"));
            }
        }
    }
    assert!(
        missing.is_empty(),
        "no row in docs/ with the same default:\n{}",
        missing.join("\n")
    );
}

/// A page may repeat the row of a setting. Words in place of a value, such as *as above*, are not compared, and keys of
/// the same name in another record, such as `keepalive_timeout` of an upstream, are others.
#[test]
fn reference_has_one_default_for_a_setting_on_every_page() {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    let rows = doc_rows();
    let is_other = |row: &DocRow, key: &str| {
        SECTIONS.iter().any(|(record, page, section)| {
            !["Config", "Server", "Location"].contains(record)
                && (row.page == *page && row.section == *section)
                && schema["$defs"][record]["properties"].get(key).is_some()
        })
    };
    let given = |row: &&DocRow| row.says_default && row.default.starts_with('`');
    let mut wrong = Vec::new();
    for setting in REFERENCE.iter().flat_map(|(_, _, rows)| *rows) {
        for row in rows.iter().filter(given) {
            if row.keys[..] == [setting.key]
                && !row.is_about(setting.key, setting.default)
                && !is_other(row, setting.key)
            {
                wrong.push(format!("{}.md: {} {}", row.page, setting.key, row.default));
            }
        }
    }
    assert!(wrong.is_empty(), "not the default:\n{}", wrong.join("\n"));
}

#[test]
fn reference_for_nginx_users_denies_no_setting_that_exists() {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    let levels = [
        &schema,
        &schema["$defs"]["Server"],
        &schema["$defs"]["Location"],
    ];
    let mut denied = doc_rows();
    denied.retain(|row| row.page == "migrating-from-nginx" && row.default == "no");
    assert!(denied.len() > 10, "only {} rows", denied.len());
    let keys = denied.iter().flat_map(|row| &row.keys);
    let exists = |key: &&String| {
        levels
            .iter()
            .any(|level| level["properties"].get(key).is_some())
    };
    let wrong: Vec<_> = keys.filter(exists).collect();
    assert!(wrong.is_empty(), "docs/migrating-from-nginx.md: {wrong:?}");
}

#[test]
fn reference_defaults_can_be_written_out() {
    for (_, contexts, rows) in REFERENCE {
        for row in rows {
            let Some(default) = row.default else {
                continue;
            };
            let setting = format!("{}: \"{default}\"", row.key);
            let mut places = vec![
                format!("{setting}\nservers: {{ listen: 8080, return: 204 }}\n"),
                format!("servers: {{ {setting}, listen: 8080, return: 204 }}\n"),
            ];
            if contexts.contains("location") {
                let location = format!("{{ path: /, return: 204, {setting} }}");
                places.push(format!(
                    "servers: {{ listen: 8080, locations: [{location}] }}\n"
                ));
            }
            for text in places {
                if let Err(report) = load_text("weir.yaml", &text, |_| None) {
                    panic!("{text}\n{report}");
                }
            }
        }
    }
}
