//! Text becomes a plan; no sockets, no runtime, no clock.
//!
//! Three steps, each in a folder of its own: `read` makes one tree of all files, `decode` makes the user's
//! [`model`] from it, `compile` makes the [`plan`]. None of them stops at a mistake; all of them tell the same
//! [`Report`].

pub mod amend;
mod compile;
mod decode;
mod hidden;
pub mod model;
mod near;
pub mod plan;
mod read;
pub mod report;
mod secret;
mod span;
mod tree;
mod units;
mod view;

use std::path::Path;

use decode::{Decode, DecodeContext};
pub use plan::Plan;
pub use read::watch::{ConfigFiles, FileStamp, FileStamps, stamp};
pub use report::Report;
pub use secret::Secret;
pub use span::Span;
use tree::{Node, NodeKind};

/// Reads a file and all it includes.
///
/// # Errors
///
/// Everything that is wrong with it. What is only doubtful comes with the plan.
pub fn load(path: &Path) -> Result<(Plan, Report), Report> {
    let mut report = Report::default();
    let env = |name: &str| std::env::var(name).ok();
    let root = read::ConfigReader::new(&env, &mut report).file(path);
    finish(root, report)
}

/// The files that a configuration is made of, to be looked at for changes.
#[must_use]
pub fn watch(path: &Path) -> ConfigFiles {
    let mut report = Report::default();
    let env = |name: &str| std::env::var(name).ok();
    let mut reader = read::ConfigReader::new(&env, &mut report);
    // What is wrong with them is told to who reads them.
    reader.file(path);
    reader.watch()
}

/// Reads a text as if it stood in a file called `name`; `env` gives the values of `${NAME}`.
///
/// # Errors
///
/// Everything that is wrong with it. What is only doubtful comes with the plan.
pub fn load_text(
    name: &str,
    text: &str,
    env: impl Fn(&str) -> Option<String>,
) -> Result<(Plan, Report), Report> {
    let mut report = Report::default();
    let root = read::ConfigReader::new(&env, &mut report).text(Path::new(name), text.to_owned());
    finish(root, report)
}

/// What users call a variable, without the dollar sign; `maps` are those of its plan.
#[must_use]
pub fn variable_name(variable: &plan::Variable, maps: &[plan::Map]) -> String {
    match variable {
        plan::Variable::Map(index) => maps.get(*index).map(|map| map.name.to_string()),
        other => Some(compile::variable_name(other)),
    }
    .unwrap_or_default()
}

/// The JSON Schema of the YAML, for editors.
#[must_use]
pub fn schema() -> String {
    let schema = schemars::generate::SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<model::Config>();
    let mut text = format!("{:#}", schema.as_value());
    text.push('\n');
    text
}

fn finish(root: Option<Node>, mut report: Report) -> Result<(Plan, Report), Report> {
    let plan = root.as_ref().and_then(|root| {
        // The place of a file that is empty, or only comments, is its beginning.
        let empty = Node {
            span: root.span,
            kind: NodeKind::Mapping(Vec::new()),
        };
        let root = match root.kind {
            NodeKind::Null => &empty,
            _ => root,
        };
        if let NodeKind::Scalar(_) = root.kind {
            // Perhaps a file with a token, named by mistake.
            report.hidden_mut().add(root);
        }
        let mut context = DecodeContext::new(&mut report, model::homes);
        let config = model::Config::decode(root, &mut context)?;
        let mut plan = compile::compile(&config, &mut report);
        plan.source = view::shown(root, report.hidden()).into();
        Some(plan)
    });
    if let Some(root) = &root
        && !report.is_empty()
    {
        report.fill_paths(&root.paths());
    }
    report.hide_secrets();
    report.sort();
    match plan {
        Some(plan) if report.errors() == 0 => Ok((plan, report)),
        _ => Err(report),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOUR: &str = include_str!("../../conf/weir.yaml");

    #[test]
    fn a_setting_may_come_from_the_environment() {
        let text = "workers: ${COUNT}\nservers: { return: '${STATUS:-204}' }\n";
        let (plan, _) = load_text("weir.yaml", text, |name| {
            (name == "COUNT").then(|| "3".to_owned())
        })
        .unwrap();
        assert_eq!(plan.workers, 3);
    }

    #[test]
    fn json_is_yaml() {
        let text = r#"{ "workers": 2, "servers": [ { "listen": "8080", "return": 204 } ] }"#;
        assert!(load_text("weir.json", text, |_| None).is_ok());
    }

    proptest! {
        /// What comes out does not matter, but it comes out.
        #[test]
        fn no_text_is_too_strange(
            cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), "[ -~äß\\n\\t]{0,6}"), 1..4),
        ) {
            let mut text: Vec<char> = TOUR.chars().collect();
            for (from, length, patch) in cuts {
                let start = from.index(text.len());
                let end = (start + length.index(20)).min(text.len());
                text.splice(start..end, patch.chars());
            }
            let text: String = text.into_iter().collect();
            match load_text("weir.yaml", &text, |_| None) {
                Ok((_, report)) | Err(report) => prop_assert!(report.to_string().len() < 1 << 20),
            }
        }
    }
}
