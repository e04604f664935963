//! The client of the admin API: which admin listener a verb speaks to, the token it shows there, and one request on a plain
//! socket.
//!
//! It speaks HTTP/1.0, so that a response is never chunked: it has a length, or lasts until the connection ends, as the
//! stream of refusals does.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{UsageError, output};
use crate::api::ErrorBody;
use crate::config;
use crate::config::{Secret, plan};
use crate::text::{is_unreserved, percent_encode, visible};

/// An admin listener and what to show it.
#[derive(Debug, Clone)]
pub(super) struct AdminClient {
    address: String,
    token: Option<Secret>,
}

/// One call: what is done where, with which body.
#[derive(Debug, Clone)]
pub(super) struct ApiRequest {
    method: &'static str,
    path: String,
    body: Option<Value>,
}

impl ApiRequest {
    /// Reads something.
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self::of("GET", path, None)
    }

    /// Removes something.
    pub(super) fn delete(path: impl Into<String>) -> Self {
        Self::of("DELETE", path, None)
    }

    /// Changes something.
    pub(super) fn patch(path: impl Into<String>, body: &impl Serialize) -> Self {
        Self::of("PATCH", path, Some(json(body)))
    }

    /// Asks something, or has something done.
    pub(super) fn post(path: impl Into<String>, body: &impl Serialize) -> Self {
        Self::of("POST", path, Some(json(body)))
    }

    /// Puts something there.
    pub(super) fn put(path: impl Into<String>, body: &impl Serialize) -> Self {
        Self::of("PUT", path, Some(json(body)))
    }

    fn of(method: &'static str, path: impl Into<String>, body: Option<Value>) -> Self {
        Self {
            method,
            path: path.into(),
            body,
        }
    }
}

/// A body as JSON.
fn json(body: &impl Serialize) -> Value {
    // Only numbers, texts and maps by text: there is nothing in it that could fail.
    serde_json::to_value(body).unwrap_or_default()
}

impl AdminClient {
    fn new(address: String, token: Option<Secret>) -> Self {
        Self { address, token }
    }

    /// Where it is.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// What it answers, as it is written.
    pub(super) fn text(&self, call: &ApiRequest) -> anyhow::Result<String> {
        match self.answer(call, RESPONSE_TIMEOUT)? {
            (200, text) => Ok(text),
            (status, text) => Err(self.refused(status, &text)),
        }
    }

