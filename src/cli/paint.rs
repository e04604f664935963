//! A report drawn for people: with colour on a terminal, plain everywhere else.

use std::io::Write;

use crate::config::Report;
use crate::config::report::ColorChoice;

/// Writes a report to standard error.
///
/// # Errors
///
/// What writing there fails with.
pub(super) fn draw(report: &Report) -> std::io::Result<()> {
    // anstream takes the colours out again where nobody would see them.
    let mut stderr = anstream::stderr().lock();
    writeln!(stderr, "{}\n", report.draw(ColorChoice::Coloured))
}
