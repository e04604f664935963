//! `weir schema`: the JSON Schema of the YAML, for editors.

use std::io::Write;

use crate::config;

/// Writes the schema to standard output.
///
/// # Errors
///
/// What writing there fails with.
pub(super) fn run() -> std::io::Result<()> {
    std::io::stdout()
        .lock()
        .write_all(config::schema().as_bytes())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_schema_in_conf_is_the_one_we_print() {
        assert!(
            include_str!("../../conf/weir.schema.json") == crate::config::schema(),
            "run `weir schema > conf/weir.schema.json`"
        );
    }
}
