//! What users read of settings (docs/, conf/weir.schema.json) is what the code declares.
//!
//! `UPDATE_REFERENCE=1 cargo test reference` writes the tables and the schema; without it they are compared.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::decode::record::{SettingRow, tidy};
use super::directive::settings::REFERENCE;
use super::{load_text, schema};

/// Ends a table.
const END: &str = "<!-- end of settings -->";

/// Keys that pages explain without a row of their own.
const IN_PROSE: [&str; 10] = [
    "consistent",
    "default_server",
    "file",
    "hash",
    "html",
    "json",
    "location",
    "number",
    "text",
    "url",
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
        "{name} is not what the code declares: `UPDATE_REFERENCE=1 cargo test reference` writes it"
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

/// Keys and their default in the tables of docs/; of `log.error.level` each part is a key.
struct DocRow {
    keys: Vec<String>,
    default: String,
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn doc_rows() -> Vec<DocRow> {
    let mut rows = Vec::new();
    for page in std::fs::read_dir(file("docs")).unwrap() {
        let page = page.unwrap().path();
        if page.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        for line in std::fs::read_to_string(page).unwrap().lines() {
            let mut cells = line.split('|').skip(1);
            let (Some(keys), Some(default)) = (cells.next(), cells.next()) else {
                continue;
            };
            rows.push(DocRow {
                keys: quoted(keys)
                    .flat_map(|key| key.split('.'))
                    .map(|key| key.trim_end_matches("[]").to_owned())
                    .collect(),
                default: default.trim().to_owned(),
            });
        }
    }
    rows
}

/// A default that only the sentence says, where it is one number with or without a unit.
fn number_in_prose(value: &Value) -> Option<String> {
    let (_, default) = value["description"].as_str()?.split_once("Default: ")?;
    let default = default.strip_suffix('.')?;
    let is_number = default.starts_with(|first: char| first.is_ascii_digit());
    (is_number && !default.contains([' ', ',', ';'])).then(|| default.to_owned())
}

/// All keys of the schema with their descriptions and defaults.
fn keys(schema: &Value) -> Vec<(String, Option<String>)> {
    let mut keys = Vec::new();
    let records = schema["$defs"].as_object().unwrap().values();
    for record in records.chain([schema]) {
        let Some(properties) = record["properties"].as_object() else {
            continue;
        };
        for (key, value) in properties.iter().filter(|(key, _)| *key != "include") {
            let default = match &value["default"] {
                Value::Null => number_in_prose(value),
                Value::String(text) => Some(text.clone()),
                other => Some(other.to_string()),
            };
            keys.push((key.clone(), default));
        }
    }
    keys
}

#[test]
fn reference_knows_every_key_of_the_schema() {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    let rows = doc_rows();
    let mut missing = Vec::new();
    for (key, default) in keys(&schema) {
        let mut known = rows.iter().filter(|row| row.keys.contains(&key));
        let is_documented = match default {
            Some(default) => known.any(|row| {
                row.default == default || quoted(&row.default).any(|given| given == default)
            }),
            None => known.next().is_some() || IN_PROSE.contains(&key.as_str()),
        };
        if !is_documented {
            missing.push(key);
        }
    }
    missing.sort();
    missing.dedup();
    assert!(
        missing.is_empty(),
        "no row in docs/ with the same default: {missing:?}"
    );
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
