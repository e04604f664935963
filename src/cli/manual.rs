//! `weir man` and `weir completions`: made from the command line's own definition, so they cannot go stale.

use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Flags;

/// Writes what a shell reads to complete our command line to standard output.
///
/// # Errors
///
/// What writing there fails with.
pub(super) fn complete(shell: Shell) -> std::io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Flags::command(), "weir", &mut script);
    std::io::stdout().lock().write_all(&script)
}

/// Writes the manual page to standard output, or one for each verb to a folder.
pub(super) fn print(dir: Option<&Path>) -> anyhow::Result<()> {
    if let Some(dir) = dir {
        clap_mangen::generate_to(Flags::command(), dir)
            .with_context(|| format!("cannot write to {}", dir.display()))
    } else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Flags::command()).render(&mut page)?;
        Ok(std::io::stdout().lock().write_all(&page)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_page_and_is_completed() {
        let pages = tempfile::tempdir().unwrap();
        print(Some(pages.path())).unwrap();
        let command = Flags::command();
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Flags::command(), "weir", &mut script);
        let script = String::from_utf8(script).unwrap();
        for verb in command.get_subcommands() {
            let name = verb.get_name();
            let page = pages.path().join(format!("weir-{name}.1"));
            let text = std::fs::read_to_string(&page).unwrap();
            assert!(text.contains(".TH"), "{name}");
            assert!(script.contains(&format!("weir,{name})")), "{name}");
        }
    }
}
