//! The report of a replay: as text, as JSON and as a page.

mod figures;
mod html;
mod text;

pub(super) use self::figures::{ConnReplayMode, ZoneKind, ZoneReport};
pub use self::figures::{ReplayReport, duration, number, percent};

impl ReplayReport {
    /// The report as text.
    #[must_use]
    pub fn table(&self) -> String {
        text::render(self)
    }

    /// The report as JSON.
    ///
    /// # Errors
    /// None that can happen; the error is serde's.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// The report as an HTML page of one file.
    #[must_use]
    pub fn page(&self) -> String {
        html::render(self)
    }
}