    /// The status and the text of its answer, whatever they are.
    pub(super) fn answer(
        &self,
        call: &ApiRequest,
        patience: Duration,
    ) -> anyhow::Result<(u16, String)> {
        let answer = self.record(call, patience)?;
        let mut bytes = Vec::new();
        answer
            .body
            .take(BODY_MAX)
            .read_to_end(&mut bytes)
            .map_err(|error| self.unreachable(&error))?;
        Ok((answer.status, String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// What it answers, read.
    pub(super) fn ask<T: DeserializeOwned>(&self, call: &ApiRequest) -> anyhow::Result<T> {
        self.read(&self.text(call)?)
    }

    /// Reads what it answered.
    pub(super) fn read<T: DeserializeOwned>(&self, text: &str) -> anyhow::Result<T> {
        serde_json::from_str(text)
            .with_context(|| format!("{} answers as no weir of this version does", self.address))
    }

    /// What it says line by line, for as long as it does.
    pub(super) fn stream(
        &self,
        call: &ApiRequest,
    ) -> anyhow::Result<impl Iterator<Item = io::Result<String>> + use<>> {
        let answer = self.record(call, STREAM_PATIENCE)?;
        if answer.status == 200 {
            return Ok(answer.body.lines());
        }
        let mut text = String::new();
        // An answer without a readable reason is told by its status.
        drop(answer.body.take(BODY_MAX).read_to_string(&mut text));
        Err(self.refused(answer.status, &text))
    }

    /// Whether a question without words is answered with 200.
    pub(super) fn says_yes(&self, path: &str) -> anyhow::Result<bool> {
        Ok(self
            .record(&ApiRequest::get(path), RESPONSE_TIMEOUT)?
            .status
            == 200)
    }

    fn record(&self, call: &ApiRequest, patience: Duration) -> anyhow::Result<HttpResponse> {
        let body = call.body.as_ref().map(Value::to_string);
        let mut request = format!(
            "{} {} HTTP/1.0\r\nHost: {}\r\n",
            call.method, call.path, self.address
        );
        // Writing to a string cannot fail.
        if let Some(token) = &self.token {
            let token = token.expose();
            let _written = write!(request, "Authorization: Bearer {token}\r\n");
        }
        if let Some(body) = &body {
            let length = body.len();
            let _written = write!(
                request,
                "Content-Type: application/json\r\nContent-Length: {length}\r\n"
            );
        }
        request.push_str("\r\n");
        request.push_str(body.as_deref().unwrap_or_default());
        record(&self.address, request.as_bytes(), patience)
            .map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &io::Error) -> anyhow::Error {
        let address = &self.address;
        match error.kind() {
            io::ErrorKind::ConnectionRefused => anyhow::anyhow!(
                "nothing listens at {address}. Does weir run, and is there an `admin` in its configuration? \
                 --config FILE finds the listener there, --admin ADDR says where it is"
            ),
            // What a socket's timeout is called depends on the system.
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                anyhow::anyhow!(
                    "{address} does not answer; --admin ADDR says where else the admin listener is"
                )
            }
            _ => anyhow::anyhow!("cannot ask {address}: {error}"),
        }
    }

    /// Why something is not done.
    pub(super) fn refused(&self, status: u16, text: &str) -> anyhow::Error {
        let address = &self.address;
        let Ok(ErrorBody { error }) = serde_json::from_str(text) else {
            return anyhow::anyhow!(
                "{address} answers {status}, and not as weir's admin listener does"
            );
        };
        let error = visible(&error);
        match (status, &self.token) {
            (400, _) => UsageError(error).into(),
            (401, None) => anyhow::anyhow!(
                "{address} wants the token: put it into WEIR_TOKEN, name a file that has it with --token-file, \
                 or the configuration with --config"
            ),
            (401, Some(_)) => {
                anyhow::anyhow!("the token is not the one that {address} was configured with")
            }
            _ => anyhow::anyhow!(error),
        }
    }
}

/// A name as it is written in a path.
pub(super) fn escape(name: &str) -> String {
    let mut text = Vec::with_capacity(name.len());
    percent_encode(name.as_bytes(), is_unreserved, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// How long an answer may take.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a stream may be silent: it says something every 15 s.
const STREAM_PATIENCE: Duration = Duration::from_secs(45);

/// More than ten thousand marked keys take.
const BODY_MAX: u64 = 64 * 1024 * 1024;

/// What came back.
pub(super) struct HttpResponse {
    pub(super) status: u16,
    pub(super) body: Box<dyn BufRead + Send>,
}

/// Sends a head and a body, and reads the head of the answer.
pub(super) fn record(
    address: &str,
    request: &[u8],
    patience: Duration,
) -> io::Result<HttpResponse> {
    let mut stream = connect(address)?;
    stream.set_write_timeout(Some(CONNECT_TIMEOUT))?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_nodelay(true)?;
    let sent = stream.write_all(request);
    let mut reader = BufReader::new(stream);
    // Whoever closes early may have said why: that says more than a broken pipe.
    match (head(&mut reader), sent) {
        (Ok((status, length)), _) => Ok(HttpResponse {
            status,
            body: match length {
                Some(length) => Box::new(reader.take(length)),
                None => Box::new(reader),
            },
        }),
        (Err(_), Err(sent)) => Err(sent),
        (Err(error), Ok(())) => Err(error),
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The status, and how long the body is where that is told.
fn head(reader: &mut impl BufRead) -> io::Result<(u16, Option<u64>)> {
    let mut head = Vec::new();
    let mut limited = reader.take(HEAD_MAX);
    while !head.ends_with(b"\r\n\r\n") && !head.ends_with(b"\n\n") {
        if limited.read_until(b'\n', &mut head)? == 0 {
            return Err(not_http());
        }
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    response.parse(&head).map_err(|_| not_http())?;
    let status = response.code.ok_or_else(not_http)?;
    let length = response
        .headers
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case("content-length"))
        .and_then(|field| std::str::from_utf8(field.value).ok()?.trim().parse().ok());
    Ok((status, length))
}

fn not_http() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it does not speak HTTP")
}

/// How long connecting and sending may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Ours are a few hundred bytes.
const HEAD_MAX: u64 = 16 * 1024;
const FIELDS_MAX: usize = 64;

/// How the running weir is found. The first that is given counts.
#[derive(Debug, Args)]
pub(super) struct AdminOptions {
    /// Where the admin listener is; else what --config says, $WEIR_ADMIN, or 127.0.0.1:9900
    #[arg(long, value_name = "ADDR", value_parser = address, help_heading = "The running weir")]
    admin: Option<String>,
    /// A file with the token; else what --config says, or $WEIR_TOKEN
    // Never the token itself: everybody on the machine can read a command line.
    #[arg(long, value_name = "FILE", help_heading = "The running weir")]
    token_file: Option<PathBuf>,
    /// The configuration it runs with, to take both from
    #[arg(short, long, value_name = "FILE", help_heading = "The running weir")]
    config: Option<PathBuf>,
}

impl AdminOptions {
    /// The listener, not yet spoken to.
    pub(super) fn admin(&self) -> anyhow::Result<AdminClient> {
        let configured = match &self.config {
            Some(path) => Some(configured(path)?),
            None => None,
        };
        let (listen, configured) = match configured {
            Some(admin) => (Some(reachable(admin.listen).to_string()), admin.token),
            None => (None, None),
        };
        let address = match self.admin.clone().or(listen) {
            Some(address) => address,
            None => match std::env::var("WEIR_ADMIN") {
                Ok(text) if !text.is_empty() => {
                    address(&text).map_err(|why| UsageError(format!("WEIR_ADMIN: {why}")))?
                }
                _ => DEFAULT.to_owned(),
            },
        };
        let token = match &self.token_file {
            Some(path) => Some(read(path)?),
            None => configured.or_else(|| {
                let token = std::env::var("WEIR_TOKEN").ok();
                token.filter(|token| !token.is_empty()).map(Secret::new)
            }),
        };
        if let Some(token) = &token
            && !token
                .expose()
                .bytes()
                .all(|byte| matches!(byte, b' '..=b'~'))
        {
            return Err(
                UsageError("the token has letters that no header can carry".to_owned()).into(),
            );
        }
        Ok(AdminClient::new(address, token))
    }
}

/// `admin` of a configuration.
fn configured(path: &Path) -> anyhow::Result<plan::Admin> {
    let (plan, _) = match config::load(path) {
        Ok(loaded) => loaded,
        Err(report) => {
            output::draw(&report)?;
            let what = format!("{} says nothing about a listener", path.display());
            return Err(UsageError(what).into());
        }
    };
    plan.admin.ok_or_else(|| {
        UsageError(format!(
            "{} has no `admin`, so there is no listener to speak to; `admin: {{ listen: {DEFAULT} }}` makes one",
            path.display()
        ))
        .into()
    })
}

/// Where to call what listens on all addresses.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

fn read(path: &Path) -> anyhow::Result<Secret> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the token from {}", path.display()))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(UsageError(format!("there is no token in {}", path.display())).into());
    }
    Ok(Secret::new(token))
}

/// `127.0.0.1:9900`, `gateway:9900`, `9900` or `http://…/`.
fn address(text: &str) -> Result<String, String> {
    let wrong = || format!("`{text}` is no address; expected one as in `{DEFAULT}`");
    if text.starts_with("https://") {
        return Err(
            "the admin listener speaks plain HTTP; come through a tunnel from elsewhere".to_owned(),
        );
    }
    let bare = text.strip_prefix("http://").unwrap_or(text);
    let bare = bare.strip_suffix('/').unwrap_or(bare);
    if bare.parse::<u16>().is_ok() {
        return Ok(format!("127.0.0.1:{bare}"));
    }
    if bare.parse::<SocketAddr>().is_ok() {
        return Ok(bare.to_owned());
    }
    let (host, port) = bare.rsplit_once(':').ok_or_else(wrong)?;
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    if host.is_empty() || !host.chars().all(is_name) || port.parse::<u16>().is_err() {
        return Err(wrong());
    }
    Ok(bare.to_owned())
}

const DEFAULT: &str = "127.0.0.1:9900";

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_name_cannot_leave_its_segment() {
        assert_eq!(escape("2001:db8::/64"), "2001%3Adb8%3A%3A%2F64");
        assert_eq!(escape("a b\r\n?#%"), "a%20b%0D%0A%3F%23%25");
        assert_eq!(escape("é"), "%C3%A9");
        assert_eq!(escape("192.0.2.7"), "192.0.2.7");
    }
}

#[cfg(test)]
mod reach_tests {

    use super::*;

    #[test]
    fn an_address_may_be_written_in_several_ways() {
        for (text, expected) in [
            ("127.0.0.1:9900", "127.0.0.1:9900"),
            ("9901", "127.0.0.1:9901"),
            ("http://127.0.0.1:9900/", "127.0.0.1:9900"),
            ("[::1]:9900", "[::1]:9900"),
            ("gateway.example:80", "gateway.example:80"),
        ] {
            assert_eq!(address(text).as_deref(), Ok(expected), "{text}");
        }
        for text in [
            "",
            "127.0.0.1",
            "::1",
            "host:",
            ":80",
            "host:99999",
            "a b:80",
            "a\r\nX: y:80",
            "user@host:80",
            "https://host:80",
        ] {
            assert!(address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_listens_everywhere_is_called_on_this_machine() {
        for (listen, expected) in [
            ("0.0.0.0:9900", "127.0.0.1:9900"),
            ("[::]:9900", "[::1]:9900"),
            ("192.0.2.1:9900", "192.0.2.1:9900"),
        ] {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), expected);
        }
    }
}
