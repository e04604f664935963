//! The client of the admin API: which admin listener a command talks to, the token, and one request on a plain socket.
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

use super::output::{self, Output, usage_error};
use crate::api::ErrorBody;
use crate::config::{self, Secret, plan};
use crate::text::{is_unreserved, percent_encode, visible};

/// An admin listener, and the token for it.
#[derive(Debug, Clone)]
pub(super) struct AdminClient {
    pub(super) address: String,
    token: Option<Secret>,
}

/// A request to the API.
#[derive(Debug, Clone)]
pub(super) struct ApiRequest {
    method: &'static str,
    path: String,
    body: Option<Value>,
}

impl ApiRequest {
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self {
            method: "GET",
            path: path.into(),
            body: None,
        }
    }

    pub(super) fn delete(path: impl Into<String>) -> Self {
        Self {
            method: "DELETE",
            ..Self::get(path)
        }
    }

    pub(super) fn with_body(
        method: &'static str,
        path: impl Into<String>,
        body: &impl Serialize,
    ) -> Self {
        Self {
            method,
            // Only numbers, texts and maps by text: nothing of it can fail.
            body: Some(serde_json::to_value(body).unwrap_or_default()),
            ..Self::get(path)
        }
    }
}

impl AdminClient {
    /// The text of a response, whose status must be 200.
    pub(super) fn text(&self, request: &ApiRequest) -> anyhow::Result<String> {
        match self.respond(request, RESPONSE_TIMEOUT)? {
            (200, text) => Ok(text),
            (status, text) => Err(self.error(status, &text)),
        }
    }

