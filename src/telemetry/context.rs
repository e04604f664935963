//! What the error log says of the request that something befell, in nginx's words and order.
//!
//! Log readers (fail2ban and others) match these lines whole, so they are nginx's to the comma.

use std::fmt::{self, Write};

use http::header;

use crate::message::{ClientConnection, RequestRecord, headers};

/// A line about a request: `*CONNECTION message, client: …, server: …, request: "…", upstream: "…", host: "…"`, the upstream
/// by its address or name where one was asked.
#[must_use]
pub fn about(
    message: fmt::Arguments<'_>,
    exchange: &RequestRecord,
    upstream: Option<&str>,
) -> String {
    let mut line = String::with_capacity(256);
    let head = &exchange.head;
    // Writing to a string cannot fail.
    let _written = write!(
        line,
        "*{} {message}, client: {}, server: {}",
        exchange.peer.connection,
        exchange.client().text(),
        exchange.server().name,
    );
    if !exchange.unparsed {
        line.push_str(", request: \"");
        let version = head.version;
        let _written = write!(
            EscapedText(&mut line),
            "{} {} {version:?}",
            head.method,
            head.uri
        );
        line.push('"');
    }
    if let (Some(upstream), Some(forward)) = (upstream, &exchange.forward) {
        let scheme = forward.tls.map_or("http", |_| "https");
        // A path of a socket has no end of its own.
        let end = if upstream.starts_with("unix:") {
            ":"
        } else {
            ""
        };
        let _written = write!(line, ", upstream: \"{scheme}://{upstream}{end}");
        escape(&mut line, &headers::target_sent(exchange, forward));
        line.push('"');
    }
    for (name, field) in [("host", header::HOST), ("referrer", header::REFERER)] {
        if let Some(value) = head.headers.get(field) {
            let _written = write!(line, ", {name}: \"");
            escape(&mut line, value.as_bytes());
            line.push('"');
        }
    }
    line.truncate(line.floor_char_boundary(LONGEST));
    line
}

/// A line about a connection on which no request has come: `*CONNECTION message, client: …, server: …`, the server by the
/// address that was connected to.
#[must_use]
pub fn about_connection(message: fmt::Arguments<'_>, peer: &ClientConnection) -> String {
    let (number, client) = (peer.connection, peer.caller());
    match peer.local {
        Some(local) => format!("*{number} {message}, client: {client}, server: {local}"),
        None => format!("*{number} {message}, client: {client}, server: unix:"),
    }
}

/// Takes text from outside into a line, so that it can neither end it nor act on a terminal.
struct EscapedText<'a>(&'a mut String);

impl Write for EscapedText<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escape(self.0, text.as_bytes());
        Ok(())
    }
}

fn escape(line: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => {
                let _written = write!(line, "\\x{byte:02X}");
            }
            _ => line.push(char::from(byte)),
        }
    }
}

/// Where nginx cuts a line, in bytes.
const LONGEST: usize = 2048;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::plan::ProxyPass;
    use crate::message::testing;

    #[test]
    fn a_line_is_nginxs() {
        let fields = [("host", "localhost"), ("referer", "http://a/\"b")];
        let mut exchange = testing::request("GET", "/one/a?b", &fields);
        let server = exchange.server().name.clone();
        assert_eq!(
            about(format_args!("something happened"), &exchange, None),
            format!(
                "*17 something happened, client: 192.0.2.7, server: {server}, request: \"GET /one/a?b HTTP/1.1\", \
                host: \"localhost\", referrer: \"http://a/\\x22b\""
            )
        );
        exchange.forward = Some(Arc::new(ProxyPass {
            uri: Some("/two/".into()),
            replaces: 5,
            ..testing::forward()
        }));
        let line = about(format_args!("x"), &exchange, Some("127.0.0.1:1"));
        let upstream = ", upstream: \"http://127.0.0.1:1/two/a?b\", host: \"localhost\"";
        assert!(line.contains(upstream), "{line}");
        let line = about(format_args!("x"), &exchange, Some("unix:/run/a"));
        assert!(line.contains("\"http://unix:/run/a:/two/a?b\""), "{line}");
    }

    #[test]
    fn text_from_outside_cannot_forge_a_line() {
        let mut line = String::new();
        escape(&mut line, b"a\"b\\c\r\n\x1b[31m\xff");
        assert_eq!(line, r"a\x22b\x5Cc\x0D\x0A\x1B[31m\xFF");
    }

    #[test]
    fn a_long_line_is_cut() {
        let host = "h".repeat(5_000);
        let exchange = testing::request("GET", "/", &[("host", &host)]);
        assert_eq!(about(format_args!("x"), &exchange, None).len(), LONGEST);
    }
}
