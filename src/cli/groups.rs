//! The verbs in groups, for `--help`: what belongs together stands together.

use std::fmt::Write as _;

use clap::{Command, CommandFactory as _};

use super::Flags;

/// The command line, its help with the verbs in their groups.
pub(super) fn command() -> Command {
    let command = Flags::command();
    let groups = draw(&command);
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}\n"
    ))
}

fn draw(command: &Command) -> String {
    let heading = command.get_styles().get_header();
    let literal = command.get_styles().get_literal();
    let mut text = String::new();
    for (group, verbs) in GROUPS {
        // Writing to a string cannot fail.
        let _written = writeln!(text, "{heading}{group}:{heading:#}");
        for verb in *verbs {
            let about = command.find_subcommand(verb).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _written = writeln!(text, "  {literal}{verb:<11}{literal:#}  {about}");
        }
        text.push('\n');
    }
    text
}

const GROUPS: &[(&str, &[&str])] = &[
    ("Run it", &["run", "check", "reload", "health"]),
    (
        "Look into a running one",
        &[
            "status",
            "top",
            "zones",
            "keys",
            "refusals",
            "explain",
            "upstreams",
        ],
    ),
    (
        "Change a running one",
        &[
            "block", "unblock", "exempt", "grant", "forget", "set", "drain", "enable", "disable",
            "breaker", "degrade",
        ],
    ),
    ("Prepare", &["replay", "schema", "completions", "man"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_is_in_one_group() {
        let mut listed: Vec<_> = GROUPS
            .iter()
            .flat_map(|(_, verbs)| verbs.iter().copied())
            .collect();
        listed.sort_unstable();
        let command = Flags::command();
        let mut verbs: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
        verbs.sort_unstable();
        assert_eq!(listed, verbs);
    }
}
