//! How verbs find the running weir, and their errors when they cannot or may not.

use std::process::{Command, Output};

use super::{limited, text};
use crate::support::api::TOKEN;
use crate::support::weir::BINARY;
use crate::support::{Origin, Weir};

fn bare(arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command
        .args(arguments)
        .env_remove("WEIR_ADMIN")
        .env_remove("WEIR_TOKEN");
    command
}

fn run(mut command: Command) -> Output {
    command.output().expect("the binary can be run")
}

/// Fails with 1, and says this.
fn fails(command: Command, why: &str) {
    let output = run(command);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("weir: ") && said.contains(why), "{said}");
    assert!(!said.contains(TOKEN), "the token is a secret: {said}");
}

#[test]
fn the_listener_is_found_by_flag_environment_and_configuration() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let admin = weir.admin_address().to_string();
    let file = weir.path("weir.yaml").display().to_string();
    let ways = [
        bare(&["zones", "--admin", &admin]),
        bare(&["zones", "--admin", &format!("http://{admin}/")]),
        bare(&["zones", "--config", &file]),
    ];
    let mut by_environment = bare(&["zones"]);
    by_environment.env("WEIR_ADMIN", &admin);
    let mut overruled = bare(&["zones", "--config", &file]);
    overruled.env("WEIR_ADMIN", "127.0.0.1:1");
    for way in ways.into_iter().chain([by_environment, overruled]) {
        let output = run(way);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(text(&output.stdout).contains("one"), "{output:?}");
    }
}

#[test]
fn the_token_is_found_by_file_environment_and_configuration() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let admin = weir.admin_address().to_string();
    let config = weir.path("weir.yaml").display().to_string();
    let file = weir.path("token");
    std::fs::write(&file, format!("{TOKEN}\n")).expect("the directory can be written");
    let file = file.display().to_string();
    let block = ["block", "one", "127.0.0.2", "--admin", &admin];
    fails(bare(&block), "needs the token: set WEIR_TOKEN");
    let mut wrong = bare(&block);
    wrong.env("WEIR_TOKEN", "not-the-token");
    fails(wrong, "the token is not the one");
    let mut by_environment = bare(&block);
    by_environment.env("WEIR_TOKEN", TOKEN);
    let mut by_file = bare(&block);
    by_file.args(["--token-file", &file]);
    let by_configuration = bare(&["block", "one", "127.0.0.2", "--config", &config]);
    for way in [by_environment, by_file, by_configuration] {
        let output = run(way);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

#[test]
fn errors_come_with_advice() {
    // Reserved, and no process listens there.
    fails(
        bare(&["zones", "--admin", "127.0.0.1:1"]),
        "nothing listens at 127.0.0.1:1. Is weir running",
    );
    let origin = Origin::start();
    let stranger = origin.address().to_string();
    fails(
        bare(&["zones", "--admin", &stranger]),
        "none that this version of weir understands",
    );
    fails(
        bare(&["health", "--admin", "127.0.0.1:1"]),
        "nothing listens at",
    );
    fails(
        bare(&["zones", "--token-file", "/nowhere/token"]),
        "/nowhere/token",
    );
    let open = Weir::before(
        &origin,
        "admin: { listen: ADMIN }
limit_req_zones: { one: { key: $binary_remote_addr, size: 1m, rate: 1r/m } }
servers: [ { listen: LISTEN, limit_req: { zone: one }, proxy_pass: 'http://ORIGIN' } ]
",
    );
    let admin = open.admin_address().to_string();
    let forget = bare(&["forget", "one", "127.0.0.1", "--admin", &admin]);
    fails(forget, "admin.token");
}

#[test]
fn usage_errors_have_an_exit_status_of_their_own() {
    let mut nonsense = bare(&["zones"]);
    nonsense.env("WEIR_ADMIN", "no address");
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let file = directory.path().join("weir.yaml");
    std::fs::write(
        &file,
        "servers: [ { listen: 127.0.0.1:8080, return: { status: 200 } } ]\n",
    )
    .expect("the directory can be written");
    let no_admin = bare(&["zones", "--config", &file.display().to_string()]);
    let no_file = bare(&["zones", "--config", "/nowhere/weir.yaml"]);
    let no_address = bare(&["zones", "--admin", "nowhere"]);
    for command in [nonsense, no_admin, no_file, no_address] {
        let output = run(command);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn help_has_every_verb_in_its_group() {
    let help = text(&run(bare(&["--help"])).stdout);
    let heads = [
        "Run:",
        "Inspect a running weir:",
        "Change a running weir:",
        "Prepare:",
    ];
    let places = heads.map(|head| {
        help.find(head)
            .unwrap_or_else(|| panic!("{head} in\n{help}"))
    });
    assert!(places.is_sorted(), "{help}");
    let (zones, block) = (help.find("\n  zones "), help.find("\n  block "));
    assert!(zones > Some(places[1]) && zones < Some(places[2]), "{help}");
    assert!(block > Some(places[2]) && block < Some(places[3]), "{help}");
}
