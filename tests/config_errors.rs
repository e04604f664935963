//! Every mistake a configuration can have, and what is said about it.

use weir::config::{load, load_text};

fn env(name: &str) -> Option<String> {
    (name == "PORT").then(|| "8080".to_owned())
}

/// What is said about a text; warnings where there is nothing worse.
fn said(text: &str) -> String {
    match load_text("weir.yaml", text, env) {
        Ok((_, warnings)) => warnings.to_string(),
        Err(report) => report.to_string(),
    }
}

#[test]
fn the_examples_are_fine() {
    for name in ["conf/minimal.yaml", "conf/weir.yaml"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        match load(&path) {
            Ok((_, warnings)) => assert!(warnings.is_empty(), "{warnings}"),
            Err(report) => panic!("{report}"),
        }
    }
}
#[test]
fn probe() {
    if let Ok(f) = std::env::var("PROBE") {
        println!("{}", said(&std::fs::read_to_string(f).unwrap()));
    }
}