    /// The status and the text of a response, whatever they are.
    pub(super) fn respond(
        &self,
        request: &ApiRequest,
        timeout: Duration,
    ) -> anyhow::Result<(u16, String)> {
        let (status, body) = self.send(request, timeout)?;
        let mut bytes = Vec::new();
        let read = body.take(BODY_MAX).read_to_end(&mut bytes);
        read.map_err(|error| self.unreachable(&error))?;
        Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// A response, parsed.
    pub(super) fn fetch<T: DeserializeOwned>(&self, request: &ApiRequest) -> anyhow::Result<T> {
        self.parse(&self.text(request)?)
    }

    pub(super) fn parse<T: DeserializeOwned>(&self, text: &str) -> anyhow::Result<T> {
        serde_json::from_str(text).with_context(|| {
            format!(
                "the response of {} is none that this version of weir understands",
                self.address
            )
        })
    }

    /// The lines of a response as they come.
    pub(super) fn stream(
        &self,
        request: &ApiRequest,
    ) -> anyhow::Result<impl Iterator<Item = io::Result<String>> + use<>> {
        let (status, body) = self.send(request, STREAM_TIMEOUT)?;
        if status == 200 {
            return Ok(body.lines());
        }
        let mut text = String::new();
        // If the reason cannot be read, the status is shown.
        drop(body.take(BODY_MAX).read_to_string(&mut text));
        Err(self.error(status, &text))
    }

    fn send(
        &self,
        request: &ApiRequest,
        timeout: Duration,
    ) -> anyhow::Result<(u16, Box<dyn BufRead + Send>)> {
        let ApiRequest { method, path, body } = request;
        let address = &self.address;
        let mut text = format!("{method} {path} HTTP/1.0\r\nHost: {address}\r\n");
        // Writing to a string cannot fail.
        if let Some(token) = &self.token {
            let _written = write!(text, "Authorization: Bearer {}\r\n", token.expose());
        }
        let body = body.as_ref().map(Value::to_string);
        if let Some(body) = &body {
            let length = body.len();
            let _written = write!(
                text,
                "Content-Type: application/json\r\nContent-Length: {length}\r\n"
            );
        }
        text.push_str("\r\n");
        text.push_str(body.as_deref().unwrap_or_default());
        exchange(address, text.as_bytes(), timeout).map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &io::Error) -> anyhow::Error {
        let address = &self.address;
        match error.kind() {
            io::ErrorKind::ConnectionRefused => anyhow::anyhow!(
                "nothing listens at {address}. Is weir running, and does its configuration have an `admin`? \
                 --config FILE finds the listener there, --admin ADDR names its address"
            ),
            // The name of a socket's timeout depends on the system.
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => anyhow::anyhow!(
                "{address} does not respond; --admin ADDR names another address of the admin listener"
            ),
            _ => anyhow::anyhow!("cannot reach {address}: {error}"),
        }
    }

    /// The error of a response.
    pub(super) fn error(&self, status: u16, text: &str) -> anyhow::Error {
        let address = &self.address;
        let Ok(ErrorBody { error }) = serde_json::from_str(text) else {
            return anyhow::anyhow!(
                "{address} responds with {status}, and not as weir's admin listener does"
            );
        };
        let error = visible(&error);
        match (status, &self.token) {
            (400, _) => usage_error(error),
            (401, None) => anyhow::anyhow!(
                "{address} needs the token: set WEIR_TOKEN, or name a file that has it with --token-file, \
                 or the configuration with --config"
            ),
            (401, Some(_)) => anyhow::anyhow!("the token is not the one configured at {address}"),
            _ => anyhow::anyhow!(error),
        }
    }
}

/// Percent-encodes a name for a path.
pub(super) fn escape(name: &str) -> String {
    let mut text = Vec::with_capacity(name.len());
    percent_encode(name.as_bytes(), is_unreserved, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a stream may be silent: it sends something every 15 s.
const STREAM_TIMEOUT: Duration = Duration::from_secs(45);

/// More than ten thousand marked keys take.
const BODY_MAX: u64 = 64 * 1024 * 1024;

/// Sends a request, and reads the status of the response; its body is left to read.
fn exchange(
    address: &str,
    request: &[u8],
    timeout: Duration,
) -> io::Result<(u16, Box<dyn BufRead + Send>)> {
    let mut stream = connect(address)?;
    stream.set_write_timeout(Some(CONNECT_TIMEOUT))?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_nodelay(true)?;
    let sent = stream.write_all(request);
    let mut reader = BufReader::new(stream);
    // A server that closes early may have sent the reason, which says more than a broken pipe.
    match (read_headers(&mut reader), sent) {
        (Ok((status, Some(length))), _) => Ok((status, Box::new(reader.take(length)))),
        (Ok((status, None)), _) => Ok((status, Box::new(reader))),
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

/// The status, and the length of the body if it is known.
fn read_headers(reader: &mut impl BufRead) -> io::Result<(u16, Option<u64>)> {
    let mut head = Vec::new();
    let mut limited = reader.take(HEADERS_MAX);
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
    io::Error::new(io::ErrorKind::InvalidData, "the response is not HTTP")
}

/// How long connecting and sending may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// weir's have a few hundred bytes.
const HEADERS_MAX: u64 = 16 * 1024;
const FIELDS_MAX: usize = 64;

/// How to reach the running weir; what comes first counts.
#[derive(Debug, Args)]
pub(super) struct AdminOptions {
    /// Address of the admin listener; by default that of --config, $WEIR_ADMIN, or 127.0.0.1:9900
    #[arg(long, value_name = "ADDR", value_parser = address, help_heading = "The running weir")]
    admin: Option<String>,
    /// File with the token; by default that of --config, or $WEIR_TOKEN
    // Never the token itself: all users of a machine can read command lines.
    #[arg(long, value_name = "FILE", help_heading = "The running weir")]
    token_file: Option<PathBuf>,
    /// Its configuration, which has both
    #[arg(short, long, value_name = "FILE", help_heading = "The running weir")]
    config: Option<PathBuf>,
}

/// The options of all commands that talk to a running weir.
#[derive(Debug, Args)]
pub(super) struct AdminArgs {
    #[command(flatten)]
    pub(super) options: AdminOptions,
    /// Print the API's response as JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl AdminArgs {
    /// Makes a request, and prints the response: unchanged, or as `draw` shows it.
    pub(super) fn show<T: DeserializeOwned>(
        &self,
        request: &ApiRequest,
        draw: impl FnOnce(T, &mut Output),
    ) -> anyhow::Result<()> {
        self.show_with(request, |_, response, output| {
            draw(response, output);
            Ok(())
        })
    }

    /// The same for a `draw` that makes further requests.
    pub(super) fn show_with<T: DeserializeOwned>(
        &self,
        request: &ApiRequest,
        draw: impl FnOnce(&AdminClient, T, &mut Output) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let admin = self.options.client()?;
        let text = admin.text(request)?;
        if self.json {
            // Only JSON is passed on as such.
            admin.parse::<serde::de::IgnoredAny>(&text)?;
            return Ok(output::print_json(&text)?);
        }
        let mut output = Output::new();
        draw(&admin, admin.parse(&text)?, &mut output)?;
        Ok(output.print()?)
    }
}

impl AdminOptions {
    /// The client; nothing is connected yet.
    pub(super) fn client(&self) -> anyhow::Result<AdminClient> {
        let configured = self.config.as_deref().map(configured).transpose()?;
        let (listen, configured) = match configured {
            Some(admin) => (Some(reachable(admin.listen).to_string()), admin.token),
            None => (None, None),
        };
        let from_environment = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let address = match (
            self.admin.clone().or(listen),
            from_environment("WEIR_ADMIN"),
        ) {
            (Some(address), _) => address,
            (None, Some(text)) => {
                address(&text).map_err(|error| usage_error(format!("WEIR_ADMIN: {error}")))?
            }
            (None, None) => DEFAULT.to_owned(),
        };
        let token = match &self.token_file {
            Some(path) => Some(read_token(path)?),
            None => configured.or_else(|| from_environment("WEIR_TOKEN").map(Secret::new)),
        };
        let is_printable =
            |token: &Secret| token.expose().bytes().all(|it| matches!(it, b' '..=b'~'));
        if !token.as_ref().is_none_or(is_printable) {
            return Err(usage_error(
                "the token has characters that no header can carry",
            ));
        }
        Ok(AdminClient { address, token })
    }
}

/// The `admin` of a configuration.
fn configured(path: &Path) -> anyhow::Result<plan::Admin> {
    let shown = path.display();
    let (plan, _) = config::load(path).or_else(|report| {
        output::draw(&report)?;
        Err(usage_error(format!("{shown} has errors")))
    })?;
    plan.admin.ok_or_else(|| {
        usage_error(format!(
            "{shown} has no `admin`, so there is no listener to talk to; `admin: {{ listen: {DEFAULT} }}` adds one"
        ))
    })
}

/// The address to connect to; loopback for a listener on all addresses.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

fn read_token(path: &Path) -> anyhow::Result<Secret> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the token from {}", path.display()))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(usage_error(format!("{} is empty", path.display())));
    }
    Ok(Secret::new(token))
}

/// `127.0.0.1:9900`, `gateway:9900`, `9900` or `http://…/`.
fn address(text: &str) -> Result<String, String> {
    let wrong = || format!("`{text}` is not an address; expected one such as `{DEFAULT}`");
    if text.starts_with("https://") {
        return Err(
            "the admin listener speaks plain HTTP; use a tunnel from other machines".to_owned(),
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
    fn a_listener_on_all_addresses_is_reached_through_loopback() {
        for (listen, expected) in [
            ("0.0.0.0:9900", "127.0.0.1:9900"),
            ("[::]:9900", "[::1]:9900"),
            ("192.0.2.1:9900", "192.0.2.1:9900"),
        ] {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), expected);
        }
    }
}
