//! The rules of the house, kept true: files stay small and say why they exist, and no room knows one above it.
//!
//! The layering is read from the table in `src/lib.rs`, so that there is one truth about it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

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

/// The room of a file, or its own name for those at the top.
fn room(path: &Path) -> String {
    let inside = path
        .strip_prefix(Path::new(ROOT).join("src"))
        .expect("a source");
    let first = inside.components().next().expect("a name");
    let name = first.as_os_str().to_string_lossy();
    name.trim_end_matches(".rs").to_owned()
}

/// The height of every room: the table's lines from the bottom.
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
            let rooms = line.trim_start_matches("//!").split_whitespace();
            rooms.map(move |room| (room.to_owned(), height))
        })
        .collect();
    assert!(heights.len() >= 10, "the table in src/lib.rs: {heights:?}");
    heights
}

/// The rooms a text mentions: `crate::room` and those in `crate::{…}`.
fn mentioned(code: &str) -> BTreeSet<String> {
    let name = |text: &str| -> String {
        let text = text.trim_start();
        text.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    let mut rooms = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        let Some(list) = after.strip_prefix('{') else {
            rooms.insert(name(after));
            continue;
        };
        let mut depth = 0;
        let mut item = String::new();
        for character in list.chars() {
            match character {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    rooms.insert(name(&item));
                    item.clear();
                    continue;
                }
                _ => {}
            }
            item.push(character);
        }
        rooms.insert(name(&item));
    }
    rooms.remove("");
    rooms
}

#[test]
fn files_are_small_and_say_why_they_exist() {
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
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_room_uses_only_rooms_under_it() {
    let heights = heights();
    let mut wrong = Vec::new();
    for path in sources("src") {
        let own = room(&path);
        let Some(height) = heights.get(&own) else {
            assert!(
                own == "lib" || own == "main",
                "{own} is not in the table of src/lib.rs"
            );
            continue;
        };
        for other in mentioned(&code(&read(&path))) {
            let Some(other_height) = heights.get(&other) else {
                wrong.push(format!("{}: unknown room {other}", path.display()));
                continue;
            };
            if other != own && other_height >= height {
                wrong.push(format!("{}: {own} knows {other}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_room_stands_in_the_table() {
    let heights = heights();
    let map = read(&Path::new(ROOT).join("src/lib.rs"));
    let declared: BTreeSet<_> = map
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .map(str::to_owned)
        .collect();
    assert_eq!(declared, heights.into_keys().collect());
}

/// What only some rooms may name, so that replacing it stays a job in one place.
#[test]
fn what_belongs_to_one_room_is_named_only_there() {
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
        let own = room(&path);
        let code = code(&read(&path));
        for (what, rooms) in owners {
            if code.contains(what) && !rooms.contains(&own.as_str()) {
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

#[test]
fn mentions_are_found_in_lists_too() {
    let rooms = mentioned(
        "use crate::{clock::{Clock, Millis}, config, store::Zone as Z};\ncrate::route::find()",
    );
    assert_eq!(
        rooms.into_iter().collect::<Vec<_>>(),
        ["clock", "config", "route", "store"]
    );
}
