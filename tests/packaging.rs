//! The shipped files: systemd unit, log rotation, Kubernetes example, manual and completions.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::weir::{BINARY, output};

fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("conf")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

/// A file of this name and text, in a folder that lasts as long as what is returned first.
fn written(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("room for a file");
    (folder, path)
}

#[test]
fn systemd_takes_the_unit_and_finds_it_well_closed_in() {
    // The packaged binary and page are not there where tests run.
    let unit = shipped("systemd/weir.service")
        .replace("/usr/bin/weir", BINARY)
        .replace("Documentation=man:weir(1)\n", "");
    let (_folder, path) = written("weir.service", &unit);
    let verified = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&path)
        .output()
        .expect("systemd-analyze");
    assert!(verified.status.success(), "{}", told(&verified));
    assert_eq!(told(&verified).trim(), "", "not a word");
    // Tenths of its points: the less, the less it may do; an ordinary service has 96.
    let closed = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=18"])
        .arg(&path)
        .output()
        .expect("systemd-analyze");
    assert!(closed.status.success(), "{}", told(&closed));
}

#[test]
fn logrotate_takes_its_file() {
    let (_folder, path) = written("weir", &shipped("logrotate/weir"));
    let tried = Command::new("logrotate")
        .arg("--debug")
        .arg(&path)
        .output()
        .expect("logrotate");
    assert!(tried.status.success(), "{}", told(&tried));
    assert!(!told(&tried).contains("error:"), "{}", told(&tried));
}

#[test]
fn the_kubernetes_manifests_are_valid() {
    let objects = shipped("kubernetes/weir.yaml");
    let (_, config) = objects
        .split_once("  weir.yaml: |\n")
        .expect("a configuration");
    let config: String = config
        .lines()
        .take_while(|line| *line != "---")
        .map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned() + "\n")
        .collect();
    let (_folder, path) = written("weir.yaml", &config);
    let checked = Command::new(BINARY)
        .args(["check", "--config"])
        .arg(&path)
        .env("WEIR_TOKEN", "secret")
        .output()
        .expect("weir");
    assert!(checked.status.success(), "{}", told(&checked));
}

#[test]
fn the_manual_is_a_valid_man_page() {
    let pages = tempfile::tempdir().expect("a folder");
    let folder = pages.path().display().to_string();
    let written = output(&["man", "--dir", &folder]);
    assert!(written.status.success(), "{}", told(&written));
    let page = Command::new("man")
        .env("MANPAGER", "cat")
        .env("LC_ALL", "C")
        .arg(pages.path().join("weir-replay.1"))
        .output()
        .expect("man");
    assert!(page.status.success(), "{}", told(&page));
    assert!(told(&page).contains("access log"), "{}", told(&page));
}

#[test]
fn bash_completes_verbs_and_flags() {
    let script = output(&["completions", "bash"]);
    let (_folder, path) = written("weir.bash", &told(&script));
    let complete = |words: &str| {
        let count = words.split(' ').count();
        let asked = Command::new("bash")
            .arg("-c")
            .arg(format!(
                "source '{}'; COMP_WORDS=({words}); COMP_CWORD={}; _weir weir '{}' ''; echo ${{COMPREPLY[@]}}",
                path.display(),
                count - 1,
                words.rsplit(' ').next().unwrap_or_default(),
            ))
            .output()
            .expect("bash");
        told(&asked)
    };
    assert_eq!(complete("weir ch").trim(), "check");
    assert!(complete("weir check --c").contains("--config"));
}
