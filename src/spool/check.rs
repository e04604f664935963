//! Whether temporary files can be made where the configuration wants them.

use super::disk;
use crate::config::Report;
use crate::config::plan::Plan;
use crate::config::report::Severity;

/// Tries every directory for temporary files that is named and adds what is wrong with it to the report.
pub fn check(plan: &Plan, report: &mut Report) {
    for directory in &plan.temp_paths {
        if let Err(error) = disk::open(&directory.path) {
            let path = directory.path.display();
            let sentence = format!("no file can be made in `{path}`: {error}");
            let hint = "name a directory that is there and that weir may write to";
            report.note(Severity::Error, directory.span, sentence, Some(hint));
        }
    }
}
