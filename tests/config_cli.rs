//! The command line: output and exit status.

use std::process::{Command, Output};

use crate::support::weir::{BINARY, output};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command with a file of this text.
fn with_file(command: &str, yaml: &str) -> Output {
    let directory = tempfile::tempdir().expect("it can be written");
    let file = directory.path().join("weir.yaml");
    std::fs::write(&file, yaml).expect("it can be written");
    output(&[command, "--config", &file.display().to_string()])
}

const GOOD: &str = "servers: [ { listen: 127.0.0.1:8080, return: { status: 200, body: ok } } ]\n";
const BAD: &str = "limit_req_zones:
  perip: { key: $binary_remote_addr, size: 10m, rate: 10 r/s }
servers:
- listen: 127.0.0.1:8080
  locatons: []
  limit_req: { zone: perpi }
  proxy_pass: nowhere
";

#[test]
fn check_accepts_a_good_file() {
    let output = with_file("check", GOOD);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn check_lists_every_problem_with_its_place() {
    let output = with_file("check", BAD);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stdout) + &text(&output.stderr);
    for place in [
        "weir.yaml:2:",
        "weir.yaml:5:3",
        "weir.yaml:6:",
        "weir.yaml:7:",
    ] {
        assert!(told.contains(place), "{place} in\n{told}");
    }
    for hint in ["locations", "perip", "nowhere"] {
        assert!(told.contains(hint), "{hint} in\n{told}");
    }
}

#[test]
fn run_refuses_a_bad_file() {
    let output = with_file("run", BAD);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("weir.yaml:6:"));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    for (command, status) in [("check", 1), ("run", 2)] {
        let output = output(&[command, "--config", "/nonexistent/weir.yaml"]);
        assert_eq!(output.status.code(), Some(status), "{command}");
        assert!(text(&output.stderr).contains("/nonexistent/weir.yaml"));
    }
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    for arguments in [
        &["frobnicate"][..],
        &["run", "--confg", "x"],
        &["check", "--config"],
    ] {
        let output = output(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn help_and_version_are_for_the_asking() {
    let help = output(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    for word in ["run", "check", "schema"] {
        assert!(text(&help.stdout).contains(word), "{word}");
    }
    let version = output(&["--version"]);
    assert_eq!(version.status.code(), Some(0));
    assert!(text(&version.stdout).contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn schema_prints_a_json_schema() {
    let output = output(&["schema"]);
    assert_eq!(output.status.code(), Some(0));
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in [
        "servers",
        "upstreams",
        "limit_req_zones",
        "limit_conn_zones",
        "maps",
    ] {
        assert!(schema["properties"].get(key).is_some(), "{key}");
    }
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/weir.schema.json");
    assert_eq!(
        std::fs::read_to_string(kept).unwrap_or_default(),
        text(&output.stdout),
        "conf/weir.schema.json is not what `weir schema` prints"
    );
}

#[test]
fn the_example_files_are_good() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/conf");
    let mut checked = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            let output = Command::new(BINARY)
                .arg("check")
                .arg("--config")
                .arg(&path)
                .output()
                .unwrap();
            let told = text(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{}\n{told}", path.display());
            checked += 1;
        }
    }
    assert!(checked >= 2, "{checked} examples");
}

#[test]
fn an_address_in_use_ends_the_run_with_1_and_its_name() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = with_file("run", &GOOD.replace("127.0.0.1:8080", &address));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains(&address),
        "{}",
        text(&output.stderr)
    );
}
