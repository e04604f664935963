//! The rules of the source tree: a file is one concept and says which, names are unique, and no folder uses one above it.
//!
//! The layers are read from the table in `src/lib.rs`.

mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use self::tree::Tree;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Every Rust file of the project under `folder`.
fn sources(folder: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a folder of the project") {
            let path = entry.expect("it can be read").path();
            // What `cargo fuzz` builds by default stands in tests/fuzz/target.
            if path.ends_with("target") {
                continue;
            }
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&Path::new(ROOT).join(folder), &mut found);
    assert!(!found.is_empty());
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a text of the project")
}

/// What a file says to the compiler: no comments, and no texts of tests at the end of a line either.
fn code(text: &str) -> String {
    text.lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

/// The folder of a file, or its own name for those at the top.
fn folder(path: &Path) -> String {
    let inside = path
        .strip_prefix(Path::new(ROOT).join("src"))
        .expect("a source");
    let first = inside.components().next().expect("a name");
    let name = first.as_os_str().to_string_lossy();
    name.trim_end_matches(".rs").to_owned()
}

/// The height of every folder: the table's lines from the bottom.
fn heights() -> BTreeMap<String, usize> {
    let map = read(&Path::new(ROOT).join("src/lib.rs"));
    let table: Vec<_> = map
        .lines()
        .skip_while(|line| *line != "//! ```text")
        .skip(1)
        .take_while(|line| *line != "//! ```")
        .collect();
    let heights: BTreeMap<_, _> = table
        .iter()
        .rev()
        .enumerate()
        .flat_map(|(height, line)| {
            let folders = line.trim_start_matches("//!").split_whitespace();
            folders.map(move |folder| (folder.to_owned(), height))
        })
        .collect();
    assert!(heights.len() >= 10, "the table in src/lib.rs: {heights:?}");
    heights
}

/// Fails with the whole list of what breaks a rule.
#[track_caller]
fn assert_none(what: &str, found: &[String]) {
    let list = found.join("\n");
    assert!(found.is_empty(), "{what}: {}\n{list}", found.len());
}

#[test]
fn files_are_one_concept_and_say_which() {
    let mut wrong = Vec::new();
    for path in ["src", "tests", "benches"].into_iter().flat_map(sources) {
        let text = read(&path);
        let lines = text.lines().count();
        if lines > 800 {
            wrong.push(format!("{}: {lines} lines", path.display()));
        }
        if !text.starts_with("//! ") {
            wrong.push(format!("{}: does not say why it exists", path.display()));
        }
    }
    assert_none("files", &wrong);
}

#[test]
fn folders_can_be_read_at_a_glance() {
    let mut files: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for path in sources("src") {
        if !path.components().any(|part| part.as_os_str() == "tests") {
            let folder = path.parent().expect("a folder").to_owned();
            *files.entry(folder).or_default() += 1;
        }
    }
    let large: Vec<_> = files
        .iter()
        .filter(|(_, files)| **files > 15)
        .map(|(folder, files)| format!("{}: {files} files", folder.display()))
        .collect();
    assert_none("folders of more than 15 files", &large);
}

#[test]
fn a_folder_uses_only_folders_below_it() {
    let (heights, tree) = (heights(), Tree::read());
    let mut wrong = Vec::new();
    for (module, own, other) in tree.folders_used() {
        let (Some(height), Some(other_height)) = (heights.get(&own), heights.get(&other)) else {
            continue;
        };
        if other_height >= height {
            wrong.push(format!("{}: {own} uses {other}", module.file));
        }
    }
    assert_none("uses of a folder that is not below", &wrong);
}

#[test]
fn files_do_not_use_each_other_in_circles() {
    let uses = Tree::read().uses();
    let reachable = |from: &str| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from.to_owned()];
        while let Some(file) = open.pop() {
            for next in uses.get(&file).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        seen
    };
    let circular: Vec<_> = uses
        .keys()
        .filter(|file| reachable(file).contains(*file))
        .cloned()
        .collect();
    assert_none("files in cycles", &circular);
}

/// Where a name may stand once more: as the user writes it, as it is compiled, as the API shows it, and as it runs.
fn tier(path: &[String]) -> &'static str {
    let is = |name: &str| path.iter().any(|part| part == name);
    match path.first().map(String::as_str) {
        Some("config") if is("raw") || is("decode") || is("source") => "raw",
        Some("config") => "plan",
        Some("api") => "api",
        _ => "running",
    }
}

#[test]
fn a_name_is_one_thing() {
    let tree = Tree::read();
    let mut places: BTreeMap<(&str, &'static str), Vec<String>> = BTreeMap::new();
    for (path, module) in tree.modules() {
        for name in module.types.iter().filter(|name| *name != "Error") {
            if !module.is_test {
                let places = places.entry((name, tier(path))).or_default();
                places.push(path.join("::"));
            }
        }
    }
    let shared: Vec<_> = places
        .iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|((name, _), places)| format!("{name}: {}", places.join(", ")))
        .collect();
    assert_none("names of several types", &shared);
}

