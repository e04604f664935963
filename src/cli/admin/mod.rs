//! The running weir, asked and told through its admin listener.

pub(super) mod answers;
mod http;
mod reach;

use std::fmt::Write as _;
use std::io::{self, BufRead, Read as _};
use std::time::Duration;

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::UsageError;
use crate::config::Secret;
pub(super) use reach::AdminOptions;

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
    /// Looks at something.
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self::of("GET", path, None)
    }

    /// Takes something away.
    pub(super) fn delete(path: impl Into<String>) -> Self {
        Self::of("DELETE", path, None)
    }

    /// Changes something.
    pub(super) fn patch(path: impl Into<String>, body: Value) -> Self {
        Self::of("PATCH", path, Some(body))
    }

    /// Asks something that takes words.
    pub(super) fn post(path: impl Into<String>, body: Value) -> Self {
        Self::of("POST", path, Some(body))
    }

    /// Puts something there.
    pub(super) fn put(path: impl Into<String>, body: Value) -> Self {
        Self::of("PUT", path, Some(body))
    }

    fn of(method: &'static str, path: impl Into<String>, body: Option<Value>) -> Self {
        Self {
            method,
            path: path.into(),
            body,
        }
    }
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
        match self.answer(call, PATIENCE)? {
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
        let answer = self.exchange(call, patience)?;
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
        let answer = self.exchange(call, STREAM_PATIENCE)?;
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
        Ok(self.exchange(&ApiRequest::get(path), PATIENCE)?.status == 200)
    }

    fn exchange(
        &self,
        call: &ApiRequest,
        patience: Duration,
    ) -> anyhow::Result<http::HttpResponse> {
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
        http::exchange(&self.address, request.as_bytes(), patience)
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
        #[derive(serde::Deserialize)]
        struct Problem {
            error: String,
        }
        let address = &self.address;
        let Ok(Problem { error }) = serde_json::from_str(text) else {
            return anyhow::anyhow!(
                "{address} answers {status}, and not as weir's admin listener does"
            );
        };
        let error = crate::replay::plot::visible(&error);
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
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _written = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a stream may be silent: it says something every 15 s.
const STREAM_PATIENCE: Duration = Duration::from_secs(45);

/// More than ten thousand marked keys take.
const BODY_MAX: u64 = 64 * 1024 * 1024;

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
