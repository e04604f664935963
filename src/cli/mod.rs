//! The command line: arguments, dispatch, exit codes. Only this folder prints to a terminal.

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

use self::client::{AdminArgs, AdminOptions};
use self::output::UsageError;
use self::verbs::{limits, requests, upstreams};
use crate::api::BackendState;
use crate::config;

/// A reverse proxy that decides, request by request, what passes, what waits and what is refused.
#[derive(Debug, Parser)]
#[command(name = "weir", version, about)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<CliCommand>,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Refuse all requests of a key for a time
    Block(limits::BlockArgs),
    /// List circuit breakers, force one, or let it decide again
    Breaker(upstreams::BreakerArgs),
    /// Check a configuration and list every problem in it
    Check {
        /// The configuration
        #[arg(short, long, default_value = "weir.yaml")]
        config: PathBuf,
    },
    /// Print the completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// List degrade groups, or switch one
    Degrade(upstreams::DegradeArgs),
    /// Mark a server down
    Disable(upstreams::ServerArgs),
    /// Send a server no new requests; those in progress continue
    Drain(upstreams::ServerArgs),
    /// Send a server requests again
    Enable(upstreams::ServerArgs),
    /// Do not limit a key for a time
    Exempt(limits::BlockArgs),
    /// Show what would happen to a request, rule by rule; nothing is charged
    Explain(requests::ExplainArgs),
    /// Reset a key: its count and its penalty
    Forget(limits::KeyArgs),
    /// Grant a key a number of additional requests
    Grant(limits::GrantArgs),
    /// Ask the admin listener of a running weir for its health
    Health(commands::HealthArgs),
    /// List a zone's busiest or most refused keys, or show the state of one
    Keys(limits::KeysArgs),
    /// Print the manual page, or write one for every command
    Man {
        /// Folder for the pages, such as /usr/local/share/man/man1
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Show the last refusals with their reasons
    Refusals(requests::RefusalsArgs),
    /// Reload the configuration of a running weir and show the result
    Reload(AdminArgs),
    /// Show what a configuration's limits would have done to the traffic of an access log
    Replay(replay::ReplayArgs),
    /// Run the gateway; without a configuration, the embedded demo
    Run {
        /// The configuration
        #[arg(short, long)]
        config: Option<PathBuf>,
        /// Reload the configuration whenever its files change
        #[arg(long, requires = "config")]
        watch: bool,
    },
    /// Print the JSON Schema of the configuration, for editors
    Schema,
    /// Change a zone's rate, limit or burst until the next reload
    Set(limits::SetArgs),
    /// Show the status of a running weir: connections, requests, verdicts, event loops
    Status(AdminArgs),
    /// Watch zones, keys, upstreams and refusals live
    Top(AdminOptions),
    /// Remove a block
    Unblock(limits::KeyArgs),
    /// List upstreams, their servers and their states
    Upstreams(AdminArgs),
    /// List zones, or show one with its rules and marked keys
    Zones(limits::ZonesArgs),
}

/// Runs the command line. The exit status is 0 for success, 1 for a failure or problems found, 2 for an invalid command
/// line or configuration.
#[must_use]
pub fn main() -> ExitCode {
    let command_line = CommandLine::from_arg_matches(&command().get_matches());
    let command_line = command_line.unwrap_or_else(|error| error.exit());
    let demo = CliCommand::Run {
        config: None,
        watch: false,
    };
    let done = command_line.command.unwrap_or(demo).run();
    done.unwrap_or_else(|error| {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
            // The reader of our output has what it needs.
            return ExitCode::SUCCESS;
        }
        // Where standard error is gone, the exit status still tells.
        drop(writeln!(anstream::stderr(), "weir: {error:#}"));
        match error.is::<UsageError>() {
            true => ExitCode::from(2),
            false => ExitCode::FAILURE,
        }
    })
}

impl CliCommand {
    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Check { config } => return Ok(commands::check(&config)),
            Self::Replay(args) => return replay::run(args),
            Self::Run { config, watch } => return commands::run(config.as_deref(), watch),
            Self::Block(args) => args.run("block"),
            Self::Breaker(args) => args.run(),
            Self::Completions { shell } => {
                Ok(commands::completions(shell, CommandLine::command())?)
            }
            Self::Degrade(args) => args.run(),
            Self::Disable(args) => args.run(BackendState::Down),
            Self::Drain(args) => args.run(BackendState::Drain),
            Self::Enable(args) => args.run(BackendState::Up),
            Self::Exempt(args) => args.run("exempt"),
            Self::Explain(args) => args.run(),
            Self::Forget(args) => args.forget(),
            Self::Grant(args) => args.run(),
            Self::Health(args) => commands::health(&args),
            Self::Keys(args) => args.run(),
            Self::Man { dir } => commands::man(dir.as_deref(), CommandLine::command()),
            Self::Refusals(args) => args.run(),
            Self::Reload(args) => commands::reload(&args),
            Self::Schema => Ok(io::stdout().write_all(config::schema().as_bytes())?),
            Self::Set(args) => args.run(),
            Self::Status(args) => commands::status(&args),
            Self::Top(options) => top::run(&options),
            Self::Unblock(args) => args.unblock(),
            Self::Upstreams(args) => upstreams::list(&args),
            Self::Zones(args) => args.run(),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The command line, with the commands of `--help` in groups.
fn command() -> Command {
    let command = CommandLine::command();
    let (heading, literal) = (
        command.get_styles().get_header(),
        command.get_styles().get_literal(),
    );
    let mut groups = String::new();
    for (group, names) in GROUPS {
        // Writing to a string cannot fail.
        let _written = writeln!(groups, "{heading}{group}:{heading:#}");
        for name in *names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _written = writeln!(groups, "  {literal}{name:<11}{literal:#}  {about}");
        }
        groups.push('\n');
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}\n"
    ))
}

#[rustfmt::skip]
const GROUPS: &[(&str, &[&str])] = &[
    ("Run", &["run", "check", "reload", "health"]),
    ("Inspect a running weir", &["status", "top", "zones", "keys", "refusals", "explain", "upstreams"]),
    ("Change a running weir", &[
        "block", "unblock", "exempt", "grant", "forget", "set", "drain", "enable", "disable", "breaker", "degrade",
    ]),
    ("Prepare", &["replay", "schema", "completions", "man"]),
];

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let listed = GROUPS.iter().flat_map(|(_, names)| names.iter().copied());
        let mut listed: Vec<_> = listed.collect();
        listed.sort_unstable();
        let command = CommandLine::command();
        let mut names: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
        names.sort_unstable();
        assert_eq!(listed, names);
    }

    #[test]
    fn every_command_has_a_manual_page_and_is_completed() {
        let pages = tempfile::tempdir().unwrap();
        commands::man(Some(pages.path()), CommandLine::command()).unwrap();
        let mut script = Vec::new();
        let bash = clap_complete::Shell::Bash;
        clap_complete::generate(bash, &mut CommandLine::command(), "weir", &mut script);
        let script = String::from_utf8(script).unwrap();
        for command in CommandLine::command().get_subcommands() {
            let name = command.get_name();
            let page = pages.path().join(format!("weir-{name}.1"));
            let text = std::fs::read_to_string(&page).unwrap();
            assert!(text.contains(".TH"), "{name}");
            assert!(script.contains(&format!("weir,{name})")), "{name}");
        }
    }
}
