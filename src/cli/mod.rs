//! The command line: the only room that prints to a terminal.

mod check;
mod health;
mod manual;
mod paint;
mod reload;
mod replay;
mod run;
mod schema;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A reverse proxy that decides, request by request, what passes, what waits and what is turned away.
#[derive(Debug, Parser)]
#[command(name = "weir", version, about)]
struct Flags {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
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
    Health {
        /// Where the admin listener is
        #[arg(long, default_value = "127.0.0.1:9900")]
        admin: SocketAddr,
        /// Ask whether it takes requests, which it does not while it starts or stops
        #[arg(long)]
        ready: bool,
    },
    /// Print the manual page, or write one for every verb
    Man {
        /// A folder to write them to, such as /usr/local/share/man/man1
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Have a running weir read its configuration again, and say what came of it
    Reload(reload::Flags),
    /// Show what a configuration's limits would have done to the traffic of an access log
    Replay(replay::Flags),
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
}

/// Does what the command line says. 0: well; 1: failed, or problems found; 2: a command line or a
/// configuration that makes no sense.
#[must_use]
pub fn main() -> ExitCode {
    let demo = Verb::Run {
        config: None,
        watch: false,
    };
    let done = match Flags::parse().verb.unwrap_or(demo) {
        Verb::Check { config } => return check::run(&config),
        Verb::Completions { shell } => manual::complete(shell)
            .map(|()| ExitCode::SUCCESS)
            .map_err(Into::into),
        Verb::Health { admin, ready } => health::run(admin, ready).map(|()| ExitCode::SUCCESS),
        Verb::Man { dir } => manual::print(dir.as_deref()).map(|()| ExitCode::SUCCESS),
        Verb::Reload(flags) => reload::run(&flags),
        Verb::Replay(flags) => replay::run(flags),
        Verb::Run { config, watch } => run::run(config.as_deref(), watch),
        Verb::Schema => schema::run()
            .map(|()| ExitCode::SUCCESS)
            .map_err(Into::into),
    };
    done.unwrap_or_else(|error| {
        // With nowhere to complain to, the exit status still tells.
        drop(writeln!(anstream::stderr(), "weir: {error:#}"));
        ExitCode::FAILURE
    })
}

const DEFAULT_CONFIG: &str = "weir.yaml";
