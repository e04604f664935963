//! The command line: the only room that prints to a terminal.
//!
//! The verbs in groups, for `--help`: what belongs together stands together.

mod client;
mod commands;
mod output;
mod replay;
mod top;
mod verbs;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// A reverse proxy that decides, request by request, what passes, what waits and what is turned away.
#[derive(Debug, Parser)]
#[command(name = "weir", version, about)]
struct Flags {
    #[command(subcommand)]
    verb: Option<CliCommand>,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Check a configuration and list every problem in it
    Check {
        /// The configuration
        #[arg(short, long, default_value = DEFAULT_CONFIG)]
        config: PathBuf,
    },
    /// Print what makes a shell complete this command line
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Ask a running weir's admin listener whether it is well
    Health(commands::HealthArgs),
    /// Print the manual page, or write one for every verb
    Man {
        /// A folder to write them to, such as /usr/local/share/man/man1
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Show what a configuration's limits would have done to the traffic of an access log
    Replay(replay::ReplayArgs),
    /// Run the gateway; without a configuration, the embedded demo
    Run {
        /// The configuration
        #[arg(short, long)]
        config: Option<PathBuf>,
        /// Read the configuration again whenever its files change
        #[arg(long, requires = "config")]
        watch: bool,
    },
    /// Print the JSON Schema of the configuration, for editors
    Schema,
    #[command(flatten)]
    Running(verbs::AdminCommand),
}

/// What the user has said makes no sense.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

/// Does what the command line says. 0: well; 1: failed, or problems found; 2: a command line or a
/// configuration that makes no sense.
#[must_use]
pub fn main() -> ExitCode {
    let demo = CliCommand::Run {
        config: None,
        watch: false,
    };
    let said = Flags::from_arg_matches(&command().get_matches());
    let flags = said.unwrap_or_else(|error| error.exit());
    let done = match flags.verb.unwrap_or(demo) {
        CliCommand::Check { config } => return commands::check(&config),
        CliCommand::Completions { shell } => commands::complete(shell)
            .map(|()| ExitCode::SUCCESS)
            .map_err(Into::into),
        CliCommand::Health(flags) => commands::health(&flags).map(|()| ExitCode::SUCCESS),
        CliCommand::Man { dir } => commands::print(dir.as_deref()).map(|()| ExitCode::SUCCESS),
        CliCommand::Replay(flags) => replay::run(flags),
        CliCommand::Run { config, watch } => commands::run(config.as_deref(), watch),
        CliCommand::Schema => commands::schema()
            .map(|()| ExitCode::SUCCESS)
            .map_err(Into::into),
        CliCommand::Running(verb) => verb.run().map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        if error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        {
            // Whoever reads our output has seen enough of it.
            return ExitCode::SUCCESS;
        }
        // With nowhere to complain to, the exit status still tells.
        drop(writeln!(anstream::stderr(), "weir: {error:#}"));
        match error.is::<UsageError>() {
            true => ExitCode::from(2),
            false => ExitCode::FAILURE,
        }
    })
}

const DEFAULT_CONFIG: &str = "weir.yaml";

/// The command line, its help with the verbs in their groups.
fn command() -> Command {
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
