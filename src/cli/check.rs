//! `weir check`: what `nginx -t` does.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use super::paint;
use crate::config;
use crate::spool;
use crate::tls::{self, ExpiryPolicy};

/// Reads a configuration and says what it thinks of it.
#[must_use]
pub(super) fn run(path: &Path) -> ExitCode {
    let report = match config::load(path) {
        Ok((plan, mut report)) => {
            tls::check(&plan, &mut report, ExpiryPolicy::Demanded);
            spool::check(&plan, &mut report);
            report
        }
        Err(report) => report,
    };
    let verdict = match report.errors() {
        0 => Ok(()),
        problems => Err(problems),
    };
    // Nowhere is left to complain to when standard error is gone; the exit status still tells.
    let told = tell(path, &report, verdict);
    if verdict.is_ok() && told.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn tell(path: &Path, report: &config::Report, verdict: Result<(), usize>) -> std::io::Result<()> {
    if !report.is_empty() {
        paint::draw(report)?;
    }
    let mut stderr = std::io::stderr().lock();
    match verdict {
        Ok(()) => writeln!(stderr, "weir: configuration {} is fine", path.display()),
        Err(1) => writeln!(stderr, "weir: 1 problem in {}", path.display()),
        Err(problems) => writeln!(stderr, "weir: {problems} problems in {}", path.display()),
    }
}
