//! What each path makes the backend do: its last segment names it, the query tunes it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;

use super::super::message::Head;
use super::{Connection, Next};

impl Connection {
    pub(super) fn answer(&mut self, head: &Head, index: usize) -> io::Result<Next> {
        let target = self.scripted(head.word(1));
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let query = Query(query);
        let behaviour = path.rsplit('/').next().unwrap_or_default();
        match behaviour {
            // Those that do not wait for the body come first.
            "early" => return self.early(head, index, &query),
            // Every other request, of all clients.
            "reset" | "flap" if behaviour == "reset" || index.is_multiple_of(2) => {
                SockRef::from(self.reader.source()).set_linger(Some(Duration::ZERO))?;
                return Ok(Next::Close);
            }
            "stall" => self.pass_gate(&query)?,
            _ => {}
        }
        self.read_body(head, index)?;
        match behaviour {
            "both-lengths" | "close-early" | "cut-chunked" | "garbage" | "lie-length" | "once"
            | "two-lengths" => self.misbehave(behaviour),
            "hang" => self.hang(),
            "hang-body" => {
                self.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome")?;
                self.hang()
            }
            _ => self.behave(behaviour, head, &query),
        }
    }

    fn behave(&self, behaviour: &str, head: &Head, query: &Query<'_>) -> io::Result<Next> {
        match behaviour {
            "103" => {
                self.write("HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n")?;
                self.reply("200 OK", b"ok")?;
            }
            "bytes" => self.bytes(query)?,
            "chunked" => self.chunks(query)?,
            "echo" => self.reply("200 OK", head.text.as_bytes())?,
            "fields" => self.fields(query)?,
            "hold" => {
                self.pass_gate(query)?;
                self.reply("200 OK", b"ok")?;
            }
            "hop-by-hop" => self.write(HOP_BY_HOP)?,
            "slow" => {
                std::thread::sleep(Duration::from_millis(query.number("ms", 100)));
                self.reply("200 OK", b"ok")?;
            }
            "status" => self.status(head, query.number("code", 200))?,
            "trailers" => self.write(TRAILERS)?,
            "trickle" => self.trickle(query)?,
            _ if head.word(0) == "HEAD" => {
                self.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")?
            }
            _ => self.reply("200 OK", b"ok")?,
        }
        Ok(Next::Keep)
    }

    fn misbehave(&self, behaviour: &str) -> io::Result<Next> {
        match behaviour {
            "both-lengths" => self.write(
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            )?,
            "close-early" => {
                self.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")?;
                return Ok(Next::Close);
            }
            "cut-chunked" => {
                self.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")?;
                return Ok(Next::Close);
            }
            "garbage" => {
                self.write("220 mail.example ESMTP\r\n\r\n")?;
                return Ok(Next::Close);
            }
            "lie-length" => self.write(
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged",
            )?,
            // Looks to a proxy like a kept connection that timed out here.
            "once" if self.requests > 1 => return Ok(Next::Close),
            "once" => self.reply("200 OK", b"ok")?,
            _ => {
                self.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nhello")?;
            }
        }
        Ok(Next::Keep)
    }

    /// Answers at once; only then, and only if asked to, looks at the body.
    fn early(&mut self, head: &Head, index: usize, query: &Query<'_>) -> io::Result<Next> {
        self.reply("403 Forbidden", b"no need to go on")?;
        if query.get("then") == Some("read") {
            self.read_body(head, index)?;
            return Ok(Next::Keep);
        }
        self.pass_gate(query)?;
        Ok(Next::Close)
    }

    /// The query's pairs as fields of the answer.
    fn fields(&self, query: &Query<'_>) -> io::Result<()> {
        let pairs = query.0.split('&').filter_map(|pair| pair.split_once('='));
        let fields: String = pairs
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        self.write(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{fields}\r\nok"
        ))
    }

    /// Says nothing until the other end gives up.
    fn hang(&mut self) -> io::Result<Next> {
        while !self.reader.some(1024)?.is_empty() {}
        Ok(Next::Close)
    }

    fn pass_gate(&self, query: &Query<'_>) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        shared.gates.pass(query.get("gate").unwrap_or("gate"))
    }

    /// `n` bytes; `field` is a line of the head. With a gate, the last byte is sent behind it.
    fn bytes(&self, query: &Query<'_>) -> io::Result<()> {
        let mut left = usize::try_from(query.number("n", 1000)).unwrap_or(0);
        let field = query.get("field").map(|field| format!("{field}\r\n"));
        let field = field.unwrap_or_default();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n{field}\r\n");
        self.write(head)?;
        let piece = [b'x'; 64 * 1024];
        let held = usize::from(query.get("gate").is_some());
        while left > held {
            let length = (left - held).min(piece.len());
            self.write(&piece[..length])?;
            left -= length;
        }
        if left > 0 {
            self.pass_gate(query)?;
            self.write("x")?;
        }
        Ok(())
    }

    /// `n` chunks; `field` is a line of the head; with a gate, the first is sent before it and the rest after.
    fn chunks(&self, query: &Query<'_>) -> io::Result<()> {
        let field = query.get("field").map(|field| format!("{field}\r\n"));
        let field = field.unwrap_or_default();
        self.write(format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{field}\r\n"
        ))?;
        for number in 0..query.number("n", 3) {
            if number == 1 && query.get("gate").is_some() {
                self.pass_gate(query)?;
            }
            self.write(format!("7\r\nchunk {}\r\n", number % 10))?;
        }
        self.write("0\r\n\r\n")
    }

    fn trickle(&self, query: &Query<'_>) -> io::Result<()> {
        let length = query.number("n", 10);
        self.write(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
        ))?;
        for _ in 0..length {
            std::thread::sleep(Duration::from_millis(query.number("ms", 20)));
            self.write("x")?;
        }
        Ok(())
    }

    fn status(&self, head: &Head, code: u64) -> io::Result<()> {
        let status = format!("{code} Scripted");
        match code {
            204 => self.write(format!("HTTP/1.1 {status}\r\n\r\n")),
            304 => self.write(format!("HTTP/1.1 {status}\r\nETag: \"a\"\r\n\r\n")),
            _ if head.word(0) == "HEAD" => {
                self.write(format!("HTTP/1.1 {status}\r\nContent-Length: 8\r\n\r\n"))
            }
            _ => self.reply(&status, b"scripted"),
        }
    }
}

struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        self.0
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find_map(|(n, value)| (n == name).then_some(value))
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        self.get(name)
            .and_then(|value| value.parse().ok())
            .unwrap_or(default)
    }
}

const HOP_BY_HOP: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X-Private\r\nX-Private: 1\r\n\
    Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nProxy-Authenticate: Basic\r\nX-Public: 1\r\n\r\nok";

const TRAILERS: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Checksum\r\n\r\n\
    5\r\nhello\r\n0\r\nX-Checksum: 42\r\n\r\n";
