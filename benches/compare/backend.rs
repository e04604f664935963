//! A backend that costs next to nothing: one thread, one write an answer, bytes made beforehand.
//!
//! It runs as a process of its own, this same program started again, so that it shares nothing with what measures.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::Result;
use crate::cases::LARGE;
use crate::machine::Cores;
use crate::process::Process;

/// The argument that makes this program the backend.
pub(crate) const ARGUMENT: &str = "serve-as-backend";

/// The running backend.
#[derive(Debug)]
pub(crate) struct Backend {
    port: u16,
    _process: Process,
}

impl Backend {
    pub(crate) fn start(cores: &Cores) -> Result<Self> {
        let mut command = cores.for_load(&std::env::current_exe()?);
        command.arg(ARGUMENT).stdout(Stdio::piped());
        Self::read_port(command)
    }

    fn read_port(command: Command) -> Result<Self> {
        let mut process = Process::spawn("backend", command)?;
        let output = process.stdout().ok_or("the backend has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let port = line
            .trim()
            .parse()
            .map_err(|_| "the backend did not start")?;
        Ok(Self {
            port,
            _process: process,
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

/// Tells its port on standard output and answers until it is killed.
pub(crate) fn serve() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut output = std::io::stdout();
        writeln!(output, "{}", listener.local_addr()?.port())?;
        output.flush()?;
        let (small, large): (&'static [u8], &'static [u8]) =
            (answer(2).leak(), answer(LARGE).leak());
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(async move {
                // A proxy that hangs up has its reasons; the next connection is not affected.
                drop(exchange(stream, small, large).await);
            });
        }
    })
}

fn answer(length: usize) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nServer: backend\r\nDate: Mon, 16 Nov 2026 02:03:23 GMT\r\n\
         Content-Type: text/plain\r\nContent-Length: {length}\r\n\r\n"
    );
    let mut answer = head.into_bytes();
    answer.resize(answer.len() + length, b'x');
    answer
}

async fn exchange(
    mut stream: TcpStream,
    small: &'static [u8],
    large: &'static [u8],
) -> std::io::Result<()> {
    let mut head = Vec::with_capacity(4096);
    loop {
        head.clear();
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let answer = match head.starts_with(b"GET /100k ") {
            true => large,
            false => small,
        };
        stream.write_all(answer).await?;
    }
}
