//! `weir health`: one question to the admin listener, for container health checks.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Context as _;

/// Asks whether it works, or whether it is ready for requests; fails if the answer is not 200.
pub(super) fn run(admin: SocketAddr, ready: bool) -> anyhow::Result<()> {
    let (path, well) = if ready {
        ("/readyz", "ready")
    } else {
        ("/healthz", "well")
    };
    let yes = ask(admin, path).with_context(|| format!("cannot ask {admin}"))?;
    anyhow::ensure!(yes, "{admin} answers, but not that it is {well}");
    Ok(())
}

fn ask(admin: SocketAddr, path: &str) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&admin, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer)?;
    Ok(answer.starts_with(b"HTTP/1.1 200 "))
}

const PATIENCE: Duration = Duration::from_secs(3);
