//! What we depend on: known licences, one source, and none of the crates that were ruled out.
//!
//! Asked of cargo itself, so that it holds wherever the tests run.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

const LICENCES: [&str; 10] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Unsound, unmaintained, or one way too many to do a thing.
const BANNED: [&str; 9] = [
    "chrono",
    "libyml",
    "native-tls",
    "openssl",
    "openssl-sys",
    "reqwest",
    "ring",
    "rustls-pemfile",
    "serde_yml",
];

/// Every package of the lock file that ends up in a build on this platform, tests included.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo can be run");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo speaks JSON");
    metadata["packages"].as_array().expect("a list").clone()
}

/// Whether an SPDX expression can be met with the licences above. Old manifests write `/` for `OR`.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ").replace(['(', ')'], " ");
    let clean = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    // Without nesting: no package of ours puts an OR inside an AND that would need it to be read otherwise.
    expression.split(" AND ").all(|needed| {
        needed
            .split(" OR ")
            .any(|choice| LICENCES.contains(&clean(choice).as_str()))
    })
}

#[test]
fn every_licence_is_one_we_accept() {
    let wrong: Vec<_> = packages()
        .iter()
        .filter(|package| !package["license"].as_str().is_some_and(is_allowed))
        .map(|package| format!("{}: {}", package["name"], package["license"]))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_crate_is_used_that_was_ruled_out() {
    let names: BTreeSet<_> = packages()
        .iter()
        .filter_map(|package| package["name"].as_str().map(str::to_owned))
        .collect();
    let wrong: Vec<_> = BANNED
        .iter()
        .filter(|name| names.contains(**name))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn every_crate_comes_from_the_registry() {
    let sources: BTreeSet<_> = packages()
        .iter()
        .filter(|package| package["name"] != env!("CARGO_PKG_NAME"))
        .map(|package| package["source"].as_str().unwrap_or("a path").to_owned())
        .collect();
    assert_eq!(sources.len(), 1, "{sources:?}");
    assert!(
        sources.iter().all(|source| source.starts_with("registry+")),
        "{sources:?}"
    );
}

#[test]
fn licence_expressions_are_read() {
    assert!(is_allowed("MIT OR GPL-3.0"));
    assert!(is_allowed("MIT/Apache-2.0"));
    assert!(is_allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
    assert!(!is_allowed("MIT AND GPL-3.0"));
    assert!(!is_allowed("MPL-2.0"));
}
