//! `.ci/run`: cargo starts with an empty home, or the run reports that it could not.
//!
//! `cargo` and `tests/run` are scripts here that write down what they were given.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use tempfile::TempDir;

/// A checkout with `.ci/run` and nothing else of ours, on a machine whose cargo home is `home`.
struct Checkout {
    directory: TempDir,
}

impl Checkout {
    /// `fetch` is what the machine's `cargo` does, `tests` is the script at tests/run.
    fn new(fetch: &str, tests: &str) -> Self {
        let directory = tempfile::tempdir().expect("the temporary directory can be written");
        let checkout = Self { directory };
        let ci = concat!(env!("CARGO_MANIFEST_DIR"), "/.ci/run");
        let ci = std::fs::read_to_string(ci).expect(".ci/run");
        checkout.script(".ci/run", &ci);
        checkout.script("tests/run", &format!("#!/bin/sh\n{tests}\n"));
        checkout.script("home/bin/cargo", &format!("#!/bin/sh\n{fetch}\n"));
        checkout.write("home/config.toml", "[source.crates-io]\n");
        checkout.write("home/registry/cache", "crates of this machine");
        // As a run leaves it that was killed.
        checkout.write("target/cargo-home/registry/cache", "crates of the last run");
        checkout
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
        std::fs::write(path, text).expect("the folder can be written");
    }

    fn script(&self, name: &str, text: &str) {
        self.write(name, text);
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.path(name), mode).expect("it is ours");
    }

    fn run(&self) -> Output {
        // Through bash, not by its name: a file that was just written may still be open in a child another test forks.
        Command::new("bash")
            .arg(self.path(".ci/run"))
            .env("CARGO_HOME", self.path("home"))
            .env_remove("CARGO_NET_OFFLINE")
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("HOME")
            .output()
            .expect("bash")
    }

    /// A file the scripts wrote.
    fn told(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn is_swept(&self) -> bool {
        !self.path("target/cargo-home").exists()
    }
}

const TESTS: &str = "echo \"$CARGO_HOME\" >home-of-tests; echo \"$CARGO_NET_OFFLINE\" >offline; ls \"$CARGO_HOME\" >found; \
                     echo \"$RUSTUP_HOME\" >toolchains; exit 7";

#[test]
fn cargo_starts_with_an_empty_home() {
    let checkout = Checkout::new("echo \"$CARGO_HOME $*\" >>calls", TESTS);
    let run = checkout.run();
    assert_eq!(
        run.status.code(),
        Some(7),
        "the status of the tests: {run:?}"
    );
    let home = checkout.path("target/cargo-home").display().to_string();
    assert_eq!(checkout.told("home-of-tests").trim(), home);
    assert_eq!(
        checkout.told("calls"),
        format!(
            "{home} fetch --locked --quiet\n\
             {home} fetch --locked --quiet --manifest-path tests/fuzz/Cargo.toml\n"
        )
    );
    // Where crates come from is the machine's affair; which ones it has already is not.
    assert_eq!(checkout.told("found"), "config.toml\n");
    assert_eq!(checkout.told("offline").trim(), "");
    assert!(checkout.told("toolchains").trim().ends_with("/.rustup"));
    assert!(checkout.is_swept(), "the home of this run is removed");
}

#[test]
fn without_network_the_crates_of_the_machine_are_used() {
    let checkout = Checkout::new("exit 101", TESTS);
    let run = checkout.run();
    assert_eq!(run.status.code(), Some(7), "{run:?}");
    let home = checkout.path("home").display().to_string();
    assert_eq!(checkout.told("home-of-tests").trim(), home);
    assert_eq!(checkout.told("offline").trim(), "true");
    assert!(checkout.told("found").contains("registry"));
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(
        said.contains("could not be downloaded") && said.contains(&home),
        "{said}"
    );
    assert!(checkout.is_swept());
}
