//! Text becomes a plan; no sockets, no runtime, no clock.
//!
//! Three steps, each in a folder of its own: [`read`] makes one tree of all files, [`decode`] makes the user's
//! [`model`] from it, [`compile`] makes the [`plan`]. None of them stops at a mistake; all of them tell the same
//! [`Report`].

mod compile;
mod decode;
pub mod model;
mod near;
pub mod plan;
mod read;
pub mod report;
mod span;
mod tree;
mod units;

use std::path::Path;

use decode::{Context, Decode};
pub use plan::Plan;
pub use report::Report;
pub use span::Span;
use tree::{Kind, Node};

/// Reads a file and all it includes.
///
/// # Errors
///
/// Everything that is wrong with it. What is only doubtful comes with the plan.
pub fn load(path: &Path) -> Result<(Plan, Report), Report> {
    let mut report = Report::default();
    let env = |name: &str| std::env::var(name).ok();
    let root = read::Reader::new(&env, &mut report).file(path);
    finish(root, report)
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
    let root = read::Reader::new(&env, &mut report).text(Path::new(name), text.to_owned());
    finish(root, report)
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
            kind: Kind::Mapping(Vec::new()),
        };
        let root = match root.kind {
            Kind::Null => &empty,
            _ => root,
        };
        let mut context = Context::new(&mut report, model::homes);
        let config = model::Config::decode(root, &mut context)?;
        Some(compile::compile(&config, &mut report))
    });
    if let Some(root) = &root
        && !report.is_empty()
    {
        report.fill_paths(&root.paths());
    }
    report.sort();
    match plan {
        Some(plan) if report.errors() == 0 => Ok((plan, report)),
        _ => Err(report),
    }
}
