//! Every error of a configuration and its message, as snapshots.

use std::path::Path;

use weir::config::load;
use weir::config::load_text;

fn env(name: &str) -> Option<String> {
    (name == "PORT").then(|| "8080".to_owned())
}

/// What is said about a text; warnings where there is nothing worse.
fn said(text: &str) -> String {
    match load_text("weir.yaml", text, env) {
        Ok((_, warnings)) => format!("{warnings}\n\n(fine otherwise)"),
        Err(report) => {
            for diagnostic in report.diagnostics() {
                assert!(diagnostic.span.is_some(), "without a place: {diagnostic:?}");
            }
            format!("{report}\n\n({} errors)", report.errors())
        }
    }
}

#[test]
fn every_mistake_is_explained() {
    let mut count = 0;
    for case in include_str!("config_errors.txt").split("\n### ").skip(1) {
        let (name, text) = case.split_once('\n').expect("a name and a text");
        let text = if format!("\n{text}").contains("\nservers:")
            || ["empty_file", "root_is_a_list"].contains(&name)
        {
            text.to_owned()
        } else {
            format!("{}\nservers: [{{ return: 204 }}]\n", text.trim_end())
        };
        insta::with_settings!({ omit_expression => true, description => text.as_str() }, {
            insta::assert_snapshot!(name, said(&text));
        });
        count += 1;
    }
    assert!(count >= 40, "only {count} cases were found");
}

#[test]
fn five_mistakes_in_one_file_are_all_reported() {
    let text = "workers: none\n\
                limit_req_zones: { perip: { key: $remote_adr, rate: 10x } }\n\
                servers:\n  - servername: a\n    limit_req: { zone: perpi }\n    return: 204\n";
    let report = load_text("weir.yaml", text, env).expect_err("it is full of mistakes");
    let places: Vec<_> = report
        .to_string()
        .lines()
        .filter_map(|line| Some(line.split_once("--> ")?.1.to_owned()))
        .collect();
    assert_eq!(
        places,
        [
            "weir.yaml:1:10",
            "weir.yaml:2:34",
            "weir.yaml:2:53",
            "weir.yaml:4:5",
            "weir.yaml:5:24"
        ]
    );
}

#[test]
fn the_examples_are_fine() {
    for name in [
        "conf/demo.yaml",
        "conf/minimal.yaml",
        "conf/packaged.yaml",
        "conf/weir.yaml",
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        match load(&path) {
            Ok((_, warnings)) => assert!(warnings.is_empty(), "{warnings}"),
            Err(report) => panic!("{report}"),
        }
    }
}

/// A directory with these files.
fn files(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory for a while");
    for (name, text) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a name has a parent"))
            .expect("a place for it");
        std::fs::write(path, text).expect("room for a few bytes");
    }
    directory
}

/// What is said about the first of these files, without the name of their directory.
fn said_of(given: &[(&str, &str)]) -> String {
    let directory = files(given);
    let said = match load(&directory.path().join(given[0].0)) {
        Ok((_, warnings)) => format!("{warnings}\n(fine otherwise)"),
        Err(report) => report.to_string(),
    };
    said.replace(&format!("{}/", directory.path().display()), "")
}

#[test]
fn included_files_are_merged_and_keep_their_places() {
    let said = said_of(&[
        (
            "weir.yaml",
            "include: [zones.yaml, 'sites/*.yaml', 'none/*.yaml']\nworkers: 1\n",
        ),
        (
            "zones.yaml",
            "limit_req_zones:\n  perip: { key: $binary_remote_addr, rate: 1r/s }\n",
        ),
        (
            "sites/a.yaml",
            "servers:\n  - include: ../limits.yaml\n    listen: 8080\n    return: 204\n",
        ),
        (
            "sites/b.yaml",
            "servers:\n  - listen: 8081\n    return: 20x\n",
        ),
        ("limits.yaml", "limit_req: { zone: perpi }\n"),
    ]);
    insta::assert_snapshot!(said);
}

#[test]
fn what_two_files_say_differently_is_a_mistake_that_names_both() {
    let said = said_of(&[
        (
            "weir.yaml",
            "workers: 1\ninclude: other.yaml\nservers: [{ return: 204 }]\n",
        ),
        ("other.yaml", "shutdown_timeout: 5s\nworkers: 2\n"),
    ]);
    insta::assert_snapshot!(said);
}

#[test]
fn includes_that_lead_nowhere_are_mistakes() {
    let said = said_of(&[
        (
            "weir.yaml",
            "include: [missing.yaml, list.yaml, round.yaml, broken.yaml, { a: b }]\nservers: [{ return: 204 }]\n",
        ),
        ("list.yaml", "- a\n"),
        ("round.yaml", "log:\n  include: round.yaml\n"),
        ("broken.yaml", "a: [\n"),
    ]);
    insta::assert_snapshot!(said.replace("No such file or directory (os error 2)", "gone"));
}

#[test]
fn a_chain_of_includes_ends() {
    let names: Vec<_> = (0..20).map(|n| format!("{n}.yaml")).collect();
    let texts: Vec<_> = (1..21).map(|n| format!("include: {n}.yaml\n")).collect();
    let given: Vec<_> = names
        .iter()
        .zip(&texts)
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    let said = said_of(&given);
    assert!(said.contains("deeper than 16 levels"), "{said}");
}

#[test]
fn a_file_that_is_not_there_is_a_mistake_too() {
    let said = load(Path::new("/nowhere/weir.yaml"))
        .expect_err("it is not there")
        .to_string();
    assert!(
        said.starts_with("error: cannot read /nowhere/weir.yaml"),
        "{said}"
    );
}
