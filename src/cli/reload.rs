//! `weir reload`: has a running weir read its configuration again, and says what came of it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;

/// Where a running weir is, and what it wants to be shown.
#[derive(Debug, clap::Args)]
pub(super) struct Flags {
    /// Where the admin listener is
    #[arg(long, default_value = "127.0.0.1:9900")]
    admin: SocketAddr,
    /// The admin listener's token; by default the variable WEIR_TOKEN
    #[arg(long)]
    token: Option<String>,
    /// Print the answer as it came
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(default)]
    error: String,
    #[serde(default)]
    report: String,
    #[serde(default)]
    generation: u64,
    #[serde(default)]
    warnings: Vec<String>,
}

/// 0 if the configuration is in force, 1 if everything is as it was.
pub(super) fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let token = flags.token.clone();
    let token = token.or_else(|| std::env::var("WEIR_TOKEN").ok());
    let (status, body) = ask(flags.admin, token.as_deref())
        .with_context(|| format!("cannot ask {}", flags.admin))?;
    let well = status == 200;
    if flags.json {
        anstream::println!("{body}");
    } else {
        let answer: Answer = serde_json::from_str(&body)
            .with_context(|| format!("{} answers {status} and no JSON", flags.admin))?;
        for warning in &answer.warnings {
            anstream::eprintln!("warning: {warning}");
        }
        match (well, answer.report.is_empty()) {
            (true, _) => anstream::println!("configuration {} is in force", answer.generation),
            (false, true) => anstream::eprintln!("weir: {}", answer.error),
            (false, false) => anstream::eprintln!("{}\n", answer.report),
        }
    }
    Ok(match well {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The status and the body of the answer.
fn ask(admin: SocketAddr, token: Option<&str>) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&admin, CONNECTED)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let token = token.map_or_else(String::new, |token| {
        format!("Authorization: Bearer {token}\r\n")
    });
    write!(
        stream,
        "POST /api/reload HTTP/1.1\r\nHost: {admin}\r\n{token}Content-Length: 0\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.take(LARGEST).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP")?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    Ok((status.context("no HTTP")?, body.to_owned()))
}

const CONNECTED: Duration = Duration::from_secs(3);

/// Names may have to be looked up.
const PATIENCE: Duration = Duration::from_secs(120);

/// In bytes.
const LARGEST: u64 = 16 << 20;
