//! The command line: the only room that prints to a terminal.

mod admin;
mod check;
mod groups;
mod health;
mod manual;
mod page;
mod paint;
mod replay;
mod run;
mod schema;
mod table;
mod top;
mod verbs;
mod words;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{FromArgMatches as _, Parser, Subcommand};

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
    Health(health::HealthArgs),
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
    let said = Flags::from_arg_matches(&groups::command().get_matches());
    let flags = said.unwrap_or_else(|error| error.exit());
    let done = match flags.verb.unwrap_or(demo) {
        CliCommand::Check { config } => return check::run(&config),
        CliCommand::Completions { shell } => manual::complete(shell)
            .map(|()| ExitCode::SUCCESS)
            .map_err(Into::into),
        CliCommand::Health(flags) => health::run(&flags).map(|()| ExitCode::SUCCESS),
        CliCommand::Man { dir } => manual::print(dir.as_deref()).map(|()| ExitCode::SUCCESS),
        CliCommand::Replay(flags) => replay::run(flags),
        CliCommand::Run { config, watch } => run::run(config.as_deref(), watch),
        CliCommand::Schema => schema::run()
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