#[test]
fn a_type_is_implemented_in_one_place() {
    let tree = Tree::read();
    let mut files: BTreeMap<(String, String), BTreeSet<&str>> = BTreeMap::new();
    for (path, module) in tree.modules() {
        for name in module.impls.iter().filter(|_| !module.is_test) {
            let folder = path.first().cloned().unwrap_or_default();
            files
                .entry((folder, name.clone()))
                .or_default()
                .insert(&module.file);
        }
    }
    let scattered: Vec<_> = files
        .iter()
        // Its methods for lists, maps and shorthands stand beside those types.
        .filter(|((_, name), files)| files.len() > 2 && name != "Field")
        .map(|((folder, name), files)| format!("{folder}::{name}: {files:?}"))
        .collect();
    assert_none("types implemented in more than two files", &scattered);
}

#[test]
fn imports_name_a_folder_not_the_files_in_it() {
    // Modules that are meant to be named: their functions read well behind the module's name.
    let named = [
        "crate::config::amend",
        "crate::config::plan",
        "crate::config::raw",
        "crate::message::grpc",
        "crate::message::headers",
        "crate::message::testing",
        "crate::message::variables",
        "crate::telemetry::traces",
        "crate::upstream::breaker",
    ];
    let tree = Tree::read();
    let deep: Vec<_> = tree
        .deep_imports()
        .into_iter()
        .filter(|(_, path)| !named.iter().any(|module| path.starts_with(module)))
        .map(|(file, path)| format!("{file}: {path}"))
        .collect();
    assert_none("imports from inside another folder", &deep);
}

#[test]
fn sentences_have_a_subject_a_reader_knows() {
    let mut found = Vec::new();
    for path in sources("src") {
        for (number, line) in read(&path).lines().enumerate() {
            let words = line.split(|c: char| !c.is_alphabetic());
            for word in words {
                let word = word.to_lowercase();
                if ["anybody", "everybody", "nobody", "somebody", "whoever"].contains(&&*word) {
                    found.push(format!("{}:{}: {word}", path.display(), number + 1));
                }
            }
        }
    }
    assert_none("sentences without a concrete subject", &found);
}

#[test]
fn the_tree_is_read_as_the_compiler_reads_it() {
    let tree = Tree::of(&[
        (&[], "mod low; mod high;"),
        (
            &["low"],
            "pub struct Zone; pub mod inner { pub fn find() {} } pub use self::inner::find as seek;",
        ),
        (
            &["high"],
            "use crate::{low::{self, Zone as Z}}; mod deep { use super::super::low::inner; \
             fn f() { say!(inner::find(), self::x, crate::low::seek) } } use low::seek;",
        ),
    ]);
    let used: Vec<_> = tree
        .folders_used()
        .into_iter()
        .map(|(_, own, other)| format!("{own} {other}"))
        .collect();
    assert_eq!(used, ["high low", "high low"]);
    let uses = tree.uses();
    assert_eq!(uses.len(), 1);
    assert_eq!(
        uses["src/high.rs"].iter().collect::<Vec<_>>(),
        ["src/low.rs"]
    );
}

#[test]
fn every_folder_stands_in_the_table() {
    let heights = heights();
    let map = read(&Path::new(ROOT).join("src/lib.rs"));
    let declared: BTreeSet<_> = map
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .map(str::to_owned)
        .collect();
    assert_eq!(declared, heights.into_keys().collect());
}

/// What only some folders may name, so that replacing it stays a job in one place.
#[test]
fn library_types_stay_in_their_folders() {
    let owners: [(&str, &[&str]); 11] = [
        ("config::raw", &["cli", "config"]),
        ("hashbrown::", &["store"]),
        ("redis::", &["store"]),
        ("serde_yaml::", &["config"]),
        ("annotate_snippets::", &["cli", "config"]),
        ("clap::", &["cli"]),
        ("anyhow::", &["cli"]),
        ("ArcSwap", &["admin", "app", "proxy"]),
        ("println!", &["cli"]),
        ("rustls::", &["tls"]),
        ("webpki::", &["tls"]),
    ];
    let mut wrong = Vec::new();
    for path in sources("src") {
        let own = folder(&path);
        let code = code(&read(&path));
        for (what, folders) in owners {
            if code.contains(what) && !folders.contains(&own.as_str()) {
                wrong.push(format!("{}: {what}", path.display()));
            }
        }
        for runtime in ["tokio::", "hyper::"] {
            if own == "config" && code.contains(runtime) {
                wrong.push(format!(
                    "{}: config is only text, yet it names {runtime}",
                    path.display()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
