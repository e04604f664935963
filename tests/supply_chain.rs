//! Dependencies: licences, crates and sources as `.deny.toml` allows them.
//!
//! `cargo deny` says the same and more where it is installed; this asks cargo alone, so it holds wherever the tests run.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

const RULES: &str = include_str!("../.deny.toml");

/// The texts in quotes of the list called `name` in a section of the rules; of a table, those under its first key.
fn list(section: &str, name: &str) -> Vec<String> {
    let list: Vec<_> = RULES
        .lines()
        .skip_while(|line| *line != section)
        .skip_while(|line| !line.starts_with(&format!("{name} = [")))
        .take_while(|line| !line.is_empty() && *line != "]")
        .filter_map(|line| line.split('"').nth(1).map(str::to_owned))
        .collect();
    assert!(!list.is_empty(), "{section} {name} in .deny.toml");
    list
}

/// Every package of the lock file, those for other platforms included.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo can be run");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "cargo knows not every crate; `cargo fetch --locked` downloads them (tests/run does so first): {told}"
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo speaks JSON");
    metadata["packages"].as_array().expect("a list").clone()
}

/// Whether an SPDX expression can be met with these licences. Old manifests write `/` for `OR`.
fn is_allowed(expression: &str, licences: &[String]) -> bool {
    let expression = expression.replace('/', " OR ").replace(['(', ')'], " ");
    let clean = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    // Without nesting: no package of ours puts an OR inside an AND that would need it to be read otherwise.
    expression.split(" AND ").all(|needed| {
        needed
            .split(" OR ")
            .any(|choice| licences.contains(&clean(choice)))
    })
}

#[test]
fn every_licence_is_one_we_accept() {
    let licences = list("[licenses]", "allow");
    let wrong: Vec<_> = packages()
        .iter()
        .filter(|package| {
            let licence = package["license"].as_str();
            !licence.is_some_and(|licence| is_allowed(licence, &licences))
        })
        .map(|package| format!("{}: {}", package["name"], package["license"]))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_crate_is_used_that_was_ruled_out() {
    // Of the crates that are built, not of the lock file: that has also crates of features that are off.
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--edges", "all"])
        .args(["--prefix", "none", "--format", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo can be run");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("rustls "), "{output:?}");
    let names: BTreeSet<_> = told
        .lines()
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect();
    let mut banned = list("[bans]", "deny");
    banned.retain(|name| names.contains(name));
    assert!(banned.is_empty(), "{banned:?}");
}

#[test]
fn every_crate_comes_from_the_registry() {
    let allowed: Vec<_> = list("[sources]", "allow-registry")
        .iter()
        .map(|registry| format!("registry+{registry}"))
        .collect();
    let wrong: Vec<_> = packages()
        .iter()
        .filter(|package| package["name"] != env!("CARGO_PKG_NAME"))
        .filter(|package| {
            let source = package["source"].as_str();
            !source.is_some_and(|source| allowed.iter().any(|registry| registry == source))
        })
        .map(|package| format!("{} from {}", package["name"], package["source"]))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn licence_expressions_are_read() {
    let licences = ["MIT", "Apache-2.0", "Unicode-3.0"].map(str::to_owned);
    for (expression, allowed) in [
        ("MIT OR GPL-3.0", true),
        ("MIT/Apache-2.0", true),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("MIT AND GPL-3.0", false),
        ("MPL-2.0", false),
    ] {
        assert_eq!(is_allowed(expression, &licences), allowed, "{expression}");
    }
}
